# SPDX-License-Identifier: Apache-2.0
"""What lies at a device address is found, whatever was entered, removed and entered again."""

import threading
import weakref
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from crossmem.sharing.base.regions import RegionIndex

STEP = 10
"""Regions of one space do not overlap: each begins at a multiple of this, and is no longer."""

actions = st.lists(
    st.tuples(
        st.sampled_from(["add", "add", "add", "remove", "find", "find"]),
        st.integers(0, 12),
        st.integers(1, STEP),
        st.sampled_from(["one driver", "another"]),
    ),
    max_size=300,
)


def overlapping(known: dict[int, tuple[str, int, int]], space: str, start: int, end: int) -> Any:
    """Return what a list has there."""
    return [
        number
        for number, (owner, low, high) in known.items()
        if owner == space and low < end and start < high
    ]


@given(actions)
def test_the_index_finds_what_a_list_has(steps: Any) -> None:
    index: RegionIndex[int] = RegionIndex(threading.RLock())
    known: dict[int, tuple[str, int, int]] = {}
    for action, number, nbytes, space in steps:
        start = number * STEP
        if action == "add" and not overlapping(known, space, start, start + STEP):
            # An object that is entered again has moved.
            what = number % 7
            index.add(what, start, nbytes, space)
            known[what] = (space, start, start + nbytes)
        elif action == "remove":
            index.remove(number % 7)
            known.pop(number % 7, None)
        elif action == "find":
            there = overlapping(known, space, start + 3, start + 3 + nbytes)
            found = index.find(space, start + 3, start + 3 + nbytes)
            assert (found is None) == (not there)
            assert found is None or found in there


class Named:
    """An object that can be referred to weakly."""


def test_a_removed_object_is_not_kept_alive() -> None:
    index: RegionIndex[Named] = RegionIndex(threading.RLock())
    before, after = Named(), Named()
    index.add(before, 0, 1, None)
    assert index.find(None, 0, 1) is before
    index.add(after, 10, 1, None)
    alive = [weakref.ref(one) for one in (before, after)]
    index.remove(before)
    index.remove(after)
    del before, after

    assert [one() for one in alive] == [None, None]


def test_removed_objects_do_not_add_up() -> None:
    index: RegionIndex[object] = RegionIndex(threading.RLock())
    kept = object()
    index.add(kept, 0, 1, None)
    for number in range(1, 10_000):
        gone = object()
        index.add(gone, number, 1, None)
        # Every other one has a key by then.
        assert number % 2 or index.find(None, number, number + 1) is gone
        index.remove(gone)

        assert len(index._new) + len(index._keys) < 500
    assert index.find(None, 0, 1) is kept
    assert index.find(None, 1, 10_000) is None
