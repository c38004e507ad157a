# SPDX-License-Identifier: Apache-2.0
"""HIP-X7: rows that lie apart, and sizes that are products."""

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.plugins.emulated.hip.conftest import Start
    from tests.plugins.emulated.hip.hip_actor import (
        BLOCK,
        ON_DEVICE,
        TO_DEVICE,
        TO_HOST,
        Actor,
        emulation_only,
        status,
    )
else:
    from hip_actor import (
        BLOCK,
        ON_DEVICE,
        TO_DEVICE,
        TO_HOST,
        Actor,
        emulation_only,
        status,
    )

    Start = Any

HUGE = 1 << 63


@emulation_only
def test_x7_rows_are_apart(exporter: Actor) -> None:
    plane, pitch = exporter.rt.mallocPitch(5, 3, 2)
    assert pitch >= 5
    assert exporter.rt.memGetAddressRange(plane) == (plane, pitch * 6)
    pinned = exporter.rt.hostAlloc(64, 0)
    exporter.call("poke", pinned, b"abcdefghijklmno")
    exporter.rt.memset(plane, ord("."), pitch * 6)

    exporter.c.memcpy2D(plane, pitch, pinned, 5, 5, 3, TO_DEVICE)
    exporter.rt.memset2D(plane + 1, pitch, ord("#"), 2, 2)
    assert exporter.read(plane, 6) == b"a##de."
    assert exporter.read(plane + pitch, 6) == b"f##ij."
    exporter.rt.memset2DAsync(plane + pitch, pitch, ord("-"), 1, 2, 0)
    exporter.c.memcpy2DAsync(plane + 3 * pitch, pitch, plane, pitch, 5, 3, ON_DEVICE, 0)
    exporter.c.memcpy2D(pinned, 5, plane + 3 * pitch, pitch, 5, 3, TO_HOST)
    assert exporter.call("peek", pinned, 15) == b"a##de-##ij-lmno"
    exporter.check_broken()


@emulation_only
def test_x7_rows_of_several_pieces(exporter: Actor) -> None:
    """What is mapped piece by piece is one plane; a row goes over the border."""
    base = exporter.rt.memAddressReserve(2 * BLOCK, 0, 0, 0)
    for place in (base, base + BLOCK):
        exporter.rt.memMap(place, BLOCK, 0, exporter.call("create", BLOCK), 0)
    exporter.rt.memSetAccess(base, 2 * BLOCK, [(1, 0, 3)])
    exporter.rt.memset(base, ord("."), 2 * BLOCK)

    exporter.rt.memset2D(base + BLOCK - 9, 6, ord("#"), 4, 3)
    assert exporter.read(base + BLOCK - 10, 19) == b".####..####..####.."
    exporter.check_broken()


@emulation_only
def test_x7_nothing_is_allocated_for_nothing(exporter: Actor) -> None:
    assert [exporter.rt.mallocPitch(*one) for one in ((0, 2, 2), (2, 0, 2), (2, 2, 0))] == [
        (0, None)
    ] * 3
    exporter.rt.memset2D(0, 0, 0, 0, HUGE)
    exporter.c.memcpy2D(0, 0, 0, 0, HUGE, 0, ON_DEVICE)
    exporter.check_broken()


@emulation_only
def test_x7_sizes_that_nobody_has_room_for(exporter: Actor) -> None:
    before = exporter.free_nbytes
    # A multiple of 2^64, of which C would leave nothing.
    assert status(exporter.rt.mallocPitch, 256, 1 << 56, 1) == 2
    assert status(exporter.rt.mallocPitch, 256, 1 << 28, 1 << 28) == 2
    assert status(exporter.rt.mallocPitch, (1 << 64) - 257, 1, 1) == 2
    assert status(exporter.rt.mallocPitch, (1 << 64) - 256, 1, 1) == 1

    assert exporter.free_nbytes == before
    exporter.check_broken("HIP-X7")


