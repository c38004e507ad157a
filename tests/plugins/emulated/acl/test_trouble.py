# SPDX-License-Identifier: Apache-2.0
"""Processes that are interrupted, stopped, forked or without descriptors leave the others alone."""

import os
import signal
from pathlib import Path
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

pytestmark = [emulation_only, pytest.mark.parametrize("profile", ["documented"], indirect=True)]

ACTIONS = "host_actions"
NO_ROOM, NO_ANSWER = 207005, 507899
PATIENCE_S = 0.2


def share_by_both(exporter: Actor) -> tuple[int, str]:
    """Let everybody import some memory; return its shareable handle and another's key."""
    handle, _ = exporter.physical()
    share = ok(exporter.rt.mem_export_to_shareable_handle(handle, 0, 1))
    memory = ok(exporter.rt.malloc(GRANULARITY, 0))
    return share, ok(exporter.rt.ipc_mem_get_export_key(memory, GRANULARITY, 65, 1))


def test_an_interrupted_call_leaves_no_transaction_open(acl: Actor, start: Start) -> None:
    other = start()
    ok(other.rt.malloc(64, 0))
    other.call("run", ACTIONS, "hurry", PATIENCE_S)
    number = 0
    while acl.call("run", ACTIONS, "interrupt_call", number):
        assert not acl.call("acl.machine._connection.in_transaction"), number
        ok(other.rt.malloc(64, 0))
        number += 1

    # At least where a transaction begins and where it ends.
    assert number > 2
    ok(acl.rt.malloc(GRANULARITY, 0))
    ok(other.rt.malloc(64, 0))


def test_a_process_that_is_stopped_while_it_works_is_not_waited_for_long(
    acl: Actor, start: Start
) -> None:
    holder = start()
    ok(acl.rt.malloc(64, 0))
    acl.call("run", ACTIONS, "hurry", PATIENCE_S)
    holder.call("run", ACTIONS, "hold")
    os.kill(holder.pid, signal.SIGSTOP)
    try:
        # For the first call the host is opened again; the second one only waits.
        for _ in range(2):
            assert acl.rt.malloc(64, 0) == (0, NO_ANSWER)
            assert "the emulated host does not answer" in acl.acl.get_recent_err_msg()
    finally:
        os.kill(holder.pid, signal.SIGCONT)
    holder.call("run", ACTIONS, "let_go")
    acl.call("run", ACTIONS, "hurry", 10.0)

    ok(acl.rt.malloc(64, 0))
    acl.check_broken()


def test_who_is_out_of_descriptors_declares_nobody_dead(exporter: Actor, start: Start) -> None:
    poor, importer = start(), start()
    share, key = share_by_both(exporter)
    free, rows = exporter.free_nbytes, exporter.call("rows")

    assert poor.call(
        "run", ACTIONS, "without_descriptors", "rt.get_mem_info", 1
    ) == poor.rt.get_mem_info(1)
    assert exporter.call("rows") == rows
    assert exporter.free_nbytes == free
    ok(importer.rt.mem_import_from_shareable_handle(share, 0))
    ok(importer.rt.ipc_mem_import_by_key(key, 0))
    # What the exporter says to the host still counts as its own.
    share_by_both(exporter)


def test_memory_is_not_gone_where_a_descriptor_lacks(exporter: Actor, importer: Actor) -> None:
    share, key = share_by_both(exporter)
    calls = (
        ("rt.mem_import_from_shareable_handle", share, 0),
        ("rt.ipc_mem_import_by_key", key, 0),
    )
    # Else it is its own entry that it cannot make.
    ok(importer.rt.free(ok(importer.rt.malloc(GRANULARITY, 0))))
    for call in calls:
        answer = importer.call("run", ACTIONS, "without_descriptors", *call)

        assert answer == (0, NO_ROOM)
        assert "no room" in importer.acl.get_recent_err_msg()
    assert importer.call("memory_held") == 0
    for name, *arguments in calls:
        ok(importer.call(f"acl.{name}", *arguments))


def test_an_allocation_that_lacks_a_descriptor_does_not_call_the_device_full(acl: Actor) -> None:
    # Else it is its own entry that it cannot make.
    ok(acl.rt.free(ok(acl.rt.malloc(GRANULARITY, 0))))
    calls = (
        ("rt.malloc", GRANULARITY, 0),
        ("rt.malloc", 64, 0),
        ("rt.malloc_physical", GRANULARITY, properties(), 0),
    )
    for call in calls:
        assert acl.call("run", ACTIONS, "without_descriptors", *call) == (0, NO_ROOM)
        assert "Too many open files" in acl.acl.get_recent_err_msg()
        ok(acl.call(f"acl.{call[0]}", *call[1:]))


def test_two_threads_fork_at_once(acl: Actor) -> None:
    assert acl.call("run", ACTIONS, "fork_in_two_threads") > 0
    ok(acl.rt.set_device(0))


def test_a_child_that_was_forked_during_a_call_is_told_so(start: Start) -> None:
    acl = start(None)

    # A second object of the child's has the same host, and SQLite the same idea of its locks.
    assert acl.call("run", ACTIONS, "child_of_a_call") == [NO_ANSWER] * 3
    ok(acl.rt.set_device(0))


def test_a_host_is_opened_by_many_at_once(start: Start, tmp_path: Path) -> None:
    opening = [start(CROSSMEM_EMULATED_STATE=tmp_path / "host") for _ in range(4)]
    for one in opening:
        one.begin("run", ACTIONS, "reopen", 20)

    assert [one.result() for one in opening] == [[]] * len(opening)
