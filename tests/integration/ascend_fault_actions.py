# SPDX-License-Identifier: Apache-2.0
"""What a process on emulated NPUs does while the vendor's calls fail, one after the other."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import crossmem
from crossmem.conformance import actions

NBYTES = 3 << 20
CAPACITY = 4 << 20
OUT_OF_MEMORY = 207001

CODES: dict[str, tuple[int, ...]] = {
    "rt.mem_get_allocation_granularity": (100000, 207000),
    "rt.malloc_physical": (100000, 107000, 107001, 207000, 207001, 507899),
    "rt.reserve_mem_address": (100000, 107000, 107002, 107017, 507899),
    "rt.map_mem": (100000, 107000, 207001, 507899),
    "rt.unmap_mem": (100000, 107000, 507899),
    "rt.free_physical": (100000, 107000),
    "rt.release_mem_address": (100000, 107000, 507899),
    "rt.mem_export_to_shareable_handle": (100000, 107000, 207000, 507899),
    "rt.mem_set_pid_to_shareable_handle": (100000, 107000, 107017, 207006, 507899),
    "rt.mem_import_from_shareable_handle": (100000, 107001, 107002, 107017, 207000, 507899),
    "rt.malloc": (100000, 207001, 507899),
    "rt.free": (100000, 107000, 507899),
    "rt.ipc_mem_get_export_key": (100000, 107000, 107002, 207000, 507899),
    "rt.ipc_mem_set_import_pid": (100000, 107000, 107017, 207006, 507899),
    "rt.ipc_mem_import_by_key": (100000, 107000, 107002, 207000, 507899),
    "rt.ipc_mem_close": (107002, 107017, 507899),
    "rt.memcpy": (100000, 107000, 107002, 207000, 507899),
    "rt.memcpy_async": (100000, 107000, 107002, 207000, 507899),
    "rt.create_stream": (107002, 207008, 507899),
    "rt.synchronize_stream": (107002, 107020, 507899),
    "rt.synchronize_device": (107002, 107019, 507899),
    "rt.create_context": (107001, 507899),
    "rt.destroy_context": (107002, 507899),
    "rt.destroy_stream": (107002, 507899),
    "rt.get_context": (507899,),
    "rt.set_context": (107002, 507899),
    "rt.device_enable_peer_access": (100000, 107002, 207021, 507899),
}
"""What each call that crossmem makes may answer, as far as documented or seen."""

Objects = dict[str, Any]


@dataclass
class Operation:
    """One thing that an application does, what it needs before, and what is left after."""

    act: Callable[[Objects], None]
    prepare: Callable[[Objects], None] = lambda _: None
    logs_put_back: bool = False
    """Whether it succeeds where only the thread's context cannot be put back: that comes later."""


def _acl() -> Any:
    driver: Any = actions.device().driver
    return driver._vendor.acl


def _allocate(kept: Objects) -> None:
    kept["allocation"] = actions.device().allocate(NBYTES)


def _export(kept: Objects) -> None:
    kept["allocation"].export()


def _allocate_and_export(kept: Objects) -> None:
    _allocate(kept)
    _export(kept)


def _attach(kept: Objects) -> None:
    kept["mapping"] = crossmem.attach(kept["blob"], timeout=30)


def _import(kept: Objects) -> None:
    kept["import"] = crossmem.import_handle(kept["blob"], timeout=30)


def _map(kept: Objects) -> None:
    kept["mapping"] = kept["import"].map()


def _import_and_map(kept: Objects) -> None:
    _import(kept)
    _map(kept)


def _reserve(kept: Objects) -> None:
    kept["range"] = actions.device().reserve(2 * CAPACITY)


def _reserve_for_own(kept: Objects) -> None:
    _allocate(kept)
    _reserve(kept)


def _reserve_for_import(kept: Objects) -> None:
    _import(kept)
    _reserve(kept)


def _piece(kept: Objects) -> None:
    memory = kept.get("allocation") or kept["import"]
    kept["piece"] = kept["range"].map(memory, at=CAPACITY)


def _prepare_piece(kept: Objects) -> None:
    _reserve_for_own(kept)
    _piece(kept)


def _prepare_copy(kept: Objects) -> None:
    _allocate(kept)
    _attach(kept)


def _end(name: str, method: str) -> Callable[[Objects], None]:
    return lambda kept: getattr(kept[name], method)()


