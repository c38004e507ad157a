# SPDX-License-Identifier: Apache-2.0
"""ACL-E7 to E13 and E14c: addresses, and mapping memory there."""

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.plugins.emulated.acl.acl_actor import (
        DOCUMENTED,
        DRIVER,
        GRANULARITY,
        Actor,
        differs,
        ok,
        properties,
    )
    from tests.plugins.emulated.acl.conftest import Start
else:
    from acl_actor import DOCUMENTED, DRIVER, GRANULARITY, Actor, differs, ok, properties

    Start = Any


UNIT = GRANULARITY


@pytest.fixture
def handle(acl: Actor) -> int:
    """Return physical memory of two units."""
    return int(ok(acl.rt.malloc_physical(2 * UNIT, properties(), 0)))


@pytest.fixture
def pointer(acl: Actor) -> int:
    """Return the first of eight reserved units."""
    return int(ok(acl.rt.reserve_mem_address(8 * UNIT, 0, 0, 0)))


def test_e7_offset(acl: Actor, handle: int, pointer: int) -> None:
    assert acl.rt.map_mem(pointer, UNIT, UNIT, handle, 0) == 107000
    acl.check_broken("ACL-E7")


@differs({DOCUMENTED: 107000, DRIVER: 507899})
def test_e8_more_than_the_handle_has(acl: Actor, handle: int, pointer: int, code: int) -> None:
    assert acl.rt.map_mem(pointer, 3 * UNIT, 0, handle, 0) == code
    acl.check_broken("ACL-E8")


@differs({DOCUMENTED: 107000, DRIVER: 0})
def test_e8_less_than_the_handle_has(acl: Actor, handle: int, pointer: int, code: int) -> None:
    assert acl.rt.map_mem(pointer, UNIT, 0, handle, 0) == code
    acl.check_broken("ACL-E8")


def test_e9_not_aligned_or_not_reserved(acl: Actor, handle: int, pointer: int) -> None:
    places = (pointer + 4096, pointer + 7 * UNIT, pointer + 8 * UNIT + (64 << 30))

    assert [acl.rt.map_mem(place, 2 * UNIT, 0, handle, 0) for place in places] == [507899] * 3
    acl.check_broken(*["ACL-E9"] * 3)


def test_e9_plain_memory_is_not_reserved(acl: Actor, handle: int) -> None:
    plain = ok(acl.rt.malloc(2 * UNIT, 0))

    assert acl.rt.map_mem(plain, 2 * UNIT, 0, handle, 0) == 507899


def test_e9_inside_of_what_is_reserved(acl: Actor, handle: int, pointer: int) -> None:
    ok(acl.rt.map_mem(pointer + 3 * UNIT, 2 * UNIT, 0, handle, 0))
    acl.write(pointer + 3 * UNIT, b"here")
    acl.check_broken()


def test_e10_what_is_mapped_already(acl: Actor, handle: int, pointer: int) -> None:
    ok(acl.rt.map_mem(pointer + UNIT, 2 * UNIT, 0, handle, 0))

    for place in (pointer, pointer + UNIT, pointer + 2 * UNIT):
        assert acl.rt.map_mem(place, 2 * UNIT, 0, handle, 0) == 507899
    acl.check_broken(*["ACL-E10"] * 3)
    ok(acl.rt.map_mem(pointer + 3 * UNIT, 2 * UNIT, 0, handle, 0))
    acl.write(pointer + UNIT, b"one memory")
    assert acl.read(pointer + 3 * UNIT, 10) == b"one memory"


@pytest.mark.usefixtures("two_devices")
def test_e11_one_reservation_for_two_devices(acl: Actor, handle: int, pointer: int) -> None:
    ok(acl.rt.set_device(1))
    other = ok(acl.rt.malloc_physical(UNIT, properties(1), 0))
    ok(acl.rt.map_mem(pointer, 2 * UNIT, 0, handle, 0))

    assert acl.rt.map_mem(pointer + 4 * UNIT, UNIT, 0, other, 0) == 507899
    acl.check_broken("ACL-E11")


@differs({DOCUMENTED: 507899, DRIVER: 0})
def test_e11_own_and_imported_memory(acl: Actor, importer: Actor, handle: int, code: int) -> None:
    share = ok(acl.rt.mem_export_to_shareable_handle(handle, 0, 0))
    ok(acl.rt.mem_set_pid_to_shareable_handle(share, [importer.tgid]))
    imported = ok(importer.rt.mem_import_from_shareable_handle(share, 0))
    own = ok(importer.rt.malloc_physical(UNIT, properties(), 0))
    pointer = ok(importer.rt.reserve_mem_address(8 * UNIT, 0, 0, 0))
    ok(importer.rt.map_mem(pointer, 2 * UNIT, 0, imported, 0))

    assert importer.rt.map_mem(pointer + 2 * UNIT, UNIT, 0, own, 0) == code
    importer.check_broken("ACL-E11")


