# SPDX-License-Identifier: Apache-2.0
"""Mechanism ``vmm``: which calls it makes, and what is left where one of them fails."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import crossmem
from crossmem.driver import Block, Exported, Imported, address_ranges_of, check_groups
from crossmem_hip.driver import GpuDriver
from crossmem_hip.family import CUDA, HIP, VIRTUAL, Family

MIB = 1 << 20
OTHER_FAILURE = 999
TOKEN = bytes(range(16))
ACCESS = [(1, 0, 3), (1, 1, 3)]
"""The memory's own device first; the stand-in's devices reach each other."""


def descriptors() -> int:
    """Return how many this process has open."""
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.fixture
def rt(family: Family, fake_virtual: Any) -> Any:
    return fake_virtual(is_hip=family.is_hip)


@pytest.fixture
def driver(family: Family, rt: Any) -> GpuDriver:
    driver = GpuDriver(family, rt)
    # What is asked once is asked before.
    driver.capabilities(0, "vmm")
    rt.calls.clear()
    return driver


class Life:
    """One allocation's life on both sides, one operation at a time."""

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
                Exported((TOKEN,), (descriptor,)),
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
        self.pointer = self.driver.map(self.imported, remappable=self.remappable)

    def reserve(self) -> None:
        self.range = self.driver.reserve(self.ordinal, 8 * MIB)

    def map_at(self) -> None:
        self.driver.map_at(self.block, self.range)

    def map_import_at(self) -> None:
        self.driver.map_at(self.imported, self.range + 4 * MIB)

    def unmap_import_at(self) -> None:
        self.driver.unmap_at(self.imported, self.range + 4 * MIB)

    def unmap_at(self) -> None:
        self.driver.unmap_at(self.block, self.range)

    def release(self) -> None:
        self.driver.release(self.ordinal, self.range, 8 * MIB)

    def unmap(self) -> None:
        self.driver.unmap(self.imported, self.pointer)

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
def life(driver: GpuDriver) -> Life:
    return Life(driver)


def made_by(rt: Any, operation: Callable[[], None]) -> list[tuple[Any, ...]]:
    """Return the vendor's calls of an operation, without those that look at the device."""
    rt.calls.clear()
    operation()
    return [call for call in rt.calls if call[0] not in {"getDevice", "streamIsCapturing"}]


def test_each_operation_makes_its_calls(rt: Any, life: Life) -> None:
    before = descriptors()
    made = {name: made_by(rt, getattr(life, name)) for name in life.OPERATIONS}
    size = 4 * MIB
    own, place, part = life.block.pointer, life.range, life.range + size
    handle, received = made["export"][0][1], made["close"][0][1]

    assert made == {
        "allocate": [
            ("memCreate", size, 1, 1, 1, 0, 0),
            ("memAddressReserve", size, 0, 0, 0),
            ("memMap", own, size, 0, handle, 0),
            ("memSetAccess", own, size, ACCESS),
        ],
        "export": [("memExportToShareableHandle", handle, 1, 0)],
        "import_": [("memImportFromShareableHandle", made["import_"][0][1], 1)],
        "map": [
            ("memAddressReserve", size, 0, 0, 0),
            ("memMap", life.pointer, size, 0, received, 0),
            ("memSetAccess", life.pointer, size, ACCESS),
        ],
        "reserve": [("memAddressReserve", 2 * size, 0, 0, 0)],
        "map_at": [
            ("memMap", place, size, 0, handle, 0),
            ("memSetAccess", place, size, ACCESS),
        ],
        "map_import_at": [
            ("memMap", part, size, 0, received, 0),
            ("memSetAccess", part, size, ACCESS),
        ],
        "unmap_import_at": [("memUnmap", part, size)],
        "unmap_at": [("memUnmap", place, size)],
        "release": [("memAddressFree", place, 2 * size)],
        "unmap": [("memUnmap", life.pointer, size), ("memAddressFree", life.pointer, size)],
        "close": [("memRelease", received)],
        "release_export": [],
        "free": [
            ("memUnmap", own, size),
            ("memRelease", handle),
            ("memAddressFree", own, size),
        ],
    }
    assert rt.held == set()
    assert descriptors() == before


def test_an_import_that_stands_has_no_handle(rt: Any, driver: GpuDriver) -> None:
    life = Life(driver, remappable=False)
    life.until("map")
    mapped = made_by(rt, life.map)
    life.reserve()
    placed = made_by(rt, life.map_import_at)

    assert [call[0] for call in mapped][-1] == "memRelease"
    # For a moment only.
    assert placed[0] == ("memRetainAllocationHandle", life.pointer)
    assert [call[0] for call in placed[1:]] == ["memMap", "memSetAccess", "memRelease"]
    life.unmap_import_at()
    life.release()
    assert [call[0] for call in made_by(rt, life.unmap)] == ["memUnmap", "memAddressFree"]
    assert made_by(rt, life.close) == []
    life.release_export()
    life.free()
    assert rt.held == set()


