# SPDX-License-Identifier: Apache-2.0
"""ACL-E27 to E29, X1 and X4: copies, and who may reach what."""

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.plugins.emulated.acl.acl_actor import (
        BY_ADDRESS,
        DEVICE_TO_DEVICE,
        DOCUMENTED,
        DRIVER,
        GRANULARITY,
        Actor,
        differs,
        emulation_only,
        ok,
        properties,
    )
    from tests.plugins.emulated.acl.conftest import Start
else:
    from acl_actor import (
        BY_ADDRESS,
        DEVICE_TO_DEVICE,
        DOCUMENTED,
        DRIVER,
        GRANULARITY,
        Actor,
        differs,
        emulation_only,
        ok,
        properties,
    )

    Start = Any


UNIT = GRANULARITY
HOST_TO_HOST, HOST_TO_DEVICE, DEVICE_TO_HOST = 0, 1, 2
ON_HOST = properties(0, memAttr=2, location={"id": 0, "type": 0})


@pytest.fixture
def imported(exporter: Actor, importer: Actor) -> int:
    """Return the address, in the importer, of memory that says "imported"."""
    handle, pointer = exporter.physical()
    exporter.write(pointer, b"imported")
    share = ok(exporter.rt.mem_export_to_shareable_handle(handle, 0, 0))
    ok(exporter.rt.mem_set_pid_to_shareable_handle(share, [importer.tgid]))
    return importer.map_new(ok(importer.rt.mem_import_from_shareable_handle(share, 0)))


@pytest.mark.parametrize("kind", [DEVICE_TO_DEVICE, BY_ADDRESS])
def test_e27_imported_memory_on_one_device(importer: Actor, imported: int, kind: int) -> None:
    own = ok(importer.rt.malloc(UNIT, 0))

    assert importer.rt.memcpy(own, 8, imported, 8, kind) == 207000
    assert importer.rt.memcpy(imported, 8, own, 8, kind) == 207000
    ok(importer.rt.memcpy_async(own, 8, imported, 8, DEVICE_TO_DEVICE, 0))
    ok(importer.rt.synchronize_stream(0))
    assert importer.read(own, 8) == b"imported"
    importer.check_broken()


def test_e28_more_than_the_target_has(acl: Actor) -> None:
    pointer, source = (ok(acl.rt.malloc(UNIT, 0)) for _ in range(2))

    assert acl.rt.memcpy(pointer, 8, source, 9, DEVICE_TO_DEVICE) == 107000
    assert acl.rt.memset(pointer, 8, 0, 9) == 107000
    acl.check_broken("ACL-E28", "ACL-E28")


@differs({DOCUMENTED: 107000, DRIVER: 0})
def test_e29_a_device_s_address_taken_for_the_host_s(acl: Actor, code: int) -> None:
    """Real drivers answer as their devices do; the emulation then copies by address."""
    pointer, host = ok(acl.rt.malloc(UNIT, 0)), ok(acl.rt.malloc_host(64))

    assert acl.rt.memcpy(pointer, 64, host, 64, HOST_TO_HOST) == code
    acl.check_broken("ACL-E29")


@emulation_only
@pytest.mark.parametrize("kind", [DEVICE_TO_HOST, DEVICE_TO_DEVICE])
def test_e29_a_host_s_address_taken_for_a_device_s(acl: Actor, kind: int) -> None:
    """It might have been a device's, and be gone: every profile refuses it."""
    pointer, host = ok(acl.rt.malloc(UNIT, 0)), ok(acl.rt.malloc_host(64))

    assert acl.rt.memcpy(pointer, 64, host, 64, kind) == 107000
    acl.check_broken("ACL-E29")


def test_e29_what_is_gone(acl: Actor) -> None:
    pointer = ok(acl.rt.malloc(UNIT, 0))
    ok(acl.rt.free(pointer))

    assert acl.call("read", pointer, 1)[1] == 107000
    acl.check_broken("ACL-E29")


def gone(acl: Actor, exporter: Actor, how: str) -> int:
    """Return where a device's memory was that this process has no more."""
    nbytes = 4 * UNIT
    if how == "freed":
        pointer = ok(acl.rt.malloc(nbytes, 0))
        ok(acl.rt.free(pointer))
    elif how == "released":
        _, pointer = acl.physical(nbytes)
        ok(acl.rt.unmap_mem(pointer))
        ok(acl.rt.release_mem_address(pointer))
    else:
        memory = ok(exporter.rt.malloc(nbytes, 0))
        key = ok(exporter.rt.ipc_mem_get_export_key(memory, nbytes, 65, 1))
        pointer = ok(acl.rt.ipc_mem_import_by_key(key, 0))
        ok(acl.rt.ipc_mem_close(key))
    return int(pointer)