@emulation_only
@pytest.mark.parametrize("name", ["memset2D", "memset2DAsync", "memset2D_spt"])
def test_x7_fills_that_do_not_fit_do_nothing(exporter: Actor, name: str) -> None:
    pointer, more = exporter.rt.malloc(BLOCK), (0,) * name.endswith("Async")
    exporter.rt.memset(pointer, ord("."), BLOCK)
    fill = getattr(exporter.rt, name)
    for pitch, width, height in (
        (256, 4, BLOCK // 256 + 1),
        (256, 4, (1 << 56) + 1),
        (HUGE, HUGE, 2),
        (HUGE, 4, 3),
    ):
        assert status(fill, pointer, pitch, ord("#"), width, height, *more) == 1
    assert status(fill, pointer, 3, ord("#"), 4, 1, *more) == 1
    assert status(fill, 0, 4, ord("#"), 4, 1, *more) == 1

    exporter.rt.deviceSynchronize()
    assert exporter.read(pointer, BLOCK) == b"." * BLOCK
    fill(pointer, 256, ord("#"), 4, BLOCK // 256, *more)
    exporter.rt.deviceSynchronize()
    assert exporter.read(pointer + BLOCK - 256, 256) == b"####" + b"." * 252


@emulation_only
@pytest.mark.parametrize("name", ["memcpy2D", "memcpy2DAsync", "memcpy2D_spt"])
def test_x7_copies_that_do_not_fit_do_nothing(exporter: Actor, name: str) -> None:
    pointer, other = exporter.rt.malloc(BLOCK), exporter.rt.malloc(BLOCK)
    exporter.rt.memset(pointer, ord("."), BLOCK)
    copy, more = getattr(exporter.c, name), (0,) * name.endswith("Async")
    for pitch, width, height in ((256, 4, BLOCK // 256 + 1), (HUGE, HUGE, 2), (HUGE, 4, 3)):
        ends = pointer, pitch, other, pitch
        assert status(copy, *ends, width, height, ON_DEVICE, *more) == 1
    assert status(copy, pointer, 3, other, 4, 4, 1, ON_DEVICE, *more) == 12
    assert status(copy, pointer, 4, other, 3, 4, 1, ON_DEVICE, *more) == 12
    assert status(copy, pointer, 4, other, 4, 4, 1, 9, *more) == 21
    assert status(copy, pointer, 4, 0, 4, 4, 1, ON_DEVICE, *more) == 1

    exporter.rt.deviceSynchronize()
    assert exporter.read(pointer, BLOCK) == b"." * BLOCK


@emulation_only
def test_x7_rows_of_memory_that_nobody_knows(exporter: Actor) -> None:
    """Where it ends is unknown, but no process has addresses for so many rows."""
    own = exporter.call("own_memory", 64)
    for pitch, width, height in ((HUGE, 4, 2), (4, 4, 1 << 50), (HUGE, HUGE, 2)):
        assert status(exporter.c.memcpy2D, own, pitch, own, pitch, width, height, 0) == 1
    exporter.check_broken(*["HIP-X7"] * 3)
    exporter.call("poke", own, b"abcdefgh")
    exporter.c.memcpy2D(own + 32, 3, own, 4, 2, 2, 0)
    assert exporter.call("peek", own + 32, 5) == b"ab\0ef"


@emulation_only
def test_x7_planes_wait_in_their_streams(start: Start) -> None:
    actor = start(CROSSMEM_EMULATED_SLOW_STREAMS=1)
    pointer, stream = actor.rt.malloc(BLOCK), actor.rt.streamCreateWithFlags(1)
    actor.write(pointer, b"....")
    actor.rt.memset2DAsync(pointer, 2, ord("#"), 1, 2, stream)
    assert actor.read(pointer, 4) == b"...."
    actor.rt.streamSynchronize(stream)
    assert actor.read(pointer, 4) == b"#.#."
    actor.rt.memset2DAsync(pointer, 2, 0, 1, 2, stream)

    actor.rt.free(pointer)
    actor.check_broken()
