# SPDX-License-Identifier: Apache-2.0
"""ACL-E41 and E42: registered memory; batches; copies of rows, fills of numbers."""

from dataclasses import replace
from typing import TYPE_CHECKING

from crossmem_emulated.acl.extents import Places

if TYPE_CHECKING:
    from tests.plugins.emulated.acl.acl_actor import GRANULARITY, Actor, emulation_only, ok
else:
    from acl_actor import GRANULARITY, Actor, emulation_only, ok

pytestmark = emulation_only
HOST_TO_DEVICE, DEVICE_TO_HOST, DEVICE_TO_DEVICE = 1, 2, 3
ON_HOST, ON_DEVICE, ON_NUMA_NODE = (0, 0), (0, 1), (2, 4)
UP, DOWN = Places(0, ON_DEVICE, ON_HOST), Places(0, ON_HOST, ON_DEVICE)


def test_e41_registered_memory(acl: Actor) -> None:
    host = ok(acl.rt.malloc_host(8192))
    assert ok(acl.rt.host_register(host, 4096, 0)) == host

    assert acl.rt.host_register(host + 64, 8, 0) == (0, 507910)
    assert acl.c.host_register_v2(host - 64, 128, 2) == 507910
    acl.check_broken("ACL-E41", "ACL-E41")
    assert ok(acl.c.host_get_device_pointer(host + 8, 0)) == host + 8
    ok(acl.rt.host_unregister(host))
    ok(acl.c.host_register_v2(host, 8192, 0x10000002))
    ok(acl.rt.host_unregister(host))
    acl.check_broken("ACL-E41", "ACL-E41")
    assert acl.rt.host_unregister(host) == 507911
    assert acl.c.host_get_device_pointer(host, 0) == (0, 507911)
    acl.check_broken(*["ACL-E41"] * 4)


def test_registrations_that_cannot_be(acl: Actor) -> None:
    assert acl.rt.host_register(0, 8, 0) == (0, 100000)
    assert acl.rt.host_register(64, 0, 0) == (0, 100000)
    assert acl.rt.host_unregister(0) == 100000
    assert acl.c.host_get_device_pointer(0, 0) == (0, 100000)
    assert acl.c.host_get_device_pointer(64, 1) == (0, 100000)
    assert acl.rt.host_register(64, 8, 1) == (0, 107000)
    assert acl.c.host_register_v2(64, 8, 0) == 107000
    assert acl.c.host_register_v2(64, 8, 0x40) == 107000


def test_e42_batches(acl: Actor, importer: Actor) -> None:
    pointer, host = ok(acl.rt.malloc(GRANULARITY, 0)), ok(acl.rt.malloc_host(64))
    acl.call("poke", host, b"onetwo")

    ok(acl.c.memcpy_batch([(pointer, 3, host, 3), (pointer + 8, 3, host + 3, 3)], [UP]))
    ok(acl.c.memcpy_batch_async([(host + 8, 11, pointer, 11)], [DOWN], 0))
    assert acl.call("peek", host + 8, 3) + acl.call("peek", host + 16, 3) == b"onetwo"
    back = Places(1, ON_NUMA_NODE, ON_DEVICE)
    ok(acl.c.memcpy_batch([(pointer, 3, host + 3, 3), (host, 3, pointer, 3)], [UP, back]))
    assert acl.call("peek", host, 3) == b"two"
    assert acl.c.memcpy_batch([], [UP]) == 100000
    acl.check_broken()
    key = ok(acl.rt.ipc_mem_get_export_key(pointer, GRANULARITY, 65, 1))
    there = ok(importer.rt.ipc_mem_import_by_key(key, 0))
    target = ok(importer.rt.malloc_host(8))
    assert importer.c.memcpy_batch([(target, 8, there, 8)], [DOWN]) == (0, 207000)
    assert importer.c.memcpy_batch_async([(there, 8, target, 8)], [UP], 0) == (0, 207000)


def test_e42_nothing_is_copied_where_one_copy_is_refused(acl: Actor) -> None:
    pointer, host = ok(acl.rt.malloc(GRANULARITY, 0)), ok(acl.rt.malloc_host(64))
    good, within = (pointer, 3, host, 3), (pointer, 3, pointer + 8, 3)
    ok(acl.rt.memset(pointer, GRANULARITY, 0x2D, 8))
    acl.call("poke", host, b"one")

    assert acl.c.memcpy_batch([good, (pointer, 2, host, 3)], [UP]) == 100000
    acl.check_broken("ACL-E28")
    assert acl.c.memcpy_batch([good, within], [UP]) == (1, 107000)
    on_device = Places(1, ON_DEVICE, ON_DEVICE)
    assert acl.c.memcpy_batch([good, within], [UP, on_device]) == (1, 107000)
    assert acl.c.memcpy_batch_async([(host + 8, 3, host, 3)], [UP], 0) == (0, 207000)
    other = Places(0, (1, 1), ON_HOST)
    assert acl.c.memcpy_batch([good], [other]) == (0, 107000)
    assert acl.c.memcpy_batch([good], [Places(0, ON_DEVICE, (0, 2))]) == (0, 107000)
    acl.check_broken("ACL-E28", *["ACL-E42"] * 4)
    assert acl.c.memcpy_batch([good], [replace(UP, is_reserved_used=True)]) == 100000
    for places in ([], [replace(UP, first=1)], [UP, UP], [UP, on_device]):
        assert acl.c.memcpy_batch([good], places) == 107000
    assert acl.read(pointer, 3) == b"---"


def test_rows(acl: Actor) -> None:
    pointer, host = ok(acl.rt.malloc(GRANULARITY, 0)), ok(acl.rt.malloc_host(64))
    acl.call("poke", host, b"abcdefghij")
    ok(acl.rt.memset(pointer, GRANULARITY, 0x2D, 64))

    ok(acl.c.memcpy2d(pointer, 4, host, 5, 3, 2, HOST_TO_DEVICE))
    assert acl.read(pointer, 9) == b"abc-fgh--"
    ok(acl.c.memcpy2d_async(pointer + 16, 8, pointer, 4, 3, 2, DEVICE_TO_DEVICE, 0))
    assert acl.read(pointer + 16, 12) == b"abc-----fgh-"
    ok(acl.c.memcpy2d(0, 0, 0, 0, 0, 2, HOST_TO_DEVICE))
    assert acl.c.memcpy2d(pointer, 4, host, 2, 3, 2, HOST_TO_DEVICE) == 100000
    assert acl.c.memcpy2d(pointer, 4, pointer, 4, 3, 2, DEVICE_TO_DEVICE) == 100000
    acl.check_broken()


def test_numbers(acl: Actor) -> None:
    pointer = ok(acl.rt.malloc(GRANULARITY, 0))

    ok(acl.c.memset_d32(pointer, 64, 0x64636261, 3))
    ok(acl.c.memset_d32_async(pointer + 4, 60, 0x68676665, 1, 0))
    assert acl.read(pointer, 12) == b"abcdefghabcd"
    assert acl.c.memset_d32(pointer + 2, 64, 0, 1) == 107000
    assert acl.c.memset_d32(pointer, 64, 0, 17) == 107000
    acl.check_broken("ACL-E28")
