# SPDX-License-Identifier: Apache-2.0
"""ACL-E23 to E26: IPC by key."""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.plugins.emulated.acl.acl_actor import (
        DOCUMENTED,
        DRIVER,
        GRANULARITY,
        REAL,
        START_TIME_RESOLUTION_S,
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
        START_TIME_RESOLUTION_S,
        Actor,
        differs,
        emulation_only,
        ok,
        properties,
    )

    Start = Any


UNIT = GRANULARITY
ANYBODY, PEER_ACCESS, READ_ONLY = 1, 1, 0x100000


ENDS: dict[str, Callable[[Actor, str], object]] = {
    "closes": lambda importer, key: ok(importer.rt.ipc_mem_close(key)),
    "dies": lambda importer, _: importer.kill(),
    "resets": lambda importer, _: ok(importer.rt.reset_device(0)),
}


def key_for(exporter: Actor, *importers: Actor) -> tuple[int, str]:
    """Export new memory to some processes; return its address and key."""
    pointer = ok(exporter.rt.malloc(UNIT, 0))
    key = ok(exporter.rt.ipc_mem_get_export_key(pointer, UNIT, 65, 0))
    if importers:
        ok(exporter.rt.ipc_mem_set_import_pid(key, [one.tgid for one in importers]))
    return pointer, key


def test_e23_not_at_the_begin_of_a_page(exporter: Actor) -> None:
    huge = ok(exporter.rt.malloc(2 * UNIT, 0))
    small = [ok(exporter.rt.malloc(100, 0)) for _ in range(2)]
    wrong = [huge + 512, huge + 4096, next(one for one in small if one % 4096)]

    for pointer in wrong:
        assert exporter.rt.ipc_mem_get_export_key(pointer, 64, 65, 0) == ("", 507899)
    exporter.check_broken(*["ACL-E23"] * 3)
    ok(exporter.rt.ipc_mem_get_export_key(huge + UNIT, UNIT, 65, 0))


def test_e23_small_pages(exporter: Actor) -> None:
    pointer = ok(exporter.rt.malloc(UNIT, 2))

    ok(exporter.rt.ipc_mem_get_export_key(pointer + 4096, 4096, 65, 0))
    assert exporter.rt.ipc_mem_get_export_key(pointer + 512, 512, 65, 0) == ("", 507899)


def test_e23_memory_of_whole_pages_begins_with_one(exporter: Actor) -> None:
    for nbytes in (100, 4096, 600, 8192, 1 << 20):
        pointer = ok(exporter.rt.malloc(nbytes, 0))
        if nbytes % 4096 == 0:
            ok(exporter.rt.ipc_mem_get_export_key(pointer, nbytes, 65, 0))
    exporter.check_broken()


def test_e14_memory_that_has_no_key(exporter: Actor, importer: Actor) -> None:
    """Imported memory, and memory that is exported as a shareable handle."""
    handle, pointer = exporter.physical()
    share = ok(exporter.rt.mem_export_to_shareable_handle(handle, 0, 0))
    ok(exporter.rt.mem_set_pid_to_shareable_handle(share, [importer.tgid]))
    imported = importer.map_new(ok(importer.rt.mem_import_from_shareable_handle(share, 0)))
    _, key = key_for(exporter, importer)
    opened = ok(importer.rt.ipc_mem_import_by_key(key, 0))

    assert exporter.rt.ipc_mem_get_export_key(pointer, UNIT, 65, 0) == ("", 507899)
    assert importer.rt.ipc_mem_get_export_key(imported, UNIT, 65, 0) == ("", 507899)
    assert importer.rt.ipc_mem_get_export_key(opened, UNIT, 65, 0) == ("", 507899)
    exporter.check_broken(*["ACL-E14"] * 3)


