# SPDX-License-Identifier: Apache-2.0
"""A full /dev/shm: the emulations say so, and blame no vendor."""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import crossmem
from crossmem.conformance import actions
from crossmem.conformance.peers import Peer
from crossmem.conformance.speed import SLOWNESS

if TYPE_CHECKING:
    from tests.integration import namespace_actions, place_actions
    from tests.integration.conftest import StartPeer
else:
    import namespace_actions
    import place_actions

NBYTES = 4096
MAX_TEXT = 200

_NO_MOUNTS = namespace_actions.why_not("mount")

needs_mounts = pytest.mark.skipif(
    _NO_MOUNTS is not None, reason=f"no mount namespaces here: {_NO_MOUNTS}"
)


def refusal(kind: type[crossmem.CrossmemError], call: Callable[[], object]) -> str:
    """Return the one line that an error of a peer says, and its hint."""
    with pytest.raises(kind) as caught:
        call()
    assert "\n" not in caught.value.message
    assert caught.value.hint is not None
    assert len(caught.value.hint) <= MAX_TEXT
    return str(caught.value)


def attaches(importer: Peer, blob: bytes) -> None:
    importer.call(actions.attach, "mapped", blob, timeout=5 * SLOWNESS)
    assert importer.call(actions.read, "mapped", 4) == b"data"
    importer.call(actions.unmap, "mapped")


@needs_mounts
@pytest.mark.parametrize("runtime", ["hip:0", "ascend:0"])
@pytest.mark.parametrize("room", [0, 8192, 40960, 65536])
def test_a_full_shared_memory_is_not_blamed_on_the_vendor(
    start_peer: "StartPeer", runtime: str, room: int
) -> None:
    peer = start_peer(tracing=False, CROSSMEM_EMULATED_STATE=None)
    peer.call(namespace_actions.mount_over, "/dev/shm", "tmpfs", "size=1m,mode=1777")
    peer.call(place_actions.fill, "/dev/shm", room)

    text = refusal(
        crossmem.OutOfMemoryError, lambda: peer.call(place_actions.use_until_full, runtime)
    )

    assert "/dev/shm" in text
    assert "CROSSMEM_EMULATED_STATE" in text
    for word in ("ROCm", "AMD", "ACL", "CANN", "driver", "rocminfo"):
        assert word not in text
    # The plain emulated backend needs no room there.
    attaches(start_peer(), peer.call(actions.offer, "memory", NBYTES, b"data"))
    peer.call(place_actions.make_room, "/dev/shm")
    assert peer.call(place_actions.use_once, runtime) == b"data"


@needs_mounts
@pytest.mark.parametrize("runtime", ["hip:0", "ascend:0"])
def test_shared_memory_that_fills_up_later_is_named_and_spoils_nothing(
    start_peer: "StartPeer", runtime: str
) -> None:
    peer = start_peer(tracing=False, CROSSMEM_EMULATED_STATE=None)
    peer.call(namespace_actions.mount_over, "/dev/shm", "tmpfs", "size=4m,mode=1777")
    assert peer.call(place_actions.use_once, runtime) == b"data"
    peer.call(place_actions.fill, "/dev/shm", 0)

    text = refusal(
        crossmem.OutOfMemoryError, lambda: peer.call(place_actions.use_until_full, runtime)
    )

    assert "/dev/shm" in text
    peer.call(place_actions.make_room, "/dev/shm")
    assert peer.call(place_actions.use_once, runtime) == b"data"


@needs_mounts
def test_a_folder_of_an_emulated_host_that_cannot_be_written_is_named(
    start_peer: "StartPeer", tmp_path: Path
) -> None:
    peer = start_peer(tracing=False, CROSSMEM_EMULATED_STATE=str(tmp_path / "host"))
    (tmp_path / "host").mkdir(mode=0o700)
    peer.call(namespace_actions.make_readonly, str(tmp_path))

    text = refusal(crossmem.ConfigurationError, lambda: peer.call(place_actions.use_once, "hip:0"))

    assert str(tmp_path) in text
    assert "CROSSMEM_EMULATED_STATE" in text


@needs_mounts
@pytest.mark.parametrize("api", ["hip", "ascend"])
@pytest.mark.parametrize("room", [0, 8192, 65536])
def test_the_command_names_a_full_shared_memory(api: str, room: int) -> None:
    done = run_with_small_shared_memory(room, "crossmem", "emulate", api, "--", "true")

    assert done.returncode not in {0, -7}, done.stderr
    last = done.stderr.splitlines()[-2:]
    assert "/dev/shm/" in last[0]
    assert "full" in last[0] or "No space left" in last[0]
    assert last[1].startswith("hint: ")
    assert "--shm-size" in last[1]
    assert not re.search("ROCm|AMD|CANN|Traceback", done.stderr)


PROGRAM = """
import ctypes
library = ctypes.CDLL("libamdhip64.so")
pointer = ctypes.c_void_p()
assert library.hipMalloc(ctypes.byref(pointer), 4096) == 0
file = open("/dev/shm/filler", "wb", buffering=0)
try:
    while True:
        file.write(bytes(4096))
except OSError:
    pass
for _ in range(3000):
    code = library.hipMalloc(ctypes.byref(pointer), 4096 << 10)
    if code:
        break
print(code)
file.truncate(0)
assert library.hipMalloc(ctypes.byref(pointer), 4096) == 0
"""


@needs_mounts
def test_a_program_in_c_is_told_of_a_full_shared_memory() -> None:
    done = run_with_small_shared_memory(
        None, "crossmem", "emulate", "hip", "--", sys.executable, "-c", PROGRAM
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["999"]
    (line,) = [one for one in done.stderr.splitlines() if "no room" in one]
    assert "/dev/shm/" in line
    assert "Traceback" not in done.stderr


def run_with_small_shared_memory(
    room: int | None, *command: str
) -> "subprocess.CompletedProcess[str]":
    """Run a command of crossmem's in a mount namespace with so many bytes left in /dev/shm."""
    script = (
        "import runpy, sys; import namespace_actions, place_actions; "
        "namespace_actions.mount_over('/dev/shm', 'tmpfs', 'size=1m,mode=1777'); "
        f"room = {room}; "
        "room is None or place_actions.fill('/dev/shm', room); "
        "sys.argv = sys.argv[1:]; runpy.run_module('crossmem', run_name='__main__')"
    )
    environment: dict[str, Any] = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)]),
    }
    environment.pop("CROSSMEM_EMULATED_STATE", None)
    return subprocess.run(
        [sys.executable, "-c", script, *command],
        capture_output=True,
        text=True,
        check=False,
        timeout=50 * SLOWNESS,
        env=environment,
    )
