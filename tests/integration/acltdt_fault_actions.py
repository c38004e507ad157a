# SPDX-License-Identifier: Apache-2.0
"""What a process does with Ascend's queues while the vendor's calls fail, one after the other."""

import os
from collections.abc import Callable
from typing import Any

import crossmem
from crossmem.conformance import actions
from crossmem.sharing.base.process import current
from crossmem.sharing.exporter.record import Allocations

BUSY = 507899
CODES: dict[str, tuple[int, ...]] = {
    "tdt.create_queue_attr": (),
    "tdt.set_queue_attr": (100000,),
    "tdt.create_queue": (107000, 107002, 207000, 207012, BUSY),
    "tdt.destroy_queue_attr": (100000,),
    "tdt.destroy_queue": (107000, 500001, BUSY),
    "tdt.attach_queue": (107000, 200006, 207006, BUSY),
    "tdt.alloc_buf": (100000, 107000, 200006, 207001, 500001),
    "tdt.free_buf": (100000, 107000, BUSY),
    "tdt.get_buf_data": (100000, 107000),
    "tdt.get_buf_data_len": (100000, 107000),
    "tdt.set_buf_data_len": (100000, 107000),
    "tdt.set_buf_user_data": (100000, 107000),
    "tdt.get_buf_user_data": (100000, 107000),
    "tdt.enqueue": (100000, 107000, 200006, 207006, BUSY),
    "tdt.dequeue": (100000, 107000, 200006, 207005, 207006, BUSY),
    "rt.memcpy": (107000,),
    "rt.synchronize_device": (107002, 107019, BUSY),
}
"""What each call may answer. 500001, 207013 and 207014 say that a wait has ended."""

Objects = dict[str, Any]


def _queue(kept: Objects) -> None:
    kept["queue"] = actions.device().queue(2, 64)


def _open(kept: Objects) -> None:
    kept["opened"] = crossmem.open_queue(kept["blob"], device=actions.device())


def _prepare_item(kept: Objects) -> None:
    _queue(kept)
    kept["queue"].put(b"data", copy="allow", timeout=0)


def _prepare_buffer(kept: Objects) -> None:
    _queue(kept)
    kept["buffer"] = kept["queue"].allocate()


def _get(kept: Objects) -> None:
    kept["received"] = kept["queue"].get(timeout=0)


def _receive(kept: Objects) -> None:
    _prepare_item(kept)
    _get(kept)


def _nothing(_kept: Objects) -> None:
    pass


OPERATIONS: dict[str, tuple[Callable[[Objects], object], Callable[[Objects], object]]] = {
    "make": (_queue, _nothing),
    "open": (_open, _nothing),
    "allocate": (lambda kept: kept.update(buffer=kept["queue"].allocate()), _queue),
    "put": (lambda kept: kept["queue"].put(kept["buffer"], timeout=0), _prepare_buffer),
    "put a copy": (lambda kept: kept["queue"].put(b"x", copy="allow", timeout=0), _queue),
    "get": (_get, _prepare_item),
    "release": (lambda kept: kept["received"].release(), _receive),
    "close": (lambda kept: kept["queue"].close(), _queue),
    "close a full queue": (lambda kept: kept["queue"].close(), _prepare_item),
}
"""For each operation: what is done, and what is needed before."""


def _clean(kept: Objects) -> None:
    for name, method in (
        *(("received", "release"), ("buffer", "release")),
        *(("opened", "close"), ("queue", "close")),
    ):
        if name in kept:
            getattr(kept[name], method)()
    kept.clear()
    crossmem.collect()


def _acl() -> Any:
    driver: Any = actions.device().driver
    return driver._vendor.acl


