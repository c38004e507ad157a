# SPDX-License-Identifier: Apache-2.0
"""What is received equals what was shared, views and all: any dtype, shape, strides and nesting."""

import re
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from generated import examples
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from numpy.lib.stride_tricks import as_strided

import crossmem
from crossmem import ConfigurationError

if TYPE_CHECKING:
    from tests.unit.trees.tree_classes import Plain, Point
else:
    from tree_classes import Plain, Point

repeatable = examples(60)

STRUCTS = [
    np.dtype([("a", "i1"), ("b", "<f8"), ("c", ">u2", (2, 3))]),
    np.dtype({"names": ["x", "y"], "formats": ["f4", "i2"], "offsets": [6, 1], "itemsize": 13}),
    np.dtype([("in", [("n", "c8"), ("t", "M8[ms]")]), ("u", "U3"), ("s", "S2"), ("v", "V5")]),
]
dtypes = st.one_of(
    npst.scalar_dtypes(),
    npst.datetime64_dtypes(),
    npst.timedelta64_dtypes(),
    npst.byte_string_dtypes(min_len=1, max_len=5),
    npst.unicode_string_dtypes(min_len=1, max_len=5),
    st.sampled_from([*STRUCTS, np.dtype("?"), np.dtype(">c16"), np.dtype("longdouble")]),
)
shapes = npst.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5)


@st.composite
def families(draw: st.DrawFn) -> list[np.ndarray[Any, Any]]:
    """Draw an array of any bytes, and views of it."""
    dtype, shape = draw(dtypes), draw(shapes)
    count = int(np.prod(shape)) * dtype.itemsize
    fill = draw(st.binary(min_size=1, max_size=16))
    lead = draw(st.integers(0, 9))
    raw = np.resize(np.frombuffer(fill, "uint8"), lead + count)
    if dtype.kind == "U":
        # Only what Unicode has: NumPy cannot compare others.
        raw = np.zeros(lead + count, "uint8")
    base = np.ndarray(shape, dtype, raw.data if count else b"", lead if count else 0)
    family = [base]
    for _ in range(draw(st.integers(0, 4))):
        one = draw(st.sampled_from(family))
        match draw(st.sampled_from(["index", "transpose", "broadcast", "newaxis", "same"])):
            case "index" if one.ndim:
                family.append(one[draw(npst.basic_indices(one.shape, allow_ellipsis=True))])
                if not isinstance(family[-1], np.ndarray):
                    family.pop()
            case "transpose":
                family.append(one.T)
            case "broadcast":
                family.append(np.broadcast_to(one, (3, *one.shape)))
            case "newaxis":
                family.append(one[None])
            case _:
                family.append(one)
    return family


@st.composite
def nestings(draw: st.DrawFn, count: int) -> Any:
    """Draw a tree with numbers 0 to ``count - 1`` in it, each at least once."""
    leaves = draw(st.permutations(list(range(count)) + draw(st.lists(st.integers(0, count - 1)))))
    tree: list[Any] = list(leaves)
    while len(tree) > 1 and draw(st.booleans()):
        cut = draw(st.integers(1, len(tree)))
        head = tree[:cut]
        kind = draw(st.sampled_from(["list", "tuple", "dict"]))
        packed: Any = {"list": list, "tuple": tuple}.get(kind, lambda one: dict(enumerate(one)))(
            head
        )
        tree = [*tree[cut:], packed]
    return tree


def fill_in(tree: Any, arrays: list[Any]) -> Any:
    if isinstance(tree, int):
        return arrays[tree]
    if isinstance(tree, dict):
        return {key: fill_in(one, arrays) for key, one in tree.items()}
    return type(tree)(fill_in(one, arrays) for one in tree)