def test_e12_release_with_mappings(acl: Actor, handle: int, pointer: int) -> None:
    ok(acl.rt.map_mem(pointer + UNIT, 2 * UNIT, 0, handle, 0))

    assert acl.rt.release_mem_address(pointer) == 507899
    acl.check_broken("ACL-E12")
    ok(acl.rt.unmap_mem(pointer + UNIT))
    ok(acl.rt.release_mem_address(pointer))


def test_x4_release_what_was_not_reserved(acl: Actor, pointer: int) -> None:
    for place in (pointer + UNIT, ok(acl.rt.malloc(UNIT, 0)), 4096):
        assert acl.rt.release_mem_address(place) == 107000
    assert acl.rt.release_mem_address(0) == 100000
    acl.check_broken(*["ACL-X4"] * 3)


def test_e13_unmap_what_begins_no_mapping(acl: Actor, handle: int, pointer: int) -> None:
    ok(acl.rt.map_mem(pointer, 2 * UNIT, 0, handle, 0))

    for place in (pointer + UNIT, pointer + 4 * UNIT):
        assert acl.rt.unmap_mem(place) == 507899
    assert acl.rt.unmap_mem(0) == 100000
    acl.check_broken("ACL-E13", "ACL-E13")


@differs({DOCUMENTED: 507899, "a2 a3 old-driver": 507899, "950": 107000})
def test_e13_unmap_an_address_that_is_not_aligned(acl: Actor, pointer: int, code: int) -> None:
    assert acl.rt.unmap_mem(pointer + 4096) == code
    acl.check_broken("ACL-E13")


@pytest.mark.usefixtures("two_devices")
def test_e14c_a_reservation_keeps_its_device(acl: Actor, handle: int, pointer: int) -> None:
    ok(acl.rt.set_device(1))
    other = ok(acl.rt.malloc_physical(2 * UNIT, properties(1), 0))
    ok(acl.rt.map_mem(pointer, 2 * UNIT, 0, handle, 0))
    ok(acl.rt.unmap_mem(pointer))

    assert acl.rt.map_mem(pointer, 2 * UNIT, 0, other, 0) == 507899
    acl.check_broken("ACL-E14c")
    ok(acl.rt.map_mem(pointer, 2 * UNIT, 0, handle, 0))
    ok(acl.rt.unmap_mem(pointer))
    ok(acl.rt.release_mem_address(pointer))
    acl.map_new(other, 2 * UNIT)


def test_x5_unknown_handles(acl: Actor, pointer: int) -> None:
    assert acl.rt.map_mem(pointer, UNIT, 0, 4096, 0) == 107017
    assert acl.rt.mem_export_to_shareable_handle(4096, 0, 0) == (0, 107017)
    acl.check_broken("ACL-X5", "ACL-X5")


def test_arguments_that_are_null(acl: Actor, handle: int, pointer: int) -> None:
    """Mistakes that the library itself finds are no uses of the device."""
    size = 2 * UNIT

    assert acl.rt.map_mem(0, size, 0, handle, 0) == 100000
    assert acl.rt.map_mem(pointer, 0, 0, handle, 0) == 100000
    assert acl.rt.map_mem(pointer, size, 0, 0, 0) == 100000
    assert acl.rt.map_mem(pointer, size, 0, handle, 1) == 100000
    assert acl.rt.reserve_mem_address(0, 0, 0, 0) == (0, 100000)
    assert acl.rt.reserve_mem_address(size, 0, 0, 2) == (0, 100000)
    assert acl.rt.reserve_mem_address(size, UNIT, 0, 0) == (0, 107000)
    assert acl.rt.reserve_mem_address(1 << 60, 0, 0, 0)[1] != 0


@pytest.mark.parametrize("flags", [0, 1])
def test_reserved_addresses(acl: Actor, flags: int) -> None:
    """Both meanings of the flag are accepted, and small sizes are rounded up."""
    pointer = ok(acl.rt.reserve_mem_address(1, 0, 0, flags))

    assert pointer % UNIT == 0
    unit = ok(acl.rt.malloc_physical(UNIT, properties(), 0))
    ok(acl.rt.map_mem(pointer, UNIT, 0, unit, 0))


def test_mapping_at_a_chosen_address(acl: Actor, importer: Actor, handle: int) -> None:
    """Two processes map the same memory, each at the address that it wants."""
    nbytes, own, other = 2 * UNIT, 17 << 40, 18 << 40
    share = ok(acl.rt.mem_export_to_shareable_handle(handle, 0, 0))
    ok(acl.rt.mem_set_pid_to_shareable_handle(share, [importer.tgid]))
    imported = ok(importer.rt.mem_import_from_shareable_handle(share, 0))

    for one, wanted, mapped in ((acl, own, handle), (importer, other, imported)):
        assert ok(one.rt.reserve_mem_address(nbytes, 0, wanted, 0)) == wanted
        ok(one.rt.map_mem(wanted, nbytes, 0, mapped, 0))
    acl.write(own + UNIT, b"here and there")
    assert importer.read(other + UNIT, 14) == b"here and there"
    acl.check_broken()
