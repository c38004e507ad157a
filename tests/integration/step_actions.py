# SPDX-License-Identifier: Apache-2.0
"""What peers do for test_few_steps.py."""

import contextlib
import sys
import threading
import time
from collections import Counter
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, Final, Self

import numpy as np

import crossmem
from crossmem.sharing.base.process import current

_CORE: Final = str(Path(crossmem.__file__).parent)
# Test runs alone have these: locks that assert their order, the kit, and the tracer.
_UNCOUNTED: Final = (f"{_CORE}/locks.py", f"{_CORE}/conformance/", f"{_CORE}/driver/tracing.py")


def first_attach_calls(blobs: list[bytes]) -> Counter[str]:
    """Attach each handle of an exporter; return the calls of core for the last, by function.

    The first ones connect to the exporter and import what is imported at its first use.
    """
    calls: Counter[str] = Counter()

    def note(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        file = code.co_filename
        if event == "call" and file.startswith(_CORE) and not file.startswith(_UNCOUNTED):
            calls[f"{file.removeprefix(_CORE)}:{code.co_qualname}"] += 1

    mappings = [crossmem.attach(blob) for blob in blobs[:-1]]
    sys.setprofile(note)
    try:
        mapping = crossmem.attach(blobs[-1])
    finally:
        sys.setprofile(None)
    for one in (*mappings, mapping):
        one.unmap()
    return calls


def work_beside_a_stopped_owner(stopped: bytes, other: bytes, timeout_s: float) -> list[str]:
    """Import, free and report while a thread waits for a stopped owner; return what waited too."""
    own = crossmem.device("emulated:0").allocate(4096)
    own.export()
    failures: list[Exception] = []

    def wait() -> None:
        try:
            crossmem.attach(stopped, timeout=timeout_s)
        except crossmem.CrossmemError as error:
            failures.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    # By then its request is under way.
    time.sleep(0.2)
    waited = []
    for name, work in (
        ("an import from another owner", lambda: crossmem.attach(other).unmap()),
        ("exports()", crossmem.exports),
        ("a free", own.free),
        ("collect()", crossmem.collect),
    ):
        work()
        if not waiting.is_alive():
            waited.append(name)
    waiting.join()
    assert [type(one) for one in failures] == [crossmem.OwnerUnresponsiveError]
    return waited


def steps_to_find_memory(live: int) -> tuple[int, int]:
    """Return the lines of core that adopt() and how_can_share() run beside live allocations."""
    device = crossmem.device("emulated:0")
    allocations = [device.allocate(4096) for _ in range(live)]
    views = [np.frombuffer(one.view(), np.uint8) for one in allocations]
    address = views[live // 2].ctypes.data
    found = []
    for work in (
        partial(device.adopt, address, 4096, owner=device),
        partial(crossmem.how_can_share, address, device),
    ):
        # The first look enters what is new. Memory that is crossmem's own is not adopted.
        for _ in range(2):
            with _Lines() as lines, contextlib.suppress(crossmem.UnsupportedError):
                work()
        found.append(lines.count)
    del views
    for one in allocations:
        one.free()
    assert not current().deferred.ready
    adopt, report = found
    return adopt, report


class _Lines:
    """Counts the lines of core that run."""

    def __init__(self) -> None:
        self.count = 0

    def __enter__(self) -> Self:
        sys.settrace(self._note)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def _note(self, frame: FrameType, event: str, _: Any) -> Any:
        if not frame.f_code.co_filename.startswith(_CORE):
            return None
        self.count += event == "line"
        return self._note
