# SPDX-License-Identifier: Apache-2.0
"""HIP-X7: planes that lie behind each other."""

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.plugins.emulated.hip.conftest import Start
    from tests.plugins.emulated.hip.hip_actor import (
        BLOCK,
        BY_ADDRESS,
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
        BY_ADDRESS,
        ON_DEVICE,
        TO_DEVICE,
        TO_HOST,
        Actor,
        emulation_only,
        status,
    )

    Start = Any

Numbers = tuple[int, ...]

HUGE = 1 << 63
COPIES = ["memcpy3D", "memcpy3DAsync", "memcpy3D_spt"]
FILLS = ["memset3D", "memset3DAsync", "memset3D_spt"]
# Three bytes in a row, two rows in a plane, two planes.
EXTENT = 3, 2, 2


@emulation_only
@pytest.mark.parametrize("name", COPIES)
def test_x7_boxes_are_copied(exporter: Actor, name: str) -> None:
    box, other = exporter.rt.malloc(BLOCK), exporter.rt.malloc(BLOCK)
    pinned = exporter.rt.hostAlloc(64, 0)
    exporter.call("poke", pinned, b"abcdefghijkl")
    exporter.rt.memset(box, ord("."), BLOCK)

    def copy(to: Numbers, start: Numbers, extent: Numbers, kind: int) -> None:
        exporter.call("copy_box", name, to, start, extent, kind)

    # Rows are 5 apart, and planes 3 rows; the host's lie without gaps.
    copy((box, 5, 3, 3), (pinned, 3, 3, 2), EXTENT, TO_DEVICE)
    exporter.rt.deviceSynchronize()
    assert exporter.read(box, 28) == b"abc..def.......ghi..jkl....."
    copy((other, 3, 3, 2), (box, 5, 3, 3), EXTENT, ON_DEVICE)
    exporter.rt.deviceSynchronize()
    assert exporter.read(other, 12) == b"abcdefghijkl"
    # A part, from the second byte of the second row of the second plane on.
    copy((pinned, 3, 3, 2), (box, 5, 3, 3, 1, 1, 1), (2, 1, 1), BY_ADDRESS)
    copy((box, 5, 3, 3, 3, 0, 1), (pinned, 0, 0, 0), (2, 1, 1), TO_DEVICE)
    exporter.rt.deviceSynchronize()
    assert exporter.call("peek", pinned, 4) == b"klcd"
    assert exporter.read(box + 15, 10) == b"ghikljkl.."
    # Without an end of the planes: each is as high as what is copied.
    copy((pinned, 0, 0, 0), (other, 3, 3, 0), EXTENT, TO_HOST)
    exporter.rt.deviceSynchronize()
    assert exporter.call("peek", pinned, 12) == b"abcdefghijkl"
    exporter.check_broken()


@emulation_only
@pytest.mark.parametrize("name", COPIES)
def test_x7_copies_of_boxes_that_do_not_fit_do_nothing(exporter: Actor, name: str) -> None:
    pointer, other = exporter.rt.malloc(BLOCK), exporter.rt.malloc(BLOCK)
    exporter.rt.memset(pointer, ord("."), BLOCK)
    good = other, 256, 4, 2
    for code, to, extent in (
        (1, (0, 256, 4, 2), (4, 2, 2)),
        (12, (pointer, 3, 4, 2), (4, 2, 2)),
        (1, (pointer, 256, 4, 2, 253), (4, 2, 2)),
        (1, (pointer, 256, 4, 2, 0, 1), (4, 2, 2)),
        (1, (pointer, 256, 4, 2), (4, 2, BLOCK // 512 + 1)),
        (1, (pointer, 256, 4, 2, 0, 0, 1), (4, 2, BLOCK // 512)),
        (1, (pointer, 256, 4, 2), (4, 2, HUGE)),
        (1, (pointer, 256, 4, 2), (4, HUGE, 2)),
        (1, (pointer, (1 << 31) - 1, 4, 2), (4, 2, 1)),
    ):
        for sides in ((to, good), (good, to)):
            assert status(exporter.call, "copy_box", name, *sides, extent, ON_DEVICE) == code
    assert status(exporter.call, "copy_box", name, good, good, (4, 2, 2), 9) == 21
    assert status(getattr(exporter.c, name), 0, *(0,) * name.endswith("Async")) == 1
    array = (pointer, 256, 4, 2), good, (4, 2, 2), ON_DEVICE, 77
    assert status(exporter.call, "copy_box", name, *array) == 801

    exporter.rt.deviceSynchronize()
    assert exporter.read(pointer, BLOCK) == b"." * BLOCK


@emulation_only
@pytest.mark.parametrize("name", FILLS)
def test_x7_boxes_are_filled(exporter: Actor, name: str) -> None:
    pointer, more = exporter.rt.malloc(BLOCK), (0,) * name.endswith("Async")
    exporter.rt.memset(pointer, ord("."), BLOCK)
    fill = getattr(exporter.rt, name)

    fill(pointer, 5, 3, 3, 0x100 + ord("#"), *EXTENT, *more)
    exporter.rt.deviceSynchronize()
    assert exporter.read(pointer, 28) == b"###..###.......###..###....."
    fill(pointer, 4, 4, 2, ord("-"), 4, 2, 2, *more)
    exporter.rt.deviceSynchronize()
    assert exporter.read(pointer, 18) == b"-" * 16 + b"##"
    exporter.check_broken()
    for box in (
        (0, 4, 4, 2, 0, 4, 2, 2),
        (pointer, 3, 4, 2, 0, 4, 2, 2),
        (pointer, 4, 4, 2, 0, 4, 3, 2),
        (pointer, 256, 4, 2, 0, 4, 2, BLOCK // 512 + 1),
        (pointer, 256, 4, HUGE, 0, 4, 2, 2),
        (pointer, 256, 4, 2, 0, 4, 2, HUGE),
    ):
        assert status(fill, *box, *more) == 1
    exporter.rt.deviceSynchronize()
    assert exporter.read(pointer, 18) == b"-" * 16 + b"##"


@emulation_only
def test_x7_nothing_is_done_with_boxes_of_nothing(exporter: Actor) -> None:
    pointer = exporter.rt.malloc(4)
    for extent in ((0, 2, 2), (2, 0, 2), (2, 2, 0)):
        sides = (pointer, 9, 9, 9), (4096, 9, 9, 9)
        exporter.call("copy_box", "memcpy3D", *sides, extent, TO_DEVICE)
        exporter.rt.memset3D(0, 0, 0, 0, 0, *extent)
    exporter.check_broken()


@emulation_only
def test_x7_boxes_wait_in_their_streams(start: Start) -> None:
    actor = start(CROSSMEM_EMULATED_SLOW_STREAMS=1)
    pointer, stream = actor.rt.malloc(BLOCK), actor.rt.streamCreateWithFlags(1)
    actor.write(pointer, b"abcd....")
    box, other = (pointer, 2, 1, 1), (pointer + 4, 2, 1, 1)
    actor.call("copy_box", "memcpy3DAsync", other, box, (1, 1, 2), ON_DEVICE, 0, stream)
    actor.rt.memset3DAsync(pointer, 2, 1, 1, ord("#"), 1, 1, 2, stream)
    assert actor.read(pointer, 8) == b"abcd...."
    actor.rt.streamSynchronize(stream)
    assert actor.read(pointer, 8) == b"#b#da.c."
    actor.check_broken()
