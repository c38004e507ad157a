# SPDX-License-Identifier: Apache-2.0
"""ACL-E34 to E36: who may use a mapping, and its handle."""

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.plugins.emulated.acl.acl_actor import (
        GRANULARITY,
        Actor,
        emulation_only,
        ok,
        properties,
    )
    from tests.plugins.emulated.acl.conftest import Start
else:
    from acl_actor import GRANULARITY, Actor, emulation_only, ok, properties

    Start = Any


pytestmark = emulation_only
READ_WRITE, ON_DEVICE, ON_HOST = 3, 1, 0


def map_closed(acl: Actor) -> tuple[int, int]:
    """Map new memory that nothing may use yet."""
    handle = ok(acl.rt.malloc_physical(GRANULARITY, properties(), 0))
    pointer = ok(acl.rt.reserve_mem_address(GRANULARITY, 0, 0, 0))
    ok(acl.c.mem_map_no_access(pointer, GRANULARITY, 0, handle, 0))
    return handle, pointer


def test_e34_access_to_mappings(acl: Actor) -> None:
    _, pointer = acl.physical()
    wanted = [(READ_WRITE, 0, ON_DEVICE), (READ_WRITE, 1, ON_DEVICE), (READ_WRITE, 0, ON_HOST)]
    assert ok(acl.c.mem_get_access(pointer, 0, ON_DEVICE)) == READ_WRITE
    assert ok(acl.c.mem_get_access(pointer, 1, ON_DEVICE)) == 0

    for _ in range(2):
        ok(acl.c.mem_set_access(pointer, GRANULARITY, wanted))
    assert ok(acl.c.mem_get_access(pointer, 1, ON_DEVICE)) == READ_WRITE
    assert ok(acl.c.mem_get_access(pointer, 0, ON_HOST)) == READ_WRITE
    acl.check_broken()