@emulation_only
@pytest.mark.parametrize("how", ["freed", "released", "closed"])
def test_e29_what_is_gone_is_not_the_host_s(importer: Actor, exporter: Actor, how: str) -> None:
    acl, pointer = importer, gone(importer, exporter, how)
    own, host = ok(acl.rt.malloc(UNIT, 0)), ok(acl.rt.malloc_host(64))

    assert [
        acl.rt.memset(pointer, 64, 0, 64),
        acl.rt.memset_async(pointer, 64, 0, 64, 0),
        acl.c.memset_d32(pointer, 64, 0, 16),
        acl.rt.memcpy(pointer, 64, host, 64, BY_ADDRESS),
        acl.rt.memcpy(host, 64, pointer, 64, HOST_TO_HOST),
        acl.rt.memcpy(own, 64, pointer, 64, HOST_TO_DEVICE),
        acl.rt.memcpy(own, 64, pointer, 64, BY_ADDRESS),
        acl.rt.memcpy_async(own, 64, pointer, 64, BY_ADDRESS, 0),
        acl.c.memcpy2d(pointer, 8, host, 8, 8, 8, BY_ADDRESS),
    ] == [107000] * 9
    acl.check_broken(*["ACL-E29"] * 9)


@emulation_only
@pytest.mark.parametrize("make", ["malloc", "map"])
def test_e29_the_host_reads_at_a_device_s_address(acl: Actor, make: str) -> None:
    pointer = ok(acl.rt.malloc(UNIT, 0)) if make == "malloc" else acl.physical()[1]
    with pytest.raises(EOFError):
        acl.call("peek", pointer)

    assert acl.wait() == -11


@emulation_only
def test_e29_host_reads_through_acl_are_recorded(acl: Actor) -> None:
    pointer = ok(acl.rt.malloc(UNIT, 0))
    acl.write(pointer, b"secret")

    assert acl.util.ptr_to_bytes(pointer, 6) == b"\xa5" * 6
    acl.check_broken("ACL-E29")


@emulation_only
def test_e29_mapped_memory_of_the_host_is_the_host_s(exporter: Actor, start: Start) -> None:
    importer = start(CROSSMEM_EMULATED_SLOW_STREAMS=1)
    handle = ok(exporter.rt.malloc_physical(UNIT, ON_HOST, 0))
    first = exporter.map_new(handle)
    share = ok(exporter.rt.mem_export_to_shareable_handle(handle, 0, 1))
    second = importer.map_new(ok(importer.rt.mem_import_from_shareable_handle(share, 0)))
    for acl, pointer in ((exporter, first), (importer, second)):
        own = ok(acl.rt.malloc(UNIT, 0))
        acl.call("poke", pointer, b"the host's")
        assert acl.call("peek", pointer, 10) == acl.util.ptr_to_bytes(pointer, 10) == b"the host's"
        assert ok(acl.rt.pointer_get_attributes(pointer))["location"] == {"id": 0, "type": 0}
        ok(acl.rt.memcpy(own, 10, pointer, 10, HOST_TO_DEVICE))
        ok(acl.rt.memset(pointer, 10, 0, 10))
        ok(acl.rt.memcpy(pointer, 3, own, 3, DEVICE_TO_HOST))
        ok(acl.rt.memcpy(pointer + 3, 7, own + 3, 7, BY_ADDRESS))
        assert acl.call("peek", pointer, 10) == b"the host's"
        acl.check_broken()
        assert acl.rt.memcpy_async(pointer, 8, pointer + 8, 8, HOST_TO_HOST, 0) == 207000

    # It is page-locked: nobody waits for the stream.
    ok(importer.rt.memset_async(own, UNIT, 0x21, 4, 0))
    ok(importer.rt.memcpy_async(second, 4, own, 4, DEVICE_TO_HOST, 0))
    assert importer.call("peek", second, 4) == b"the "
    ok(importer.rt.synchronize_stream(0))
    assert importer.call("peek", second, 4) == b"!!!!"
    assert importer.rt.memcpy(own, 4, second, 4, DEVICE_TO_DEVICE) == 107000
    importer.check_broken("ACL-E29")
    ok(exporter.rt.unmap_mem(first))
    with pytest.raises(EOFError):
        exporter.call("peek", first)


