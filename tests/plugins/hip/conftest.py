# SPDX-License-Identifier: Apache-2.0
"""A small stand-in for CuPy's runtime that notes every call and fails where it is told to.

It keeps count of what was acquired and not released, and knows nothing else of the vendors' rules:
those are the emulation's, on which the conformance kit runs.
"""

import itertools
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from crossmem.driver import Block, Exported, Imported
from crossmem_hip.driver import GpuDriver
from crossmem_hip.family import CUDA, FAMILIES, HIP, Family

DEVICE_CALLS = frozenset({"getDevice", "setDevice", "streamIsCapturing"})
MIB = 1 << 20


class FakeError(RuntimeError):
    """``CUDARuntimeError``."""

    def __init__(self, status: int) -> None:
        super().__init__(f"status {status}")
        self.status = status


class FakeRuntime:
    """Every function notes its call, may fail as told, and else does the least."""

    CUDARuntimeError = FakeError

    def __init__(self, devices: int = 2, *, is_hip: bool = True) -> None:
        self.devices = devices
        self.is_hip = is_hip
        self.calls: list[tuple[Any, ...]] = []
        self.held: set[tuple[str, Any]] = set()
        self.codes: dict[str, list[int]] = {}
        self.properties: dict[str, Any] = {"name": b"Some GPU", "totalGlobalMem": 64 * MIB}
        self.version = 60_443_484
        self.capturing: set[int] = set()
        self.peers: set[tuple[int, int]] = set()
        self.linked = True
        self.size_of: Callable[[int], int] = lambda _: 4 * MIB
        self._numbers = itertools.count(0x1000)
        self._thread = threading.local()

    def fail(self, call: str, code: int, *, skip: int = 0) -> None:
        """Let a call fail once, after so many that succeed."""
        self.codes[call] = [0] * skip + [code]

    def named(self, *, device: bool = False) -> list[str]:
        """Names of the calls so far, without those that only look or set the device."""
        return [call[0] for call in self.calls if device or call[0] not in DEVICE_CALLS]

    @property
    def current(self) -> int:
        """The current device of this thread."""
        return getattr(self._thread, "device", 0)

    @current.setter
    def current(self, device: int) -> None:
        self._thread.device = device

    def _note(self, name: str, *args: Any) -> None:
        self.calls.append((name, *args))
        codes = self.codes.get(name)
        if codes and (code := codes.pop(0)):
            raise FakeError(code)

    def _acquire(self, kind: str) -> int:
        number = next(self._numbers)
        self.held.add((kind, number))
        return number

    # Devices.
    def getDeviceCount(self) -> int:
        self._note("getDeviceCount")
        return self.devices

    def getDevice(self) -> int:
        self._note("getDevice")
        return self.current

    def setDevice(self, device: int) -> None:
        self._note("setDevice", device)
        self.current = device

    def getDeviceProperties(self, device: int) -> dict[str, Any]:
        self._note("getDeviceProperties", device)
        return self.properties

    def deviceGetPCIBusId(self, device: int) -> str:
        self._note("deviceGetPCIBusId", device)
        return f"0000:{device + 3:02X}:00.0"

    def deviceCanAccessPeer(self, device: int, peer: int) -> int:
        self._note("deviceCanAccessPeer", device, peer)
        return int(self.linked)

    def deviceEnablePeerAccess(self, peer: int) -> None:
        self._note("deviceEnablePeerAccess", peer)
        self.peers.add((self.current, peer))

    def deviceSynchronize(self) -> None:
        self._note("deviceSynchronize")

    def runtimeGetVersion(self) -> int:
        self._note("runtimeGetVersion")
        return self.version

    # Memory.
    def memGetInfo(self) -> tuple[int, int]:
        self._note("memGetInfo")
        return 32 * MIB, 64 * MIB

    def malloc(self, size: int) -> int:
        self._note("malloc", size)
        return self._acquire("memory")

    def free(self, pointer: int) -> None:
        self._note("free", pointer)
        self.held.remove(("memory", pointer))

    def memcpy(self, target: int, source: int, size: int, kind: int) -> None:
        self._note("memcpy", target, source, size, kind)

    def streamSynchronize(self, stream: int) -> None:
        self._note("streamSynchronize", stream)

    def streamIsCapturing(self, stream: int) -> bool:
        self._note("streamIsCapturing", stream)
        return stream in self.capturing

    # Sharing.
    def ipcGetMemHandle(self, pointer: int) -> bytes:
        self._note("ipcGetMemHandle", pointer)
        return pointer.to_bytes(64, "little")

    def ipcOpenMemHandle(self, handle: bytes, flags: int) -> int:
        self._note("ipcOpenMemHandle", handle, flags)
        return self._acquire("import")

    def ipcCloseMemHandle(self, pointer: int) -> None:
        self._note("ipcCloseMemHandle", pointer)
        self.held.remove(("import", pointer))

    def memGetAddressRange(self, pointer: int) -> tuple[int, int]:
        self._note("memGetAddressRange", pointer)
        return pointer, self.size_of(pointer)


