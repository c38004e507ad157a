# SPDX-License-Identifier: Apache-2.0
"""What a process on emulated GPUs does while the vendor's calls fail, one after the other."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import crossmem
from crossmem.conformance import actions, resources

NBYTES = 3 << 20
CAPACITY = 4 << 20
OUT_OF_MEMORY = 2

CODES: dict[str, tuple[int, ...]] = {
    "getDevice": (3, 100, 999),
    # Without 2, after which allocating tries again and may not have to change the device then.
    "setDevice": (46, 100, 101, 999),
    "streamIsCapturing": (3, 700, 906, 999),
    "malloc": (1, 2, 3, 700, 900, 999),
    "free": (1, 17, 700, 999),
    "ipcGetMemHandle": (1, 2, 205, 801, 999),
    "ipcOpenMemHandle": (1, 2, 17, 201, 205, 208, 217, 400, 711, 801, 999),
    "ipcCloseMemHandle": (1, 205, 400, 700, 801, 999),
    "memGetAddressRange": (1, 500, 999),
    "pointerGetAttributes": (999,),
    "pointerGetAttribute": (700, 999),
    "memcpy": (1, 17, 700, 719, 900, 999),
    "streamSynchronize": (400, 700, 900, 999),
    "deviceSynchronize": (700, 719, 900, 999),
    "deviceEnablePeerAccess": (1, 101, 217, 999),
    "memCreate": (1, 2, 101, 801, 999),
    "memRelease": (1, 999),
    "memRetainAllocationHandle": (1, 999),
    "memAddressReserve": (1, 2, 801, 999),
    "memAddressFree": (1, 999),
    "memMap": (1, 2, 401, 999),
    "memUnmap": (1, 900, 999),
    "memSetAccess": (1, 101, 801, 900, 999),
    "memExportToShareableHandle": (1, 600, 999),
    "memImportFromShareableHandle": (1, 800, 801, 999),
}
"""What each call that crossmem makes may answer, as far as documented or seen."""

Objects = dict[str, Any]


@dataclass
class Operation:
    """One thing that an application does, what it needs before, and what is left after."""

    act: Callable[[Objects], None]
    prepare: Callable[[Objects], None] = lambda _: None
    logs_put_back: bool = False
    """Whether it succeeds where only the thread's device cannot be put back: that comes later."""
    reports: frozenset[int] = frozenset()
    """Codes that say something of the memory that is asked about, and are no failure."""


def _driver() -> Any:
    return actions.device().driver


def _runtime() -> Any:
    return _driver()._vendor.rt


def _allocate(kept: Objects) -> None:
    kept["allocation"] = actions.device().allocate(NBYTES)


def _export(kept: Objects) -> None:
    kept["allocation"].export()


def _reserve(kept: Objects) -> None:
    kept["range"] = actions.device().reserve(2 * CAPACITY)


def _reserve_and_import(kept: Objects) -> None:
    _reserve(kept)
    _import(kept)


def _map_at(kept: Objects) -> None:
    kept["piece"] = kept["range"].map(kept["import"], at=CAPACITY)


def _map_import_at(kept: Objects) -> None:
    _reserve_and_import(kept)
    _map_at(kept)


def _prepare_own_piece(kept: Objects) -> None:
    _reserve(kept)
    _allocate(kept)


def _map_own_at(kept: Objects) -> None:
    kept["piece"] = kept["range"].map(kept["allocation"], at=0)


def _allocate_and_export(kept: Objects) -> None:
    _allocate(kept)
    _export(kept)


def _attach(kept: Objects) -> None:
    kept["mapping"] = crossmem.attach(kept["blob"], timeout=30)


def _attach_elsewhere(kept: Objects) -> None:
    other = actions.device(f"{actions.device().backend}:1")
    kept["mapping"] = crossmem.attach(kept["blob"], device=other, timeout=30)


def _import(kept: Objects) -> None:
    kept["import"] = crossmem.import_handle(kept["blob"], timeout=30)


def _map(kept: Objects) -> None:
    kept["mapping"] = kept["import"].map()


def _import_and_map(kept: Objects) -> None:
    _import(kept)
    _map(kept)


def _prepare_copy(kept: Objects) -> None:
    _allocate(kept)
    _attach(kept)


class _Memory:
    """Memory that is not crossmem's."""

    def __init__(self) -> None:
        runtime = _runtime()
        self._is_virtual = actions.device().mechanism == "vmm"
        if self._is_virtual:
            handle = runtime.memCreate(CAPACITY, 1, 1, 1, 0, 0)
            self.pointer = runtime.memAddressReserve(CAPACITY, 0, 0, 0)
            runtime.memMap(self.pointer, CAPACITY, 0, handle, 0)
            # As frameworks do that keep what they mapped, and nothing else.
            runtime.memRelease(handle)
            return
        current = runtime.getDevice()
        runtime.setDevice(0)
        self.pointer = runtime.malloc(CAPACITY)
        runtime.setDevice(current)

    def free(self) -> None:
        runtime = _runtime()
        if self._is_virtual:
            runtime.memUnmap(self.pointer, CAPACITY)
            runtime.memAddressFree(self.pointer, CAPACITY)
        else:
            runtime.free(self.pointer)


def _prepare_adoption(kept: Objects) -> None:
    kept["foreign"] = _Memory()


def _adopt(kept: Objects) -> None:
    foreign = kept["foreign"]
    kept["allocation"] = actions.device().adopt(foreign.pointer, CAPACITY, owner=foreign)


def _ask(kept: Objects) -> None:
    crossmem.how_can_share(kept["foreign"].pointer, actions.device())


