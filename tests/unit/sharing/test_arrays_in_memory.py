# SPDX-License-Identifier: Apache-2.0
"""Arrays in memory of crossmem: where they lie, what they keep, and what is refused under them."""

import gc
import os
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import crossmem
from crossmem import Allocation, BusyError, ClosedError, ConfigurationError, InvalidSizeError
from crossmem.arrays import dtypes

NBYTES = 4096


@pytest.fixture
def memory() -> Iterator[Allocation]:
    """Return memory whose bytes count up."""
    allocation = crossmem.device("emulated:0").allocate(NBYTES)
    allocation.write(bytes(i % 251 for i in range(NBYTES)))
    yield allocation
    allocation.free()


def mapped() -> int:
    crossmem.collect()
    maps = Path("/proc/self/maps").read_text("utf-8")
    # The words of leases come with the first export, and stay.
    return maps.count("memfd:") - maps.count("memfd:crossmem-")


def test_an_array_is_the_memory(memory: Allocation) -> None:
    array = memory.as_array((3, 4), "int16", offset=6)

    assert array.__array_interface__["data"] == (memory.ptr + 6, False)
    assert array.tobytes() == memory.read(24, offset=6)
    array[2, 3] = -2
    assert memory.read(2, offset=28) == b"\xfe\xff"


@pytest.mark.parametrize(
    ("shape", "dtype", "strides", "offset"),
    [
        ((), "float64", None, 8),
        (5, "uint8", None, NBYTES - 5),
        ((2, 0, 3), "float32", None, NBYTES),
        ((4, 3), "int32", (-12, 4), 36),
        ((4, 3), "int32", (-12, -4), 44),
        ((1000, 2), "uint8", (0, 1), 7),
        ((3,), "complex128", None, 1),
        ((3, 3), "int64", (3, 1), 5),
        ((2, 2), "bool", (1, 2), 0),
        ((2,), ">f8", None, 3),
        ((2,), "M8[us]", None, 16),
        ((2, 2), np.dtype([("a", "u1"), ("b", "<f4", (2,))]), None, 2),
        ((1,) * 64, "int8", None, 0),
    ],
)
def test_any_layout_within_the_bounds(
    memory: Allocation, shape: Any, dtype: Any, strides: Any, offset: int
) -> None:
    array = memory.as_array(shape, dtype, strides=strides, offset=offset)
    same: Any = np.ndarray(shape, dtype, memory.view(), offset, strides)

    assert array.shape == same.shape
    assert array.strides == same.strides
    assert array.dtype == same.dtype
    assert array.tobytes() == same.tobytes()


def test_the_rest_of_the_memory_is_the_default(memory: Allocation) -> None:
    assert memory.as_array().shape == (NBYTES,)
    assert memory.as_array(dtype="float64", offset=8).shape == (511,)
    assert memory.as_array(dtype="float64", offset=NBYTES - 7).shape == (0,)
    assert memory.as_array(dtype="float64", offset=NBYTES).shape == (0,)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"shape": NBYTES + 1}, "1 bytes after the memory"),
        ({"shape": 5, "offset": NBYTES - 4}, "1 bytes after the memory"),
        ({"shape": (2, 2), "dtype": "int32", "strides": (-8, 4), "offset": 4}, "4 bytes before"),
        ({"shape": 3, "strides": (NBYTES,)}, "after the memory"),
        ({"shape": 0, "offset": NBYTES + 1}, "past the end"),
        ({"offset": NBYTES + 1}, "past the end"),
        ({"shape": 1, "offset": -1}, "out of bounds"),
        ({"shape": -1}, "negative"),
        ({"shape": (2**40, 2**40)}, "64 bits"),
        ({"shape": 2, "strides": (2**70,)}, "64 bits"),
    ],
)
def test_what_lies_outside_is_refused(
    memory: Allocation, arguments: dict[str, Any], words: str
) -> None:
    with pytest.raises(InvalidSizeError, match=words):
        memory.as_array(**arguments)