@emulation_only
def test_lax_addresses_are_the_host_s_too(start: Start) -> None:
    acl = start(CROSSMEM_EMULATED_STRICT=0)
    small, large = ok(acl.rt.malloc(64, 0)), ok(acl.rt.malloc(UNIT, 0))
    handle, mapped = acl.physical()
    again = acl.map_new(handle)
    acl.call("poke", again, b"twice")

    for pointer in (small, large, mapped):
        acl.write(pointer, b"device")
        assert acl.call("peek", pointer, 6) == acl.util.ptr_to_bytes(pointer, 6) == b"device"
    assert acl.call("peek", again, 6) == b"device"
    assert acl.rt.free_physical(4096) != 0
    acl.check_broken()


def test_x4_what_is_not_mapped(acl: Actor) -> None:
    pointer = ok(acl.rt.reserve_mem_address(2 * UNIT, 0, 0, 0))
    handle = ok(acl.rt.malloc_physical(UNIT, properties(), 0))
    ok(acl.rt.map_mem(pointer, UNIT, 0, handle, 0))

    assert acl.call("read", pointer + UNIT, 1)[1] == 507899
    assert acl.call("write", pointer + UNIT - 1, b"xy") == 507899
    acl.check_broken("ACL-X4", "ACL-X4")


def test_x4_freeing_what_was_not_allocated(acl: Actor) -> None:
    pointer = ok(acl.rt.malloc(UNIT, 0))

    assert acl.rt.free(pointer + 64) == 107000
    assert acl.rt.free(0) == 100000
    acl.check_broken("ACL-X4")
    ok(acl.rt.free(pointer))


def test_copies_that_do_nothing(acl: Actor) -> None:
    pointer = ok(acl.rt.malloc(UNIT, 0))

    assert acl.rt.memcpy(0, 0, 0, 0, 99) == 0
    assert acl.rt.memcpy(pointer, 1, pointer, 1, DEVICE_TO_DEVICE) == 0
    assert acl.rt.memcpy(0, 1, pointer, 1, DEVICE_TO_DEVICE) == 100000
    assert acl.rt.memset(0, 1, 0, 1) == 100000
    assert acl.rt.memcpy(pointer, 1, pointer + 8, 1, 99) == 100000
    host = ok(acl.rt.malloc_host(64))
    assert acl.rt.memcpy_async(host, 8, host + 8, 8, HOST_TO_HOST, 0) == 207000
    acl.check_broken()


@pytest.mark.usefixtures("two_devices")
def test_x6_copies_between_devices(acl: Actor) -> None:
    first = ok(acl.rt.malloc(UNIT, 0))
    acl.write(first, b"over")
    ok(acl.rt.set_device(1))
    second = ok(acl.rt.malloc(UNIT, 0))

    assert acl.rt.memcpy(second, 4, first, 4, DEVICE_TO_DEVICE) == 107000
    acl.check_broken("ACL-X6")
    assert ok(acl.rt.device_can_access_peer(1, 0)) == 1
    ok(acl.rt.device_enable_peer_access(0, 0))
    ok(acl.rt.memcpy(second, 4, first, 4, DEVICE_TO_DEVICE))
    assert acl.read(second, 4) == b"over"


@pytest.mark.usefixtures("two_devices")
def test_mapped_memory_between_devices_is_copied_in_streams(acl: Actor) -> None:
    _, first = acl.physical()
    acl.write(first, b"over")
    ok(acl.rt.set_device(1))
    ok(acl.rt.device_enable_peer_access(0, 0))
    _, second = acl.physical(device=1)

    assert acl.rt.memcpy(second, 4, first, 4, DEVICE_TO_DEVICE) == 207000
    ok(acl.rt.memcpy_async(second, 4, first, 4, DEVICE_TO_DEVICE, 0))
    ok(acl.rt.synchronize_device())
    assert acl.read(second, 4) == b"over"


@pytest.mark.usefixtures("two_devices")
def test_memory_by_key_from_another_device(exporter: Actor, start: Start) -> None:
    importer = start(device=1)
    pointer = ok(exporter.rt.malloc(UNIT, 0))
    exporter.write(pointer, b"far away")
    key = ok(exporter.rt.ipc_mem_get_export_key(pointer, UNIT, 65, 0))
    ok(exporter.rt.ipc_mem_set_import_pid(key, [importer.tgid]))
    opened, own = ok(importer.rt.ipc_mem_import_by_key(key, 1)), ok(importer.rt.malloc(UNIT, 0))

    assert importer.call("read", opened, 8)[1] == 207000
    assert importer.call("write", opened, b"x") == 207000
    assert importer.rt.memcpy(own, 8, opened, 8, DEVICE_TO_DEVICE) == 207000
    assert importer.rt.memcpy_async(own, 8, opened, 8, BY_ADDRESS, 0) == 207000
    ok(importer.rt.memcpy_async(own, 8, opened, 8, DEVICE_TO_DEVICE, 0))
    ok(importer.rt.synchronize_stream(0))
    assert importer.read(own, 8) == b"far away"


