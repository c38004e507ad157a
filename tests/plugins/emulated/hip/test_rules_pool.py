# SPDX-License-Identifier: Apache-2.0
"""HIP-X11: pools, which take memory and keep it."""

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.plugins.emulated.hip.conftest import Start
    from tests.plugins.emulated.hip.hip_actor import (
        BLOCK,
        READ,
        READ_WRITE,
        Actor,
        differs,
        emulation_only,
        on,
        status,
    )
else:
    from hip_actor import BLOCK, READ, READ_WRITE, Actor, differs, emulation_only, on, status

    Start = Any

THRESHOLD, RESERVED, MOST_RESERVED, USED, MOST_USED = range(4, 9)
PINNED, ON_A_DEVICE = 1, 1


def create(actor: Actor, device: int = 0) -> int:
    return int(actor.call("new_pool", PINNED, 0, ON_A_DEVICE, device))


@emulation_only
def test_x11_each_device_has_a_pool(exporter: Actor) -> None:
    c = exporter.c
    usual = [c.deviceGetDefaultMemPool(device) for device in range(2)]
    assert [c.deviceGetMemPool(device) for device in range(2)] == usual
    own = create(exporter, 1)
    assert len({*usual, own}) == 3
    c.deviceSetMemPool(1, own)
    assert [c.deviceGetMemPool(1), c.deviceGetDefaultMemPool(1)] == [own, usual[1]]
    exporter.rt.setDevice(1)
    pointer = c.mallocAsync(1000, 0)
    assert c.memPoolGetAttribute(own, USED) == 1000
    c.memPoolDestroy(own)
    assert c.deviceGetMemPool(1) == usual[1]
    # What was taken from it stays.
    exporter.write(pointer, b"data")
    assert exporter.read(pointer, 4) == b"data"
    c.freeAsync(pointer, 0)
    exporter.check_broken()


@emulation_only
def test_x11_a_pool_keeps_what_it_may(exporter: Actor) -> None:
    c, before = exporter.c, exporter.free_nbytes
    pool, stream = create(exporter), exporter.rt.streamCreate()
    first = c.mallocFromPoolAsync(2 * BLOCK, pool, stream)
    c.freeAsync(first, stream)
    assert exporter.free_nbytes == before
    assert c.memPoolGetAttribute(pool, THRESHOLD) == 0

    c.memPoolSetAttribute(pool, THRESHOLD, (1 << 64) - 1)
    pointers = [c.mallocFromPoolAsync(nbytes, pool, 0) for nbytes in (BLOCK, 2 * BLOCK)]
    for pointer in pointers:
        exporter.rt.free(pointer)
    assert exporter.free_nbytes == before - 3 * BLOCK
    ask = [c.memPoolGetAttribute(pool, one) for one in (RESERVED, MOST_RESERVED, USED, MOST_USED)]
    assert ask == [3 * BLOCK, 3 * BLOCK, 0, 3 * BLOCK]
    # The same pages again.
    again = c.mallocFromPoolAsync(2 * BLOCK - 1, pool, stream)
    assert c.memPoolGetAttribute(pool, RESERVED) == 3 * BLOCK
    assert c.memPoolGetAttribute(pool, USED) == 2 * BLOCK - 1
    c.memPoolTrimTo(pool, BLOCK)
    assert exporter.free_nbytes == before - 3 * BLOCK
    c.memPoolTrimTo(pool, BLOCK - 1)
    assert exporter.free_nbytes == before - 2 * BLOCK
    for attribute in (MOST_RESERVED, MOST_USED):
        c.memPoolSetAttribute(pool, attribute, 0)
        assert c.memPoolGetAttribute(pool, attribute) == 0
    c.freeAsync(again, stream)
    c.memPoolDestroy(pool)
    assert exporter.free_nbytes == before
    exporter.check_broken()


@emulation_only
@differs({"documented clr26": 0, "clr24 rocm5 cuda": 1})
def test_x11_freeing_nothing_in_a_stream(exporter: Actor, code: int) -> None:
    assert status(exporter.c.freeAsync, 0, 0) == code
    assert status(exporter.c.freeAsync, 0, 4096) == 400


@emulation_only
def test_x11_what_is_kept_makes_room(exporter: Actor) -> None:
    c, pool = exporter.c, create(exporter)
    c.memPoolSetAttribute(pool, THRESHOLD, (1 << 64) - 1)
    nbytes = exporter.free_nbytes // 2 + BLOCK
    c.freeAsync(c.mallocFromPoolAsync(nbytes, pool, 0), 0)
    larger = c.mallocFromPoolAsync(nbytes + BLOCK, pool, 0)
    assert status(c.mallocFromPoolAsync, nbytes, pool, 0) == 2
    exporter.rt.free(larger)


