# SPDX-License-Identifier: Apache-2.0
"""Layouts: where the elements of an array lie, and what lies outside."""

import copy
import itertools
import pickle

import numpy as np
import pytest
from generated import examples
from hypothesis import given
from hypothesis import strategies as st
from numpy.lib.array_utils import byte_bounds

from crossmem import ConfigurationError, InvalidSizeError, UnsupportedError
from crossmem.arrays import MAX_DIMENSIONS, Layout, dtype_of, from_text, to_numpy

repeatable = examples(300)

F4 = from_text("float32")
U1 = from_text("uint8")
LARGEST = 2**63 - 1

strided = st.integers(0, 4).flatmap(
    lambda ndim: st.tuples(
        st.lists(st.integers(0, 4), min_size=ndim, max_size=ndim),
        st.lists(st.integers(-9, 9), min_size=ndim, max_size=ndim),
        st.integers(0, 40),
        st.sampled_from(["uint8", "float32", "complex128", "|S5", '[3,[["a",0,"int8"]]]']),
    )
)


def starts(layout: Layout) -> list[int]:
    """Return where each element starts, counted one by one."""
    places = itertools.product(*(range(size) for size in layout.shape))
    return [
        layout.offset + sum(n * stride for n, stride in zip(place, layout.strides, strict=True))
        for place in places
    ]


@repeatable
@given(strided)
def test_extents_are_what_the_elements_cover(
    case: tuple[list[int], list[int], int, str],
) -> None:
    shape, strides, offset, name = case
    layout = Layout(from_text(name), shape, strides, offset)
    found = starts(layout)

    assert layout.nbytes == len(found) * layout.dtype.itemsize
    if not found:
        assert layout.extent is None
        layout.check(offset)
        return
    low, high = min(found), max(found) + layout.dtype.itemsize
    assert layout.extent == (low, high)
    if low < 0:
        with pytest.raises(InvalidSizeError, match=f"{-low} bytes before the memory"):
            layout.check(high)
        return
    layout.check(high)
    with pytest.raises(InvalidSizeError, match="1 bytes after the memory"):
        layout.check(high - 1)


@repeatable
@given(strided)
def test_numpy_agrees(case: tuple[list[int], list[int], int, str]) -> None:
    shape, strides, offset, name = case
    layout = Layout(from_text(name), shape, strides, offset + 200)
    memory = np.zeros(500, np.uint8)

    array: np.ndarray[tuple[int, ...], np.dtype[np.void]] = np.ndarray(
        layout.shape,
        to_numpy(layout.dtype),
        buffer=memory,
        offset=layout.offset,
        strides=layout.strides,
    )

    assert array.nbytes == layout.nbytes
    assert array.flags.c_contiguous == layout.is_contiguous
    start, _ = byte_bounds(memory)
    if layout.extent is not None:
        low, high = byte_bounds(array)
        assert layout.extent == (low - start, high - start)


@repeatable
@given(st.lists(st.integers(0, 5), max_size=5), st.integers(0, 9))
def test_without_strides_the_order_is_that_of_c(shape: list[int], offset: int) -> None:
    layout = Layout(F4, shape, None, offset)
    expected = np.empty(shape, np.float32)

    assert layout.nbytes == expected.nbytes
    assert layout.is_contiguous
    assert Layout(F4, shape, layout.strides, offset) == layout
    if expected.size:
        assert layout.strides == expected.strides
        assert layout.extent == (offset, offset + expected.nbytes)
    else:
        assert layout.extent is None


