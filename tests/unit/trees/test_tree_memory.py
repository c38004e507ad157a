# SPDX-License-Identifier: Apache-2.0
"""What is copied where arrays cannot be shared where they lie: each byte, and only once."""

import os
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from generated import examples
from hypothesis import given
from hypothesis import strategies as st
from in_use import assert_in_use, in_use
from numpy.lib.stride_tricks import as_strided

import crossmem
from crossmem import OutOfMemoryError, Shared, StaleHandleError, UnsupportedError
from crossmem.arrays import numpy_arrays
from crossmem.arrays.copy_ranges import find_range, pack_ranges
from crossmem.driver import CopyKind
from crossmem.sharing.base.memory import leave_to_views
from crossmem.sharing.base.process import drain
from crossmem.trees.tree_memory import TreeMemory

repeatable = examples(100)


pytestmark = pytest.mark.usefixtures("nothing_left")


ranges = st.lists(
    st.tuples(st.integers(0, 60), st.integers(1, 20)).map(lambda one: (one[0], one[0] + one[1])),
    max_size=8,
)


@repeatable
@given(ranges)
def test_ranges_are_merged_where_they_share_bytes(bounds: list[tuple[int, int]]) -> None:
    ranges = pack_ranges(bounds)
    merged = [(one.low, one.high) for one in ranges]

    assert all((one.start - one.low) % 256 == 0 for one in ranges)
    assert all(one.end <= other.start for one, other in pairwise(ranges))
    for low, high in bounds:
        run = ranges[find_range(ranges, low)]
        assert run.low <= low < high <= run.high
    assert {byte for one in merged for byte in range(*one)} == {
        byte for one in bounds for byte in range(*one)
    }
    assert merged == sorted(merged)
    assert all(one[1] <= other[0] for one, other in pairwise(merged))


def test_copies_need_permission() -> None:
    array = np.arange(3)
    with pytest.raises(UnsupportedError, match=r"x\['a'\]\[1\].*ordinary host memory"):
        crossmem.share({"a": [1, array]})
    with pytest.raises(crossmem.ConfigurationError, match="'allow'"):
        crossmem.share(array, copy="always")  # type: ignore[arg-type]


def test_an_array_without_a_dtype_of_ours_is_refused_by_its_place() -> None:
    with pytest.raises(UnsupportedError, match=r"x\['a'\] cannot be shared"):
        crossmem.share({"a": np.zeros(3, "V0")}, copy="allow")


def test_each_byte_is_copied_once() -> None:
    base = np.arange(1000, dtype="uint8")
    parts = [base[10:500], base[400:600], base[::-1][300:], base[10:500]]

    with crossmem.share(parts, copy="allow") as shared:
        assert shared.copied_nbytes == 700
        assert len(shared.message.handles) == 1
        assert f"{shared.copied_nbytes} of them copied" in repr(shared)
        found = crossmem.receive(shared)

        assert all(np.array_equal(one, other) for one, other in zip(found, parts, strict=True))
        assert not np.shares_memory(found[0], base)
        found[0][395] = 7
        assert found[1][5] == found[3][395] == found[2][1000 - 1 - 405 - 300] == 7
        assert base[405] != 7


@pytest.mark.parametrize("alignment", [1, 2, 4, 8, 16, 64, 256])
def test_copies_keep_their_alignment(alignment: int) -> None:
    raw = np.zeros(4096, "uint8")
    start = -raw.ctypes.data % 256
    arrays = [raw[start + at :][:size] for at, size in ((alignment, 3), (777 + alignment, 70))]

    with crossmem.share(arrays, copy="allow") as shared:
        received = crossmem.receive(shared)
        for one, other in zip(arrays, received, strict=True):
            assert one.ctypes.data % 256 == other.ctypes.data % 256


def test_arrays_without_elements_need_no_memory() -> None:
    arrays = [np.empty((0, 5), "f4"), np.empty((3, 0), ">i2"), np.empty(0, [("a", "i1")])]

    with crossmem.share(arrays) as shared:
        assert (shared.copied_nbytes, shared.message.handles) == (0, ())
        found = crossmem.receive(shared)

    assert [(one.shape, one.dtype) for one in found] == [(one.shape, one.dtype) for one in arrays]


def test_an_array_that_is_repeated_by_its_strides_is_copied_once() -> None:
    wide = np.broadcast_to(np.float64(3.5), (1000, 1000))

    with crossmem.share(wide, copy="allow") as shared:
        assert shared.copied_nbytes == 8
        found = crossmem.receive(shared)
        assert found.strides == (0, 0)
        assert float(found.sum()) == 3.5e6