class VirtualRuntime(FakeRuntime):
    """Has virtual memory too. Descriptors are of a file, and real."""

    def __init__(self, devices: int = 2, *, is_hip: bool = True) -> None:
        super().__init__(devices, is_hip=is_hip)
        self.granularity = 2 * MIB

    def memGetAllocationGranularity(
        self, kind: int, handle_type: int, location_type: int, device: int, option: int
    ) -> int:
        self._note("memGetAllocationGranularity", kind, handle_type, location_type, device, option)
        return self.granularity

    def memCreate(
        self,
        size: int,
        kind: int,
        handle_type: int,
        location_type: int,
        device: int,
        flags: int,
    ) -> int:
        self._note("memCreate", size, kind, handle_type, location_type, device, flags)
        return self._acquire("handle")

    def memRelease(self, handle: int) -> None:
        self._note("memRelease", handle)
        self.held.remove(("handle", handle))

    def memRetainAllocationHandle(self, pointer: int) -> int:
        self._note("memRetainAllocationHandle", pointer)
        return self._acquire("handle")

    def memGetAllocationPropertiesFromHandle(self, handle: int) -> tuple[int, int, int, int]:
        raise AssertionError("crossmem asks nobody for this")

    def memAddressReserve(self, size: int, alignment: int, address: int, flags: int) -> int:
        self._note("memAddressReserve", size, alignment, address, flags)
        return self._acquire("addresses")

    def memAddressFree(self, pointer: int, size: int) -> None:
        self._note("memAddressFree", pointer, size)
        assert ("mapping", pointer) not in self.held
        self.held.remove(("addresses", pointer))

    def memMap(self, pointer: int, size: int, offset: int, handle: int, flags: int) -> None:
        self._note("memMap", pointer, size, offset, handle, flags)
        self.held.add(("mapping", pointer))

    def memUnmap(self, pointer: int, size: int) -> None:
        self._note("memUnmap", pointer, size)
        self.held.remove(("mapping", pointer))

    def memSetAccess(self, pointer: int, size: int, access: Sequence[tuple[int, int, int]]) -> None:
        self._note("memSetAccess", pointer, size, access)

    def memGetAccess(self, location_type: int, device: int, pointer: int) -> int:
        raise AssertionError("crossmem asks nobody for this")

    def memExportToShareableHandle(self, handle: int, handle_type: int, flags: int) -> int:
        self._note("memExportToShareableHandle", handle, handle_type, flags)
        return os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)

    def memImportFromShareableHandle(self, descriptor: int, handle_type: int) -> int:
        os.fstat(descriptor)
        self._note("memImportFromShareableHandle", descriptor, handle_type)
        return self._acquire("handle")


@pytest.fixture(scope="session")
def build(
    compile_library: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., Path]:
    """Return what builds a stand-in for a vendor's library; see vendor.c for the macros."""
    folder = tmp_path_factory.mktemp("vendor")

    def build(**macros: int) -> Path:
        name = "-".join(f"{name}{value}" for name, value in macros.items())
        # Not the vendors' names: other tests look for libraries of this process by them.
        path = folder / f"{name}.so"
        if path.exists():
            return path
        return compile_library(Path(__file__).with_name("vendor.c"), path, **macros)

    return build


@pytest.fixture(params=FAMILIES, ids=lambda family: family.backend)
def family(request: pytest.FixtureRequest) -> Family:
    found: Family = request.param
    return found


@pytest.fixture
def fake() -> type[FakeRuntime]:
    return FakeRuntime


@pytest.fixture
def fake_virtual() -> type[VirtualRuntime]:
    return VirtualRuntime


@pytest.fixture
def rt(family: Family) -> FakeRuntime:
    return FakeRuntime(is_hip=family.is_hip)


@pytest.fixture
def driver(family: Family, rt: FakeRuntime) -> GpuDriver:
    driver = GpuDriver(family, cast("Any", rt))
    rt.calls.clear()
    return driver


@pytest.fixture
def hip_rt() -> FakeRuntime:
    return FakeRuntime()


@pytest.fixture
def hip(hip_rt: FakeRuntime) -> GpuDriver:
    driver = GpuDriver(HIP, cast("Any", hip_rt))
    hip_rt.calls.clear()
    return driver


@pytest.fixture
def cuda_rt() -> FakeRuntime:
    return FakeRuntime(is_hip=False)


@pytest.fixture
def cuda(cuda_rt: FakeRuntime) -> GpuDriver:
    driver = GpuDriver(CUDA, cast("Any", cuda_rt))
    cuda_rt.calls.clear()
    return driver


