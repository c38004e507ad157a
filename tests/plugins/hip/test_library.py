# SPDX-License-Identifier: Apache-2.0
"""The vendors' libraries through ctypes: prototypes, results and errors."""

import ctypes
import pickle
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from uuid import UUID

import pytest

import crossmem
from crossmem.driver.native import LibraryNotFoundError
from crossmem_hip import library as libraries
from crossmem_hip.driver import GpuDriver
from crossmem_hip.family import CUDA, HIP, VIRTUAL, Family
from crossmem_hip.library import CupyRuntime, LibraryError, extend, open_runtime
from crossmem_hip.prototypes import CUDA_DRIVER, CUDA_RUNTIME, hip_prototypes
from crossmem_hip.runtime import Runtime
from crossmem_hip.runtime import Vendor as PortVendor

if TYPE_CHECKING:
    from tests.plugins.hip.library_cases import (
        FUNCTIONS,
        GIVEN,
        HANDLE,
        MORE_FUNCTIONS,
        POINTER,
        RENAMED,
        VERSIONS,
        Case,
        P,
        id_of,
    )
else:
    sys.path.insert(0, str(Path(__file__).parent))
    from library_cases import (
        FUNCTIONS,
        GIVEN,
        HANDLE,
        MORE_FUNCTIONS,
        POINTER,
        RENAMED,
        VERSIONS,
        Case,
        P,
        id_of,
    )

MIB = 1 << 20


class Vendor:
    """A family with stand-ins for its libraries."""

    def __init__(self, family: Family, *opened: ctypes.CDLL) -> None:
        self.family = family
        self.opened = opened
        for one in opened:
            one.vendor_record.restype = ctypes.c_char_p
            one.vendor_reset()

    def refuse(self, name: str, code: int) -> None:
        """Let a function, by its name in C, fail once."""
        for one in self.opened:
            one.vendor_refuse(name.encode(), code)

    @property
    def record(self) -> list[str]:
        """The calls so far, library by library."""
        return [line for one in self.opened for line in one.vendor_record().decode().splitlines()]

    def forget(self) -> None:
        for one in self.opened:
            one.vendor_reset()


@pytest.fixture
def install(build: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Vendor]:
    """Return what puts stand-ins in the place of a family's libraries."""

    def install(family: Family, version: int = VERSIONS[71], *, driver: bool = True) -> Vendor:
        macros = {"HIP" if family.is_hip else "CUDA": version}
        runtime = ctypes.CDLL(str(build(**macros)))
        monkeypatch.setattr(libraries, "runtime_library", lambda _: runtime)
        monkeypatch.setattr(libraries, "library_of", lambda _: runtime if driver else None)
        if family.is_hip:
            return Vendor(family, runtime)
        more = ctypes.CDLL(str(build(CUDA_DRIVER=1))) if driver else None
        monkeypatch.setattr(libraries, "cuda_driver", lambda: more)
        return Vendor(family, runtime, *([more] if more else []))

    return install


@pytest.fixture
def vendor(family: Family, install: Callable[..., Vendor]) -> Vendor:
    return install(family)


@pytest.fixture
def runtime(vendor: Vendor) -> Any:
    found = open_runtime(vendor.family)
    vendor.forget()
    return found


NOT_HERE = {"CUDARuntimeError", "getDeviceProperties", "memGetAddressRange"}
TESTED = {name for name, *_ in FUNCTIONS + MORE_FUNCTIONS + RENAMED}


@pytest.mark.parametrize("case", FUNCTIONS, ids=id_of)
def test_functions_of_the_runtime(case: Case, vendor: Vendor, runtime: Any) -> None:
    name, given, called, result = case

    assert getattr(runtime, name)(*given) == result
    assert vendor.record == called.replace("%", vendor.family.backend).splitlines()


@pytest.mark.parametrize("case", MORE_FUNCTIONS, ids=id_of)
def test_functions_that_cupy_lacks(case: Case, vendor: Vendor, runtime: Any, rt: Any) -> None:
    name, given, called, result = case
    rt.version = VERSIONS[71]
    expected = called.replace("%", "hip" if vendor.family.is_hip else "cu").splitlines()
    for one in (runtime, extend(vendor.family, rt)):
        assert getattr(one, name)(*given) == result
        assert vendor.record == expected
        vendor.forget()


