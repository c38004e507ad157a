# SPDX-License-Identifier: Apache-2.0
"""ACL-E14 to E22: shareable handles."""

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.plugins.emulated.acl.acl_actor import (
        DOCUMENTED,
        DRIVER,
        GRANULARITY,
        REAL,
        Actor,
        differs,
        emulation_only,
        ok,
        properties,
    )
    from tests.plugins.emulated.acl.conftest import Start
else:
    from acl_actor import (
        DOCUMENTED,
        DRIVER,
        GRANULARITY,
        REAL,
        Actor,
        differs,
        emulation_only,
        ok,
        properties,
    )

    Start = Any


ANYBODY = 1


def share_with(exporter: Actor, *importers: Actor) -> tuple[int, int, int]:
    """Export new memory to some processes; return handle, address and shareable handle."""
    handle, pointer = exporter.physical()
    share = ok(exporter.rt.mem_export_to_shareable_handle(handle, 0, 0))
    if importers:
        tgids = [one.tgid for one in importers]
        ok(exporter.rt.mem_set_pid_to_shareable_handle(share, tgids))
    return handle, pointer, share


def release(exporter: Actor, handle: int, pointer: int) -> None:
    ok(exporter.rt.unmap_mem(pointer))
    ok(exporter.rt.free_physical(handle))


def test_e14_second_export(exporter: Actor) -> None:
    handle, _, _ = share_with(exporter)

    assert exporter.rt.mem_export_to_shareable_handle(handle, 0, 0) == (0, 507899)
    exporter.check_broken("ACL-E14")


def test_e14_export_of_an_import(exporter: Actor, importer: Actor) -> None:
    _, _, share = share_with(exporter, importer)
    handle = ok(importer.rt.mem_import_from_shareable_handle(share, 0))

    assert importer.rt.mem_export_to_shareable_handle(handle, 0, 0) == (0, 507899)
    exporter.check_broken("ACL-E14")


@pytest.mark.parametrize("profile", ["old-driver"], indirect=True)
def test_e14b_old_drivers_cannot_admit_everybody(exporter: Actor, importer: Actor) -> None:
    handle, pointer = exporter.physical()
    share, code = exporter.rt.mem_export_to_shareable_handle(handle, 0, ANYBODY)
    exporter.write(pointer, b"exported all the same")

    assert code == 207000
    assert importer.rt.mem_import_from_shareable_handle(share, 0) == (0, 507899)
    importer.check_broken("ACL-E17")
    ok(exporter.rt.mem_set_pid_to_shareable_handle(share, [importer.tgid]))
    there = importer.map_new(ok(importer.rt.mem_import_from_shareable_handle(share, 0)))
    assert importer.read(there, 21) == b"exported all the same"
    assert exporter.rt.mem_export_to_shareable_handle(handle, 0, 0) == (0, 507899)


@pytest.mark.parametrize("flags", [2, 1 << 40])
def test_e15_flags(exporter: Actor, flags: int) -> None:
    handle, _ = exporter.physical()

    assert exporter.rt.mem_export_to_shareable_handle(handle, 0, flags) == (0, 107000)
    exporter.check_broken("ACL-E15")
    ok(exporter.rt.mem_export_to_shareable_handle(handle, 0, 0))


@differs({"documented a2 a3 950": 0, "cann8": 107000, "old-driver": 207000})
def test_e15_flag_of_newer_editions(exporter: Actor, code: int) -> None:
    """Trying it is how a program finds out, so it is no violation."""
    handle, _ = exporter.physical()

    assert exporter.rt.mem_export_to_shareable_handle(handle, 0, ANYBODY)[1] == code
    exporter.check_broken()


def test_e16_only_the_exporter_admits(exporter: Actor, importer: Actor) -> None:
    _, _, share = share_with(exporter)

    assert importer.rt.mem_set_pid_to_shareable_handle(share, [importer.tgid]) == 507899
    assert exporter.rt.mem_set_pid_to_shareable_handle(share, [0, 0]) == 507899
    assert exporter.rt.mem_set_pid_to_shareable_handle(share + 999, [importer.tgid]) == 107017
    exporter.check_broken("ACL-E16", "ACL-E16")


