# SPDX-License-Identifier: Apache-2.0
"""What peers do for test_few_steps.py."""

import contextlib
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, Final, Self

import numpy as np
import pytest

import crossmem
from crossmem.conformance import actions
from crossmem.control.link import Link
from crossmem.sharing.base.process import current

_CORE: Final = str(Path(crossmem.__file__).parent)
# Test runs alone have these: locks that assert their order, the kit, and the tracer.
_UNCOUNTED: Final = (f"{_CORE}/locks.py", f"{_CORE}/conformance/", f"{_CORE}/driver/tracing.py")


class Steps:
    """Counts the calls of core, by function, and of C functions that can reach the kernel."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.kernel: list[str] = []

    def note(self, frame: FrameType, event: str, what: Any) -> None:
        """Count one call; for :func:`sys.setprofile`."""
        code = frame.f_code
        file = code.co_filename
        if not file.startswith(_CORE) or file.startswith(_UNCOUNTED):
            return
        if event == "call":
            self.calls[f"{file.removeprefix(_CORE)}:{code.co_qualname}"] += 1
        elif event == "c_call" and _reaches_the_kernel(what):
            self.kernel.append(what.__qualname__)

    def count(self, operation: Callable[[], object]) -> "Steps":
        """Count the steps of an operation."""
        sys.setprofile(self.note)
        try:
            operation()
        finally:
            sys.setprofile(None)
        return self


def _reaches_the_kernel(function: Any) -> bool:
    of = type(getattr(function, "__self__", None)).__module__
    return function.__module__ in {"posix", "fcntl", "mmap", "select"} or of in {
        "_socket",
        "select",
    }


def last_unmap_steps(blobs: list[bytes]) -> tuple[Counter[str], list[str]]:
    """Attach and unmap each handle; return the calls of the last unmap, and those to the kernel."""
    for blob in blobs:
        mapping = crossmem.attach(blob)
        steps = Steps().count(mapping.unmap)
    return steps.calls, steps.kernel


def free_steps(name: str) -> Counter[str]:
    """Return the calls of freeing memory."""
    return Steps().count(actions.objects[name].free).calls


def messages_of_an_attach(blob: bytes) -> list[str]:
    """Attach, and return the messages that the connection to the exporter carried."""
    carried: list[str] = []

    def noted(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def noting(*arguments: Any) -> Any:
            carried.append(name)
            return call(*arguments)

        return noting

    with pytest.MonkeyPatch.context() as patch:
        for name in ("send", "send_now", "take"):
            patch.setattr(Link, name, noted(name, getattr(Link, name)))
        crossmem.attach(blob).unmap()
    return carried


def first_attach_calls(blobs: list[bytes]) -> Counter[str]:
    """Attach each handle of an exporter; return the fewest calls of core for one, by function.

    The first one connects to the exporter and imports what is imported at its first use. A busy
    machine makes later ones wait for a reply, which takes more calls.
    """
    mappings: list[crossmem.Mapping] = []

    def attach(blob: bytes) -> None:
        mappings.append(crossmem.attach(blob))

    steps = [Steps().count(partial(attach, blob)).calls for blob in blobs]
    for one in mappings:
        one.unmap()
    return min(steps[1:], key=Counter.total)


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