def flat(numbers: Any, tree: Any) -> list[tuple[int, Any]]:
    """Return each array of a tree with the number that it has in another one of the same shape."""
    if isinstance(numbers, int):
        return [(numbers, tree)]
    assert type(numbers) is type(tree)
    assert len(numbers) == len(tree)
    keys = numbers if isinstance(numbers, dict) else range(len(numbers))
    return [pair for key in keys for pair in flat(numbers[key], tree[key])]


def content(array: np.ndarray[Any, Any]) -> tuple[Any, ...]:
    """Return all that can be seen of an array."""
    if array.dtype.names:
        # tobytes() may leave the bytes between fields undefined.
        return array.shape, array.dtype, *(content(array[name]) for name in array.dtype.names)
    return array.shape, array.dtype, array.tobytes()


def steps(array: np.ndarray[Any, Any]) -> list[int]:
    """Return the strides that mean something."""
    if array.size == 0:
        return []
    return [step for size, step in zip(array.shape, array.strides, strict=True) if size > 1]


@pytest.mark.parametrize("born", [False, True], ids=["copied", "born"])
@repeatable
@given(data=st.data())
def test_what_is_received_is_what_was_shared(born: bool, data: st.DataObject) -> None:
    arrays = data.draw(families())
    numbers = data.draw(nestings(len(arrays)))
    if born and arrays[0].size:
        arrays = in_crossmem(arrays)

    with crossmem.share(fill_in(numbers, arrays), copy="allow") as shared:
        tree = crossmem.receive(shared.to_bytes())
        if born:
            assert shared.copied_nbytes == 0
        else:
            assert shared.copied_nbytes <= arrays[0].nbytes
    pairs = flat(numbers, tree)

    firsts: dict[int, Any] = {}
    objects: dict[int, Any] = {}
    for number, found in pairs:
        mine = arrays[number]
        assert content(found) == content(mine)
        assert steps(found) == steps(mine)
        assert objects.setdefault(id(mine), found) is found
        firsts[number] = found
    for one, mine in enumerate(arrays):
        for other, theirs in enumerate(arrays):
            together = np.shares_memory(mine, theirs)
            assert np.shares_memory(firsts[one], firsts[other]) == together
    # Through one array, the others change as they did here.
    target = data.draw(st.integers(0, len(arrays) - 1))
    if arrays[target].size and arrays[target].flags.writeable:
        new = data.draw(st.binary(min_size=arrays[0].itemsize, max_size=arrays[0].itemsize))
        value = np.frombuffer(
            new if arrays[0].dtype.kind != "U" else bytes(len(new)), arrays[0].dtype
        )
        firsts[target][...] = value[0]
        arrays[target][...] = value[0]
        for number, found in firsts.items():
            assert content(found) == content(arrays[number])


def in_crossmem(arrays: list[np.ndarray[Any, Any]]) -> list[Any]:
    """Return the same arrays in memory of crossmem."""
    base = arrays[0]
    memory = crossmem.empty(base.nbytes, "uint8")
    memory[:] = np.frombuffer(base.tobytes(), "uint8")
    start = base.__array_interface__["data"][0]
    again: dict[int, Any] = {}
    for one in arrays:
        at = one.__array_interface__["data"][0] - start if one.size else 0
        made = np.ndarray(one.shape, one.dtype, memory.data, at, one.strides if one.size else None)
        made.flags.writeable = one.flags.writeable
        again.setdefault(id(one), made)
    return [again[id(one)] for one in arrays]


def test_dtypes_that_others_add_travel() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="bfloat16 and float8 come from ml_dtypes")
    names = ["bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e8m0fnu"]
    arrays = [np.arange(1, 7).astype(getattr(ml_dtypes, one)).reshape(2, 3) for one in names]

    tree: Any = [arrays, arrays[0][::-1]]
    with crossmem.share(tree, copy="allow") as shared:
        found, view = crossmem.receive(shared)

    assert [content(one) for one in found] == [content(one) for one in arrays]
    assert content(view) == content(arrays[0][::-1])


