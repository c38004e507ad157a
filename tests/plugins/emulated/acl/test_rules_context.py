# SPDX-License-Identifier: Apache-2.0
"""ACL-E1 to E1c, E30, E31: contexts, process numbers and forks."""

import time
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.plugins.emulated.acl.acl_actor import (
        DRIVER,
        GRANULARITY,
        START_TIME_RESOLUTION_S,
        Actor,
        emulation_only,
        ok,
        properties,
    )
    from tests.plugins.emulated.acl.conftest import Start
else:
    from acl_actor import (
        DRIVER,
        GRANULARITY,
        START_TIME_RESOLUTION_S,
        Actor,
        emulation_only,
        ok,
        properties,
    )

    Start = Any


NEED_A_CONTEXT: dict[str, tuple[Any, ...]] = {
    "rt.memcpy": (16, 1, 32, 1, 4),
    "rt.memcpy_async": (16, 1, 32, 1, 4, 0),
    "rt.memset": (16, 1, 0, 1),
    "rt.ipc_mem_get_export_key": (GRANULARITY, GRANULARITY, 65, 0),
    "rt.ipc_mem_set_import_pid": ("0" * 64, [1]),
    "rt.ipc_mem_import_by_key": ("0" * 64, 0),
    "rt.ipc_mem_close": ("0" * 64,),
    "rt.mem_import_from_shareable_handle": (0, 0),
}
NEED_A_DEVICE: dict[str, tuple[Any, ...]] = {
    "rt.malloc_physical": (GRANULARITY, properties(), 0),
    "rt.free_physical": (64,),
    "rt.map_mem": (GRANULARITY, GRANULARITY, 0, 64, 0),
    "rt.unmap_mem": (GRANULARITY,),
    "rt.mem_export_to_shareable_handle": (64, 0, 0),
}


def code_of(result: Any) -> int:
    """Return the code that a call answered; its outputs are blank."""
    if isinstance(result, int):
        return result
    *outputs, code = result
    assert not any(outputs)
    return int(code)


@pytest.mark.parametrize("name", NEED_A_CONTEXT)
def test_e1_no_current_context(start: Start, name: str) -> None:
    acl = start(device=None)

    assert code_of(acl.call(f"acl.{name}", *NEED_A_CONTEXT[name])) == 107002
    acl.check_broken("ACL-E1")


@emulation_only
@pytest.mark.parametrize("profile", ["documented", "a3"], indirect=True)
def test_e1_exporting_for_a_fabric(acl: Actor) -> None:
    handle, _ = acl.physical()
    ok(acl.rt.destroy_context(ok(acl.rt.create_context(0))))
    number, fabric = 1, 2

    assert acl.c.mem_export_to_shareable_handle_v2(handle, 0, fabric) == (None, 107002)
    acl.check_broken("ACL-E1")
    ok(acl.c.mem_export_to_shareable_handle_v2(handle, 0, number))
    acl.check_broken("ACL-E1")


def test_e1_contexts_belong_to_threads(acl: Actor) -> None:
    names = ("acl.rt.get_context", "acl.rt.get_device", "acl.rt.synchronize_device")

    assert acl.call("in_thread", *names) == [(0, 107002), (0, 107002), 107002]
    assert ok(acl.rt.get_device()) == 0


def test_e1_a_destroyed_context_is_no_context(acl: Actor) -> None:
    default = ok(acl.rt.get_context())
    context = ok(acl.rt.create_context(0))
    ok(acl.rt.destroy_context(context))

    assert acl.rt.get_context() == (0, 107002)
    ok(acl.rt.set_context(default))
    assert ok(acl.rt.get_device()) == 0


@pytest.mark.parametrize(
    ("profile", "code"),
    [
        *((name, 107002) for name in ("documented", "cann8")),
        *((name, 107017) for name in DRIVER.split()),
    ],
    indirect=["profile"],
)
def test_e1b_addresses_before_a_device_is_set(start: Start, code: int) -> None:
    acl = start(device=None)

    assert acl.rt.reserve_mem_address(GRANULARITY, 0, 0, 0) == (0, code)
    assert acl.rt.release_mem_address(GRANULARITY) == code
    acl.check_broken("ACL-E1b", "ACL-E1b")