@emulation_only
def test_x11_what_a_pool_is_told(exporter: Actor) -> None:
    c, pool = exporter.c, create(exporter)
    for flag in (1, 2, 3):
        assert c.memPoolGetAttribute(pool, flag) == 1
        c.memPoolSetAttribute(pool, flag, 0)
        assert c.memPoolGetAttribute(pool, flag) == 0
    exporter.check_broken()
    for attribute in (RESERVED, USED, 0, 9):
        assert status(c.memPoolSetAttribute, pool, attribute, 0) == 1
    for attribute in (MOST_RESERVED, MOST_USED):
        assert status(c.memPoolSetAttribute, pool, attribute, 1) == 1
    for attribute in (0, 9):
        assert status(c.memPoolGetAttribute, pool, attribute) == 1


@emulation_only
@differs({"documented clr26": 1, "cuda": 101})
def test_x11_pools_that_there_are_not(exporter: Actor, code: int) -> None:
    c, pool = exporter.c, create(exporter)
    for props in ((0, 0, 1, 0), (1, 0, 0, 0), (1, 0, 2, 0)):
        assert status(exporter.call, "new_pool", *props) == 1
    assert status(create, exporter, 2) == code
    assert status(c.deviceGetMemPool, 2) == code
    assert status(c.deviceGetDefaultMemPool, 2) == 101
    assert status(c.deviceSetMemPool, 1, pool) == 101
    assert status(c.memPoolDestroy, c.deviceGetDefaultMemPool(0)) == 1
    c.memPoolDestroy(pool)
    assert status(c.memPoolDestroy, pool) == 1
    assert status(c.memPoolTrimTo, pool, 0) == 1
    assert status(c.deviceSetMemPool, 0, pool) == 1
    assert status(c.mallocFromPoolAsync, BLOCK, pool, 0) == 1
    assert status(c.mallocFromPoolAsync, BLOCK, c.deviceGetDefaultMemPool(0), 99) == 400


@emulation_only
def test_x11_who_may_use_a_pool(exporter: Actor) -> None:
    c, pool = exporter.c, create(exporter)
    ask = [c.memPoolGetAccess(pool, ON_A_DEVICE, device) for device in range(2)]
    assert ask == [READ_WRITE, 0]
    c.memPoolSetAccess(pool, [(ON_A_DEVICE, 1, READ)])
    assert c.memPoolGetAccess(pool, ON_A_DEVICE, 1) == READ
    exporter.check_broken()
    for access, code in (
        ([(ON_A_DEVICE, 0, 0)], 101),
        ([(ON_A_DEVICE, 0, READ)], 801),
        ([(ON_A_DEVICE, 2, READ)], 101),
        ([(ON_A_DEVICE, 1, 2)], 1),
        ([(2, 1, READ)], 1),
        ([(ON_A_DEVICE, 1, READ_WRITE)] * 3, 101),
    ):
        assert status(c.memPoolSetAccess, pool, access) == code
    assert c.memPoolGetAccess(pool, ON_A_DEVICE, 1) == READ
    assert status(c.memPoolGetAccess, pool, 2, 0) == 1


@emulation_only
def test_x11_a_reset_takes_pools(exporter: Actor) -> None:
    c, before, pool = exporter.c, exporter.free_nbytes, create(exporter)
    usual = c.deviceGetDefaultMemPool(0)
    for one in (pool, usual):
        c.memPoolSetAttribute(one, THRESHOLD, (1 << 64) - 1)
        c.freeAsync(c.mallocFromPoolAsync(BLOCK, one, 0), 0)
        c.mallocFromPoolAsync(BLOCK, one, 0)
    exporter.rt.deviceReset()

    assert exporter.free_nbytes == before
    assert [status(c.memPoolDestroy, one) for one in (pool, usual)] == [1, 1]
    c.freeAsync(c.mallocAsync(BLOCK, 0), 0)
    assert c.memPoolGetAttribute(c.deviceGetDefaultMemPool(0), THRESHOLD) == 0


@on("documented", "clr26")
def test_x11_builds_without_pools(exporter: Actor) -> None:
    for name, *arguments in (("deviceGetMemPool", 0), ("memPoolTrimTo", 0, 0)):
        with pytest.raises(RuntimeError, match=f"HIP does not support {name}"):
            getattr(exporter.rt, name)(*arguments)
