# SPDX-License-Identifier: Apache-2.0
"""The emulation and an installed CuPy agree: functions, arguments, constants, errors.

No device is needed: CuPy looks at arguments before it calls anything.
"""

import pickle
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from crossmem_emulated.hip import CUDARuntimeError, Runtime
from crossmem_emulated.hip.calls import ENTRIES
from crossmem_emulated.hip.codes import HipBuildRuntimeError, constants_of
from crossmem_emulated.options import Options

OUR_OWN = {"memGetAddressRange", "pointerGetAttribute"}
# Contexts, and what else programs in C call.
OUR_OWN |= {"ctxCreate", "ctxDestroy", "ctxGetCurrent", "ctxSetCurrent"}
OUR_OWN |= {"ctxPopCurrent", "ctxPushCurrent", "init", "deviceReset", "deviceGetUuid"}
OUR_OWN |= {"devicePrimaryCtxGetState", "devicePrimaryCtxRelease", "devicePrimaryCtxRetain"}
OUR_OWN |= {"devicePrimaryCtxReset", "devicePrimaryCtxSetFlags"}
OUR_OWN |= {"mallocPitch", "memset2D", "memset2DAsync", "pointerSetAttribute"}
OUR_OWN |= {"deviceGetCacheConfig", "deviceSetCacheConfig", "getDeviceFlags", "setDeviceFlags"}
OUR_OWN |= {"deviceGetSharedMemConfig", "deviceSetSharedMemConfig"}
OUR_OWN |= {"memPoolGetAccess", "memPoolSetAccess", "threadExchangeStreamCaptureMode"}
OUR_OWN |= {"streamGetCaptureInfo"}
OUR_OWN |= {"memPoolExportToShareableHandle", "memPoolImportFromShareableHandle"}
OUR_OWN |= {"memPoolExportPointer", "memPoolImportPointer"}
OUR_OWN |= {"extMallocWithFlags", "memcpyWithStream"}
OUR_OWN |= {"memcpy_spt", "memcpy2D_spt", "memcpy3D_spt"}
OUR_OWN |= {"memset_spt", "memset2D_spt", "memset3D", "memset3DAsync", "memset3D_spt"}
OUR_OWN |= {"deviceGetStreamPriorityRange", "streamGetDevice"}
OUR_OWN |= {"hostGetDevicePointer", "hostGetFlags"}
OUR_OWN |= {"streamWaitValue32", "streamWaitValue64", "streamWriteValue32", "streamWriteValue64"}
OUR_OWN |= {"memsetD16", "memsetD16Async", "memsetD32", "memsetD32Async"}
# Virtual memory.
OUR_OWN |= {"memCreate", "memGetAllocationGranularity", "memRelease", "memRetainAllocationHandle"}
OUR_OWN |= {"memAddressFree", "memAddressReserve", "memMap", "memUnmap"}
OUR_OWN |= {"memGetAccess", "memSetAccess", "memGetAllocationPropertiesFromHandle"}
OUR_OWN |= {"memExportToShareableHandle", "memImportFromShareableHandle"}
SHARED = sorted(set(ENTRIES) - OUR_OWN)
# Arrays, textures, pools, graphs, callbacks and the profiler have no part in sharing memory.
LEFT_OUT = (
    "Array",
    "2D",
    "3D",
    "TextureObject",
    "SurfaceObject",
    "Pool",
    "graph",
    "profiler",
    "Callback",
    "HostFunc",
    "Limit",
    "Priority",
    "hostRegister",
    "hostUnregister",
    "memAdvise",
    "memPrefetch",
    "memcpyPeerAsync",
    "pointerGetMemoryType",
    "streamGetFlags",
)


@pytest.fixture(scope="module")
def wheel() -> Any:
    return pytest.importorskip(
        "cupy_backends.cuda.api.runtime", reason="CuPy is not installed", exc_type=ImportError
    )


@pytest.fixture
def ours(tmp_path: Path, wheel: Any) -> Iterator[Runtime]:
    runtime = Runtime("documented" if wheel.is_hip else "cuda", options=Options(state=tmp_path))
    yield runtime
    runtime.machine.close()