@pytest.mark.parametrize(
    "value",
    [
        np.zeros(2).view(np.recarray),
        np.ma.array([1], mask=[False]),
        np.array([None]),
        np.zeros(2, "V0"),
    ],
)
def test_arrays_that_are_more_or_less_than_their_elements_are_refused(value: Any) -> None:
    with pytest.raises(crossmem.CrossmemError):
        crossmem.share(value, copy="allow")


def test_an_array_that_cannot_be_shared_is_named_by_its_place() -> None:
    with pytest.raises(crossmem.UnsupportedError, match=r"^x\['a'\]\[1\] cannot be shared: a rec"):
        crossmem.share({"a": [1, np.zeros(2).view(np.recarray)]}, copy="allow")


# into ------------------------------------------------------------------------------------------


def test_existing_arrays_are_filled() -> None:
    source: Any = {"w": np.arange(6.0).reshape(2, 3), "more": [np.arange(4)[::-1], (1, "text")]}
    target: Any = {"w": np.zeros((2, 3))[:, ::-1], "more": [np.zeros(4, int), (5, "other")]}
    kept = target["w"]

    with crossmem.share(source, copy="allow") as shared:
        found = crossmem.receive(shared, into=target)
        before = crossmem.receive(shared)["w"]

    assert found is target
    assert found["w"] is kept
    assert np.array_equal(kept, source["w"])
    assert list(found["more"][0]) == [3, 2, 1, 0]
    assert found["more"][1] == (5, "other")
    assert not np.shares_memory(before, kept)


@pytest.mark.parametrize(
    "into",
    [
        np.zeros(3),
        [np.zeros(3)],
        {"w": [np.zeros(3)]},
        {"x": np.zeros(3)},
        {"w": np.zeros(3), "x": np.zeros(3)},
        {"w": 5},
        {"w": np.zeros(4)},
        {"w": np.zeros((3, 1))},
        {"w": np.zeros(3, "f4")},
        {"w": np.zeros(3, ">f8")},
        OrderedDict({"w": np.zeros(3)}),
    ],
)
def test_another_tree_is_not_filled(into: Any) -> None:
    with (
        crossmem.share({"w": np.ones(3)}, copy="allow") as shared,
        pytest.raises(ConfigurationError),
    ):
        crossmem.receive(shared, into=into)


def test_an_ordered_dict_is_filled_whatever_its_attributes() -> None:
    into, value = OrderedDict(w=np.zeros(3)), OrderedDict(w=np.ones(3))
    value.note = np.ones(2)  # type: ignore[attr-defined]
    with crossmem.share(value, copy="allow") as shared:
        crossmem.receive(shared, into=into)

    assert list(into["w"]) == [1, 1, 1]
    assert vars(into) == {}


@pytest.mark.parametrize(
    "kind",
    [Plain, Point, lambda *one: list(one), lambda *one: one],
    ids=["dataclass", "named tuple", "list", "tuple"],
)
def test_what_is_in_a_container_of_any_kind_is_filled(kind: Any) -> None:
    into, value = (kind(np.full(2, one), [np.full(1, one)]) for one in (0.0, 1.0))
    with crossmem.share(value, copy="allow") as shared:
        crossmem.receive(shared, into=into)
        with pytest.raises(ConfigurationError, match="into is a dict, but"):
            crossmem.receive(shared, into={"weight": into, "bias": into})

    first, (second,) = into if isinstance(into, list | tuple) else (into.weight, into.bias)
    assert (first.tolist(), second.tolist()) == ([1, 1], [1])


def test_dicts_are_filled_in_any_order() -> None:
    into = {"b": np.zeros(2), "a": np.zeros(3)}
    with crossmem.share({"a": np.ones(3), "b": np.full(2, 2.0)}, copy="allow") as shared:
        crossmem.receive(shared, into=into)

    assert into["a"].tolist() == [1, 1, 1]
    assert into["b"].tolist() == [2, 2]


