# SPDX-License-Identifier: Apache-2.0
"""The index by address, against a list that is searched from end to end."""

import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from generated import examples
from hypothesis import given
from hypothesis import strategies as st

from crossmem.sharing.base import array_index
from crossmem.sharing.base.array_index import ArrayIndex

repeatable = examples(100)


@pytest.fixture(autouse=True, params=[1, 64], ids="at most {} new".format)
def most_new(request: pytest.FixtureRequest) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(array_index, "_MOST_NEW", request.param)
        yield


class Block:
    """Stands in for memory: it has a size and may be closed."""

    def __init__(self, start: int, nbytes: int) -> None:
        self.start = start
        self.nbytes = nbytes
        self.closed = False

    def shows(self, pointer: int, nbytes: int) -> bool:
        end = self.start + self.nbytes
        return not self.closed and self.start <= pointer and pointer + nbytes <= end


class ViewAnchor:
    """Stands in for the views of a block."""


actions = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(0, 60), st.sampled_from([1, 2, 3, 8, 40])),
        st.tuples(st.just("find"), st.integers(0, 70), st.sampled_from([1, 2, 5, 41])),
        st.tuples(st.sampled_from(["close", "forget"]), st.integers(0, 20), st.just(0)),
    ),
    max_size=40,
)


@repeatable
@given(actions)
def test_the_index_finds_what_a_list_has(steps: Any) -> None:
    index = ArrayIndex(threading.RLock())
    known: list[tuple[Block, ViewAnchor]] = []
    for action, number, nbytes in steps:
        if action == "add":
            known.append((Block(number, nbytes), ViewAnchor()))
            index.add(known[-1][0], number, known[-1][1])
        elif action == "close" and known:
            known[number % len(known)][0].closed = True
        elif action == "forget" and known:
            del known[number % len(known)]
        elif action == "find":
            found: Any = index.find(number, nbytes)
            there = [block for block, _anchor in known if block.shows(number, nbytes)]
            assert (found is None) == (not there)
            assert found is None or any(found is one for one in there)
    known.clear()

    assert index.find(0, 1) is None
    assert index._spots == {}


def test_the_last_of_several_is_found_first() -> None:
    index, blocks, anchors = (
        ArrayIndex(threading.RLock()),
        [Block(0, 9), Block(4, 2), Block(4, 2)],
        [],
    )
    for one in blocks:
        anchors.append(ViewAnchor())
        index.add(one, one.start, anchors[-1])

    assert index.find(4, 1) is blocks[2]
    assert index.find(5, 2) is blocks[0]
    blocks[2].closed = True
    assert index.find(4, 1) is blocks[1]
    anchors[1] = anchors[0]
    assert index.find(4, 1) is blocks[0]


def test_entries_that_nobody_looks_up_do_not_pile_up() -> None:
    index = ArrayIndex(threading.RLock())
    for start in range(1000):
        index.add(Block(start, 1), start, ViewAnchor())

    assert len(index._new) + len(index._gone) + len(index._spots) <= 130


def scene(index: ArrayIndex, at: int) -> tuple[list[tuple[Block, ViewAnchor]], int]:
    """Add, find and forget, with the same in between, at one line of the index; count the lines."""
    known: list[tuple[Block, ViewAnchor]] = []
    lines = 0

    def add(start: int, nbytes: int) -> None:
        known.append((Block(start, nbytes), ViewAnchor()))
        index.add(known[-1][0], start, known[-1][1])

    def come_in_between() -> None:
        add(300, 4)
        add(16, 500)
        assert index.find(300, 4) is not None
        del known[-2:]
        add(400, 4)
        assert index.find(400, 4) is not None

    def trace(frame: Any, event: str, _argument: object) -> Any:
        nonlocal lines
        if event == "line":
            lines += 1
            if lines == at:
                sys.settrace(None)
                come_in_between()
        return trace

    def begin(frame: Any, _event: str, _argument: object) -> Any:
        return trace if frame.f_code.co_filename == array_index.__file__ else None

    before = sys.gettrace()
    sys.settrace(begin)
    try:
        for number in range(3):
            add(10 * number, 4)
        del known[1]
        add(200, 4)
        index.find(200, 4)
        del known[0]
        index.find(200, 1)
    finally:
        sys.settrace(before)
    return known, lines


def test_what_comes_in_between_two_lines_loses_nothing() -> None:
    _known, lines = scene(ArrayIndex(threading.RLock()), 0)
    for at in range(1, lines + 1):
        index = ArrayIndex(threading.RLock())
        known, _lines = scene(index, at)

        assert all(index.find(one.start, one.nbytes) is not None for one, _anchor in known), at
        assert index.find(16, 4) is None, at
        known.clear()
        assert index.find(0, 1) is None
        assert (index._spots, len(index._new), len(index._gone)) == ({}, 0, 0), at
