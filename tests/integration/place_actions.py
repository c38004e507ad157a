# SPDX-License-Identifier: Apache-2.0
"""What peers do in places where something is missing, full or read-only."""

import ctypes
import json
import os
import signal
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

import crossmem
from crossmem.conformance import actions
from crossmem.conformance.speed import SLOWNESS
from crossmem.control import processes

if TYPE_CHECKING:
    from tests.integration import namespace_actions
else:
    import namespace_actions

_FILLER: Final = "filler"
_PR_SET_PDEATHSIG: Final = 1
_kept: list[Any] = []


def offer_fresh(*uids: int) -> bytes:
    """Export memory that is made here: what a forked child inherited is not its own."""
    allocation = crossmem.device("emulated:0").allocate(4096)
    _kept.append(allocation)
    allocation.write(b"data")
    return allocation.export(allow=crossmem.Allow(uids=uids) if uids else None).to_bytes()


def offer_and_report(path: Path, *, is_old: bool, proc: bool) -> bytes:
    """Export; write to a file who has the first lease, and another file when it has ended."""
    if proc:
        namespace_actions.mount_proc()
    if is_old:
        be_old()
    blob = offer_fresh()
    threading.Thread(target=_report, args=(path,), daemon=True).start()
    return blob


def _report(path: Path) -> None:
    found: list[crossmem.LeaseInfo] = []
    while not found:
        time.sleep(0.01)
        found = [lease for info in crossmem.exports() for lease in info.leases]
    end = crossmem.device("emulated:0").capabilities.lease_end
    unfinished = path.with_suffix(".part")
    unfinished.write_text(json.dumps([[(one.pid, one.ends_with) for one in found], end]), "utf-8")
    unfinished.rename(path)
    while found:
        time.sleep(0.01)
        found = [lease for info in crossmem.exports() for lease in info.leases]
    path.with_suffix(".end").touch()


def attach_and_read(blob: bytes) -> bytes:
    """Attach, and return what is there."""
    with crossmem.attach(blob, timeout=5 * SLOWNESS) as mapping:
        return bytes(mapping.read(4))


def share_and_receive() -> None:
    """Share an array, which is copied."""
    # Its library starts threads, and only a process without threads may leave its namespaces.
    import numpy as np

    crossmem.share(np.ones(4), copy="allow").close()


def be_old() -> None:
    """Let this process take the kernel for one before 6.5."""
    pytest.MonkeyPatch().setattr(processes, "_SO_PEERPIDFD", 9999)


def see_only_inner_processes() -> None:
    """Allocate where /proc shows a pid namespace that has no entry for this process."""
    namespace_actions.own_mounts("pid")
    reading, writing = os.pipe()
    if not os.fork():
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        # The mount namespace is that of both, the pid namespace is the child's alone.
        namespace_actions.mount_here("/proc", "proc")
        os.write(writing, b"mounted")
        signal.pause()
    os.close(writing)
    assert os.read(reading, 10) == b"mounted"
    os.close(reading)
    actions.allocate("memory", 4096)


def fill(folder: str, room: int) -> None:
    """Leave so many bytes in a file system."""
    descriptor = os.open(Path(folder, _FILLER), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    with suppress(OSError):
        while True:
            os.write(descriptor, bytes(4096))
    os.ftruncate(descriptor, os.fstat(descriptor).st_size - room)
    os.close(descriptor)


def make_room(folder: str) -> None:
    """Undo :func:`fill`."""
    Path(folder, _FILLER).unlink()


def use_once(device: str) -> bytes:
    """Allocate on an emulated vendor's device, and read what was written."""
    with crossmem.device(device, runtime="emulated").allocate(4096) as allocation:
        allocation.write(b"data")
        allocation.export()
        return bytes(allocation.read(4))


def use_until_full(device: str) -> None:
    """Allocate on an emulated vendor's device until that is refused, and free it all."""
    allocations: list[crossmem.Allocation] = []
    try:
        for _ in range(3000):
            allocations.append(crossmem.device(device, runtime="emulated").allocate(4096))
            allocations[-1].export()
    finally:
        _kept.extend(allocations)