def held() -> dict[str, Any]:
    """Return what the vendor and crossmem have of this process."""
    process = _acl()._process
    with process.machine.transaction() as tables:
        me = process.machine.me(tables)
        counts = [
            tables.execute(query, (me,)).fetchone()[0]
            for query in (
                "SELECT count(*) FROM acl_queue_user WHERE process = ?",
                "SELECT count(*) FROM acl_mbuf WHERE holder = ?",
            )
        ]
    return {
        "buffers": len(process.tdt.buffers),
        "objects": len(process.tdt.objects),
        "attached, mbufs": counts,
        "allocations": len(current().part(Allocations).live),
        "violations": len(_acl().violations),
    }


def _calls_of(name: str, blob: bytes) -> list[str]:
    """Return the vendor's functions that an operation calls, in order."""
    act, prepare = OPERATIONS[name]
    acl, calls = _acl(), list[str]()
    modules = {"rt": acl.rt, "tdt": acl.tdt}
    originals = {module: dict(vars(one)) for module, one in modules.items()}

    def noting(call: str, inner: Callable[..., Any]) -> Callable[..., Any]:
        def function(*arguments: Any) -> Any:
            calls.append(call)
            return inner(*arguments)

        return function

    kept: Objects = {"blob": blob}
    prepare(kept)
    for module, one in modules.items():
        for function, inner in originals[module].items():
            setattr(one, function, noting(f"{module}.{function}", inner))
    try:
        act(kept)
    finally:
        for module, one in modules.items():
            vars(one).update(originals[module])
    kept.pop("blob")
    _clean(kept)
    return [one for one in calls if one in CODES]


def fail_everywhere(name: str, blob: bytes) -> tuple[int, list[str]]:
    """Let each call of an operation fail with each code; return how often, and what went wrong."""
    # Once before, so that what is opened only once is open.
    _calls_of(name, blob)
    calls, count, wrong = _calls_of(name, blob), 0, list[str]()
    for index, call in enumerate(calls):
        for code in CODES[call]:
            count += 1
            found = _fail_once(name, blob, call, code, calls[:index].count(call))
            wrong += [f"{name}, call {index} {call} with {code}: {text}" for text in found]
    return count, wrong


def _fail_once(name: str, blob: bytes, call: str, code: int, skip: int) -> list[str]:
    act, prepare = OPERATIONS[name]
    wrong: list[str] = []
    before, kept = held(), Objects(blob=blob)
    prepare(kept)
    # A busy queue is tried again for a while.
    is_tried_again = code == BUSY and call in {"tdt.enqueue", "tdt.dequeue"}
    count = 1000 if is_tried_again else 1
    _acl().faults.add(call, code, skip=skip, count=count, pid=os.getpid())
    try:
        act(kept)
        wrong.append("no error")
    except crossmem.CrossmemError as error:
        if f"acl.{call}" not in str(error) or str(code) not in str(error) or not error.hint:
            wrong.append(f"the error does not say what failed: {error!r}")
    except BaseException as error:  # noqa: BLE001 - reported
        wrong.append(f"{type(error).__name__}: {error}")
    _acl().faults.clear()
    kept.pop("blob")
    _clean(kept)
    after = held()
    if call == "tdt.destroy_queue_attr":
        # The vendor keeps what it does not destroy.
        _acl()._process.tdt.objects.clear()
        after = held()
    if after != before:
        different = {key: (before[key], after[key]) for key in before if before[key] != after[key]}
        wrong.append(f"left behind: {different}")
    again = Objects(blob=blob)
    try:
        prepare(again)
        act(again)
        again.pop("blob")
        _clean(again)
    except crossmem.CrossmemError as error:
        wrong.append(f"the next call fails: {error}")
    return wrong


def fail(call: str, code: int) -> None:
    """Let the next call of one of the vendor's functions fail in this process."""
    _acl().faults.add(call, code, pid=os.getpid())


def die_inside(call: str, name: str) -> None:
    """Get or put, and die inside of the vendor's call."""
    _acl().faults.add(f"{call}.inside", 9, pid=os.getpid())
    use(call, name)


def use(call: str, name: str) -> None:
    """Get or put, and wait without a limit."""
    queue = actions.objects[name]
    if call == "tdt.dequeue":
        queue.get().release()
    else:
        queue.put(b"x", copy="allow")