@pytest.mark.parametrize("linked", [True, False])
def test_access_is_for_all_that_can_have_it(
    linked: bool, family: Family, fake_virtual: Any
) -> None:
    rt = fake_virtual(3, is_hip=family.is_hip)
    rt.linked = linked
    GpuDriver(family, rt).allocate(1, 1, "vmm")

    ((_, _, _, access),) = (call for call in rt.calls if call[0] == "memSetAccess")
    assert access == ([(1, 1, 3), (1, 0, 3), (1, 2, 3)] if linked else [(1, 1, 3)])


def test_capacities_are_what_the_vendor_recommends(family: Family, fake_virtual: Any) -> None:
    rt = fake_virtual(is_hip=family.is_hip)
    rt.granularity = 64 << 10
    driver = GpuDriver(family, rt)

    assert ("memGetAllocationGranularity", 1, 1, 1, 0, 1) in rt.calls
    assert driver.capabilities(0, "vmm").granularity_nbytes == 64 << 10
    assert driver.allocate(0, 1, "vmm").capacity == 64 << 10
    assert driver.allocate(0, 1, "legacy").capacity == 2 * MIB


def test_capabilities(driver: GpuDriver) -> None:
    legacy, virtual = (driver.capabilities(0, name) for name in ("legacy", "vmm"))

    assert legacy == driver.capabilities(0, None)
    assert legacy.mechanisms == virtual.mechanisms == ("legacy", "vmm")
    assert (legacy.survives_owner, virtual.survives_owner) == (False, True)
    assert (legacy.raw_handles, virtual.raw_handles) == (True, False)
    assert (legacy.address_ranges, virtual.address_ranges) == (False, True)
    assert not virtual.readonly_imports
    assert check_groups(driver) == []