@pytest.mark.parametrize("name", NEED_A_DEVICE)
def test_e1c_physical_memory_before_a_device_is_set(start: Start, name: str) -> None:
    acl = start(device=None)

    assert code_of(acl.call(f"acl.{name}", *NEED_A_DEVICE[name])) == 107002
    acl.check_broken("ACL-E1c")


def test_e1c_physical_memory_needs_no_context(acl: Actor) -> None:
    """A thread without a context may do it once another has opened the device."""
    ok(acl.rt.destroy_context(ok(acl.rt.create_context(0))))
    assert acl.rt.get_context() == (0, 107002)

    handle, pointer = acl.physical()
    ok(acl.rt.mem_export_to_shareable_handle(handle, 0, 0))
    ok(acl.rt.unmap_mem(pointer))
    ok(acl.rt.release_mem_address(pointer))
    ok(acl.rt.free_physical(handle))
    acl.check_broken()


@emulation_only
def test_e30_the_bare_tgid_is_not_the_pid(acl: Actor) -> None:
    assert acl.tgid == acl.pid + (1 << 22)


@emulation_only
def test_e30_a_container_s_pid_admits_nobody(exporter: Actor, importer: Actor) -> None:
    handle, _ = exporter.physical()
    share = ok(exporter.rt.mem_export_to_shareable_handle(handle, 0, 0))
    ok(exporter.rt.mem_set_pid_to_shareable_handle(share, [importer.pid]))

    assert importer.rt.mem_import_from_shareable_handle(share, 0) == (0, 507899)
    ok(exporter.rt.mem_set_pid_to_shareable_handle(share, [importer.tgid]))
    ok(importer.rt.mem_import_from_shareable_handle(share, 0))


def test_e30_a_reused_number_admits_nobody(start: Start, exporter: Actor) -> None:
    """A process that starts later may get an admitted number, but is not who was admitted."""
    handle, _ = exporter.physical()
    share = ok(exporter.rt.mem_export_to_shareable_handle(handle, 0, 0))
    coming = list(range(exporter.tgid + 1, exporter.tgid + 20_000))
    ok(exporter.rt.mem_set_pid_to_shareable_handle(share, coming))
    time.sleep(START_TIME_RESOLUTION_S)
    importer = start()
    if importer.tgid not in coming:
        pytest.skip("the host has just begun to give small numbers again")

    assert importer.rt.mem_import_from_shareable_handle(share, 0) == (0, 507899)
    ok(exporter.rt.mem_set_pid_to_shareable_handle(share, [importer.tgid]))
    ok(importer.rt.mem_import_from_shareable_handle(share, 0))


def test_e31_a_forked_child_gets_errors(acl: Actor) -> None:
    handle, pointer = acl.physical()
    calls = [
        ("acl.rt.malloc", GRANULARITY, 0),
        ("acl.rt.set_device", 0),
        ("acl.rt.map_mem", pointer, GRANULARITY, 0, handle, 0),
        ("acl.rt.mem_import_from_shareable_handle", 0, 0),
    ]
    answers = [code_of(one) for one in acl.call("in_fork", *calls)]

    assert set(answers) <= {107002, 507899}
    acl.check_broken(*["ACL-E31"] * len(calls))
    acl.write(pointer, b"the parent goes on")


@emulation_only
def test_e31_a_child_of_a_process_that_opened_nothing_is_free(start: Start) -> None:
    acl = start(device=None)
    ok(acl.rt.get_device_count())
    answers = acl.call(
        "in_fork", ("acl.rt.set_device", 0), ("acl.rt.malloc", GRANULARITY, 0), ("acl.violations",)
    )

    assert answers[0] == answers[1][1] == 0
    assert answers[2] == []


@emulation_only
def test_e31_a_free_child_is_initialized_as_its_parent_was(start: Start) -> None:
    acl = start(device=None)
    calls = [("acl.init",), ("acl.rt.set_device", 0), ("acl.finalize",)]

    assert acl.call("in_fork", *calls, ("acl.finalize",)) == [100002, 0, 0, 100037]
    ok(acl.rt.set_device(0))
    ok(acl.rt.reset_device(0))
    assert acl.call("in_fork", *calls) == [100002, 0, 0]
    ok(acl.acl.finalize())
    assert acl.call("in_fork", *calls) == [0, 0, 0]
    acl.check_broken()