def test_nothing_is_filled_where_one_is_read_only() -> None:
    into = [np.zeros(2), np.zeros(2)]
    into[1].flags.writeable = False
    with (
        crossmem.share([np.ones(2), np.ones(2)], copy="allow") as shared,
        pytest.raises(ConfigurationError, match="read-only"),
    ):
        crossmem.receive(shared, into=into)

    assert not into[0].any()


@pytest.mark.parametrize(
    ("into", "words"),
    [
        ({"w": {"b": np.zeros(2)}}, "into['w'] lacks 'a', which was shared"),
        ({"w": {"a": np.zeros(2), "b": np.zeros(2), "c": 1}}, "has 'c', which was not shared"),
        ({"w": [np.zeros(2)]}, "into['w'] is a list, but a dict was shared"),
        ({"w": {"a": np.zeros(2), "b": 5}}, "into['w']['b'] is a plain value, but an array was"),
        (
            {"w": {"a": np.zeros(2), "b": np.zeros(3)}},
            "into['w']['b'] has dtype float64 and shape (3,)",
        ),
        (
            {"w": {"a": np.zeros(2), "b": as_strided(np.zeros(1), (2,), (0,))}},
            "several indices refer to one element",
        ),
    ],
)
def test_what_is_not_filled_is_named_by_its_place(into: Any, words: str) -> None:
    with (
        crossmem.share({"w": {"a": np.ones(2), "b": np.ones(2)}}, copy="allow") as shared,
        pytest.raises(ConfigurationError, match=re.escape(words)),
    ):
        crossmem.receive(shared, into=into)

    found = into["w"].values() if isinstance(into["w"], dict) else into["w"]
    assert not any(one.any() for one in found if isinstance(one, np.ndarray))


def test_nothing_is_filled_where_one_does_not_fit() -> None:
    into = [np.zeros(2), np.zeros(3)]
    with (
        crossmem.share([np.ones(2), np.ones(2)], copy="allow") as shared,
        pytest.raises(ConfigurationError, match=r"shape \(3,\).*shape \(2,\)"),
    ):
        crossmem.receive(shared, into=into)

    assert not into[0].any()


# Read-only ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("readonly", [True, "advisory"])
def test_read_only_arrays_say_so(readonly: Any) -> None:
    with crossmem.share([np.arange(5)], copy="allow") as shared:
        (found,) = crossmem.receive(shared, readonly=readonly)
        (writable,) = crossmem.receive(shared)

    assert (found.flags.writeable, writable.flags.writeable) == (False, True)
    with pytest.raises(ValueError, match="read-only"):
        found[0] = 1
    with pytest.raises(ValueError, match="WRITEABLE"):
        found.flags.writeable = True
    writable[1] = 77
    assert found[1] == 77


# Devices -----------------------------------------------------------------------------------------


def test_a_tree_is_received_for_the_device_that_is_named() -> None:
    tree: Any = [np.arange(5), "plain"]
    with crossmem.share(tree, copy="allow") as shared:
        for device in ("host", crossmem.device("host"), "emulated:0", "hip:0"):
            # A device of another backend's has nothing to do with memory of this one.
            assert list(crossmem.receive(shared, device=device)[0]) == [0, 1, 2, 3, 4]
        with pytest.raises(crossmem.DeviceNotFoundError):
            crossmem.receive(shared, device="host:99")
        with pytest.raises(ConfigurationError, match="device must be"):
            crossmem.receive(shared, device=5)  # type: ignore[call-overload]


@pytest.mark.parametrize("name", ["copy", "access", "neighbours"])
def test_arguments_without_meaning_are_refused_whatever_is_shared(name: str) -> None:
    with pytest.raises(ConfigurationError, match=f"{name} must be one of .*'bogus'"):
        crossmem.share(None, **{name: "bogus"})  # type: ignore[arg-type]
