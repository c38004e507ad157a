# SPDX-License-Identifier: Apache-2.0
"""Every code that the headers name becomes a typed error that says what failed and what to do."""

import pickle
from typing import Any

import pytest

import crossmem
from crossmem_hip.errors import error_for, names_of
from crossmem_hip.family import CUDA, FAMILIES, HIP, Family

# Section 2 of the vendors' facts: number, hipError_t, cudaError_t; None where one has no such code.
DOCUMENTED: list[tuple[int, str | None, str | None]] = [
    (1, "InvalidValue", "InvalidValue"),
    (2, "OutOfMemory", "MemoryAllocation"),
    (3, "NotInitialized", "InitializationError"),
    (17, "InvalidDevicePointer", "InvalidDevicePointer"),
    (35, "InsufficientDriver", "InsufficientDriver"),
    (46, None, "DevicesUnavailable"),
    (100, "NoDevice", "NoDevice"),
    (101, "InvalidDevice", "InvalidDevice"),
    (201, "InvalidContext", "DeviceUninitialized"),
    (205, "MapFailed", "MapBufferObjectFailed"),
    (206, "UnmapFailed", "UnmapBufferObjectFailed"),
    (208, "AlreadyMapped", "AlreadyMapped"),
    (217, "PeerAccessUnsupported", "PeerAccessUnsupported"),
    (304, "OperatingSystem", "OperatingSystem"),
    (400, "InvalidHandle", "InvalidResourceHandle"),
    (401, "IllegalState", "IllegalState"),
    (500, "NotFound", "SymbolNotFound"),
    (600, "NotReady", "NotReady"),
    (700, "IllegalAddress", "IllegalAddress"),
    (704, "PeerAccessAlreadyEnabled", "PeerAccessAlreadyEnabled"),
    (705, "PeerAccessNotEnabled", "PeerAccessNotEnabled"),
    (709, "ContextIsDestroyed", "ContextIsDestroyed"),
    (711, None, "TooManyPeers"),
    (712, "HostMemoryAlreadyRegistered", "HostMemoryAlreadyRegistered"),
    (713, "HostMemoryNotRegistered", "HostMemoryNotRegistered"),
    (719, "LaunchFailure", "LaunchFailure"),
    (800, None, "NotPermitted"),
    (801, "NotSupported", "NotSupported"),
    (900, "StreamCaptureUnsupported", "StreamCaptureUnsupported"),
    (901, "StreamCaptureInvalidated", "StreamCaptureInvalidated"),
    (902, "StreamCaptureMerge", "StreamCaptureMerge"),
    (903, "StreamCaptureUnmatched", "StreamCaptureUnmatched"),
    (904, "StreamCaptureUnjoined", "StreamCaptureUnjoined"),
    (905, "StreamCaptureIsolation", "StreamCaptureIsolation"),
    (906, "StreamCaptureImplicit", "StreamCaptureImplicit"),
    (907, "CapturedEvent", "CapturedEvent"),
    (908, "StreamCaptureWrongThread", "StreamCaptureWrongThread"),
    (999, "Unknown", "Unknown"),
    (1052, "RuntimeMemory", None),
    (1053, "RuntimeOther", None),
]
KINDS: dict[int, type[crossmem.CrossmemError]] = {
    2: crossmem.OutOfMemoryError,
    801: crossmem.UnsupportedError,
    **dict.fromkeys(range(900, 909), crossmem.BusyError),
}
ALL = [(family, code) for family in FAMILIES for code in names_of(family)]


def test_documented_codes_have_their_names() -> None:
    wrong = []
    for code, hip, cuda in DOCUMENTED:
        wanted = (hip and f"hipError{hip}", cuda and f"cudaError{cuda}")
        if (names_of(HIP).get(code), names_of(CUDA).get(code)) != wanted:
            wrong.append((code, wanted))

    assert wrong == []


def test_the_names_are_those_of_the_installed_cupy() -> None:
    runtime = pytest.importorskip(
        "cupy_backends.cuda.api.runtime", reason="CuPy is not installed", exc_type=ImportError
    )
    if runtime.is_hip:
        pytest.skip("the installed CuPy is for AMD, whose enumeration it does not know")
    unknown = str(runtime.CUDARuntimeError(1 << 20)).partition(":")[0]
    told = {code: str(runtime.CUDARuntimeError(code)).partition(":")[0] for code in range(1, 1100)}

    assert {
        code: name for code, name in told.items() if name != unknown or code == 999
    } == names_of(CUDA)


