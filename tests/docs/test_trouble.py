# SPDX-License-Identifier: Apache-2.0
"""The messages that the trouble page quotes are those that crossmem raises."""

import os
import re
import select
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from programs import run_script

import crossmem
from crossmem.conformance import actions
from crossmem.conformance.peers import Peer
from crossmem.control.loop import EventLoop
from crossmem.models import ProcessIdentity

GetPage = Callable[[str], Any]
Trigger = Callable[[], object]

ROOT = Path(__file__).parents[2]
ONES = {"w": np.ones(3)}

PRINT_ERROR = """
import os, crossmem
try:
    {line}
except crossmem.CrossmemError as error:
    print(error.message)
"""

FORKED = """
import os, crossmem
allocation = crossmem.device("host").allocate(4096)
if os.fork() == 0:
    try:
        allocation.view()
    except crossmem.CrossmemError as error:
        os.write(1, error.message.encode())
    os._exit(0)
os.wait()
"""

OUT_OF_DESCRIPTORS = """
import os, resource, crossmem
device = crossmem.device("host")
device.allocate(4096).free()
lowest = os.open("/", os.O_RDONLY)
os.close(lowest)
resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, lowest))
try:
    device.allocate(4096)
except crossmem.CrossmemError as error:
    os.write(1, error.message.encode())
os._exit(0)
"""


def pattern_of(quoted: str) -> re.Pattern[str]:
    return re.compile(".+".join(re.escape(part) for part in quoted.split("…")) + ".*", re.DOTALL)


@pytest.fixture
def quoted(page: GetPage) -> list[str]:
    """Return the messages in the first column of the page's tables."""
    return re.findall(r"^\| `([^`]+)` \|", page("how-to/trouble.md").text, re.MULTILINE)


def matching(quoted: list[str], message: str) -> list[str]:
    return [one for one in quoted if pattern_of(one).fullmatch(message)]