def test_e34_access_that_cannot_be(acl: Actor) -> None:
    _, pointer = acl.physical()
    good, size = (READ_WRITE, 0, ON_DEVICE), GRANULARITY

    assert acl.c.mem_set_access(0, size, [good]) == 107000
    assert acl.c.mem_set_access(pointer, size, []) == 107000
    assert acl.c.mem_set_access(pointer, size // 2, [good]) == 107000
    assert acl.c.mem_set_access(pointer, size, [(READ_WRITE, 1, ON_HOST)]) == 107000
    assert acl.c.mem_set_access(pointer, size, [(READ_WRITE, 0, 2)]) == 107000
    assert acl.c.mem_set_access(pointer, size, [(READ_WRITE, 9, ON_DEVICE)]) == 507899
    assert acl.c.mem_get_access(pointer, 9, ON_DEVICE) == (0, 507899)
    acl.check_broken(*["ACL-E34"] * 7)
    assert acl.c.mem_set_access(pointer, size, [(1, 0, ON_DEVICE)]) == 207000
    assert acl.c.mem_set_access(pointer + size, size, [good]) == 507899
    acl.check_broken(*["ACL-E34"] * 7, "ACL-E13")


def test_e34_who_comes_first_keeps_its_access(acl: Actor) -> None:
    _, pointer = map_closed(acl)
    wanted = [(READ_WRITE, 0, ON_DEVICE), (READ_WRITE, 9, ON_DEVICE)]

    assert acl.c.mem_set_access(pointer, GRANULARITY, wanted) == 507899
    assert ok(acl.c.mem_get_access(pointer, 0, ON_DEVICE)) == READ_WRITE


def test_e34_devices_have_the_driver_s_numbers(start: Start) -> None:
    acl = start(ASCEND_RT_VISIBLE_DEVICES="1")
    _, pointer = acl.physical()

    number = ok(acl.c.get_logic_dev_id_by_user_dev_id(0))
    ok(acl.c.mem_set_access(pointer, GRANULARITY, [(READ_WRITE, number, ON_DEVICE)]))
    acl.check_broken()
    assert acl.c.mem_set_access(pointer, GRANULARITY, [(READ_WRITE, 0, ON_DEVICE)]) == 507899
    acl.check_broken("ACL-E34")


@pytest.mark.parametrize("profile", ["cann8"], indirect=True)
def test_e34_older_editions(acl: Actor) -> None:
    handle, pointer = acl.physical()

    assert acl.c.mem_set_access(pointer, GRANULARITY, [(3, 0, 1)]) == 207000
    assert acl.c.mem_get_access(pointer, 0, 1) == (0, 207000)
    assert acl.c.mem_map_no_access(pointer, GRANULARITY, 0, handle, 0) == 207000
    assert acl.c.mem_get_allocation_properties_from_handle(handle)[-1] == 207000
    assert acl.c.mem_get_address_range(pointer) == (0, 0, 207000)
    acl.check_broken()


def test_e35_nothing_uses_it_before(acl: Actor) -> None:
    handle, pointer = map_closed(acl)

    assert acl.call("write", pointer, b"early") == 507899
    assert acl.rt.memset(pointer, GRANULARITY, 0, 1) == 507899
    acl.check_broken("ACL-E35", "ACL-E35")
    ok(acl.c.mem_set_access(pointer, GRANULARITY, [(READ_WRITE, 0, ON_DEVICE)]))
    acl.write(pointer, b"now")
    assert acl.read(pointer, 3) == b"now"
    ok(acl.rt.unmap_mem(pointer))
    ok(acl.c.mem_map_no_access(pointer, GRANULARITY, 0, handle, 0))
    assert acl.call("write", pointer, b"again") == 507899


@pytest.mark.parametrize("profile", ["documented", "a2", "a3", "950"], indirect=True)
def test_e36_handles_come_back(acl: Actor) -> None:
    before = acl.free_nbytes
    handle, pointer = acl.physical()
    assert ok(acl.c.mem_retain_allocation_handle(pointer)) == handle
    ok(acl.rt.unmap_mem(pointer))
    ok(acl.rt.free_physical(handle))

    assert acl.free_nbytes == before - GRANULARITY
    ok(acl.rt.free_physical(handle))
    assert acl.free_nbytes == before
    acl.check_broken()
    assert acl.c.mem_retain_allocation_handle(pointer) == (0, 507899)
    acl.check_broken("ACL-E13")


@pytest.mark.parametrize("profile", ["old-driver", "cann8"], indirect=True)
def test_e36_older_drivers(acl: Actor) -> None:
    _, pointer = acl.physical()

    assert acl.c.mem_retain_allocation_handle(pointer) == (0, 207000)
    acl.check_broken()


def test_handles_tell_their_properties(acl: Actor) -> None:
    on_host = properties(0, memAttr=2, location={"id": 0, "type": 0})
    for prop in (properties(1), properties(0, memAttr=5), on_host):
        handle = ok(acl.rt.malloc_physical(GRANULARITY, prop, 0))

        assert ok(acl.c.mem_get_allocation_properties_from_handle(handle)) == prop
    acl.check_broken()


@pytest.mark.parametrize(
    ("profile", "code"), [("documented", 0), ("a3", 0), ("a2", 207000)], indirect=["profile"]
)
def test_uncached_addresses(acl: Actor, code: int) -> None:
    size, place = 1 << 30, 64 << 40
    pointer, answer = acl.c.reserve_mem_address_no_uc_memory(size, 0, place, 0)

    assert (pointer, answer) == (0 if code else place, code)
    if not code:
        ok(acl.rt.release_mem_address(pointer))
        assert acl.c.reserve_mem_address_no_uc_memory(GRANULARITY, 0, 0, 0) == (0, 107000)
        assert acl.c.reserve_mem_address_no_uc_memory(size, 0, 1 << 40, 0) == (0, 107000)
        assert acl.c.reserve_mem_address_no_uc_memory(0, 0, 0, 0) == (0, 100000)
    acl.check_broken()
