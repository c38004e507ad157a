# SPDX-License-Identifier: Apache-2.0
"""Trees of new arrays that are shared from birth."""

from collections import OrderedDict
from typing import Any

import numpy as np
import pytest

import crossmem
from crossmem import ConfigurationError, UnsupportedError


def test_a_tree_of_new_arrays_is_shared_without_a_copy() -> None:
    state: Any = OrderedDict(w=np.ones((3, 4), "float16"), more=[np.arange(5), (1, "text", None)])
    state._metadata = {"version": 1}

    new = crossmem.empty_like(state)

    assert (type(new), list(new), vars(new)) == (OrderedDict, ["w", "more"], vars(state))
    assert (new["w"].shape, new["w"].dtype) == ((3, 4), np.dtype("float16"))
    assert (new["more"][0].shape, new["more"][0].dtype) == ((5,), np.dtype("int64"))
    assert new["more"][1] == (1, "text", None)
    with crossmem.share(new) as shared:
        assert shared.copied_nbytes == 0
        assert len(shared.message.handles) == 1
        assert shared.update(state) == 1
        found = crossmem.receive(shared.to_bytes())
        assert found["w"].tolist() == state["w"].tolist()
        assert new["more"][0].tolist() == [0, 1, 2, 3, 4]


def test_new_arrays_overlap_as_the_others_do() -> None:
    base = np.zeros(100, "float32")
    tree = {"all": base, "part": base[10:20], "back": base[::-1], "again": base[10:20], "one": base}

    new: Any = crossmem.empty_like(tree)
    new["all"][:] = np.arange(100)

    assert new["one"] is new["all"]
    assert new["part"].tolist() == new["again"].tolist() == list(range(10, 20))
    assert new["back"][0] == 99


@pytest.mark.parametrize(
    "array",
    [
        np.zeros((100, 100))[:, 3],
        np.zeros((1000, 7), "int8")[::3, ::2],
        np.broadcast_to(np.float64(1), (3, 5)),
        np.zeros((4, 3)).T,
        np.zeros((4, 3), order="F"),
    ],
)
def test_an_array_alone_takes_no_more_than_its_elements(array: Any) -> None:
    new, other = crossmem.empty_like([array, np.zeros(3, "int8")])
    new[...] = 5

    assert (new.shape, new.dtype, new.flags.writeable) == (array.shape, array.dtype, True)
    assert new.flags.forc
    assert (new == 5).all()
    assert other.shape == (3,)
    with crossmem.share(new) as shared:
        assert shared.message.handles[0].nbytes <= array.nbytes + 2 * 256 + 3


@pytest.mark.parametrize("count", [1, 3])
def test_new_arrays_are_aligned(count: int) -> None:
    raw = np.zeros(4096, "uint8")
    columns = [raw[i * 1000 :][:999].reshape(37, 27)[:, 0].view() for i in range(count)]
    odd = np.zeros((8, 3), "complex128")[:, 1]

    for one in crossmem.empty_like([*columns, odd]):
        assert one.ctypes.data % one.itemsize == 0


def test_arrays_without_elements_need_no_memory() -> None:
    new = crossmem.empty_like({"a": np.empty((0, 5), "i2"), "b": 5})

    assert (new["a"].shape, new["a"].dtype) == ((0, 5), np.dtype("i2"))  # type: ignore[attr-defined]
    assert new["b"] == 5


@pytest.mark.parametrize("device", ["emulated:0", crossmem.Device])
def test_the_device_may_be_named(device: Any) -> None:
    home = crossmem.device("emulated:0") if device is crossmem.Device else device
    with crossmem.share(crossmem.empty_like(np.zeros(3), home)) as shared:
        assert shared.message.handles[0].backend == "emulated"
    with crossmem.share(crossmem.empty_like(np.zeros(3))) as shared:
        assert shared.message.handles[0].backend == "host"


def test_what_cannot_be_made_is_refused() -> None:
    with pytest.raises(UnsupportedError, match=r"x\['a'\] is a builtins.set"):
        crossmem.empty_like({"a": {1, 2}})
    with pytest.raises(UnsupportedError, match=r"x\[0\] cannot be shared"):
        crossmem.empty_like([np.array([None])])
    for wrong, error in (
        ("emulated:99", crossmem.DeviceNotFoundError),
        ("nobody:0", crossmem.BackendNotFoundError),
        (5, ConfigurationError),
    ):
        with pytest.raises(error):
            crossmem.empty_like(np.zeros(3), wrong)  # type: ignore[arg-type]


def test_new_arrays_are_freed_with_the_last_of_them() -> None:
    with crossmem.share(crossmem.empty_like([np.zeros(3), np.zeros(4)])) as shared:
        blob = shared.to_bytes()
        first: Any = crossmem.receive(blob)[0]
        del first
    crossmem.collect()

    with pytest.raises(crossmem.StaleHandleError):
        crossmem.receive(blob)