OPERATIONS = {
    "allocate": Operation(_allocate),
    "export": Operation(_export, _allocate),
    "write": Operation(lambda kept: kept["allocation"].write(b"data"), _allocate),
    "read": Operation(lambda kept: kept["mapping"].read(4), _attach),
    "copy": Operation(lambda kept: kept["allocation"].copy_from(kept["mapping"]), _prepare_copy),
    "synchronize": Operation(lambda _: actions.device().synchronize()),
    "free": Operation(_end("allocation", "free"), _allocate),
    "free an export": Operation(_end("allocation", "free"), _allocate_and_export),
    "attach": Operation(_attach),
    "import": Operation(_import),
    "map": Operation(_map, _import),
    "unmap what was attached": Operation(_end("mapping", "unmap"), _attach),
    "unmap": Operation(_end("mapping", "unmap"), _import_and_map),
    "close": Operation(_end("import", "close"), _import),
    "reserve": Operation(_reserve),
    "map own memory in a range": Operation(_piece, _reserve_for_own),
    "map an import in a range": Operation(_piece, _reserve_for_import),
    "unmap in a range": Operation(_end("piece", "unmap"), _prepare_piece),
    "release a range": Operation(_end("range", "release"), _reserve, logs_put_back=True),
}

RANGES = {name for name in OPERATIONS if "range" in name or name == "reserve"}


def _clean(kept: Objects) -> None:
    for name, method in (
        ("piece", "unmap"),
        ("mapping", "unmap"),
        ("import", "close"),
        ("range", "release"),
        ("allocation", "free"),
    ):
        if name in kept:
            getattr(kept[name], method)()
    kept.clear()
    crossmem.collect()


def held() -> dict[str, Any]:
    """Return what the emulated vendor has of this process, and the thread's context."""
    process = _acl()._process
    return {
        "physical": len(process.physical),
        "pieces": len(process.space.pieces),
        "regions": len(process.space.regions),
        "keys": len(process.opened_keys),
        "contexts": len(process.contexts),
        "streams": len(process.streams),
        "used": [process.store.used_nbytes(index) for index in process.visible],
        "context": _acl().rt.get_context(),
        "violations": len(_acl().violations),
    }


def _calls_of(operation: Operation, blob: bytes) -> list[str]:
    """Return the vendor's functions that an operation calls, in order."""
    rt, calls = _acl().rt, []
    originals = dict(vars(rt))

    def noting(name: str, inner: Callable[..., Any]) -> Callable[..., Any]:
        def function(*arguments: Any) -> Any:
            calls.append(f"rt.{name}")
            return inner(*arguments)

        return function

    kept: Objects = {"blob": blob}
    operation.prepare(kept)
    for name, inner in originals.items():
        setattr(rt, name, noting(name, inner))
    try:
        operation.act(kept)
    finally:
        vars(rt).update(originals)
    kept.pop("blob")
    _clean(kept)
    return calls


def fail_everywhere(name: str, blob: bytes) -> tuple[int, list[str]]:
    """Let each call of an operation fail with each code; return how often, and what went wrong."""
    operation = OPERATIONS[name]
    # Once before, so that what is opened only once is open.
    _calls_of(operation, blob)
    calls = _calls_of(operation, blob)
    count = 0
    wrong: list[str] = []
    for index, call in enumerate(calls):
        for code in CODES[call]:
            count += 1
            wrong.extend(
                f"{name}, call {index} {call} with {code}: {text}"
                for text in _fail_once(operation, blob, call, code, calls[:index].count(call))
            )
    return count, wrong


def _fail_once(operation: Operation, blob: bytes, call: str, code: int, skip: int) -> list[str]:
    wrong: list[str] = []
    before = held()
    kept: Objects = {"blob": blob}
    operation.prepare(kept)
    # Where there is no room, allocating looks once more after it freed what waits.
    count = 2 if code == OUT_OF_MEMORY else 1
    _acl().faults.add(call, code, skip=skip, count=count, pid=os.getpid())
    try:
        operation.act(kept)
        puts_back = call in {"rt.destroy_context", "rt.set_context"}
        if not (operation.logs_put_back and puts_back):
            wrong.append("no error")
    except crossmem.CrossmemError as error:
        told = f"{error} {error.__cause__}"
        if call not in told or str(code) not in told:
            wrong.append(f"the error does not say what failed: {error!r}")
    except BaseException as error:  # noqa: BLE001 - reported
        wrong.append(f"{type(error).__name__}: {error}")
    _acl().faults.clear()
    # The next calls work; the first one puts a context back that the failing one could not.
    actions.device().synchronize()
    _clean({key: one for key, one in kept.items() if key != "blob"})
    if (after := held()) != before:
        different = {key: (before[key], after[key]) for key in before if before[key] != after[key]}
        wrong.append(f"left behind: {different}")
    again: Objects = {"blob": blob}
    try:
        operation.prepare(again)
        operation.act(again)
        again.pop("blob")
        _clean(again)
    except crossmem.CrossmemError as error:
        wrong.append(f"the next call fails: {error}")
    return wrong


def fail(call: str, code: int) -> None:
    """Let the next call of one of the vendor's functions fail in this process."""
    _acl().faults.add(call, code, pid=os.getpid())