@emulation_only
def test_slow_streams_copy_when_somebody_waits(start: Start) -> None:
    acl = start(CROSSMEM_EMULATED_SLOW_STREAMS=1)
    source, target = (ok(acl.rt.malloc(UNIT, 0)) for _ in range(2))
    acl.write(source, b"late")
    acl.write(target, b"zero")
    stream = ok(acl.rt.create_stream())
    for synchronize in (lambda: acl.rt.synchronize_stream(stream), acl.rt.synchronize_device):
        ok(acl.rt.memset(target, 4, 0, 4))
        ok(acl.rt.memcpy_async(target, 4, source, 4, DEVICE_TO_DEVICE, stream))
        ok(acl.rt.synchronize_stream(0))
        assert acl.read(target, 4) == bytes(4)
        ok(synchronize())
        assert acl.read(target, 4) == b"late"
    acl.check_broken("ACL-X8", "ACL-X8")


@emulation_only
def test_copies_of_memory_that_is_not_page_locked_are_done_at_once(start: Start) -> None:
    acl = start(CROSSMEM_EMULATED_SLOW_STREAMS=1)
    pointer, locked = ok(acl.rt.malloc(UNIT, 0)), ok(acl.rt.malloc_host(4))
    plain = acl.call("buffer", b"here")

    ok(acl.rt.memcpy_async(pointer, 4, plain, 4, HOST_TO_DEVICE, 0))
    assert acl.read(pointer, 4) == b"here"
    ok(acl.rt.memcpy_async(locked, 4, pointer, 4, DEVICE_TO_HOST, 0))
    assert acl.call("peek", locked, 4) == bytes(4)
    ok(acl.rt.memset_async(pointer, UNIT, 0x21, 4, 0))
    ok(acl.rt.memcpy_async(plain, 4, pointer, 4, DEVICE_TO_HOST, 0))
    assert (acl.call("peek", plain, 4), acl.call("peek", locked, 4)) == (b"!!!!", b"here")
    acl.check_broken()


@emulation_only
@pytest.mark.parametrize("make", ["malloc", "map"])
def test_x1_memory_is_taken_from_running_work(start: Start, make: str) -> None:
    acl = start(CROSSMEM_EMULATED_SLOW_STREAMS=1)
    target = ok(acl.rt.malloc(UNIT, 0))
    source = ok(acl.rt.malloc(UNIT, 0)) if make == "malloc" else acl.physical()[1]
    ok(acl.rt.memcpy_async(target, 4, source, 4, DEVICE_TO_DEVICE, 0))

    ok(acl.rt.free(source) if make == "malloc" else acl.rt.unmap_mem(source))
    acl.check_broken("ACL-X1")
    ok(acl.rt.synchronize_device())


@emulation_only
def test_x1_memory_of_the_host_is_taken_from_running_work(start: Start) -> None:
    acl = start(CROSSMEM_EMULATED_SLOW_STREAMS=1)
    target, source = ok(acl.rt.malloc(UNIT, 0)), ok(acl.rt.malloc_host(UNIT))
    ok(acl.rt.memcpy_async(target, UNIT, source, UNIT, HOST_TO_DEVICE, 0))

    ok(acl.rt.free_host(source))
    acl.check_broken("ACL-X1")
    ok(acl.rt.synchronize_device())


@emulation_only
def test_x1_an_import_is_closed_under_running_work(exporter: Actor, start: Start) -> None:
    importer = start(CROSSMEM_EMULATED_SLOW_STREAMS=1)
    key = ok(exporter.rt.ipc_mem_get_export_key(ok(exporter.rt.malloc(UNIT, 0)), UNIT, 65, 0))
    ok(exporter.rt.ipc_mem_set_import_pid(key, [importer.tgid]))
    source, target = ok(importer.rt.ipc_mem_import_by_key(key, 0)), ok(importer.rt.malloc(UNIT, 0))
    ok(importer.rt.memcpy_async(target, 4, source, 4, DEVICE_TO_DEVICE, 0))

    ok(importer.rt.ipc_mem_close(key))
    importer.check_broken("ACL-X1")