@pytest.mark.parametrize("profile", ["documented", "a2", "a3", "950"], indirect=True)
def test_e16_nobody_is_admitted_where_everybody_is(exporter: Actor, importer: Actor) -> None:
    handle, pointer = exporter.physical()
    share = ok(exporter.rt.mem_export_to_shareable_handle(handle, 0, ANYBODY))
    exporter.write(pointer, b"for everybody")

    assert exporter.rt.mem_set_pid_to_shareable_handle(share, [importer.tgid]) == 207006
    exporter.check_broken("ACL-E16")
    there = importer.map_new(ok(importer.rt.mem_import_from_shareable_handle(share, 0)))
    assert importer.read(there, 13) == b"for everybody"


def test_e16_how_many_at_once(exporter: Actor, importer: Actor) -> None:
    _, _, share = share_with(exporter)

    assert exporter.rt.mem_set_pid_to_shareable_handle(share, [importer.tgid] * 65536) == 107000
    for _ in range(2):
        ok(exporter.rt.mem_set_pid_to_shareable_handle(share, [0, importer.tgid]))
    ok(importer.rt.mem_import_from_shareable_handle(share, 0))
    exporter.check_broken()


def test_e17_import_by_somebody_else(exporter: Actor, importer: Actor, start: Start) -> None:
    stranger = start()
    _, _, share = share_with(exporter, importer)

    assert stranger.rt.mem_import_from_shareable_handle(share, 0) == (0, 507899)
    exporter.check_broken("ACL-E17")
    ok(importer.rt.mem_import_from_shareable_handle(share, 0))


def test_e17_import_before_anybody_is_admitted(exporter: Actor, importer: Actor) -> None:
    _, _, share = share_with(exporter)

    assert importer.rt.mem_import_from_shareable_handle(share, 0) == (0, 507899)
    exporter.check_broken("ACL-E17")


def test_e18_import_by_the_exporter(exporter: Actor) -> None:
    _, _, share = share_with(exporter, exporter)

    assert exporter.rt.mem_import_from_shareable_handle(share, 0) == (0, 507899)
    exporter.check_broken("ACL-E18")


@differs({DOCUMENTED: 507899, DRIVER: 0})
@pytest.mark.usefixtures("two_devices")
def test_e18_import_by_the_exporter_for_another_device(exporter: Actor, code: int) -> None:
    _, _, share = share_with(exporter, exporter)
    ok(exporter.rt.set_device(1))
    ok(exporter.rt.device_enable_peer_access(0, 0))

    assert exporter.rt.mem_import_from_shareable_handle(share, 1)[1] == code
    exporter.check_broken("ACL-E18")


@pytest.mark.parametrize("profile", DOCUMENTED.split(), indirect=True)
def test_e19_a_second_import_is_refused(exporter: Actor, importer: Actor) -> None:
    _, _, share = share_with(exporter, importer)
    handle = ok(importer.rt.mem_import_from_shareable_handle(share, 0))

    assert importer.rt.mem_import_from_shareable_handle(share, 0) == (0, 107017)
    importer.check_broken("ACL-E19")
    ok(importer.rt.free_physical(handle))
    ok(importer.rt.mem_import_from_shareable_handle(share, 0))


@pytest.mark.parametrize("profile", DRIVER.split(), indirect=True)
def test_e19_a_second_import_counts(exporter: Actor, importer: Actor) -> None:
    mine, address, share = share_with(exporter, importer)
    before = exporter.free_nbytes
    handle = ok(importer.rt.mem_import_from_shareable_handle(share, 0))

    assert ok(importer.rt.mem_import_from_shareable_handle(share, 0)) == handle
    importer.check_broken("ACL-E19")
    release(exporter, mine, address)
    ok(importer.rt.free_physical(handle))
    assert exporter.free_nbytes == before
    ok(importer.rt.free_physical(handle))
    assert exporter.free_nbytes == before + GRANULARITY


@pytest.mark.usefixtures("two_devices")
def test_e19_another_device_is_another_import(exporter: Actor, importer: Actor) -> None:
    _, _, share = share_with(exporter, importer)
    first = ok(importer.rt.mem_import_from_shareable_handle(share, 0))
    ok(importer.rt.set_device(1))
    ok(importer.rt.device_enable_peer_access(0, 0))
    second = ok(importer.rt.mem_import_from_shareable_handle(share, 1))

    assert first != second
    importer.check_broken()