def _prepare_adopted(kept: Objects) -> None:
    _prepare_adoption(kept)
    _adopt(kept)


def _end(name: str, method: str) -> Callable[[Objects], None]:
    return lambda kept: getattr(kept[name], method)()


OPERATIONS = {
    "allocate": Operation(_allocate),
    "export": Operation(_export, _allocate),
    "export raw": Operation(lambda kept: kept["allocation"].export(lease=False), _allocate),
    "write": Operation(lambda kept: kept["allocation"].write(b"data"), _allocate),
    "read": Operation(lambda kept: kept["mapping"].read(4), _attach),
    "copy": Operation(lambda kept: kept["allocation"].copy_from(kept["mapping"]), _prepare_copy),
    "synchronize": Operation(lambda _: actions.device().synchronize()),
    "free": Operation(_end("allocation", "free"), _allocate),
    "free an export": Operation(_end("allocation", "free"), _allocate_and_export),
    "attach": Operation(_attach),
    "attach for another device": Operation(_attach_elsewhere),
    "map": Operation(_map, _import),
    "unmap what was attached": Operation(_end("mapping", "unmap"), _attach),
    "unmap": Operation(_end("mapping", "unmap"), _import_and_map),
    "import": Operation(_import),
    "close": Operation(_end("import", "close"), _import),
    "adopt": Operation(_adopt, _prepare_adoption),
    "export what was adopted": Operation(_export, _prepare_adopted),
    "ask what applies": Operation(_ask, _prepare_adoption, reports=frozenset({1, 500})),
    "reserve": Operation(_reserve),
    "map at": Operation(_map_at, _reserve_and_import),
    "map own memory at": Operation(_map_own_at, _prepare_own_piece),
    "unmap at": Operation(_end("piece", "unmap"), _map_import_at),
    "release": Operation(_end("range", "release"), _reserve, logs_put_back=True),
}

RANGES = ("map at", "map own memory at", "release", "reserve", "unmap at")
ADOPTIONS = ("adopt", "ask what applies", "export what was adopted")
RAW = ("export raw",)


def _clean(kept: Objects) -> None:
    for name, method in (
        ("piece", "unmap"),
        ("range", "release"),
        ("mapping", "unmap"),
        ("import", "close"),
        ("allocation", "free"),
        ("foreign", "free"),
    ):
        if name in kept:
            getattr(kept[name], method)()
    kept.clear()
    crossmem.collect()


def offers(capability: str) -> bool:
    """Whether the device has a capability for the mechanism under test."""
    found: bool = getattr(actions.device().capabilities, capability)
    return found


def held() -> dict[str, Any]:
    """Return what the emulated vendor has of this process, and the thread's device."""
    runtime = _runtime()
    process = runtime._process
    return {
        "imports": len(process.imports),
        "handles": len(process.physical),
        "descriptors": sum("memfd" in one for one in resources.descriptors()),
        "pieces": len(process.space.pieces),
        "regions": len(process.space.regions),
        "used": [process.store.used_nbytes(index) for index in process.setup.visible],
        "device": runtime.getDevice(),
        "violations": len(runtime.violations),
    }


class _Noting:
    """The runtime, with its calls noted."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        # CuPy does not pass that question on to AMD's runtime.
        if name == "streamIsCapturing" and self._inner.is_hip:
            return found
        if name not in CODES and name in vars(self._inner) and callable(found):
            raise AssertionError(f"it is not known what {name} may answer")
        if name not in CODES:
            return found

        def function(*arguments: Any) -> Any:
            self.calls.append(name)
            return found(*arguments)

        return function


def _calls_of(operation: Operation, blob: bytes) -> list[str]:
    """Return the vendor's functions that an operation calls, in order."""
    vendor = _driver()._vendor
    kept: Objects = {"blob": blob}
    operation.prepare(kept)
    noting = _Noting(vendor.rt)
    vendor.rt = noting
    try:
        operation.act(kept)
    finally:
        vendor.rt = noting._inner
    kept.pop("blob")
    _clean(kept)
    return noting.calls


def fail_everywhere(name: str, blob: bytes) -> tuple[int, list[str]]:
    """Let each call of an operation fail with each code; return how often, and what went wrong."""
    operation = OPERATIONS[name]
    # Where another device is current, it has to be changed and put back, which can fail too.
    _runtime().setDevice(1)
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
    _runtime().faults.add(call, code, skip=skip, count=count, pid=os.getpid())
    try:
        operation.act(kept)
        is_put_back_later = operation.logs_put_back and call == "setDevice" and skip
        if not is_put_back_later and code not in operation.reports:
            wrong.append("no error")
    except crossmem.BusyError as error:
        # Code 906 is an answer to the question whether a stream is being captured.
        if not 900 <= code <= 908 or not error.hint:
            wrong.append(f"the error does not say what failed: {error!r}")
    except crossmem.UnsupportedError as error:
        # "Not known" is an answer to what memory this is.
        if code not in {1, 500, 801} or not error.hint:
            wrong.append(f"the error does not say what failed: {error!r}")
    except crossmem.CrossmemError as error:
        told = f"{error} {error.__cause__}"
        function = f"{call[0].upper()}{call[1:]}"
        if function not in told or f"({code})" not in told or "Hint: " not in told:
            wrong.append(f"the error does not say what failed: {error!r}")
    except BaseException as error:  # noqa: BLE001 - reported
        wrong.append(f"{type(error).__name__}: {error}")
    _runtime().faults.clear()
    # The next calls work; the first one puts a device back that the failing one could not.
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