@pytest.mark.parametrize(
    "part",
    [
        np.index_exp[:, 3],
        np.index_exp[::2],
        np.index_exp[::-3, 1:3],
        np.index_exp[5:6, ::50],
    ],
)
def test_what_lies_between_elements_is_not_copied(part: Any) -> None:
    secret = b"between the lines"
    whole = np.frombuffer(secret * 6400, "u1").reshape(1600, 68).view("u4").copy()
    whole[part] = 5

    with crossmem.share({"column": whole[part]}, copy="allow") as shared:
        assert shared.copied_nbytes == whole[part].nbytes
        found = crossmem.receive(shared)["column"]
        with crossmem.attach(shared.message.handles[0]) as mapping:
            assert secret[:4] not in mapping.read()

        assert np.array_equal(found, whole[part])
        assert found.dtype == whole.dtype
        del found


@pytest.mark.parametrize("times", [2, 1000])
def test_what_lies_between_elements_that_are_repeated_is_not_copied(times: int) -> None:
    whole = np.arange(100.0).reshape(10, 10)
    wide = np.broadcast_to(whole[:, 3:4], (times, 10, 5))

    with crossmem.share(wide, copy="allow") as shared:
        assert shared.copied_nbytes == 10 * 8
        found = crossmem.receive(shared)
        with crossmem.attach(shared.message.handles[0]) as mapping:
            assert np.frombuffer(mapping.read(), "f8").sum() == whole[:, 3].sum()

        assert found.strides == wide.strides
        assert np.array_equal(found, wide)
        del found


def test_arrays_between_each_other_are_copied_as_they_lie() -> None:
    whole = np.arange(100, dtype="f8").reshape(10, 10)

    with crossmem.share([whole[:, 1], whole[:, 2], whole[3]], copy="allow") as shared:
        assert shared.copied_nbytes == 8 * (9 * 10 + 2)
        first, second, third = crossmem.receive(shared)
        first[3] = -1

        assert third[1] == -1
        assert np.array_equal(second, whole[:, 2])


def test_what_was_born_in_crossmem_is_not_copied() -> None:
    array = crossmem.empty((4, 5), "int32")
    array[:] = np.arange(20).reshape(4, 5)

    with crossmem.share({"all": array, "some": array[::-2, 1:]}) as shared:
        assert shared.copied_nbytes == 0
        found = crossmem.receive(shared)
        found["all"][3, 4] = -1

        assert array[3, 4] == found["some"][0, 3] == -1
    del array, found


@pytest.mark.parametrize("readonly", [False, True])
def test_who_may_receive_is_said_again_for_what_came_from_this_process(readonly: bool) -> None:
    only = crossmem.Allow(pids=(os.getpid(),))
    array = crossmem.empty(4000, "uint8")
    array[:] = np.arange(4000) % 251
    with crossmem.share(array[1000:2000]) as everyone:
        part = everyone.message.handles[0].slice(1000, 1000)
    mapping = crossmem.attach(part, readonly=readonly)
    leave_to_views(mapping)
    alias = mapping.as_array(100, offset=10)

    with crossmem.share(alias, allow=only) as few, crossmem.share(alias) as all_again:
        assert few.message.handles[0].core != part.core
        assert all_again.message.handles[0].core == part.core
        for shared in (few, all_again):
            assert (crossmem.receive(shared) == array[1010:1110]).all()
    del array, mapping, alias


def test_a_copy_that_fails_says_why_and_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(target: Any, _source: Any) -> None:
        # The traceback has the target, which is an array in the memory that is to be freed.
        target[0] = "no number"

    monkeypatch.setattr("crossmem.arrays.numpy_arrays.copy_to", fail)

    with pytest.raises(ValueError, match="no number"):
        crossmem.share(np.arange(9)[::2], copy="allow")


@pytest.mark.parametrize("succeeding", [0, 1])
def test_a_share_that_fails_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, succeeding: int
) -> None:
    driver = type(crossmem.device("host").driver)
    real: Any = driver.copy
    calls = 0

    def copy(*args: Any) -> Any:
        nonlocal calls
        assert args[-1] is CopyKind.HOST_TO_DEVICE
        calls += 1
        if calls > succeeding:
            raise OutOfMemoryError("injected")
        return real(*args)

    born = crossmem.empty(3)
    with crossmem.share(born):
        before = in_use()
    monkeypatch.setattr(driver, "copy", copy)

    with pytest.raises(OutOfMemoryError, match="injected") as caught:
        crossmem.share([born, np.arange(5), np.arange(9)], copy="allow")

    # While the error is kept, and with it all that its traceback has.
    assert_in_use(before)
    assert calls == succeeding + 1
    del born, caught


