# SPDX-License-Identifier: Apache-2.0
"""What is left after a device was reset; the vendor does not say, acl/release.py chooses."""

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
UNIT = GRANULARITY


def test_the_last_reset_releases(acl: Actor) -> None:
    ok(acl.rt.set_device(0))
    pointer = ok(acl.rt.malloc(UNIT, 0))

    ok(acl.rt.reset_device(0))
    acl.write(pointer, b"still here")
    ok(acl.rt.reset_device(0))
    assert acl.rt.get_device() == (0, 107002)
    assert acl.rt.reset_device(0) == 107002
    assert acl.rt.reset_device(99) == 107001


def test_force_releases_at_once(acl: Actor) -> None:
    ok(acl.rt.set_device(0))
    ok(acl.rt.reset_device_force(0))

    assert acl.rt.get_device() == (0, 107002)
    assert acl.rt.reset_device_force(0) == 107002


def test_everything_on_the_device_is_gone(acl: Actor) -> None:
    before = acl.free_nbytes
    context, stream = ok(acl.rt.get_context()), ok(acl.rt.create_stream())
    handle, mapped = acl.physical()
    small, large = ok(acl.rt.malloc(64, 0)), ok(acl.rt.malloc(UNIT, 0))
    key = ok(acl.rt.ipc_mem_get_export_key(large, UNIT, 65, 0))
    ok(acl.rt.reset_device(0))
    assert acl.call("memory_held") == 0
    ok(acl.rt.set_device(0))

    assert acl.free_nbytes == before
    assert acl.rt.set_context(context) == 107000
    assert acl.rt.synchronize_stream(stream) == 107000
    assert acl.rt.map_mem(mapped, UNIT, 0, handle, 0) == 107017
    assert acl.rt.free_physical(handle) == 107000
    assert acl.rt.unmap_mem(mapped) == 507899
    assert acl.rt.free(small) == acl.rt.free(large) == 107000
    assert acl.rt.ipc_mem_close(key) == 507899


@pytest.mark.parametrize("reset", ["reset_device", "reset_device_force"])
def test_the_work_of_the_default_context_is_done(start: Start, reset: str) -> None:
    acl = start(CROSSMEM_EMULATED_SLOW_STREAMS=1)
    target, others = (ok(acl.rt.malloc_host(4)) for _ in range(2))
    pointer, stream = ok(acl.rt.malloc(UNIT, 0)), ok(acl.rt.create_stream())
    acl.write(pointer, b"done")
    ok(acl.rt.memcpy_async(target, 4, pointer, 4, 2, stream))
    ok(acl.rt.create_context(0))
    ok(acl.rt.memcpy_async(others, 4, pointer, 4, 2, 0))

    ok(getattr(acl.rt, reset)(0))
    assert (acl.call("peek", target, 4), acl.call("peek", others, 4)) == (b"done", bytes(4))
    acl.check_broken()


def test_reserved_addresses_stay(acl: Actor) -> None:
    _, mapped = acl.physical()
    ok(acl.rt.reset_device(0))
    ok(acl.rt.set_device(0))
    handle = ok(acl.rt.malloc_physical(UNIT, properties(), 0))

    ok(acl.rt.map_mem(mapped, UNIT, 0, handle, 0))
    ok(acl.rt.unmap_mem(mapped))
    ok(acl.rt.release_mem_address(mapped))
    acl.check_broken()


@pytest.mark.usefixtures("two_devices")
def test_other_devices_stay(acl: Actor) -> None:
    ok(acl.rt.set_device(1))
    pointer = ok(acl.rt.malloc(UNIT, 0))
    ok(acl.rt.reset_device(0))

    acl.write(pointer, b"still here")
    assert ok(acl.rt.get_device()) == 1


def test_importers_keep_memory_but_not_keys(exporter: Actor, importer: Actor) -> None:
    handle, pointer = exporter.physical()
    exporter.write(pointer, b"kept")
    share = ok(exporter.rt.mem_export_to_shareable_handle(handle, 0, 1))
    there = importer.map_new(ok(importer.rt.mem_import_from_shareable_handle(share, 0)))
    key = ok(exporter.rt.ipc_mem_get_export_key(ok(exporter.rt.malloc(UNIT, 0)), UNIT, 65, 1))
    opened = ok(importer.rt.ipc_mem_import_by_key(key, 0))
    ok(exporter.rt.reset_device(0))

    assert importer.read(there, 4) == b"kept"
    assert importer.call("read", opened, 1)[1] == 507053
    # As where it frees the memory of a key that others have open, and they use it.
    broken = [(one.pid, one.call, one.rule) for one in exporter.call("acl.violations")]
    assert broken == [
        (exporter.pid, "rt.reset_device", "ACL-E26"),
        (importer.pid, "rt.memcpy", "ACL-E26"),
    ]


def test_an_importer_that_resets_has_closed(exporter: Actor, importer: Actor) -> None:
    before = exporter.free_nbytes
    handle, pointer = exporter.physical()
    share = ok(exporter.rt.mem_export_to_shareable_handle(handle, 0, 1))
    memory = ok(exporter.rt.malloc(UNIT, 0))
    key = ok(exporter.rt.ipc_mem_get_export_key(memory, UNIT, 65, 1))
    importer.map_new(ok(importer.rt.mem_import_from_shareable_handle(share, 0)))
    ok(importer.rt.ipc_mem_import_by_key(key, 0))
    ok(importer.rt.reset_device(0))
    ok(exporter.rt.ipc_mem_close(key))
    ok(exporter.rt.free(memory))
    ok(exporter.rt.unmap_mem(pointer))
    ok(exporter.rt.free_physical(handle))

    assert importer.call("memory_held") == 0
    assert exporter.free_nbytes == before
    exporter.check_broken()