@pytest.mark.parametrize(
    ("shape", "strides", "offset"),
    [
        ((2**31, 2**31), None, 0),
        ((LARGEST,), None, 0),
        ((2**62 // 4 * 4,), None, 0),
        ((2**31, 0, 2**31), None, 0),
        ((2**62,), (0,), 0),
        ((2,), (LARGEST + 1,), 0),
        ((1,), (-LARGEST - 1,), 0),
        ((2,), (LARGEST,), 0),
        ((3,), (-LARGEST,), 0),
        ((2, 2), (2**62, 2**62), 0),
        ((1,), None, LARGEST - 3),
        ((0,), None, LARGEST + 1),
        ((1,), None, -1),
        ((0,), None, -4),
        ((-1,), None, 0),
        ((2, -1), (4, 4), 0),
    ],
)
def test_numbers_are_bounded(
    shape: tuple[int, ...], strides: tuple[int, ...] | None, offset: int
) -> None:
    with pytest.raises(InvalidSizeError):
        Layout(F4, shape, strides, offset)


def test_the_largest_that_fits() -> None:
    assert Layout(U1, (LARGEST,)).extent == (0, LARGEST)
    assert Layout(F4, (1,), None, LARGEST - 4).extent == (LARGEST - 4, LARGEST)
    assert Layout(U1, (2,), (-LARGEST,)).extent == (-LARGEST, 1)


@pytest.mark.parametrize(
    ("shape", "strides", "offset"),
    [
        ((1,) * (MAX_DIMENSIONS + 1), None, 0),
        ((2, 3), (4,), 0),
        ((2, 3), (), 0),
        ((2.0,), None, 0),
        ((True,), None, 0),
        ("22", None, 0),
        ((2,), None, "0"),
        ((2,), ("4",), 0),
        ((2,), None, 0.0),
        ((2,), None, None),
    ],
)
def test_what_has_no_meaning(shape: object, strides: object, offset: object) -> None:
    with pytest.raises(ConfigurationError):
        Layout(F4, shape, strides, offset)  # type: ignore[arg-type]


def test_integers_of_other_libraries() -> None:
    numbers = np.array([2, 3, 12, 4, 8])
    layout = Layout(F4, numbers[:2], numbers[2:4], numbers[4])

    assert layout == Layout(F4, (2, 3), (12, 4), 8)
    assert {type(n) for n in (*layout.shape, *layout.strides, layout.offset)} == {int}
    assert Layout(F4, 5).shape == Layout(F4, numbers[0] + 3).shape == (5,)
    assert Layout(F4, (1,) * MAX_DIMENSIONS).nbytes == 4


def test_what_lies_outside_is_named() -> None:
    layout = Layout(F4, (3, 2), (-16, 100), 8)

    with pytest.raises(InvalidSizeError) as caught:
        layout.check(64)

    assert str(caught.value) == (
        "an array covers bytes [-24, 112) of memory of 64 bytes: 24 bytes before the memory and "
        "48 bytes after the memory"
    )
    for told in ("(3, 2)", "(-16, 100)", "float32", "offset=8"):
        assert told in caught.value.details


def test_empty_arrays_must_start_inside() -> None:
    layout = Layout(F4, (0, 3), None, 8)

    layout.check(8)
    with pytest.raises(InvalidSizeError, match="at byte 8, past the end of memory of 7 bytes"):
        layout.check(7)


def test_strides_in_elements() -> None:
    assert Layout(F4, (2, 3)).element_strides() == (3, 1)
    assert Layout(F4, (2, 3), (-4, 0), 4).element_strides() == (-1, 0)
    # A stride that nothing uses cannot be wrong.
    assert Layout(F4, (1, 3), (7, 4)).element_strides() == (1, 1)
    assert Layout(F4, (0, 3), (7, -4)).element_strides(negative=False) == (1, 1)
    assert Layout(F4, (1, 3), (400, 4)).element_strides(negative=False) == (100, 1)


@pytest.mark.parametrize(
    ("strides", "negative", "message"),
    [
        ((6, 2), True, "6 is not a multiple of 4"),
        ((-6, 4), True, "-6 is not a multiple of 4"),
        ((-12, 4), False, "-12 is negative"),
    ],
)
def test_strides_that_elements_cannot_express(
    strides: tuple[int, int], negative: bool, message: str
) -> None:
    layout = Layout(F4, (2, 3), strides, 12)

    with pytest.raises(UnsupportedError, match=message):
        layout.element_strides(negative=negative)


def test_layouts_are_values() -> None:
    layout = Layout(dtype_of(">f4"), [2, 3], None, 4)

    assert layout == Layout(dtype_of(">f4"), (2, 3), (12, 4), 4)
    assert layout != Layout(F4, (2, 3), None, 4)
    assert len({layout, copy.copy(layout), pickle.loads(pickle.dumps(layout))}) == 1  # noqa: S301
    assert pickle.loads(pickle.dumps(layout)).extent == (4, 28)  # noqa: S301
    assert repr(layout) == ("Layout(dtype=DType('>f4'), shape=(2, 3), strides=(12, 4), offset=4)")
    with pytest.raises(AttributeError):
        layout.offset = 0  # type: ignore[misc]
