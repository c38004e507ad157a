# SPDX-License-Identifier: Apache-2.0
"""Mechanism ``vmm``: which calls it makes, and where it is offered."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from crossmem.driver import address_ranges_of, check_groups
from crossmem_hip.driver import GpuDriver
from crossmem_hip.family import VIRTUAL, Family

MIB = 1 << 20
ACCESS = [(1, 0, 3), (1, 1, 3)]
"""The memory's own device first; the stand-in's devices reach each other."""


def descriptors() -> int:
    """Return how many this process has open of the file that stands for memory."""
    links = [str(one.readlink()) for one in Path("/proc/self/fd").iterdir() if one.is_symlink()]
    return links.count(os.devnull)


@pytest.fixture
def rt(virtual_rt: Any) -> Any:
    return virtual_rt


@pytest.fixture
def driver(virtual: GpuDriver) -> GpuDriver:
    return virtual


@pytest.fixture
def life(virtual_story: Any) -> Any:
    return virtual_story


def made_by(rt: Any, operation: Callable[[], None]) -> list[tuple[Any, ...]]:
    """Return the vendor's calls of an operation, without those that look at the device."""
    rt.calls.clear()
    operation()
    return [call for call in rt.calls if call[0] not in {"getDevice", "streamIsCapturing"}]


def test_each_operation_makes_its_calls(rt: Any, life: Any) -> None:
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


def test_descriptor_0_is_passed_under_another_number(rt: Any, life: Any) -> None:
    saved = os.dup(0)
    try:
        # What a process without standard input receives.
        os.close(0)
        before = descriptors()
        made = made_by(rt, life.import_)
        after = descriptors()
    finally:
        os.dup2(saved, 0)
        os.close(saved)

    ((call, descriptor, _),) = made
    assert call == "memImportFromShareableHandle"
    assert descriptor > 0
    assert after == before


def test_an_import_that_stands_has_no_handle(rt: Any, new_virtual_story: Any) -> None:
    life = new_virtual_story(remappable=False)
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
