# SPDX-License-Identifier: Apache-2.0
"""What a process with timelines on emulated GPUs does while the vendor's calls fail, one by one."""

import gc
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import crossmem
from crossmem.conformance import actions, resources
from crossmem.conformance import streams_of_tests as streams
from crossmem.conformance.pool import settle
from crossmem.models import TimelineLevel

NBYTES = 1 << 20

CODES: dict[str, tuple[int, ...]] = {
    "hostRegister": (1, 2, 712, 801, 999),
    "hostUnregister": (1, 713, 999),
    "hostGetDevicePointer": (1, 2, 999),
    "streamWriteValue64": (1, 400, 801, 999),
    "streamWaitValue64": (1, 400, 801, 999),
    "streamSynchronize": (400, 700, 900, 999),
    "deviceSynchronize": (700, 719, 999),
    "eventCreateWithFlags": (1, 2, 999),
    "eventDestroy": (1, 400, 999),
    "eventQuery": (400, 700, 999),
    "eventRecord": (1, 400, 999),
    "streamWaitEvent": (1, 400, 999),
    "ipcGetEventHandle": (1, 2, 801, 999),
    "ipcOpenEventHandle": (1, 201, 801, 999),
}
"""What each call that a timeline makes may answer, as far as documented or seen."""

ENDURED = {("close", "eventQuery")}
"""Failures that an operation answers with a wait for all work of the device, and no error."""

_NOT_OF_TIMELINES = (
    *("getDevice", "setDevice", "streamIsCapturing"),
    *("ipcGetMemHandle", "ipcOpenMemHandle", "ipcCloseMemHandle"),
)
"""Calls that are tested with the calls for memory."""

_level: TimelineLevel = "word"
_values: dict[str, int] = {}


@dataclass
class Operation:
    """One thing that an application does with a timeline."""

    act: Callable[[dict[str, Any]], None]
    prepare: Callable[[dict[str, Any]], None]
    check: Callable[[dict[str, Any]], None] = lambda _: None
    """Raises if the operation has not done its work."""


def begin(level: TimelineLevel, blob: bytes, memory: bytes) -> None:
    """Choose the level, and take what a partner offers: a timeline and memory."""
    global _level  # noqa: PLW0603 - a process tests one level
    _level = level
    actions.objects.update(blob=blob, memory=memory)
    for name in ("stream", "other"):
        streams.new_stream(name)


def driver() -> Any:
    """Return the driver under the tracer."""
    return actions.tracer().inner


def _stream(name: str = "stream") -> Any:
    return actions.objects[name]


# Operations -------------------------------------------------------------------------------


def _make(kept: dict[str, Any]) -> None:
    kept["timeline"] = actions.device().timeline(_level)


def _signal(kept: dict[str, Any]) -> None:
    kept["timeline"].signal(kept["timeline"].value + 1, stream=_stream())


def _reached(kept: dict[str, Any]) -> None:
    _stream().synchronize()
    assert kept["timeline"].wait(1, timeout=10) >= 1


def _make_signalled(kept: dict[str, Any]) -> None:
    _make(kept)
    _signal(kept)


def _make_pending(kept: dict[str, Any]) -> None:
    """Signal on a stream that is held by another timeline."""
    _make(kept)
    kept["gate"] = gate = actions.device().timeline("word")
    gate.wait(1, stream=_stream())
    kept["timeline"].signal(1, stream=_stream())


def _signal_elsewhere(kept: dict[str, Any]) -> None:
    kept["timeline"].signal(2, stream=_stream("other"))


def _reached_in_order(kept: dict[str, Any]) -> None:
    if not kept["gate"].value:
        assert kept["timeline"].value == 0
        kept["gate"].signal(1)
    assert kept["timeline"].wait(2, timeout=10) == 2


def _open(kept: dict[str, Any]) -> None:
    kept["opened"] = crossmem.open_timeline(actions.objects["blob"], device=actions.device())


def _wait(kept: dict[str, Any]) -> None:
    kept["opened"].wait(1, stream=_stream())


def _waited(kept: dict[str, Any]) -> None:
    _stream().synchronize()
    assert not kept["opened"].void


def _open_and_wait(kept: dict[str, Any]) -> None:
    _open(kept)
    _wait(kept)
    _stream().synchronize()


def _make_awaited(kept: dict[str, Any]) -> None:
    kept["awaited"] = actions.device().timeline("word")


def _wait_for_pending(kept: dict[str, Any]) -> None:
    kept["awaited"].wait(1, stream=_stream())


def _held_until_signalled(kept: dict[str, Any]) -> None:
    kept["awaited"].signal(1)
    _stream().synchronize()


def _done(kept: dict[str, Any]) -> None:
    kept["opened"].done(_values["done"], stream=_stream())


def _open_to_acknowledge(kept: dict[str, Any]) -> None:
    _open(kept)
    _values["done"] = _values.get("done", 0) + 1


def _attach(kept: dict[str, Any]) -> None:
    kept["mapping"] = crossmem.attach(actions.objects["memory"])


def _unmap_on_a_stream(kept: dict[str, Any]) -> None:
    kept["mapping"].unmap(stream=_stream())


def _allocate(kept: dict[str, Any]) -> None:
    kept["allocation"] = actions.device().allocate(NBYTES)


def _export(kept: dict[str, Any]) -> None:
    kept["allocation"].export(stream=_stream())