def outcome(function: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> tuple[str, str]:
    """Return the class and text of what Python raises; what the vendor answers is left out."""
    try:
        function(*arguments, **named)
    except RuntimeError:
        pass
    except Exception as error:  # noqa: BLE001 - any is compared
        return type(error).__name__, str(error)
    return "", ""


def test_functions_have_the_same_signatures(wheel: Any) -> None:
    for name in SHARED:
        assert ENTRIES[name].signature == getattr(wheel, name).__doc__.splitlines()[0]


def test_all_functions_are_here_or_left_out_on_purpose(wheel: Any) -> None:
    missing = {
        name
        for name in dir(wheel)
        if not name.startswith("_")
        and callable(getattr(wheel, name))
        and not hasattr(Runtime, name)
    } - {*ENTRIES, "CUDARuntimeError", "MemPoolProps"}

    assert {name for name in missing if not any(part in name for part in LEFT_OUT)} == set()


def test_constants(wheel: Any) -> None:
    constants = constants_of(is_hip=wheel.is_hip)

    assert {name: getattr(wheel, name) for name in constants} == constants


class Odd:
    """Turned into a number by ``__index__`` only."""

    def __index__(self) -> int:
        return 5


class Small:
    """Turned into a number by ``__int__``, as numpy's integers are."""

    def __init__(self, value: int) -> None:
        self.value = value

    def __int__(self) -> int:
        return self.value


VALUES: dict[str, list[Any]] = {
    "intptr_t": [None, "x", b"1", 1 << 63, -(1 << 63) - 1, 1 << 70, Odd(), [], 1.5, Small(5)],
    "size_t": [None, "x", -1, 1 << 64, 1 << 70, -(1 << 70), Odd()],
    "int": [None, "x", 1 << 31, -(1 << 31) - 1, 1 << 63, 1 << 64, Odd()],
    "unsigned int": [None, "x", -1, 1 << 32, 1 << 64, 1 << 70],
    "bytes": [None, "a" * 64, bytearray(64), memoryview(bytes(64)), b"", bytes(63), bytes(65), 1],
    "str": [None, b"0000:03:00.0", 3],
}
PLAIN: dict[str, Any] = {"bytes": bytes(64), "str": "0000:03:00.0", "callback": print}


@pytest.mark.parametrize("name", SHARED)
def test_arguments_are_refused_alike(wheel: Any, ours: Runtime, name: str) -> None:
    theirs, mine = getattr(wheel, name), getattr(ours, name)
    parameters = ENTRIES[name].parameters
    plain = tuple(PLAIN.get(one.kind or one.name, 0) for one in parameters)
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
        ((), {}),
        (plain[:-1], {}),
        ((*plain, 0), {}),
        ((), {"other": 1}),
        (plain, {"other": 1}),
    ]
    for place, one in enumerate(parameters):
        calls.append((plain, {one.name: 0}))
        for value in VALUES.get(one.kind, []):
            changed = (*plain[:place], value, *plain[place + 1 :])
            calls.append((changed, {}))
            calls.append(((), dict(zip((each.name for each in parameters), changed, strict=True))))
    for arguments, named in calls:
        # Where they are fine, a device would be asked.
        found = outcome(theirs, arguments, named)
        if found != ("", ""):
            assert outcome(mine, arguments, named) == found, (arguments, named)


def test_what_is_wrong_with_several_arguments(wheel: Any, ours: Runtime) -> None:
    """Numbers are converted before texts are looked at, and these before lengths."""
    calls = [("x", -1), (b"", -1), (b"", 1), ("x", 1)]

    for arguments in calls:
        expected = outcome(wheel.ipcOpenMemHandle, arguments, {})
        assert expected[0]
        assert outcome(ours.ipcOpenMemHandle, arguments, {}) == expected


@pytest.mark.parametrize("value", [1.5, True, Small(3)])
def test_what_can_become_a_number(wheel: Any, ours: Runtime, value: Any) -> None:
    for runtime in (wheel, ours):
        for function in (runtime.malloc, runtime.setDevice):
            assert outcome(function, (value,), {}) == ("", "")


STATUSES = [0, 1, 2, 3, 17, 21, 35, 46, 100, 101, 201, 205, 206, 208, 217, 304, 400, 401, 500, 600]
STATUSES += [700, 704, 705, 709, 711, 719, 800, 801, 900, 901, 906, 999, 1052, 12345, -1]


def checked(runtime: Any, status: int) -> int:
    """Return the status of what the check of one raises, 0 where it raises nothing."""
    try:
        assert runtime.check_status(status) is None
    except RuntimeError as error:
        return int(error.status)  # type: ignore[attr-defined]  # the vendor's class
    return 0


def convertible(wheel: Any) -> list[int]:
    """Return the statuses that this build takes: CuPy's for CPython 3.12 refuses negative ones."""
    try:
        wheel.CUDARuntimeError(-1)
    except OverflowError:
        return [one for one in STATUSES if one >= 0]
    return STATUSES


def test_errors(wheel: Any, ours: Runtime) -> None:
    statuses = convertible(wheel)
    theirs = [wheel.CUDARuntimeError(status) for status in statuses]
    mine = [ours.CUDARuntimeError(status) for status in statuses]

    assert [(one.status, one.args, str(one)) for one in mine] == [
        (one.status, one.args, str(one)) for one in theirs
    ]
    assert [one for one in (*mine, *theirs) if not isinstance(one, RuntimeError)] == []
    copies = pickle.loads(pickle.dumps(mine))  # noqa: S301 - our own bytes
    assert [(type(one), one.status) for one in copies] == [(type(one), one.status) for one in mine]
    for runtime in (wheel, ours):
        assert [checked(runtime, status) for status in statuses] == statuses


def test_errors_of_rocm_have_hips_names() -> None:
    """As libamdhip64 6.4.3 was seen to give them; nothing of CuPy's is needed for this."""
    texts = {
        1: "hipErrorInvalidValue: invalid argument",
        2: "hipErrorOutOfMemory: out of memory",
        17: "hipErrorInvalidDevicePointer: invalid device pointer",
        100: "hipErrorNoDevice: no ROCm-capable device is detected",
        201: "hipErrorInvalidContext: invalid device context",
        711: "hipErrorUnknown: unknown error",
    }

    assert {status: str(HipBuildRuntimeError(status)) for status in texts} == texts
    assert issubclass(HipBuildRuntimeError, CUDARuntimeError)


def test_attributes_of_pointers(wheel: Any, ours: Runtime) -> None:
    for runtime in (wheel, ours):
        made = runtime.PointerAttributes(0, 1, 2)
        assert (made.type, made.device, made.devicePointer, made.hostPointer) == (-1, 0, 1, 2)


def test_versions_need_no_device(wheel: Any, ours: Runtime) -> None:
    for runtime in (wheel, ours):
        assert runtime.runtimeGetVersion() > 0


def test_names_that_there_are_not(ours: Runtime) -> None:
    with pytest.raises(AttributeError, match="graphLaunch"):
        getattr(ours, "graphLaunch")  # noqa: B009 - the type checker knows that it is missing
    assert import_module("crossmem_emulated.hip").Runtime is Runtime