def test_a_share_that_is_interrupted_while_it_copies_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = in_use()

    def copy_to(target: Any, source: Any) -> None:
        # As Ctrl-C does. The traceback has the target, which keeps the copy in use.
        raise KeyboardInterrupt

    monkeypatch.setattr(numpy_arrays, "copy_to", copy_to)
    with pytest.raises(KeyboardInterrupt) as caught:
        crossmem.share(np.arange(10)[::2], copy="allow")
    del caught

    assert_in_use(before)


def test_a_share_without_room_for_copies_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    born = crossmem.empty(3)
    with crossmem.share(born):
        before = in_use()

    def allocate(*args: Any) -> Any:
        raise OutOfMemoryError("injected")

    monkeypatch.setattr(type(crossmem.device("host").driver), "allocate", allocate)
    with pytest.raises(OutOfMemoryError, match="injected"):
        crossmem.share([born, np.arange(5)], copy="allow")

    assert_in_use(before)
    del born


def test_closing_frees_copies_when_no_reader_is_left() -> None:
    shared = crossmem.share(np.arange(100), copy="allow")
    blob = shared.to_bytes()
    found = crossmem.receive(blob)
    shared.close()
    shared.close()

    assert int(found.sum()) == 4950
    with pytest.raises(crossmem.ClosedError):
        crossmem.receive(shared)
    del found
    crossmem.collect()
    with pytest.raises(StaleHandleError):
        crossmem.receive(blob)


def test_a_tree_that_is_dropped_frees_its_copies() -> None:
    blob = crossmem.share(np.arange(100), copy="allow").to_bytes()
    crossmem.collect()

    with pytest.raises(StaleHandleError):
        crossmem.receive(blob)


def test_copies_go_where_they_are_told() -> None:
    with crossmem.share(np.arange(4), copy="allow", device="emulated:0") as shared:
        assert shared.message.handles[0].backend == "emulated"
    with pytest.raises(crossmem.DeviceNotFoundError):
        crossmem.share(np.arange(4), copy="allow", device="emulated:99")


@pytest.mark.parametrize(
    ("device", "error"),
    [
        ("emulatd:0", crossmem.BackendNotFoundError),
        ("emulated:99", crossmem.DeviceNotFoundError),
        ("", crossmem.ConfigurationError),
        (5, crossmem.ConfigurationError),
    ],
)
def test_a_device_must_be_one_also_where_nothing_goes_there(device: Any, error: type) -> None:
    with pytest.raises(error):
        crossmem.share({"a": crossmem.empty(1)}, device=device)


@pytest.mark.parametrize(
    ("device", "error"),
    [("emulatd:0", crossmem.BackendNotFoundError), ("cuda 0", crossmem.ConfigurationError)],
)
def test_a_device_must_be_one_also_where_nothing_is_for_it(device: str, error: type) -> None:
    with crossmem.share([crossmem.empty(1)]) as shared, pytest.raises(error):
        crossmem.receive(shared, device=device)


def test_a_view_past_the_ends_of_an_array_is_bounded_by_what_it_covers() -> None:
    base = np.arange(64, dtype="int16")
    odd = as_strided(base[20:], (4, 3), (-6, 10))

    with crossmem.share(odd, copy="allow") as shared:
        assert np.array_equal(crossmem.receive(shared), odd)
        (row,) = shared.message.rows
        assert row.layout.extent == (row.layout.offset - 3 * 6, row.layout.offset + 2 * 10 + 2)


def test_a_shared_that_was_read_from_bytes_owns_nothing() -> None:
    with crossmem.share(np.arange(4), copy="allow") as shared:
        other = Shared.from_bytes(shared.to_bytes())
        other.close()

        assert int(crossmem.receive(shared)[3]) == 3


@pytest.mark.parametrize("way", ["closed", "given up"])
def test_what_cannot_be_freed_keeps_nothing_else(monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    shared = crossmem.share(None)
    tree_memory = TreeMemory(drain(), None, "rw", None, copy=False, host=pytest.fail)
    freed: list[int] = []

    class Owned:
        def __init__(self, number: int) -> None:
            self.number = number

        def free(self) -> None:
            freed.append(self.number)
            if self.number == 1:
                raise crossmem.DriverError("refused")

    owned: Any = [Owned(number) for number in range(3)]
    holder: Any = shared if way == "closed" else tree_memory
    monkeypatch.setattr(holder, "_owned" if way == "closed" else "owned", owned)
    if way == "closed":
        with pytest.raises(crossmem.DriverError):
            shared.close()
    else:
        # Where something else has failed before, nobody wants to know.
        tree_memory.give_up()

    assert sorted(freed) == [0, 1, 2]
    shared.close()
