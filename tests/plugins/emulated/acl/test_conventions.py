# SPDX-License-Identifier: Apache-2.0
"""How pyACL takes arguments and gives results."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from crossmem_emulated.acl import Acl, calls
from crossmem_emulated.options import Options

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


WRONG_TYPES: dict[str, tuple[Any, ...]] = {
    "rt.malloc": ("1", 0),
    "rt.free": (None,),
    "rt.memcpy": (1, 1, b"x", 1, 1),
    "rt.malloc_physical": (GRANULARITY, [], 0),
    "rt.mem_get_allocation_granularity": (0, 0),
    "rt.set_device": ("0",),
    "rt.ipc_mem_close": (b"key",),
    "rt.map_mem": (1.0, 1, 0, 1, 0),
}
TOO_FEW: dict[str, tuple[Any, ...]] = {
    "rt.malloc": (64,),
    "rt.map_mem": (GRANULARITY, GRANULARITY, 0, 64),
    "rt.set_device": (),
    "rt.malloc_physical": (GRANULARITY, properties()),
    "rt.mem_import_from_shareable_handle": (1,),
    "rt.ipc_mem_get_export_key": (1, 1, 65),
}


@pytest.mark.parametrize("name", WRONG_TYPES)
def test_wrong_types(acl: Actor, name: str) -> None:
    with pytest.raises(TypeError, match=f"acl.{name} args parse failed"):
        acl.call(f"acl.{name}", *WRONG_TYPES[name])


@pytest.mark.parametrize("name", TOO_FEW)
def test_too_few_and_too_many_arguments(acl: Actor, name: str) -> None:
    with pytest.raises(TypeError, match=f"acl.{name} args parse failed"):
        acl.call(f"acl.{name}", *TOO_FEW[name])
    with pytest.raises(TypeError, match=f"acl.{name} args parse failed"):
        acl.call(f"acl.{name}", *TOO_FEW[name], 0, 0, 0)


def test_get_context_ignores_arguments(acl: Actor) -> None:
    assert acl.rt.get_context(1, 2) == acl.rt.get_context()


@pytest.mark.parametrize("pids", [(1, 2), 1, "2"])
def test_a_list_is_a_list(acl: Actor, pids: Any) -> None:
    with pytest.raises(ValueError, match="only support the format of list"):
        acl.rt.mem_set_pid_to_shareable_handle(1, pids)
    with pytest.raises(ValueError, match="only support the format of list"):
        acl.rt.ipc_mem_set_import_pid("0" * 64, pids)


def test_an_empty_list_of_pids(acl: Actor) -> None:
    with pytest.raises(TypeError, match="convert argument 2"):
        acl.rt.mem_set_pid_to_shareable_handle(1, [])
    with pytest.raises(TypeError):
        acl.rt.mem_set_pid_to_shareable_handle(1, ["1"])


@pytest.mark.parametrize("number", [1 << 31, -(1 << 31) - 1])
def test_numbers_of_32_bits_overflow(acl: Actor, number: int) -> None:
    with pytest.raises(OverflowError):
        acl.rt.set_device(number)
    with pytest.raises(OverflowError):
        acl.rt.mem_set_pid_to_shareable_handle(1, [number])


def test_numbers_of_64_bits_wrap(acl: Actor) -> None:
    assert acl.rt.malloc_physical((1 << 64) + GRANULARITY, properties(), 0)[1] == 0
    assert acl.rt.malloc_physical(-GRANULARITY, properties(), 0) == (0, 207001)


def test_text_has_no_null(acl: Actor) -> None:
    with pytest.raises(ValueError, match="null"):
        acl.rt.ipc_mem_close("a\0b")


@emulation_only
def test_functions_take_no_keywords(host: Path) -> None:
    with pytest.raises(TypeError):
        Acl(options=Options(state=host)).rt.malloc(size=64, policy=0)


@emulation_only
@pytest.mark.parametrize("profile", ["documented"], indirect=True)
def test_every_function_has_blank_outputs_in_a_failure(start: Start) -> None:
    """Of the right number and type; outside of the emulated device nothing raises."""
    acl = start(device=None)
    samples = {"k": 64, "K": 64, "L": 0, "i": 0, "I": 0, "s": "x", "d": properties(), "p": [1]}
    samples["o"] = 0
    for name, called in calls.ENTRIES.items():
        required = called.codes.partition("|")[0].replace("*", "")
        acl.call("fail", name, 424242, {})
        answer = acl.call(f"acl.{name}", *(samples[one] for one in required))

        expected: Any = (*called.blanks, 424242) if called.blanks else 424242
        assert answer == (expected if called.has_code else called.blanks[0]), name


def test_a_configuration_is_a_file(start: Start) -> None:
    acl = start(device=None)
    ok(acl.acl.finalize())

    assert acl.acl.init("/nowhere/acl.json") == 100003
    ok(acl.acl.init(__file__))


def test_init_and_finalize(acl: Actor) -> None:
    assert acl.acl.init() == 100002
    assert acl.acl.init("") == 100002
    ok(acl.acl.finalize())
    assert acl.acl.finalize() == 100037
    ok(acl.acl.init())
    assert acl.acl.init() == 100002
    assert [acl.acl.finalize_reference() for _ in range(3)] == [(1, 0), (0, 0), (0, 100037)]


def test_what_has_no_code(acl: Actor) -> None:
    assert acl.rt.malloc(0, 0) == (0, 100000)
    assert isinstance(acl.acl.get_soc_name(), str)
    assert isinstance(acl.acl.get_recent_err_msg(), str)
    assert len(ok(acl.acl.get_version())) == 3
    assert ok(acl.rt.get_run_mode()) == 1


def test_util(acl: Actor) -> None:
    with pytest.raises(TypeError):
        acl.util.bytes_to_ptr("text")
    host = ok(acl.rt.malloc_host(16))
    acl.call("poke", host, b"on the host")
    assert acl.util.ptr_to_bytes(host, 11) == b"on the host"
    ok(acl.rt.free_host(host))


def test_devices(acl: Actor) -> None:
    count = ok(acl.rt.get_device_count())

    for number in (-1, count):
        assert acl.rt.set_device(number) == 107001
        assert acl.rt.create_context(number) == (0, 107001)
        assert acl.rt.device_get_uuid(number) == (0, 107001)
    assert acl.rt.device_can_access_peer(0, 0) == (0, 100000)
    assert acl.rt.device_enable_peer_access(0, 0) == 100000
    assert acl.rt.device_enable_peer_access(0, 1) == 200006
    assert len(ok(acl.rt.device_get_uuid(0))["bytes"]) == 16
    assert ok(acl.rt.get_primary_ctx_state(0))[0] == 1


@emulation_only
def test_where_a_pointer_is(acl: Actor) -> None:
    on_host = properties(0, memAttr=3, location={"id": 0, "type": 0})
    mapped = acl.map_new(ok(acl.rt.malloc_physical(GRANULARITY, on_host, 0)))
    pointer, host = ok(acl.rt.malloc(GRANULARITY, 0)), ok(acl.rt.malloc_host(8))
    kinds = [
        ok(acl.rt.pointer_get_attributes(one))["location"] for one in (pointer, host, mapped, 8)
    ]

    assert kinds == [{"id": 0, "type": one} for one in (1, 0, 0, 2)]
    assert acl.rt.pointer_get_attributes(0) == (0, 100000)


@emulation_only
def test_how_far_memory_goes(acl: Actor) -> None:
    _, mapped = acl.physical()
    pointer, host = ok(acl.rt.malloc(1, 1)), ok(acl.rt.malloc_host(8))

    assert ok(acl.c.mem_get_address_range(pointer + 9)) == (pointer, GRANULARITY)
    assert ok(acl.c.mem_get_address_range(host + 7)) == (host, 8)
    assert ok(acl.c.mem_get_address_range(mapped)) == (mapped, GRANULARITY)
    assert acl.c.mem_get_address_range(0) == (0, 0, 100000)


@emulation_only
def test_memory_with_a_configuration(acl: Actor) -> None:
    of_device = {"attrs": [{"attr": 1, "value": 7}, {"attr": 2, "value": 0}]}

    ok(acl.rt.free(ok(acl.rt.malloc_with_cfg(GRANULARITY, 0, of_device))))
    ok(acl.rt.free(ok(acl.rt.malloc_with_cfg(64, 0, {}))))
    ok(acl.rt.free_host(ok(acl.c.malloc_host_with_cfg(64, {}))))
    for attribute, value, code in ((2, 1, 207000), (9, 0, 107000)):
        other = {"attrs": [{"attr": attribute, "value": value}]}
        assert acl.rt.malloc_with_cfg(64, 0, other) == (0, code)


def test_host_memory(acl: Actor) -> None:
    host = ok(acl.rt.malloc_host(16))
    assert host % 64 == 0

    assert acl.rt.malloc_host(0) == (0, 100000)
    assert acl.rt.free_host(0) == 100000
    ok(acl.rt.free_host(host))
    assert acl.rt.get_mem_info(99)[-1] != 0
    acl.check_broken()


@emulation_only
def test_what_is_known_of_devices(start: Start) -> None:
    acl = start(device=None, ASCEND_RT_VISIBLE_DEVICES="1")

    assert ok(acl.c.get_logic_dev_id_by_user_dev_id(0)) == 1
    assert ok(acl.c.get_user_dev_id_by_logic_dev_id(1)) == 0
    assert ok(acl.c.get_logic_dev_id_by_phy_dev_id(1)) == 1
    assert acl.c.get_user_dev_id_by_logic_dev_id(0) == (0, 107001)
    assert acl.c.get_logic_dev_id_by_user_dev_id(1) == (0, 107001)
    assert [ok(acl.c.get_device_info(0, one)) for one in (301, 402, 501)] == [8 << 30, 1, 0]
    assert acl.c.get_device_info(0, 1) == (0, 207000)
    assert ok(acl.c.query_device_status(0)) == 0


@emulation_only
def test_x4_host_memory_that_is_none(acl: Actor) -> None:
    host = ok(acl.rt.malloc_host(16))

    assert acl.rt.free_host(host + 1) == 107000
    acl.check_broken("ACL-X4")


@emulation_only
def test_x3_unknown_contexts_and_streams(acl: Actor) -> None:
    context = ok(acl.rt.get_context())
    stream = ok(acl.rt.create_stream())
    ok(acl.rt.destroy_stream(stream))

    assert acl.rt.set_context(0) == 100000
    assert [
        acl.rt.set_context(4096),
        acl.rt.destroy_context(4096),
        acl.rt.destroy_context(context),
        acl.rt.synchronize_stream(stream),
        acl.rt.destroy_stream(stream),
        acl.rt.destroy_stream(0),
        acl.rt.destroy_stream_force(0),
        acl.rt.create_stream_with_config(8, 0)[-1],
        acl.rt.create_stream_with_config(0, 0x40)[-1],
        acl.rt.set_stream_failure_mode(0, 2),
    ] == [107000] * 10
    acl.check_broken(*["ACL-X3"] * 10)


@emulation_only
def test_streams_have_properties(acl: Actor) -> None:
    stream = ok(acl.rt.create_stream_with_config(3, 1))

    assert ok(acl.c.stream_get_priority(stream)) == 3
    assert ok(acl.c.stream_get_flags(stream)) == 1
    assert ok(acl.c.get_stream_attribute(stream, 1)) == 0
    ok(acl.rt.set_stream_failure_mode(stream, 1))
    assert [ok(acl.c.get_stream_attribute(one, 1)) for one in (stream, 0)] == [1, 0]
    assert ok(acl.c.device_get_stream_priority_range()) == (7, 0)
    assert ok(acl.c.ctx_get_current_default_stream()) != stream
    assert ok(acl.c.stream_get_id(stream)) != ok(acl.c.stream_get_id(0))
    ok(acl.rt.destroy_stream_force(stream))