@pytest.mark.parametrize("missing", VIRTUAL)
def test_a_runtime_without_the_calls(
    missing: str, family: Family, fake_virtual: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(fake_virtual, missing)
    driver = GpuDriver(family, fake_virtual(is_hip=family.is_hip))

    assert driver.capabilities(0, None).mechanisms == ("legacy",)
    assert address_ranges_of(driver) is None
    assert check_groups(driver) == []


@pytest.mark.parametrize("code", [1, 801])
def test_a_device_that_does_not_offer_it(family: Family, fake_virtual: Any, code: int) -> None:
    rt = fake_virtual(is_hip=family.is_hip)
    rt.fail("memGetAllocationGranularity", code)
    driver = GpuDriver(family, rt)

    assert driver.capabilities(0, None).mechanisms == ("legacy",)
    # The other one does.
    assert driver.capabilities(1, None).mechanisms == ("legacy", "vmm")
    assert check_groups(driver) == []


# Failures -------------------------------------------------------------------------------------


@pytest.mark.parametrize("current", [0, 1], ids=["this-device", "another-device"])
@pytest.mark.parametrize(
    "operation",
    ["allocate", "export", "import_", "map", "map for good", "reserve", "map_at", "map_import_at"],
)
def test_what_fails_leaves_nothing(
    operation: str, current: int, family: Family, driver: GpuDriver, rt: Any
) -> None:
    operation, _, for_good = operation.partition(" ")

    def fresh() -> Life:
        life = Life(driver, remappable=not for_good)
        life.until(operation)
        return life

    rt.current = current
    rehearsal = fresh()
    rt.calls.clear()
    getattr(rehearsal, operation)()
    names = rt.named(device=True)
    for index, call in enumerate(names):
        life = fresh()
        held, opened = set(rt.held), descriptors()
        rt.fail(call, OTHER_FAILURE, skip=names[:index].count(call))
        with pytest.raises(crossmem.DriverError) as raised:
            getattr(life, operation)()

        assert raised.value.call == family.function(call)
        assert raised.value.device == "pci:0000:03:00.0"
        assert (set(rt.held), descriptors()) == (held, opened), call
        rt.codes.clear()
        # What could not be put back is put back by the next call.
        life.driver.synchronize(0)
        assert rt.current == current, call
        getattr(life, operation)()


GIVING_BACK = [
    *(("free", call) for call in ("memUnmap", "memRelease", "memAddressFree")),
    *(("unmap", call) for call in ("memUnmap", "memAddressFree")),
    ("close", "memRelease"),
    ("unmap_at", "memUnmap"),
    ("unmap_import_at", "memUnmap"),
    ("release", "memAddressFree"),
]


@pytest.mark.parametrize(("operation", "call"), GIVING_BACK)
@pytest.mark.parametrize("failing", ["getDevice", "setDevice", "streamIsCapturing", "itself"])
@pytest.mark.parametrize("skip", [0, 1])
def test_giving_back_goes_on_where_it_stopped(
    operation: str, call: str, failing: str, skip: int, rt: Any, life: Life
) -> None:
    life.until(operation)
    rt.current = 1
    rt.calls.clear()
    rt.fail(call if failing == "itself" else failing, OTHER_FAILURE, skip=skip)
    try:
        getattr(life, operation)()
    except crossmem.DriverError:
        rt.codes.clear()
        getattr(life, operation)()
    rt.codes.clear()
    rest = life.OPERATIONS.index(operation) + 1
    for name in life.OPERATIONS[rest:]:
        getattr(life, name)()

    # Whatever was released twice, the stand-in would have raised.
    assert rt.held == set()
    assert rt.current == 1


def test_a_mapping_that_could_not_be_undone_is_closed_later(rt: Any, life: Life) -> None:
    life.until("map")
    rt.fail("memSetAccess", OTHER_FAILURE)
    rt.codes["memUnmap"] = [OTHER_FAILURE]
    with pytest.raises(crossmem.DriverError) as raised:
        life.map()
    assert "MemUnmap" in raised.value.__notes__[0]
    assert "mapping" in {kind for kind, _ in rt.held}

    life.close()
    life.release_export()
    life.free()
    assert rt.held == set()


def test_a_mapping_that_was_left_gets_its_access(rt: Any, life: Life) -> None:
    life.until("map")
    rt.fail("memSetAccess", OTHER_FAILURE)
    rt.codes["memUnmap"] = [OTHER_FAILURE]
    with pytest.raises(crossmem.DriverError):
        life.map()

    made = made_by(rt, life.map)
    assert made == [("memSetAccess", life.pointer, 4 * MIB, ACCESS)]
    life.since("reserve")
    assert rt.held == set()


@pytest.mark.parametrize(
    ("call", "operation", "code", "error"),
    [
        ("memCreate", "allocate", 2, crossmem.OutOfMemoryError),
        ("memCreate", "allocate", 801, crossmem.UnsupportedError),
        ("memImportFromShareableHandle", "import_", 1, crossmem.InvalidHandleError),
        ("memImportFromShareableHandle", "import_", 801, crossmem.UnsupportedError),
        ("memAddressReserve", "map", 2, crossmem.OutOfMemoryError),
        ("memMap", "map", 205, crossmem.DriverError),
        ("memSetAccess", "map", 801, crossmem.UnsupportedError),
        ("memUnmap", "unmap", 1, crossmem.DriverError),
    ],
)
def test_what_operations_can_meet(
    call: str, operation: str, code: int, error: type[Exception], rt: Any, life: Life
) -> None:
    life.until(operation)
    rt.fail(call, code)
    with pytest.raises(error, match=str(code)):
        getattr(life, operation)()


@pytest.mark.parametrize("call", ["memAddressReserve", "memMap"])
def test_sizes_that_the_memory_does_not_have(call: str, rt: Any, life: Life) -> None:
    life.until("map")
    held = set(rt.held)
    rt.fail(call, 1)
    with pytest.raises(crossmem.InvalidHandleError, match="4194304 bytes"):
        life.map()

    assert rt.held == held


@pytest.mark.parametrize(
    ("payloads", "count", "nbytes", "capacity"),
    [
        ((TOKEN,), 0, 1, 1),
        ((TOKEN,), 2, 1, 1),
        ((), 1, 1, 1),
        ((TOKEN, TOKEN), 1, 1, 1),
        ((bytes(15),), 1, 1, 1),
        ((TOKEN,), 1, 0, 1),
        ((TOKEN,), 1, 2, 1),
    ],
)
def test_exports_that_are_none(
    payloads: tuple[bytes, ...],
    count: int,
    nbytes: int,
    capacity: int,
    driver: GpuDriver,
    rt: Any,
) -> None:
    received = tuple(os.open(os.devnull, os.O_RDONLY) for _ in range(count))
    with pytest.raises(crossmem.InvalidHandleError):
        driver.import_(
            0,
            Exported(payloads, received),
            home=0,
            mechanism="vmm",
            nbytes=nbytes,
            capacity=capacity,
            access="rw",
        )

    assert rt.calls == []
    # They are core's to close.
    for descriptor in received:
        os.close(descriptor)


def test_a_forked_child_keeps_no_descriptor(driver: GpuDriver, life: Life) -> None:
    before = descriptors()
    for _ in range(3):
        life.allocate()
        life.export()
    driver.after_fork_in_child()

    assert descriptors() == before


# Memory that others mapped ----------------------------------------------------------------------

MANAGED, CAPABLE, HANDLE_TYPES, POOL, MAPPED_NBYTES, MAPPED_BASE = 8, 10, 14, 17, 18, 19


class Attributes:
    """``PointerAttributes``."""

    type = 2
    device = 0
    devicePointer = 64 * MIB  # noqa: N815 - CuPy's name


@pytest.fixture
def knowing(fake_virtual: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a runtime of NVIDIA's that knows what is mapped somewhere."""
    rt = fake_virtual(is_hip=False)
    rt.known = {CAPABLE: 0, HANDLE_TYPES: 1, MAPPED_BASE: 64 * MIB, MAPPED_NBYTES: 4 * MIB}

    def attribute(self: Any, number: int, pointer: int) -> int:
        if number not in self.known:
            raise self.CUDARuntimeError(1)
        found: int = self.known[number]
        return found

    monkeypatch.setattr(fake_virtual, "pointerGetAttribute", attribute, raising=False)
    monkeypatch.setattr(
        fake_virtual, "pointerGetAttributes", lambda _, __: Attributes(), raising=False
    )
    return rt


def test_what_others_mapped_is_adopted(knowing: Any) -> None:
    driver = GpuDriver(CUDA, knowing)
    inside = 64 * MIB + 100
    found = driver.inspect(0, inside, "vmm")
    capabilities = driver.capabilities(0, "vmm")
    knowing.calls.clear()
    block = driver.adopt(0, found, "vmm")
    exported = driver.export(block, "vmm", "rw", raw=False)
    driver.release_export(block, exported)
    driver.disown(block)

    assert capabilities.foreign_memory
    assert (found.base, found.nbytes, found.obstacle) == (64 * MIB, 4 * MIB, None)
    assert (found.exposed_base, found.exposed_nbytes) == (64 * MIB, 4 * MIB)
    assert knowing.named() == [
        *("memRetainAllocationHandle", "memExportToShareableHandle", "memRelease"),
    ]
    assert knowing.held == set()


@pytest.mark.parametrize("call", ["memRetainAllocationHandle", "memExportToShareableHandle"])
def test_an_export_of_adopted_memory_that_fails(knowing: Any, call: str) -> None:
    driver = GpuDriver(CUDA, knowing)
    block = driver.adopt(0, driver.inspect(0, 64 * MIB, "vmm"), "vmm")
    before = descriptors()
    knowing.fail(call, OTHER_FAILURE)
    with pytest.raises(crossmem.DriverError, match=call[1:]):
        driver.export(block, "vmm", "rw", raw=False)

    assert (knowing.held, descriptors()) == (set(), before)


def test_a_handle_that_could_not_be_released_is_released_by_disown(knowing: Any) -> None:
    driver = GpuDriver(CUDA, knowing)
    block = driver.adopt(0, driver.inspect(0, 64 * MIB, "vmm"), "vmm")
    before = descriptors()
    knowing.fail("memRelease", OTHER_FAILURE)
    with pytest.raises(crossmem.DriverError, match="MemRelease"):
        driver.export(block, "vmm", "rw", raw=False)
    assert {kind for kind, _ in knowing.held} == {"handle"}

    driver.disown(block)

    assert (knowing.held, descriptors()) == (set(), before)


@pytest.mark.parametrize(
    ("known", "words"),
    [
        ({CAPABLE: 1}, "not mapped by the vendor's calls"),
        ({MANAGED: 1}, "managed"),
        ({POOL: 1}, "pool"),
        ({HANDLE_TYPES: 0}, "not made to be exported"),
        ({HANDLE_TYPES: 8}, "not made to be exported"),
        ({MAPPED_NBYTES: 0}, "does not tell where its mapping begins"),
    ],
)
def test_what_cannot_be_adopted(knowing: Any, known: dict[int, int], words: str) -> None:
    knowing.known.update(known)
    found = GpuDriver(CUDA, knowing).inspect(0, 64 * MIB, "vmm")

    assert words in str(found.obstacle)
    assert found.nbytes == 0


def test_amd_does_not_tell_the_bounds_of_mappings(knowing: Any) -> None:
    knowing.is_hip = True
    driver = GpuDriver(HIP, knowing)

    assert not driver.capabilities(0, "vmm").foreign_memory
    assert driver.capabilities(0, "legacy").foreign_memory