@emulation_only
def test_e14_memory_that_is_read_only_or_the_host_s(exporter: Actor) -> None:
    on_host = properties(0, memAttr=2, location={"id": 0, "type": 0})
    mapped = exporter.map_new(ok(exporter.rt.malloc_physical(UNIT, on_host, 0)))
    large, small = (ok(exporter.rt.malloc(one, READ_ONLY)) for one in (UNIT, 4096))
    normal = ok(exporter.rt.malloc(UNIT, READ_ONLY | 2))

    for pointer in (mapped, large, small, normal, ok(exporter.rt.malloc_host(UNIT))):
        assert exporter.rt.ipc_mem_get_export_key(pointer, 4096, 65, 0) == ("", 507899)
    exporter.check_broken(*["ACL-E14"] * 5)


def test_e24_import_by_somebody_else(exporter: Actor, importer: Actor, start: Start) -> None:
    stranger = start()
    _, key = key_for(exporter, importer)

    assert stranger.rt.ipc_mem_import_by_key(key, 0) == (0, 507899)
    exporter.check_broken("ACL-E24")


def test_e24_unknown_key(importer: Actor) -> None:
    assert importer.rt.ipc_mem_import_by_key("0" * 64, 0) == (0, 507899)
    assert importer.rt.ipc_mem_close("0" * 64) == 507899


def test_e24_the_exporter_s_own_key(exporter: Actor) -> None:
    _, key = key_for(exporter)

    assert exporter.rt.ipc_mem_set_import_pid(key, [exporter.tgid]) == 507899
    assert exporter.rt.ipc_mem_import_by_key(key, 0) == (0, 507899)
    exporter.check_broken("ACL-E16", "ACL-E24")


def test_e24_a_reused_number_admits_nobody(exporter: Actor, start: Start) -> None:
    _, key = key_for(exporter)
    coming = [exporter.tgid + 1 + one for one in range(310)]
    for first in range(0, len(coming), 31):
        ok(exporter.rt.ipc_mem_set_import_pid(key, coming[first : first + 31]))
    time.sleep(START_TIME_RESOLUTION_S)
    importer = start()
    if importer.tgid not in coming:
        pytest.skip("the host starts many processes, or gives small numbers again")

    assert importer.rt.ipc_mem_import_by_key(key, 0) == (0, 507899)
    exporter.check_broken("ACL-E24")


def test_e16_who_admits_by_key(exporter: Actor, importer: Actor) -> None:
    pointer, key = key_for(exporter)
    free = ok(exporter.rt.ipc_mem_get_export_key(pointer, UNIT, 65, ANYBODY))

    assert importer.rt.ipc_mem_set_import_pid(key, [importer.tgid]) == 507899
    assert exporter.rt.ipc_mem_set_import_pid(free, [importer.tgid]) == 207006
    assert exporter.rt.ipc_mem_set_import_pid(key, [0]) == 507899
    exporter.check_broken(*["ACL-E16"] * 3)
    assert exporter.rt.ipc_mem_set_import_pid(key, [importer.tgid] * 32) == 107000
    assert exporter.rt.ipc_mem_set_import_pid(key, []) == 100000
    ok(importer.rt.ipc_mem_import_by_key(free, 0))


@emulation_only
@pytest.mark.parametrize("profile", ["documented"], indirect=True)
def test_e16_a_key_s_whitelist_has_an_end(exporter: Actor) -> None:
    _, key = key_for(exporter)
    most, at_once = 32768, 31
    codes = [
        exporter.rt.ipc_mem_set_import_pid(key, list(range(first, min(first + at_once, most + 1))))
        for first in range(1, most + 1, at_once)
    ]

    assert set(codes) == {0}
    assert exporter.rt.ipc_mem_set_import_pid(key, [most + 1]) == 507899
    ok(exporter.rt.ipc_mem_set_import_pid(key, [most]))