@pytest.mark.parametrize("case", RENAMED, ids=id_of)
def test_functions_with_other_names_in_cudas_driver(
    case: Case, vendor: Vendor, runtime: Any, rt: Any
) -> None:
    name, given, called, result = case
    rt.version = VERSIONS[71]
    c_name, _, rest = called.partition(" ")
    prefix = {"HostGetDevicePointer": "cuMem"}.get(c_name, "cu")
    c_name = f"hip{c_name}" if vendor.family.is_hip else f"{prefix}{c_name}_v2"
    for one in (runtime, extend(vendor.family, rt)):
        assert getattr(one, name)(*given) == result
        assert vendor.record == [f"{c_name} {rest}"]
        vendor.forget()


def test_all_of_the_port_is_there_and_tested(runtime: Any) -> None:
    port = {name for one in Runtime.__mro__ for name in vars(one) if not name.startswith("_")}

    assert [name for name in port if not hasattr(runtime, name)] == []
    assert port - TESTED == NOT_HERE


def test_the_tables_have_nothing_else() -> None:
    of_hip = hip_prototypes(HIP, VERSIONS[71])
    tested = TESTED | NOT_HERE | {"getLastError"}

    assert {*CUDA_RUNTIME, *CUDA_DRIVER} == {*of_hip}
    assert {*of_hip} | {"CUDARuntimeError"} == tested


def test_address_ranges(vendor: Vendor, runtime: Any) -> None:
    assert runtime.memGetAddressRange(POINTER + 5) == (POINTER, 1 << 36)
    name = "hipMemGetAddressRange" if vendor.family.is_hip else "cuMemGetAddressRange_v2"
    assert vendor.record == [f"{name} {POINTER + 5:#x}"]


# Editions -------------------------------------------------------------------------------------


@pytest.mark.parametrize("edition", VERSIONS)
def test_properties_of_amd(edition: int, install: Callable[..., Vendor]) -> None:
    vendor = install(HIP, VERSIONS[edition])
    properties = open_runtime(HIP).getDeviceProperties(1)
    suffix = "" if edition == 5 else "R0600"

    # No UUID: CuPy has none either, and processes with and without it call devices the same.
    assert properties == {"name": b"Some GPU", "totalGlobalMem": 1 << 36}
    assert f"hipGetDeviceProperties{suffix} 1" in vendor.record


def test_properties_of_nvidia(install: Callable[..., Vendor]) -> None:
    install(CUDA, 13050)
    properties = cast("Any", open_runtime(CUDA)).getDeviceProperties(1)

    assert (properties["name"], properties["totalGlobalMem"]) == (b"Some GPU", 1 << 36)
    assert properties["uuid"] == b"\x80\2\2\3\4\5\6\7\x88\1\2\3\4\5\6\7"


@pytest.mark.parametrize("edition", VERSIONS)
@pytest.mark.parametrize(
    ("kind", "of_rocm_5"), [("host", 0), ("device", 1), ("array", 2), ("managed", 4)]
)
def test_kinds_of_memory(
    edition: int, kind: str, of_rocm_5: int, install: Callable[..., Vendor]
) -> None:
    install(HIP, VERSIONS[edition])
    today = {"host": 1, "device": 2, "array": 10, "managed": 3}[kind]
    written = of_rocm_5 if edition == 5 else today
    runtime = open_runtime(HIP)

    assert runtime.pointerGetAttributes(POINTER + written).type == today
    assert runtime.pointerGetAttributes(POINTER + 0x100 + written).type == 3


def test_rocm_5_keeps_its_virtual_memory_to_itself(install: Callable[..., Vendor]) -> None:
    install(HIP, VERSIONS[5])
    runtime = open_runtime(HIP)

    assert [name for name in VIRTUAL if hasattr(runtime, name)] == []
    assert runtime.memGetAddressRange(POINTER) == (POINTER, 1 << 36)


@pytest.mark.parametrize("edition", [6, 70, 71])
@pytest.mark.parametrize("descriptor", [3, 1023])
def test_descriptors_for_an_import(
    edition: int, descriptor: int, install: Callable[..., Vendor]
) -> None:
    vendor = install(HIP, VERSIONS[edition])

    assert open_runtime(HIP).memImportFromShareableHandle(descriptor, 1) == POINTER
    assert vendor.record[-1] == f"hipMemImportFromShareableHandle {descriptor} 1"