def wrong_parts(family: Family, code: int) -> list[str]:
    """Return the parts of a code's error that are not as they should be."""
    error = error_for(family, "memcpy", code)
    name, call = names_of(family)[code], f"{family.backend}Memcpy"
    right = {
        "type": type(error) is KINDS.get(code, crossmem.DriverError),
        "backend": error.backend == family.backend,
        "hint": bool(error.hint) and "{" not in str(error.hint),
        "text": f"{call} failed with {name} ({code})" in str(error),
    }
    if isinstance(error, crossmem.DriverError):
        right["attributes"] = (error.call, error.code, error.name) == (call, code, name)
    return [part for part, is_right in right.items() if not is_right]


def test_every_code_says_what_failed_and_what_to_do() -> None:
    wrong = {(family.backend, code): wrong_parts(family, code) for family, code in ALL}

    assert len(wrong) == len(ALL) > 100
    assert {row: parts for row, parts in wrong.items() if parts} == {}


@pytest.mark.parametrize(
    ("function", "code", "kind", "says"),
    [
        ("ipcOpenMemHandle", 17, crossmem.StaleHandleError, "freed"),
        ("ipcOpenMemHandle", 201, crossmem.WrongHostError, "own export.*pid namespace"),
        ("ipcOpenMemHandle", 400, crossmem.DriverError, "WSL"),
        ("ipcGetMemHandle", 1, crossmem.DriverError, "HSA_ENABLE_IPC_MODE_LEGACY"),
        ("ipcCloseMemHandle", 1, crossmem.DriverError, "not open"),
        ("free", 1, crossmem.DriverError, "no such memory"),
        ("free", 17, crossmem.DriverError, "no such memory"),
        ("memcpy", 17, crossmem.DriverError, "report it"),
        ("memcpy", 201, crossmem.DriverError, "forked child"),
        ("streamWriteValue64", 400, crossmem.DriverError, "stream= is not a living stream"),
        ("streamWriteValue64", 709, crossmem.DriverError, "stream= is not a living stream"),
        ("memSetAccess", 1, crossmem.DriverError, "pieces of one size"),
        ("streamWaitEvent", 1, crossmem.DriverError, "32 times"),
        ("streamWaitValue64", 1, crossmem.DriverError, "GPU_STREAMOPS_CP_WAIT"),
    ],
)
def test_a_code_means_something_else_after_some_calls(
    family: Family, function: str, code: int, kind: type[Exception], says: str
) -> None:
    with pytest.raises(kind, match=says) as raised:
        raise error_for(family, function, code)

    assert type(raised.value) is kind


@pytest.mark.parametrize(
    ("function", "code", "hip", "cuda"),
    [
        ("ipcOpenMemHandle", 1, crossmem.DriverError, crossmem.StaleHandleError),
        ("ipcOpenMemHandle", 304, crossmem.DriverError, crossmem.WrongHostError),
        (
            "memImportFromShareableHandle",
            999,
            crossmem.DriverError,
            crossmem.InvalidHandleError,
        ),
        ("memMap", 801, crossmem.UnsupportedError, crossmem.DriverError),
    ],
)
def test_a_code_means_something_else_on_the_other_vendors_devices(
    family: Family, function: str, code: int, hip: type[Exception], cuda: type[Exception]
) -> None:
    assert type(error_for(family, function, code)) is (hip if family.is_hip else cuda)


def test_hip_names_the_mode_that_processes_must_have_in_common() -> None:
    assert "HSA_ENABLE_IPC_MODE_LEGACY" in str(error_for(HIP, "ipcOpenMemHandle", 1))


def test_a_code_that_nobody_knows_keeps_its_number(family: Family) -> None:
    error = error_for(family, "malloc", 4711)

    assert isinstance(error, crossmem.DriverError)
    assert (error.code, error.name) == (4711, "unknown to crossmem")
    assert "headers" in str(error)


def test_functions_have_the_vendors_names() -> None:
    names = ("ipcOpenMemHandle", "malloc", "memGetAddressRange")

    assert list(map(HIP.function, names)) == [
        "hipIpcOpenMemHandle",
        "hipMalloc",
        "hipMemGetAddressRange",
    ]
    assert list(map(CUDA.function, names)) == [
        "cudaIpcOpenMemHandle",
        "cudaMalloc",
        "cuMemGetAddressRange",
    ]


def test_errors_survive_pickling() -> None:
    errors: list[Any] = [error_for(family, "ipcOpenMemHandle", code) for family, code in ALL]
    copies = pickle.loads(pickle.dumps(errors))  # noqa: S301
    pairs = zip(errors, copies, strict=True)

    assert [str(error) for error, copy in pairs if str(copy) != str(error)] == []