def test_e20_import_of_what_is_gone(exporter: Actor, importer: Actor) -> None:
    handle, pointer, share = share_with(exporter, importer)
    ok(exporter.rt.free_physical(handle))
    imported = ok(importer.rt.mem_import_from_shareable_handle(share, 0))
    ok(importer.rt.free_physical(imported))
    ok(exporter.rt.unmap_mem(pointer))

    assert importer.rt.mem_import_from_shareable_handle(share, 0) == (0, 107017)
    importer.check_broken()


def test_e21_the_exporter_frees_first(exporter: Actor, importer: Actor) -> None:
    before = exporter.free_nbytes
    mine, address, share = share_with(exporter, importer)
    exporter.write(address, b"outlives its owner")
    handle = ok(importer.rt.mem_import_from_shareable_handle(share, 0))
    release(exporter, mine, address)
    there = importer.map_new(handle)

    assert importer.read(there, 18) == b"outlives its owner"
    assert exporter.free_nbytes == before - GRANULARITY
    release(importer, handle, there)
    assert exporter.free_nbytes == before
    importer.check_broken()


def test_e22_the_exporter_dies(exporter: Actor, importer: Actor, start: Start) -> None:
    late = start()
    before = importer.free_nbytes
    _, address, share = share_with(exporter, importer, late)
    exporter.write(address, b"outlives its owner")
    handle = ok(importer.rt.mem_import_from_shareable_handle(share, 0))
    there = importer.map_new(handle)
    exporter.kill()

    assert late.rt.mem_import_from_shareable_handle(share, 0) == (0, 107017)
    assert late.rt.mem_set_pid_to_shareable_handle(share, [late.tgid]) == 107017
    assert importer.read(there, 18) == b"outlives its owner"
    if not REAL:
        assert importer.free_nbytes == before - GRANULARITY
    release(importer, handle, there)
    assert importer.free_nbytes == before
    importer.check_broken()


@pytest.mark.usefixtures("two_devices")
def test_x6_import_without_peer_access(exporter: Actor, start: Start) -> None:
    """The call tries to give access by itself; a program that relies on it is on its own."""
    importer = start(device=1)
    _, _, share = share_with(exporter, importer)

    ok(importer.rt.mem_import_from_shareable_handle(share, 1))
    importer.check_broken("ACL-X6")


@emulation_only
@pytest.mark.parametrize(("attribute", "code"), [(3, 207000), (12, 207000), (2, 0), (13, 0)])
def test_e32_memory_of_the_host_in_normal_pages(
    exporter: Actor, importer: Actor, attribute: int, code: int
) -> None:
    prop = properties(0, memAttr=attribute, location={"id": 0, "type": 0})
    handle = ok(exporter.rt.malloc_physical(GRANULARITY, prop, 0))
    share = ok(exporter.rt.mem_export_to_shareable_handle(handle, 0, 0))

    assert importer.rt.mem_import_from_shareable_handle(share, 0) == (0, 507899)
    importer.check_broken("ACL-E17")
    ok(exporter.rt.mem_set_pid_to_shareable_handle(share, [importer.tgid]))
    assert importer.rt.mem_import_from_shareable_handle(share, 0)[1] == code
    importer.check_broken("ACL-E17")


def test_arguments_that_cannot_be(exporter: Actor, importer: Actor) -> None:
    handle, _, share = share_with(exporter, importer)

    assert exporter.rt.mem_export_to_shareable_handle(0, 0, 0) == (0, 100000)
    assert exporter.rt.mem_export_to_shareable_handle(handle, 2, 0) == (0, 100000)
    assert importer.rt.mem_import_from_shareable_handle(share, 99) == (0, 107001)
    exporter.check_broken()


def test_every_handle_has_a_value_of_its_own(exporter: Actor) -> None:
    handles = [ok(exporter.rt.malloc_physical(GRANULARITY, properties(), 0)) for _ in range(8)]
    shares = [ok(exporter.rt.mem_export_to_shareable_handle(one, 0, 0)) for one in handles]

    assert len(set(shares)) == len(set(handles)) == 8