def test_what_the_library_lacks_is_not_there(install: Callable[..., Vendor]) -> None:
    vendor = install(CUDA, driver=False)
    runtime = open_runtime(vendor.family)

    assert not hasattr(runtime, "memGetAddressRange")
    assert not hasattr(runtime, "somethingElse")
    assert hasattr(runtime, "ipcGetMemHandle")


# Errors ---------------------------------------------------------------------------------------


def test_a_refusal_is_an_error_and_no_longer_the_last_one(vendor: Vendor, runtime: Any) -> None:
    prefix = vendor.family.backend
    vendor.refuse(f"{prefix}Malloc", 2)
    with pytest.raises(runtime.CUDARuntimeError) as raised:
        runtime.malloc(1)
    name = {"hip": "hipErrorOutOfMemory", "cuda": "cudaErrorMemoryAllocation"}[prefix]

    assert raised.value.status == 2
    assert str(raised.value) == f"{name} (2)"
    assert vendor.record == [f"{prefix}Malloc 1", f"{prefix}GetLastError"]


def test_errors_survive_pickling() -> None:
    error = pickle.loads(pickle.dumps(LibraryError(17, "hipErrorInvalidDevicePointer")))  # noqa: S301

    assert isinstance(error, LibraryError)
    assert (error.status, str(error)) == (17, "hipErrorInvalidDevicePointer (17)")


def test_a_code_without_a_name(vendor: Vendor, runtime: Any) -> None:
    vendor.refuse(f"{vendor.family.backend}Free", 4711)
    with pytest.raises(LibraryError, match=r"unknown to crossmem \(4711\)"):
        runtime.free(POINTER)


def test_cuda_wants_a_context(install: Callable[..., Vendor]) -> None:
    vendor = install(CUDA)
    runtime = open_runtime(CUDA)
    vendor.refuse("cuMemGetAddressRange_v2", 201)

    assert runtime.memGetAddressRange(POINTER) == (POINTER, 1 << 36)
    assert vendor.record == [
        "cudaMemGetInfo",
        f"cuMemGetAddressRange_v2 {P}",
        f"cuMemGetAddressRange_v2 {P}",
    ]


def test_a_refusal_of_cudas_driver(install: Callable[..., Vendor]) -> None:
    vendor = install(CUDA)
    runtime = open_runtime(CUDA)
    vendor.refuse("cuMemCreate", 2)
    with pytest.raises(LibraryError, match=r"MemoryAllocation \(2\)"):
        runtime.memCreate(1, 1, 1, 1, 0, 0)

    assert len(vendor.record) == 1


def test_on_hip_201_means_the_process_itself(install: Callable[..., Vendor]) -> None:
    vendor = install(HIP)
    runtime = open_runtime(HIP)
    vendor.refuse("hipIpcOpenMemHandle", 201)
    with pytest.raises(LibraryError, match="hipErrorInvalidContext"):
        runtime.ipcOpenMemHandle(HANDLE, 1)

    assert len([one for one in vendor.record if one.startswith("hipIpcOpen")]) == 1


def test_a_library_that_does_not_tell_its_version(install: Callable[..., Vendor]) -> None:
    install(HIP).refuse("hipRuntimeGetVersion", 3)
    with pytest.raises(crossmem.DriverError, match="hipRuntimeGetVersion"):
        open_runtime(HIP)


def test_no_library(family: Family, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: Family) -> Any:
        msg = "no libvendor.so can be loaded"
        raise LibraryNotFoundError(msg, ["/opt/lib/libvendor.so: no such file"])

    monkeypatch.setattr(libraries, "runtime_library", refuse)
    with pytest.raises(crossmem.BackendUnavailableError, match="no libvendor") as raised:
        open_runtime(family)

    assert raised.value.hint == family.install_hint


# In use ---------------------------------------------------------------------------------------


@pytest.fixture
def driver(vendor: Vendor, runtime: Any) -> GpuDriver:
    """What `story` is about."""
    return GpuDriver(vendor.family, runtime)


