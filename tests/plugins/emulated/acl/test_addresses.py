# SPDX-License-Identifier: Apache-2.0
"""The table of addresses finds what a look at everything finds."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from generated import examples
from hypothesis import given
from hypothesis import strategies as st

from crossmem_emulated.acl.addresses import Origin
from crossmem_emulated.addresses import Piece, Region, Space
from crossmem_emulated.pages import Pages

if TYPE_CHECKING:
    from tests.plugins.emulated.acl.acl_actor import GRANULARITY, emulation_only
else:
    from acl_actor import GRANULARITY, emulation_only

pytestmark = emulation_only
DEVICE = 0
repeatable = examples(100)

# Gaps and sizes, one after the other, so that pieces may touch and never overlap.
LAYOUTS = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 4)), max_size=12)
RANGES = st.tuples(st.integers(0, 90), st.integers(0, 30))


def pieces_of(layout: list[tuple[int, int]]) -> list[Piece]:
    pieces, start = [], 1
    for gap, nbytes in layout:
        start += gap
        region = Region(start, nbytes, is_reservation=True)
        pages = Pages(0, DEVICE, nbytes, 1000 * start, None, None)
        pieces.append(Piece(start, nbytes, region, pages, 0, Origin.PHYSICAL))
        start += nbytes
    return pieces


@repeatable
@given(LAYOUTS, st.randoms(use_true_random=False), RANGES)
def test_pieces_in_a_range(
    layout: list[tuple[int, int]], dice: random.Random, asked: tuple[int, int]
) -> None:
    space = Space(is_host_readable=False)
    pieces = pieces_of(layout)
    dice.shuffle(pieces)
    for one in pieces:
        space.attach(one)
    gone = pieces[: len(pieces) // 3]
    for one in gone:
        space.detach(one)
    pointer, nbytes = asked
    bytes_asked = range(pointer, pointer + nbytes)
    behind = {
        byte: (one, one.backing + byte - one.start)
        for one in pieces[len(gone) :]
        for byte in range(one.start, one.end)
        if byte in bytes_asked
    }

    assert {
        first_asked: (piece, place + offset)
        for piece, place, count in space.spans(pointer, nbytes)
        for offset in range(count)
        for first_asked in [max(pointer, piece.start) + offset]
    } == behind
    found = space.overlapping(pointer, nbytes)
    assert found == sorted(found, key=lambda one: one.start)
    if nbytes:
        assert set(map(id, found)) == {id(one) for one, _ in behind.values()}


@contextmanager
def reserved(space: Space, numbers: list[int]) -> Iterator[list[Region]]:
    """Reserve some regions, of so many huge pages each."""
    regions = [space.reserve(one * GRANULARITY, is_reservation=True) for one in numbers]
    try:
        yield regions
    finally:
        for one in regions:
            if one.start in space.regions:
                space.release(one)


@repeatable
@given(st.lists(st.integers(1, 3), min_size=1, max_size=8), st.integers(0, 7))
def test_the_region_of_an_address(numbers: list[int], released: int) -> None:
    space = Space(is_host_readable=False)
    with reserved(space, numbers) as regions:
        edges = [
            edge + step
            for one in regions
            for edge in (one.start, one.start + one.nbytes)
            for step in (-1, 0, 1)
        ]
        if released < len(regions):
            space.release(regions[released])
        for pointer in edges:
            naive = [
                one
                for one in space.regions.values()
                if one.start <= pointer < one.start + one.nbytes
            ]

            assert space.region_of(pointer) == (naive[0] if naive else None)
