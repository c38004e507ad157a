# SPDX-License-Identifier: Apache-2.0
"""ACL-E2 to E6: physical memory."""

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.plugins.emulated.acl.acl_actor import (
        DOCUMENTED,
        GRANULARITY,
        Actor,
        differs,
        emulation_only,
        ok,
        properties,
    )
    from tests.plugins.emulated.acl.conftest import Start
else:
    from acl_actor import DOCUMENTED, GRANULARITY, Actor, differs, emulation_only, ok, properties

    Start = Any


V2 = "a2 a3 old-driver"


@differs({DOCUMENTED: 107000, "950": 107000, V2: 507899})
def test_e2_size_is_no_multiple_of_the_granularity(acl: Actor, code: int) -> None:
    granularity = ok(acl.rt.mem_get_allocation_granularity(properties(), 0))

    assert granularity == GRANULARITY
    for nbytes in (1, granularity - 1, granularity + 4096):
        assert acl.rt.malloc_physical(nbytes, properties(), 0) == (0, code)
    acl.check_broken(*["ACL-E2"] * 3)


@emulation_only
@pytest.mark.parametrize(("attribute", "page_nbytes"), [(3, 4096), (12, 4096), (2, GRANULARITY)])
def test_e2_memory_of_the_host_may_have_small_pages(
    acl: Actor, attribute: int, page_nbytes: int
) -> None:
    prop = properties(0, memAttr=attribute, location={"id": 0, "type": 0})
    pointer = acl.map_new(ok(acl.rt.malloc_physical(GRANULARITY, prop, 0)))

    assert ok(acl.rt.mem_get_allocation_granularity(prop, 0)) == page_nbytes
    assert ok(acl.rt.pointer_get_attributes(pointer))["page_size"] == page_nbytes
    _, code = acl.rt.malloc_physical(4096, prop, 0)
    assert (code == 0) == (page_nbytes == 4096)


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({"handleType": 2}, 100000),
        ({"allocationType": 1}, 100000),
        ({"memAttr": 0}, 100000),
        ({"memAttr": 1}, 100000),
        ({"memAttr": 8}, 100000),
        ({"memAttr": 2}, 100000),
        ({"memAttr": 99}, 100000),
        ({"location": {"id": 0, "type": 2}}, 100000),
        ({"location": {"id": 0, "type": 3}}, 100000),
        ({"location": {"id": 0, "type": 5}}, 100000),
        ({"reserve": 1}, 107000),
    ],
    ids=str,
)
def test_e3_properties_that_cannot_be(acl: Actor, changed: dict[str, Any], code: int) -> None:
    prop = properties(0, **changed)

    assert acl.rt.malloc_physical(GRANULARITY, prop, 0) == (0, code)
    acl.check_broken("ACL-E3")


@pytest.mark.parametrize(("nbytes", "flags"), [(0, 0), (GRANULARITY, 1)])
def test_e3_no_size_or_flags(acl: Actor, nbytes: int, flags: int) -> None:
    assert acl.rt.malloc_physical(nbytes, properties(), flags) == (0, 100000)


def test_e3_what_lawful_programs_may_try(acl: Actor) -> None:
    missing = {"location": {"id": 99, "type": 1}, "memAttr": 4}
    host = {"location": {"id": 1, "type": 0}, "memAttr": 2}

    assert acl.rt.malloc_physical(GRANULARITY, missing, 0) == (0, 107001)
    assert acl.rt.mem_get_allocation_granularity(properties(), 7) == (0, 207000)
    if acl.rt.mem_get_allocation_granularity({**host, "location": {"type": 0}}, 0)[1] == 0:
        assert acl.rt.malloc_physical(GRANULARITY, host, 0) == (0, 207000)
    acl.check_broken()


@emulation_only
@pytest.mark.parametrize("node", [0, 2])
def test_e3_programs_may_try_numa_nodes(acl: Actor, node: int) -> None:
    prop = properties(0, memAttr=16, location={"id": node, "type": 4})

    assert acl.rt.malloc_physical(GRANULARITY, prop, 0) == (0, 207000)
    assert acl.rt.mem_get_allocation_granularity(prop, 0) == (0, 207000)
    acl.check_broken()


def test_e3_keys_that_are_missing_are_zero(acl: Actor) -> None:
    ok(acl.rt.malloc_physical(GRANULARITY, {"memAttr": 4, "location": {"type": 1}}, 0))


def test_e4_out_of_memory(acl: Actor) -> None:
    assert acl.rt.malloc_physical(1 << 40, properties(), 0) == (0, 207001)
    assert acl.rt.malloc(1 << 40, 0) == (0, 207001)
    ok(acl.rt.malloc_physical(GRANULARITY, properties(), 0))
    acl.check_broken()


def test_e5_free_while_mapped(acl: Actor) -> None:
    before = acl.free_nbytes
    handle, pointer = acl.physical()
    ok(acl.rt.free_physical(handle))

    acl.write(pointer, b"still here")
    assert acl.read(pointer, 10) == b"still here"
    assert acl.free_nbytes <= before - GRANULARITY
    ok(acl.rt.unmap_mem(pointer))
    assert acl.free_nbytes == before
    acl.check_broken()


def test_e6_free_once_too_often_while_mapped(acl: Actor) -> None:
    handle, pointer = acl.physical()
    ok(acl.rt.free_physical(handle))

    assert acl.rt.free_physical(handle) == 107000
    acl.write(pointer, b"still here")
    acl.check_broken("ACL-E6")


@pytest.mark.parametrize("profile", ["documented", "cann8"], indirect=True)
def test_e6_free_what_is_gone(acl: Actor) -> None:
    handle = ok(acl.rt.malloc_physical(GRANULARITY, properties(), 0))
    ok(acl.rt.free_physical(handle))

    assert acl.rt.free_physical(handle) == 107000
    assert acl.rt.free_physical(0) == 100000
    acl.check_broken("ACL-E6")
