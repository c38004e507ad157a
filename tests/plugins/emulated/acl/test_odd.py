# SPDX-License-Identifier: Apache-2.0
"""Numbers and descriptions that no sane program passes are answered, and change nothing."""

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
else:
    from acl_actor import GRANULARITY, Actor, emulation_only, ok, properties

pytestmark = [emulation_only, pytest.mark.parametrize("profile", ["documented"], indirect=True)]

HUGE = (-1, 1 << 47, 1 << 62, 1 << 63, (1 << 64) - GRANULARITY, (1 << 64) - 1)
ON_HOST = {**properties(), "memAttr": 2, "location": {"id": 0, "type": 0}}


@pytest.mark.parametrize("nbytes", HUGE)
@pytest.mark.parametrize("name", ["malloc", "malloc_host", "reserve_mem_address"])
def test_no_process_has_so_much(acl: Actor, name: str, nbytes: int) -> None:
    more = {"malloc": (0,), "malloc_host": (), "reserve_mem_address": (0, 0, 0)}[name]
    regions = len(acl.call("acl.space.regions.copy"))
    answer = acl.call(f"acl.rt.{name}", nbytes, *more)

    assert answer[0] == 0
    assert answer[-1] != 0
    assert len(acl.call("acl.space.regions.copy")) == regions


@pytest.mark.parametrize("nbytes", HUGE)
@pytest.mark.parametrize("prop", [properties(), ON_HOST], ids=["device", "host"])
def test_no_device_or_host_has_so_much(acl: Actor, prop: dict[str, Any], nbytes: int) -> None:
    handle, code = acl.rt.malloc_physical(nbytes, prop, 0)

    assert (handle, code != 0) == (0, True)


def test_descriptions_that_describe_nothing(acl: Actor) -> None:
    for location in ("x", None):
        with pytest.raises(TypeError, match="location"):
            acl.rt.malloc_physical(GRANULARITY, properties(location=location), 0)
    assert acl.rt.malloc_physical(GRANULARITY, properties(memAttr="x"), 0) == (0, 100000)


@pytest.mark.parametrize("nbytes", HUGE)
def test_what_is_done_to_memory(acl: Actor, nbytes: int) -> None:
    pointer = ok(acl.rt.malloc(GRANULARITY, 0))
    acl.write(pointer, b"kept")

    assert acl.rt.memcpy(pointer, nbytes, pointer + 64, nbytes, 3) != 0
    assert acl.rt.memset(pointer, nbytes, 0, nbytes) != 0
    assert acl.rt.ipc_mem_get_export_key(pointer, nbytes, 65, 0)[-1] != 0
    assert acl.read(pointer, 4) == b"kept"


def test_filling_nothing(acl: Actor) -> None:
    pointer = ok(acl.rt.malloc(GRANULARITY, 0))
    acl.write(pointer, b"kept")
    ok(acl.rt.memset(pointer, GRANULARITY, 0, 0))

    assert acl.read(pointer, 4) == b"kept"


@pytest.mark.parametrize("number", HUGE)
def test_handles_and_addresses_that_nothing_has(acl: Actor, number: int) -> None:
    handle = ok(acl.rt.malloc_physical(GRANULARITY, properties(), 0))
    for call, *arguments in (
        ("mem_import_from_shareable_handle", number, 0),
        ("mem_set_pid_to_shareable_handle", number, [1]),
        ("map_mem", number, GRANULARITY, 0, handle, 0),
        ("unmap_mem", number),
        ("release_mem_address", number),
        ("free_physical", number),
        ("free", number),
    ):
        answer = acl.call(f"acl.rt.{call}", *arguments)

        assert (answer if isinstance(answer, int) else answer[-1]) != 0, call
    ok(acl.rt.free_physical(handle))