def test_the_driver_runs_on_it(vendor: Vendor, driver: GpuDriver, story: Any) -> None:
    identities = [one.identity for one in driver.devices()]
    story.until("map")

    assert (
        identities
        == {
            "hip": ["pci:0000:a0:00.0", "pci:0000:a1:00.0"],
            "cuda": [f"GPU-{UUID(bytes=bytes(range(n, n + 16)))}" for n in (0, 16)],
        }[driver.backend]
    )
    assert driver.capabilities(0, None).foreign_memory
    vendor.forget()
    story.map()
    opens = [one for one in vendor.record if "IpcOpen" in one]
    assert opens == [f"{vendor.family.backend}IpcOpenMemHandle {story.HANDLE.hex()} 1"]


def test_other_threads_run_during_a_slow_open(vendor: Vendor, runtime: Any) -> None:
    vendor.opened[0].vendor_hold(1)
    thread = threading.Timer(0.05, vendor.opened[0].vendor_hold, (0,))
    thread.start()
    pointer = runtime.ipcOpenMemHandle(HANDLE, 1)
    thread.join()

    # Else the thread could not have let it go, and it would have been refused after a while.
    assert pointer == POINTER


# Beside CuPy ----------------------------------------------------------------------------------


def test_cupy_keeps_its_own_functions(vendor: Vendor, rt: Any) -> None:
    runtime = extend(vendor.family, rt)

    assert isinstance(runtime, CupyRuntime)
    assert runtime.getDeviceCount() == rt.devices
    assert runtime.CUDARuntimeError is rt.CUDARuntimeError
    assert [one for one in vendor.record if "DeviceCount" in one] == []


def test_events_of_hip_replace_what_cupy_cannot_do(
    vendor: Vendor, rt: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rt, "ipcGetEventHandle", lambda _: b"CuPy's", raising=False)
    runtime: Any = extend(vendor.family, rt)

    assert runtime.ipcGetEventHandle(POINTER) == (GIVEN if vendor.family.is_hip else b"CuPy's")


def test_registration_of_hip_replaces_what_cupy_cannot_do(vendor: Vendor, rt: Any) -> None:
    rt.hostRegister = lambda *_: "CuPy's"
    runtime: Any = extend(vendor.family, rt)

    done = runtime.hostRegister(POINTER, 4096, 2)
    assert done == (None if vendor.family.is_hip else "CuPy's")


@pytest.mark.parametrize(("ordinal", "can"), [(0, False), (1, True)])
def test_devices_whose_streams_wait_for_values(
    vendor: Vendor, runtime: Any, ordinal: int, can: bool
) -> None:
    found = PortVendor(vendor.family, runtime)
    vendor.forget()

    assert found.can_wait_for_values(ordinal) is can
    query = "hipDeviceGetAttribute 10013" if vendor.family.is_hip else "cuDeviceGetAttribute 122"
    assert vendor.record == [f"{query} {ordinal}"]


def test_without_the_drivers_library_no_stream_waits_for_values(
    install: Callable[..., Vendor],
) -> None:
    install(CUDA, driver=False)

    assert not PortVendor(CUDA, open_runtime(CUDA)).can_wait_for_values(0)


def test_what_the_library_refuses_is_cupys_error(vendor: Vendor, rt: Any) -> None:
    runtime: Any = extend(vendor.family, rt)
    range_of = "hipMemGetAddressRange" if vendor.family.is_hip else "cuMemGetAddressRange_v2"
    vendor.refuse(range_of, 500)
    with pytest.raises(rt.CUDARuntimeError) as raised:
        runtime.memGetAddressRange(POINTER)

    assert raised.value.status == 500


def test_a_thread_without_a_context_gets_one_from_cupy(
    install: Callable[..., Vendor], cuda_rt: Any
) -> None:
    vendor = install(CUDA)
    runtime: Any = extend(CUDA, cuda_rt)
    vendor.refuse("cuMemGetAddressRange_v2", 201)

    assert runtime.memGetAddressRange(POINTER) == (POINTER, 1 << 36)
    assert cuda_rt.named() == ["memGetInfo"]


def test_without_a_library_cupy_stays_as_it_is(
    family: Family, rt: Any, install: Callable[..., Vendor]
) -> None:
    install(family, driver=False)

    assert extend(family, rt) is rt


def test_a_cupy_that_does_not_tell_its_version_stays_as_it_is(
    install: Callable[..., Vendor], hip_rt: Any
) -> None:
    install(HIP)
    hip_rt.fail("runtimeGetVersion", 3)

    assert extend(HIP, hip_rt) is hip_rt