class Story:
    """One allocation's life on both sides, one operation at a time."""

    HANDLE = bytes(range(64))

    def __init__(self, driver: GpuDriver, ordinal: int = 0) -> None:
        self.driver = driver
        self.ordinal = ordinal
        self.block: Block | None = None
        self.exported: Exported | None = None
        self.imported: Imported | None = None
        self.pointer = 0

    def allocate(self) -> None:
        self.block = self.driver.allocate(self.ordinal, 3 * MIB, "legacy")

    def export(self) -> None:
        assert self.block
        self.exported = self.driver.export(self.block, "legacy", "rw", raw=False)

    def import_(self) -> None:
        self.imported = self.driver.import_(
            self.ordinal,
            Exported((self.HANDLE,)),
            home=self.ordinal,
            mechanism="legacy",
            nbytes=3 * MIB,
            capacity=4 * MIB,
            access="rw",
        )

    def map(self) -> None:
        assert self.imported
        self.mapped = self.driver.map(self.imported, remappable=True)
        self.pointer = self.mapped.pointer

    def unmap(self) -> None:
        assert self.imported
        self.driver.unmap(self.mapped)

    def close(self) -> None:
        assert self.imported
        self.driver.close(self.imported)

    def free(self) -> None:
        assert self.block
        self.driver.free(self.block)

    OPERATIONS = ("allocate", "export", "import_", "map", "unmap", "close", "free")

    def until(self, operation: str) -> None:
        """Do everything that comes before an operation."""
        for name in self.OPERATIONS[: self.OPERATIONS.index(operation)]:
            getattr(self, name)()


@pytest.fixture
def story(driver: GpuDriver) -> Story:
    return Story(driver)


@pytest.fixture
def story_on(driver: GpuDriver) -> Callable[[int], Story]:
    return lambda ordinal: Story(driver, ordinal)


# Virtual memory -----------------------------------------------------------------------------------


@pytest.fixture
def virtual_rt(family: Family) -> VirtualRuntime:
    return VirtualRuntime(is_hip=family.is_hip)


@pytest.fixture
def virtual(family: Family, virtual_rt: VirtualRuntime) -> GpuDriver:
    driver = GpuDriver(family, cast("Any", virtual_rt))
    # What is asked once is asked before.
    driver.capabilities(0, "vmm")
    virtual_rt.calls.clear()
    return driver


class VirtualStory:
    """One allocation's life on both sides, one operation at a time."""

    TOKEN = bytes(range(16))
    OPERATIONS = (
        *("allocate", "export", "import_", "map", "reserve", "map_at", "map_import_at"),
        *("unmap_import_at", "unmap_at", "release", "unmap", "close", "release_export", "free"),
    )

    def __init__(self, driver: Any, ordinal: int = 0, *, remappable: bool = True) -> None:
        self.driver = driver
        self.ordinal = ordinal
        self.remappable = remappable
        self.block = Block(0, 0, 0, 0)
        self.imported = Imported(0, 0, "rw")
        self.exported = Exported()
        self.pointer = 0
        self.range = 0

    def allocate(self) -> None:
        self.block = self.driver.allocate(self.ordinal, 3 * MIB, "vmm")

    def export(self) -> None:
        self.exported = self.driver.export(self.block, "vmm", "rw", raw=False)

    def import_(self) -> None:
        descriptor = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        try:
            self.imported = self.driver.import_(
                self.ordinal,
                Exported((self.TOKEN,), (descriptor,)),
                home=self.ordinal,
                mechanism="vmm",
                nbytes=3 * MIB,
                capacity=4 * MIB,
                access="rw",
            )
        except BaseException:
            # As core does it.
            os.close(descriptor)
            raise

    def map(self) -> None:
        self.mapped = self.driver.map(self.imported, remappable=self.remappable)
        self.pointer = self.mapped.pointer

    def reserve(self) -> None:
        self.reserved = self.driver.reserve(self.ordinal, 8 * MIB)
        self.range = self.reserved.pointer

    def map_at(self) -> None:
        self.placed = self.driver.map_at(self.block, self.range)

    def map_import_at(self) -> None:
        self.placed_import = self.driver.map_at(self.imported, self.range + 4 * MIB)

    def unmap_import_at(self) -> None:
        self.driver.unmap_at(self.placed_import)

    def unmap_at(self) -> None:
        self.driver.unmap_at(self.placed)

    def release(self) -> None:
        self.driver.release(self.reserved)

    def unmap(self) -> None:
        self.driver.unmap(self.mapped)

    def close(self) -> None:
        self.driver.close(self.imported)

    def release_export(self) -> None:
        self.driver.release_export(self.block, self.exported)

    def free(self) -> None:
        self.driver.free(self.block)

    def until(self, operation: str) -> None:
        """Do everything that comes before an operation."""
        for name in self.OPERATIONS[: self.OPERATIONS.index(operation)]:
            getattr(self, name)()

    def since(self, operation: str) -> None:
        """Do an operation and everything that comes after it."""
        for name in self.OPERATIONS[self.OPERATIONS.index(operation) :]:
            getattr(self, name)()


@pytest.fixture
def virtual_story(virtual: GpuDriver) -> VirtualStory:
    return VirtualStory(virtual)


@pytest.fixture
def new_virtual_story(virtual: GpuDriver) -> Callable[..., VirtualStory]:
    return lambda **options: VirtualStory(virtual, **options)