OPERATIONS = {
    "signal": Operation(_signal, _make, _reached),
    "signal on another stream": Operation(_signal_elsewhere, _make_pending, _reached_in_order),
    "read the value": Operation(lambda kept: kept["timeline"].value, _make_signalled),
    "wait on the host": Operation(lambda kept: kept["opened"].wait(1), _open),
    "wait": Operation(_wait, _open, _waited),
    "wait for a pending value": Operation(_wait_for_pending, _make_awaited, _held_until_signalled),
    "acknowledge": Operation(_done, _open_to_acknowledge),
    "close": Operation(lambda kept: kept["timeline"].close(), _make_signalled),
    "close an opened one": Operation(lambda kept: kept["opened"].close(), _open_and_wait),
    "export on a stream": Operation(_export, _allocate),
    "unmap on a stream": Operation(_unmap_on_a_stream, _attach),
}


def _clean(kept: dict[str, Any]) -> None:
    for name in ("gate", "awaited"):
        if name in kept and not kept[name].closed and not kept[name].value:
            kept[name].signal(1)
    for name in ("stream", "other"):
        _stream(name).synchronize()
    for name, method in (
        ("timeline", "close"),
        ("opened", "close"),
        ("gate", "close"),
        ("awaited", "close"),
        ("mapping", "unmap"),
        ("allocation", "free"),
    ):
        if name in kept:
            getattr(kept[name], method)()
    kept.clear()
    # Tracebacks keep the objects of a call that failed.
    gc.collect()
    crossmem.collect()


def held() -> dict[str, Any]:
    """Return what the driver and the emulated vendor have of this process."""
    process = driver()._vendor.rt._process
    return {
        **actions.live(),
        "vendor's registrations": len(process.host_blocks),
        "vendor's events": len(process.events),
        "vendor's imports": len(process.imports),
        "descriptors": len(resources.descriptors()),
        "rules": actions.violations(),
        "vendor's rules": len(actions.vendor_violations() or []),
        "watching": streams.is_watching(),
    }


# Calls ------------------------------------------------------------------------------------


class _Noting:
    """The runtime, with its calls noted."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if not callable(found) or name in _NOT_OF_TIMELINES or isinstance(found, type):
            return found

        def function(*arguments: Any) -> Any:
            self.calls.append(name)
            return found(*arguments)

        return function


def _calls_during(act: Callable[[], object]) -> list[str]:
    vendor = driver()._vendor
    vendor.rt = noting = _Noting(vendor.rt)
    try:
        act()
    finally:
        vendor.rt = noting._inner
    return noting.calls


def calls_of(name: str, *, again: bool = False) -> list[str]:
    """Return the vendor's calls of an operation; `again`: of its second time in a row."""
    operation = OPERATIONS[name]
    kept: dict[str, Any] = {}
    operation.prepare(kept)
    if again:
        operation.act(kept)
    calls = _calls_during(lambda: operation.act(kept))
    _clean(kept)
    return calls


def fail_everywhere(name: str) -> tuple[list[str], list[str]]:
    """Let each call of an operation fail with each code; return the calls and what went wrong."""
    operation = OPERATIONS[name]
    for _ in range(2):
        # Once before, so that what is opened only once is open.
        kept: dict[str, Any] = {}
        operation.prepare(kept)
        calls = _calls_during(lambda kept=kept: operation.act(kept))  # type: ignore[misc]
        operation.check(kept)
        _clean(kept)
        # A watcher may still use the words of a closed timeline.
        settle(lambda: ["it watches"] if streams.is_watching() else [])
        crossmem.collect()
    wrong: list[str] = []
    for index, call in enumerate(calls):
        # What another thread does meanwhile is its own matter.
        skip = calls[:index].count(call)
        for code in CODES[call]:
            text = f"{name}, call {index} {call} with {code}"
            wrong.extend(f"{text}: {one}" for one in _fail_once(name, call, code, skip))
    return calls, wrong


def _fail_once(name: str, call: str, code: int, skip: int) -> list[str]:
    operation, wrong = OPERATIONS[name], list[str]()
    vendor = driver()._vendor
    before = held()
    kept: dict[str, Any] = {}
    operation.prepare(kept)
    vendor.rt.faults.add(call, code, skip=skip, count=1, pid=os.getpid())
    try:
        operation.act(kept)
        if (name, call) not in ENDURED:
            wrong.append("no error")
    except crossmem.CrossmemError as error:
        function = vendor.family.function(call)
        text = f"{error} {error.__cause__}"
        is_told = function in text and f"({code})" in text
        if not is_told or error.hint is None:
            wrong.append(f"the error does not say what failed: {error!r}")
        if isinstance(error, crossmem.DriverError) and (error.call, error.code) != (function, code):
            wrong.append(f"the error has other fields: {error.call}, {error.code}")
    except BaseException as error:  # noqa: BLE001 - reported
        wrong.append(f"{type(error).__name__}: {error}")
    vendor.rt.faults.clear()
    if "gate" in kept:
        # After an error, the next signal waits until it is certain what the vendor will write.
        kept["gate"].signal(1)
    # The same call works now, on the same objects.
    try:
        operation.act(kept)
        operation.check(kept)
    except (crossmem.CrossmemError, AssertionError) as error:
        wrong.append(f"the next call fails: {error!r}")
    _clean(kept)
    return wrong + settle(lambda: _left(before))


def _left(before: dict[str, Any]) -> list[str]:
    crossmem.collect()
    after = held()
    different = {key: (before[key], after[key]) for key in before if before[key] != after[key]}
    return [f"left behind: {different}"] if different else []