def test_e25_imports_are_counted(exporter: Actor, importer: Actor) -> None:
    pointer, key = key_for(exporter, importer)
    exporter.write(pointer, b"by key")
    opened = ok(importer.rt.ipc_mem_import_by_key(key, 0))

    assert ok(importer.rt.ipc_mem_import_by_key(key, 0)) == opened
    ok(importer.rt.ipc_mem_close(key))
    assert importer.read(opened, 6) == b"by key"
    ok(importer.rt.ipc_mem_close(key))
    assert importer.rt.ipc_mem_close(key) == 507899
    if not REAL:
        assert importer.call("read", opened, 6)[1] != 0
    ok(exporter.rt.ipc_mem_close(key))
    ok(exporter.rt.free(pointer))


@pytest.mark.usefixtures("two_devices")
def test_e25_one_device_of_a_process(exporter: Actor, importer: Actor) -> None:
    _, key = key_for(exporter, importer)
    ok(importer.rt.ipc_mem_import_by_key(key, 0))
    ok(importer.rt.set_device(1))

    assert importer.rt.ipc_mem_import_by_key(key, PEER_ACCESS) == (0, 507899)
    importer.check_broken("ACL-E25")


def test_e26_the_exporter_closes_first(exporter: Actor, importer: Actor) -> None:
    pointer, key = key_for(exporter, importer)
    exporter.write(pointer, b"gone")
    opened = ok(importer.rt.ipc_mem_import_by_key(key, 0))
    ok(exporter.rt.ipc_mem_close(key))

    exporter.check_broken("ACL-E26")
    data, code = importer.call("read", opened, 4)
    assert code or data != b"gone"
    if not REAL:
        assert code == 507053
        assert importer.broken_rules == ["ACL-E26", "ACL-E26"]
        assert importer.call("write", opened, b"gone") == 507053
    ok(importer.rt.ipc_mem_close(key))


@emulation_only
@pytest.mark.parametrize("end", ["closes", "dies", "resets"])
def test_e26_a_closed_key_is_known_while_it_is_imported(
    exporter: Actor, importer: Actor, start: Start, end: str
) -> None:
    late, before = start(), exporter.call("rows")
    _, key = key_for(exporter, importer, late)
    ok(importer.rt.ipc_mem_import_by_key(key, 0))
    ok(exporter.rt.ipc_mem_close(key))
    exporter.check_broken("ACL-E26")

    assert exporter.rt.ipc_mem_close(key) == 107017
    assert exporter.rt.ipc_mem_set_import_pid(key, [late.tgid]) == 107017
    assert late.rt.ipc_mem_import_by_key(key, 0) == (0, 507899)
    ENDS[end](importer, key)
    assert exporter.rt.ipc_mem_close(key) == 507899
    assert exporter.call("rows")["acl_key"] == before["acl_key"]
    exporter.check_broken("ACL-E26")


def test_e26_only_the_exporter_closes_an_export(exporter: Actor, importer: Actor) -> None:
    _, key = key_for(exporter, importer)

    assert importer.rt.ipc_mem_close(key) == 507899
    importer.check_broken("ACL-E26")
    ok(importer.rt.ipc_mem_import_by_key(key, 0))


@emulation_only
def test_e26_freeing_before_the_key_is_closed(exporter: Actor, importer: Actor) -> None:
    pointer, key = key_for(exporter, importer)
    opened = ok(importer.rt.ipc_mem_import_by_key(key, 0))
    ok(exporter.rt.free(pointer))

    exporter.check_broken("ACL-E26")
    assert importer.call("read", opened, 1)[1] == 507053
    assert "its exporter closed the key" in importer.acl.get_recent_err_msg()


def test_e26_unmapping_before_the_key_is_closed(exporter: Actor) -> None:
    _, pointer = exporter.physical()
    key = ok(exporter.rt.ipc_mem_get_export_key(pointer, UNIT, 65, 0))

    assert exporter.rt.unmap_mem(pointer) == 507899
    exporter.check_broken("ACL-E26")
    ok(exporter.rt.ipc_mem_close(key))
    ok(exporter.rt.unmap_mem(pointer))


