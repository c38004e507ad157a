# SPDX-License-Identifier: Apache-2.0
"""What processes of one emulated host see of each other, in life and death."""

import os
import signal
from collections.abc import Callable
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

CAPACITY = "64MiB"
ALL = 64 << 20
ENDS: dict[str, Callable[[Actor], object]] = {"killed": Actor.kill, "exits": Actor.leave}


@pytest.fixture
def start_small(start: Start) -> Start:
    """Start processes that see devices of 64 MiB."""
    return lambda device=0: start(device, CROSSMEM_EMULATED_CAPACITY=CAPACITY)


def share_everywhere(exporter: Actor, nbytes: int = GRANULARITY) -> tuple[int, int, int]:
    handle, pointer = exporter.physical(nbytes)
    return handle, pointer, ok(exporter.rt.mem_export_to_shareable_handle(handle, 0, 1))


def test_a_share_is_known_to_the_whole_machine(exporter: Actor, start: Start) -> None:
    _, pointer, share = share_everywhere(exporter)
    exporter.write(pointer, b"0")

    for number, importer in enumerate([start() for _ in range(3)]):
        there = importer.map_new(ok(importer.rt.mem_import_from_shareable_handle(share, 0)))
        assert importer.read(there, 1) == b"%d" % number
        importer.write(there, b"%d" % (number + 1))
    assert exporter.read(pointer, 1) == b"3"


def test_hosts_are_apart(exporter: Actor, start: Start, tmp_path: Path) -> None:
    stranger = start(CROSSMEM_EMULATED_STATE=tmp_path / "other")
    _, _, share = share_everywhere(exporter)

    assert stranger.rt.mem_import_from_shareable_handle(share, 0) == (0, 107017)
    assert stranger.free_nbytes == exporter.free_nbytes + GRANULARITY
    assert stranger.rt.free(64) == 107000
    exporter.check_broken()


def test_capacity_is_the_machine_s(start_small: Start) -> None:
    first, second = start_small(), start_small()
    handle, pointer = first.physical(ALL // 2)

    assert second.free_nbytes == ALL // 2
    assert second.rt.malloc_physical(ALL // 2 + GRANULARITY, properties(), 0) == (0, 207001)
    other = ok(second.rt.malloc(ALL // 2, 0))
    assert first.rt.malloc(1, 0) == (0, 207001)
    ok(second.rt.free(other))
    ok(first.rt.free_physical(handle))
    assert second.free_nbytes == ALL // 2
    ok(first.rt.unmap_mem(pointer))
    assert second.free_nbytes == ALL


@pytest.mark.usefixtures("two_devices")
def test_devices_have_their_own_capacity(start_small: Start) -> None:
    acl = start_small()
    ok(acl.rt.malloc(ALL, 0))
    ok(acl.rt.set_device(1))

    assert acl.free_nbytes == ALL


@pytest.mark.parametrize("end", ENDS)
def test_memory_of_the_dead_is_given_to_the_next(start_small: Start, end: str) -> None:
    owner, heir = start_small(), start_small()
    ok(owner.rt.malloc(ALL, 0))
    assert heir.rt.malloc(ALL, 0) == (0, 207001)
    ENDS[end](owner)

    ok(heir.rt.malloc(ALL, 0))


@pytest.mark.parametrize("end", ENDS)
def test_importers_of_the_dead_are_counted(start_small: Start, end: str) -> None:
    exporter, importer = start_small(), start_small()
    handle, pointer, share = share_everywhere(exporter)
    ok(importer.rt.mem_import_from_shareable_handle(share, 0))
    ok(exporter.rt.unmap_mem(pointer))
    ok(exporter.rt.free_physical(handle))
    assert exporter.free_nbytes == ALL - GRANULARITY
    ENDS[end](importer)

    assert exporter.free_nbytes == ALL


def test_fresh_memory_is_not_zero(acl: Actor) -> None:
    pointers = [ok(acl.rt.malloc(GRANULARITY, 0)), ok(acl.rt.malloc(64, 0)), acl.physical()[1]]

    assert [acl.read(one, 64) for one in pointers] == [b"\xa5" * 64] * 3


def test_a_stopped_process_is_not_dead(exporter: Actor, importer: Actor) -> None:
    _, pointer, share = share_everywhere(exporter)
    exporter.write(pointer, b"stopped")
    os.kill(exporter.pid, signal.SIGSTOP)
    try:
        handle = ok(importer.rt.mem_import_from_shareable_handle(share, 0))
        assert importer.read(importer.map_new(handle), 7) == b"stopped"
    finally:
        os.kill(exporter.pid, signal.SIGCONT)


def test_pages_live_as_long_as_somebody_holds_them(exporter: Actor, importer: Actor) -> None:
    handle, pointer, share = share_everywhere(exporter)
    imported = ok(importer.rt.mem_import_from_shareable_handle(share, 0))
    there = importer.map_new(imported)
    assert [one.call("memory_held") > 0 for one in (exporter, importer)] == [True, True]

    ok(exporter.rt.unmap_mem(pointer))
    ok(exporter.rt.free_physical(handle))
    assert exporter.call("memory_held") == 0
    ok(importer.rt.free_physical(imported))
    assert importer.call("memory_held") > 0
    ok(importer.rt.unmap_mem(there))
    assert importer.call("memory_held") == 0
    plain = [ok(exporter.rt.malloc(nbytes, 0)) for nbytes in (64, GRANULARITY)]
    for one in plain:
        ok(exporter.rt.free(one))
    assert exporter.call("memory_held") == 0


def test_a_forked_child_keeps_nothing(exporter: Actor, importer: Actor) -> None:
    before = importer.free_nbytes
    _, _, share = share_everywhere(exporter)
    child = exporter.call("fork_idler")
    try:
        exporter.kill()

        assert importer.call("memory_held", child) == 0
        assert importer.free_nbytes == before
        assert importer.rt.mem_import_from_shareable_handle(share, 0) == (0, 107017)
    finally:
        os.kill(child, signal.SIGKILL)


def test_violations_of_children_are_readable(acl: Actor, importer: Actor) -> None:
    importer.rt.free(64)
    importer.rt.map_mem(GRANULARITY, GRANULARITY, 1, 64, 0)
    importer.kill()
    found = acl.call("acl.violations")

    assert [(one.pid, one.call, one.rule) for one in found] == [
        (importer.pid, "rt.free", "ACL-X4"),
        (importer.pid, "rt.map_mem", "ACL-E7"),
    ]
    assert "offset" in found[1].text