@pytest.mark.parametrize(
    "arguments",
    [
        {"dtype": "float33"},
        {"dtype": None},
        {"shape": 1.5},
        {"shape": "12"},
        {"shape": (2, 2), "strides": (1,)},
        {"shape": (1,) * 65},
        {"shape": 1, "offset": "0"},
    ],
)
def test_what_has_no_meaning_is_refused(memory: Allocation, arguments: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        memory.as_array(**arguments)


def test_numpy_takes_the_memory_itself(memory: Allocation) -> None:
    array = np.asarray(memory)

    assert (array.shape, array.dtype.str) == ((NBYTES,), "|u1")
    assert array.ctypes.data == memory.ptr
    with pytest.raises(BusyError):
        memory.free()
    del array
    memory.free()


# What views keep ---------------------------------------------------------------------------------


def refusal(memory: Allocation) -> str:
    with pytest.raises(BusyError) as caught:
        memory.free()
    return str(caught.value)


def test_closing_under_views_says_which(memory: Allocation) -> None:
    first = memory.as_array((3, 4), "float32")
    others = [memory.as_array(2, "int8", offset=i) for i in range(4)]

    words = refusal(memory)
    assert "ndarray (3, 4) of float32, ndarray (2,) of int8" in words
    assert "and 2 more" in words
    inner = first[1:, ::2]
    del first, others
    assert "ndarray (3, 4) of float32" in refusal(memory)
    del inner
    memory.free()
    with pytest.raises(ClosedError):
        memory.as_array()


def test_a_view_keeps_memory_that_nobody_else_keeps() -> None:
    before = mapped()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        array = crossmem.empty((16, 16), "float64")
        array[:] = 3
        inner = array[3:5, ::2]
        del array
        gc.collect()
        assert mapped() == before + 1
        assert float(inner.sum()) == 3 * 16
        del inner
        assert mapped() == before


def test_memory_that_is_dropped_without_a_word_is_reported() -> None:
    allocation = crossmem.device("emulated:0").allocate(NBYTES)
    array = allocation.as_array(4)
    with warnings.catch_warnings():
        # The view has it now.
        warnings.simplefilter("error")
        del allocation
        gc.collect()
        assert array.shape == (4,)

    arrays = [array]
    del array
    with pytest.warns(ResourceWarning, match="4096 bytes"):
        arrays.clear()
    crossmem.collect()


def raise_with_views(blob: bytes | None) -> None:
    device = crossmem.device("emulated:0")
    with device.allocate(NBYTES) if blob is None else crossmem.attach(blob) as memory:
        array = memory.as_array()
        array[NBYTES] = 1


@pytest.mark.parametrize("what", ["allocation", "mapping"])
def test_an_error_in_a_block_is_not_replaced_by_that_of_its_views(
    memory: Allocation, what: str
) -> None:
    before = mapped()
    blob = memory.export().to_bytes() if what == "mapping" else None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(IndexError):
            raise_with_views(blob)
        gc.collect()

        assert mapped() == before


def test_a_block_ends_under_no_live_view() -> None:
    arrays = []
    with (
        pytest.raises(BusyError),
        crossmem.device("emulated:0").allocate(NBYTES) as memory,
    ):
        arrays.append(memory.as_array())
    arrays.clear()
    memory.free()


def test_what_no_library_has_says_so_and_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    # Other tests may have asked before.
    dtypes._plain_to_numpy.cache_clear()
    before = mapped()
    with pytest.raises(crossmem.UnsupportedError, match="ml_dtypes"):
        crossmem.empty(3, "float8_e8m0fnu")
    gc.collect()

    assert mapped() == before


def test_read_only_memory_has_read_only_arrays(memory: Allocation) -> None:
    blob = memory.export().to_bytes()
    for readonly in (True, "advisory"):
        with crossmem.attach(blob, readonly=readonly) as mapping:
            array = mapping.as_array((2, 2), "int32")
            for one in (array, array[1:], array.T):
                assert not one.flags.writeable
                with pytest.raises(ValueError, match="WRITEABLE"):
                    one.flags.writeable = True
            assert not np.asarray(mapping).flags.writeable
            assert array.tobytes() == memory.read(16)
            with pytest.raises(BusyError, match=r"ndarray \(2, 2\) of int32"):
                mapping.unmap()
            del array, one


def test_a_part_begins_where_it_begins(memory: Allocation) -> None:
    with crossmem.attach(memory.export().slice(100, 50).to_bytes()) as mapping:
        assert mapping.as_array().tobytes() == memory.read(50, offset=100)
        with pytest.raises(InvalidSizeError):
            mapping.as_array(51)


# empty -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [(5, "int8"), ((), "float64"), ((2, 3), np.float16), ((0, 4), "S3"), ([2, np.int64(2)], ">i2")],
)
def test_what_is_born_in_crossmem(shape: Any, dtype: Any) -> None:
    array, expected = crossmem.empty(shape, dtype), np.empty(shape, dtype)

    assert (array.shape, array.dtype) == (expected.shape, expected.dtype)
    assert array.strides == expected.strides
    assert array.flags.c_contiguous
    assert array.flags.writeable


@pytest.mark.parametrize(
    ("shape", "dtype", "error"),
    [
        (-1, "int8", InvalidSizeError),
        (2**62, "float64", InvalidSizeError),
        ("3", "int8", ConfigurationError),
        (3, "int7", ConfigurationError),
        (3, np.dtype(object), crossmem.UnsupportedError),
    ],
)
def test_what_cannot_be_born(shape: Any, dtype: Any, error: type[Exception]) -> None:
    before = mapped()
    with pytest.raises(error):
        crossmem.empty(shape, dtype)

    assert mapped() == before


# Fork --------------------------------------------------------------------------------------------


def in_the_child(memory: Allocation, array: Any) -> int:
    for act in (memory.as_array, memory.view, lambda: memory.__array_interface__):
        try:
            act()
        except crossmem.ForkedProcessError:
            continue
        return 2
    try:
        # An address of the parent's says nothing here.
        crossmem.share(array)
    except crossmem.UnsupportedError:
        return 0
    return 3


def test_memory_of_a_parent_is_refused_in_its_child(memory: Allocation) -> None:
    array = memory.as_array()
    with warnings.catch_warnings():
        # Other tests have left threads, and newer Pythons warn of that.
        warnings.simplefilter("ignore")
        child = os.fork()
    if child == 0:
        code = 1
        try:
            code = in_the_child(memory, array)
        finally:
            os._exit(code)
    _pid, status = os.waitpid(child, 0)

    assert os.waitstatus_to_exitcode(status) == 0
    assert int(array[3]) == 3