@emulation_only
def test_e26_a_key_dies_with_its_exporter(exporter: Actor, importer: Actor, start: Start) -> None:
    """Unlike a shareable handle's memory; and the importer is not to blame."""
    late = start()
    _, key = key_for(exporter, importer, late)
    opened = ok(importer.rt.ipc_mem_import_by_key(key, 0))
    exporter.kill()

    assert late.rt.ipc_mem_import_by_key(key, 0) == (0, 507899)
    # The first of the reads removes the records of the dead process.
    for _ in range(2):
        assert importer.call("read", opened, 1)[1] == 507053
        assert "its exporter is dead" in importer.acl.get_recent_err_msg()
    assert importer.rt.ipc_mem_import_by_key(key, 0) == (0, 507899)
    ok(importer.rt.ipc_mem_close(key))
    importer.check_broken()


@differs({DOCUMENTED: 507899, DRIVER: 0})
def test_e24_the_exporter_s_own_key_for_everybody(exporter: Actor, code: int) -> None:
    pointer = ok(exporter.rt.malloc(UNIT, 0))
    key = ok(exporter.rt.ipc_mem_get_export_key(pointer, UNIT, 65, ANYBODY))

    assert exporter.rt.ipc_mem_import_by_key(key, 0)[1] == code


@pytest.mark.usefixtures("two_devices")
def test_x6_key_without_peer_access(exporter: Actor, start: Start) -> None:
    importer = start(device=1)
    _, key = key_for(exporter, importer)

    assert importer.rt.ipc_mem_import_by_key(key, 0) == (0, 507899)
    importer.check_broken("ACL-X6")
    ok(importer.rt.ipc_mem_import_by_key(key, PEER_ACCESS))


def test_a_key_of_a_part(exporter: Actor, importer: Actor) -> None:
    pointer = ok(exporter.rt.malloc(3 * UNIT, 0))
    exporter.write(pointer + UNIT, b"in the middle")
    key = ok(exporter.rt.ipc_mem_get_export_key(pointer + UNIT, UNIT, 65, 0))
    ok(exporter.rt.ipc_mem_set_import_pid(key, [importer.tgid]))
    opened = ok(importer.rt.ipc_mem_import_by_key(key, 0))

    assert importer.read(opened, 13) == b"in the middle"
    importer.write(opened + UNIT - 4, b"last")
    assert exporter.read(pointer + 2 * UNIT - 4, 4) == b"last"


@pytest.mark.parametrize(("policy", "page_nbytes"), [(2, 4096), (1, GRANULARITY)])
def test_an_import_has_the_pages_of_the_memory(
    exporter: Actor, importer: Actor, policy: int, page_nbytes: int
) -> None:
    pointer = ok(exporter.rt.malloc(UNIT, policy))
    key = ok(exporter.rt.ipc_mem_get_export_key(pointer, UNIT, 65, ANYBODY))
    opened = ok(importer.rt.ipc_mem_import_by_key(key, 0))
    found = [
        ok(acl.rt.pointer_get_attributes(one))["page_size"]
        for acl, one in ((exporter, pointer), (importer, opened))
    ]

    assert found == [page_nbytes] * 2


def test_arguments_that_cannot_be(exporter: Actor) -> None:
    pointer, key = key_for(exporter)

    assert exporter.rt.ipc_mem_get_export_key(0, UNIT, 65, 0) == ("", 100000)
    for size, length, flags in ((0, 65, 0), (UNIT, 64, 0), (UNIT, 0, 0), (UNIT, 65, 2)):
        assert exporter.rt.ipc_mem_get_export_key(pointer, size, length, flags) == ("", 107000)
    assert exporter.rt.ipc_mem_import_by_key(key, 2) == (0, 107000)
    with pytest.raises(ValueError, match="1024"):
        exporter.rt.ipc_mem_get_export_key(pointer, UNIT, 1024, 0)


def test_keys_are_text_and_differ(exporter: Actor) -> None:
    pointer, key = key_for(exporter)
    again = ok(exporter.rt.ipc_mem_get_export_key(pointer, UNIT, 65, 0))

    assert key != again
    assert len(key) == len(again) == 64
    assert key.isascii()
    assert key.isprintable()