def printed(text: str, **environment: str) -> str:
    done = run_script(text, environment=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def raised(trigger: Trigger) -> str:
    with pytest.raises(crossmem.CrossmemError) as caught:
        trigger()
    return caught.value.message


def freed() -> bytes:
    with crossmem.device("host").allocate(4096) as allocation:
        return allocation.export().to_bytes()


def publish_a_copy() -> None:
    with crossmem.share(ONES, copy=True) as shared:
        shared.publish()


def update_with_another_shape() -> None:
    with crossmem.share(ONES, copy=True) as shared:
        shared.update({"w": np.ones(4)})


def wait_for_nothing() -> None:
    with crossmem.share(ONES, copy=True) as shared:
        shared.wait(0, timeout=0)


def wait_for_no_value() -> None:
    with crossmem.device("host").timeline() as timeline:
        timeline.wait(1, timeout=0)


def wait_for_readers_without_any() -> None:
    with crossmem.share(ONES, copy=True) as shared:
        shared.wait_for_readers(1, readers=1, timeout=0)


def signal_on_a_stream_of_the_host() -> None:
    with crossmem.device("host").timeline() as timeline:
        timeline.signal(1, stream=0)


def use_what_is_closed() -> None:
    with crossmem.share(ONES, copy=True) as shared:
        pass
    shared.wait(0)


def free_under_a_view() -> None:
    with crossmem.device("host").allocate(4096) as allocation:
        view = allocation.view()
        try:
            allocation.free()
        finally:
            view.release()


def write_to_what_is_read_only() -> None:
    with (
        crossmem.device("host").allocate(4096) as allocation,
        crossmem.attach(allocation.export(), readonly=True) as mapping,
    ):
        mapping.write(b"x")


def attach_on_another_host() -> None:
    handle = crossmem.ShareableHandle(
        backend="host",
        mechanism="memfd",
        device="host",
        owner=ProcessIdentity(os.getpid(), os.getuid(), 1, bytes(16), 1),
        access="rw",
        allocation=1,
        export=1,
        secret=bytes(16),
        nbytes=1,
        capacity=4096,
    )
    crossmem.attach(handle)


def serve_without_epoll() -> None:
    epoll = select.epoll
    del select.epoll
    try:
        EventLoop()
    finally:
        select.epoll = epoll  # type: ignore[misc]


TRIGGERS: dict[str, Trigger] = {
    "no plugin offers": lambda: crossmem.device("cdua:0"),
    "expected a device name": lambda: crossmem.device("CUDA"),
    "has no device": lambda: crossmem.device("host:3"),
    "ordinary host memory": lambda: crossmem.share(ONES),
    "cannot be shared: ": lambda: crossmem.share(np.array([object()]), copy=True),
    "which cannot be shared": lambda: crossmem.share([print], copy=True),
    "select.epoll is missing": serve_without_epoll,
    "share() copied": publish_a_copy,
    "and shape": update_with_another_shape,
    "freed this memory": lambda: crossmem.attach(freed()),
    "not a crossmem handle": lambda: crossmem.attach(b"no handle"),
    "not a shared tree": lambda: crossmem.receive(b"no tree"),
    "cannot be used any more": use_what_is_closed,
    "no version after": wait_for_nothing,
    "of the timeline was not reached": wait_for_no_value,
    "readers have acknowledged": wait_for_readers_without_any,
    "has no streams": signal_on_a_stream_of_the_host,
    "has live views": free_under_a_view,
    "is read-only": write_to_what_is_read_only,
    "on another host": attach_on_another_host,
    "has no room": lambda: crossmem.device("host").allocate(1 << 45),
}
"""What raises an error, by words that the page quotes of its message."""

PRINTED: dict[str, tuple[str, dict[str, str]]] = {
    "no GPU or NPU": ("crossmem.device()", {}),
    "cannot be used here": ("crossmem.device('cuda:0')", {}),
    "has no runtime": ("crossmem.device('cuda')", {"CROSSMEM_RUNTIME": "cuda=emulatd"}),
    "CROSSMEM_RUNTIME must be": ("crossmem.device('cuda')", {"CROSSMEM_RUNTIME": "emulated"}),
    "limit on the size of a file": (
        (
            "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (65536, 65536)); "
            "crossmem.device('host').timeline()"
        ),
        {},
    ),
    "run directory": (
        "crossmem.device('host').allocate(4096).export()",
        {"CROSSMEM_RUN_DIR": "/tmp"},
    ),
}
"""The same for errors that a process raises whose environment has these variables."""

ELSEWHERE = ("the emulated host has no room", "cannot be reached from here")
"""Words of messages that need a full file system or another network namespace."""


def check(quoted: list[str], words: str, message: str) -> None:
    assert words in message
    found = matching([one for one in quoted if words in one], message)

    assert len(found) == 1, message


@pytest.mark.parametrize("words", TRIGGERS)
def test_a_quoted_message_is_raised(words: str, quoted: list[str]) -> None:
    check(quoted, words, raised(TRIGGERS[words]))


@pytest.mark.parametrize("words", PRINTED)
def test_a_quoted_message_is_raised_in_an_environment(words: str, quoted: list[str]) -> None:
    line, environment = PRINTED[words]
    if words == "cannot be used here" and list(Path("/dev").glob("nvidia*")):
        pytest.skip("this machine has an NVIDIA GPU")
    if words == "no GPU or NPU" and crossmem.devices()[0].backend not in ("emulated", "host"):
        pytest.skip("this machine has an accelerator")

    check(quoted, words, printed(PRINT_ERROR.format(line=line), **environment))


def test_a_forked_child_raises_the_quoted_message(quoted: list[str]) -> None:
    check(quoted, "through fork", printed(FORKED))


def test_a_process_without_descriptors_raises_the_quoted_message(quoted: list[str]) -> None:
    check(quoted, "Too many open files", printed(OUT_OF_DESCRIPTORS))


def test_an_importer_raises_the_quoted_messages_of_dead_and_stopped_owners(
    quoted: list[str],
) -> None:
    with Peer("host") as owner:
        first, second = (owner.call(actions.offer, name, 4096, b"data") for name in "ab")
        crossmem.attach(first).unmap()
        owner.stop()
        check(quoted, "did not answer", raised(lambda: crossmem.attach(second, timeout=0.2)))
        owner.kill()
        owner.wait_exit()
        check(quoted, "which exported this memory,", raised(lambda: crossmem.attach(second)))


def test_an_owner_raises_the_quoted_messages_of_its_importers(quoted: list[str]) -> None:
    with Peer("host") as importer, crossmem.device("host").allocate(4096) as allocation:
        mine_alone = allocation.export(allow=crossmem.Allow(pids=[os.getpid()]))
        refused = raised(lambda: importer.call(actions.attach, "no", mine_alone.to_bytes()))
        importer.call(actions.attach, "yes", allocation.export().to_bytes())
        busy = raised(lambda: allocation.free(busy="raise"))
        importer.call(actions.unmap, "yes")

        check(quoted, "does not admit", refused)
        check(quoted, "is leased by", busy)


def test_every_quoted_message_but_these_is_tested_here(quoted: list[str]) -> None:
    tested = [*TRIGGERS, *PRINTED, *ELSEWHERE]
    tested += re.findall(r'check\(quoted, "([^"]+)"', Path(__file__).read_text("utf-8"))

    assert [one for one in quoted if not any(words in one for words in tested)] == []
    assert [words for words in tested if not any(words in one for one in quoted)] == []
    sources = [path for folder in ("core", "plugins") for path in (ROOT / folder).rglob("*.py")]
    text = "".join(path.read_text("utf-8") for path in sources)
    assert [words for words in ELSEWHERE if words not in text] == []
