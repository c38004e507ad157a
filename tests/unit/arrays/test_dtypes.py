# SPDX-License-Identifier: Apache-2.0
"""Dtypes: what each library calls them, and their text on the wire."""

import copy
import json
import pickle
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from generated import examples
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from crossmem import ConfigurationError, UnsupportedError
from crossmem.arrays import DType, Field, dtype_of, from_text, to_numpy, to_torch
from crossmem.arrays.dtypes import (
    MAX_FIELDS,
    MAX_ITEMSIZE,
    MAX_NESTING,
    MAX_TEXT,
    _plain_to_numpy,
)
from crossmem.conformance.speed import SLOWNESS

repeatable = examples(300)

SWAPPED = ">" if sys.byteorder == "little" else "<"
NATIVE = "<" if sys.byteorder == "little" else ">"

# Name, itemsize and DLPack's code, bits and lanes as dlpack.h 1.1 has them.
IN_NUMPY = [
    ("bool", 1, (6, 8, 1)),
    ("int8", 1, (0, 8, 1)),
    ("int16", 2, (0, 16, 1)),
    ("int32", 4, (0, 32, 1)),
    ("int64", 8, (0, 64, 1)),
    ("uint8", 1, (1, 8, 1)),
    ("uint16", 2, (1, 16, 1)),
    ("uint32", 4, (1, 32, 1)),
    ("uint64", 8, (1, 64, 1)),
    ("float16", 2, (2, 16, 1)),
    ("float32", 4, (2, 32, 1)),
    ("float64", 8, (2, 64, 1)),
    ("complex64", 8, (5, 64, 1)),
    ("complex128", 16, (5, 128, 1)),
]
ADDED = [
    ("bfloat16", 2, (4, 16, 1)),
    ("complex32", 4, (5, 32, 1)),
    ("float8_e4m3fn", 1, (10, 8, 1)),
    ("float8_e4m3fnuz", 1, (11, 8, 1)),
    ("float8_e5m2", 1, (12, 8, 1)),
    ("float8_e5m2fnuz", 1, (13, 8, 1)),
    ("float8_e8m0fnu", 1, (14, 8, 1)),
]

scalars = st.one_of(
    npst.scalar_dtypes(),
    npst.byte_string_dtypes(max_len=9),
    npst.unicode_string_dtypes(max_len=9),
    npst.datetime64_dtypes(),
    npst.timedelta64_dtypes(),
    st.sampled_from([np.dtype(text) for text in ("M8[3ns]", ">m8[7D]", "M8", "V3", "f2", ">c16")]),
)


@st.composite
def structs(draw: st.DrawFn, fields: st.SearchStrategy["np.dtype[Any]"]) -> "np.dtype[Any]":
    """Return packed structs with gaps, overlaps and any order of fields in memory."""
    formats: list[Any] = []
    offsets = []
    for one in draw(st.lists(fields, min_size=1, max_size=4)):
        shape = draw(npst.array_shapes(min_dims=0, max_dims=2, min_side=0, max_side=3))
        formats.append(np.dtype((one, shape)) if shape else one)
        offsets.append(draw(st.integers(0, 40)))
    names = draw(
        st.lists(st.text(), min_size=len(formats), max_size=len(formats), unique=True),
    )
    end = max(at + one.itemsize for at, one in zip(offsets, formats, strict=True))
    itemsize = draw(st.integers(max(end, 1), max(end, 1) + 9))
    return np.dtype({"names": names, "formats": formats, "offsets": offsets, "itemsize": itemsize})


dtypes = st.recursive(scalars, structs, max_leaves=6)


@pytest.mark.parametrize(("name", "itemsize", "dlpack"), IN_NUMPY)
def test_common_names_are_those_of_numpy(
    name: str, itemsize: int, dlpack: tuple[int, int, int]
) -> None:
    dtype = dtype_of(name)
    theirs: np.dtype[Any] = np.dtype(name)

    assert (dtype.name, dtype.itemsize, dtype.dlpack) == (name, itemsize, dlpack)
    assert dtype.typestr == theirs.str
    assert to_numpy(dtype) == theirs
    assert [dtype_of(theirs), dtype_of(theirs.type), from_text(name)] == [dtype] * 3


@pytest.mark.parametrize(("name", "itemsize", "dlpack"), ADDED)
def test_types_that_ml_dtypes_adds(name: str, itemsize: int, dlpack: tuple[int, int, int]) -> None:
    dtype = from_text(name)
    assert (dtype.name, dtype.itemsize, dtype.dlpack) == (name, itemsize, dlpack)
    assert dtype.typestr is None

    ml_dtypes = pytest.importorskip("ml_dtypes")
    if not hasattr(ml_dtypes, name):
        pytest.skip(f"ml_dtypes {ml_dtypes.__version__} has no {name}")
    theirs: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
    assert dtype_of(theirs) == dtype_of(theirs.type) == dtype
    assert to_numpy(dtype) == theirs
    assert theirs.itemsize == itemsize


@pytest.mark.parametrize("name", [name for name, _, _ in IN_NUMPY + ADDED])
def test_common_names_are_those_of_pytorch(name: str) -> None:
    torch = pytest.importorskip("torch")

    theirs = getattr(torch, name)
    assert dtype_of(theirs) == from_text(name)
    assert to_torch(from_text(name)) is theirs
    assert theirs.itemsize == from_text(name).itemsize


def test_every_type_of_pytorch_is_known_or_refused() -> None:
    torch = pytest.importorskip("torch")
    theirs = {value for value in vars(torch).values() if isinstance(value, torch.dtype)}

    known, refused = set(), set()
    for value in theirs:
        try:
            known.add(dtype_of(value).name)
        except UnsupportedError:
            refused.add(str(value).removeprefix("torch."))
    assert known == {name for name, _, _ in IN_NUMPY + ADDED}
    assert {name.rstrip("0123456789x_") for name in refused} <= {
        "bit", "bits", "float4_e2m1fn", "int", "qint", "quint", "uint"
    }  # fmt: skip


def test_ml_dtypes_is_named_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    _plain_to_numpy.cache_clear()
    try:
        with pytest.raises(UnsupportedError, match=r"(?s)NumPy.*bfloat16.*install ml_dtypes"):
            to_numpy(from_text("bfloat16"))
    finally:
        _plain_to_numpy.cache_clear()


def test_other_types_that_libraries_add_are_refused() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")

    for theirs in (np.dtype(ml_dtypes.int4), np.dtype(ml_dtypes.bfloat16).newbyteorder("S")):
        with pytest.raises(UnsupportedError, match="cannot be shared"):
            dtype_of(theirs)


def test_what_pytorch_lacks() -> None:
    pytest.importorskip("torch")
    for text in (f"{SWAPPED}f4", "|S5", '[4,[["a",0,"int32"]]]'):
        with pytest.raises(UnsupportedError, match=r"PyTorch .* has no"):
            to_torch(from_text(text))


@pytest.mark.parametrize("name", ["float128", "complex256"])
def test_long_doubles_are_what_this_machine_has(name: str) -> None:
    dtype = from_text(name)
    assert dtype.dlpack is None
    try:
        theirs: np.dtype[Any] = np.dtype(name)
    except TypeError:
        with pytest.raises(UnsupportedError, match="on this machine"):
            to_numpy(dtype)
    else:
        assert to_numpy(dtype) == theirs
        assert dtype_of(theirs) == dtype


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("S5", "|S5"),
        ("U3", f"{NATIVE}U3"),
        (f"{SWAPPED}U3", f"{SWAPPED}U3"),
        ("=f4", "float32"),
        (f"{SWAPPED}f4", f"{SWAPPED}f4"),
        (f"{SWAPPED}i1", "int8"),
        ("M8[1us]", f"{NATIVE}M8[us]"),
        ("m8", f"{NATIVE}m8"),
        ("c32", "complex256"),
    ],
)
def test_type_strings(given: str, name: str) -> None:
    dtype = dtype_of(given)

    assert dtype.name == name
    assert from_text(name) == dtype
    assert to_numpy(dtype) == np.dtype(given)
    assert dtype.itemsize == np.dtype(given).itemsize
    if given != name:
        with pytest.raises(ConfigurationError, match="the name of this dtype is"):
            from_text(given)


def test_a_struct_of_c() -> None:
    theirs = np.dtype([("id", "i4"), ("at", [("x", "f8"), ("y", "f8")], (2,))], align=True)

    dtype = dtype_of(theirs)

    f8 = from_text("float64")
    assert dtype.name == (
        '[40,[["id",0,"int32"],["at",8,[16,[["x",0,"float64"],["y",8,"float64"]]],[2]]]]'
    )
    assert (dtype.itemsize, dtype.typestr, dtype.dlpack) == (40, "|V40", None)
    point = dtype.fields[1].dtype
    assert dtype.fields == (Field("id", 0, from_text("int32"), ()), Field("at", 8, point, (2,)))
    assert point.fields == (Field("x", 0, f8, ()), Field("y", 8, f8, ()))


# NumPy takes milliseconds to make one.
@examples(120)
@given(dtypes)
def test_what_numpy_has_comes_back_from_text(theirs: "np.dtype[Any]") -> None:
    dtype = dtype_of(theirs)

    again = from_text(dtype.name)

    assert again == dtype
    assert again.fields == dtype.fields
    assert (again.itemsize, again.typestr) == (theirs.itemsize, theirs.str)
    rebuilt = to_numpy(again)
    assert rebuilt == theirs
    assert rebuilt.fields == theirs.fields
    assert len(dtype.name) <= MAX_TEXT


@repeatable
@given(st.text(max_size=30) | st.from_regex(r"[<>|=]?[biufcSUVmMO]\d{0,12}(\[\d*[a-z]{1,2}\])?"))
def test_any_text_is_a_dtype_or_refused(text: str) -> None:
    try:
        dtype = dtype_of(text)
    except ConfigurationError:
        return
    assert from_text(dtype.name) == dtype
    assert 1 <= dtype.itemsize <= MAX_ITEMSIZE


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(["a", "int8", "[1]"]),
    lambda inner: st.lists(inner, max_size=4),
    max_leaves=12,
)


@repeatable
@given(json_values)
def test_any_json_is_a_struct_or_refused(value: object) -> None:
    text = json.dumps([8, [["a", 0, value], ["b", 1, "int8", value]]])
    with pytest.raises(ConfigurationError):
        dtype_of(text)


def nested(levels: int) -> str:
    text = '"int8"'
    for _ in range(levels):
        text = f'[1,[["a",0,{text}]]]'
    return text


def wide(fields: int) -> str:
    rows = ",".join(f'["{n}",0,"int8"]' for n in range(fields))
    return f"[1,[{rows}]]"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (nested(MAX_NESTING + 1), "nested more than"),
        (wide(MAX_FIELDS + 1), "at most"),
        ("[" * (MAX_TEXT + 1), "a dtype has at most"),
        ("[" * MAX_TEXT, "not valid JSON"),
        ('[4,[["a",0,"float32"]]', "not valid JSON"),
        ('[4,[["a",1,"float32"]]]', "ends at byte 5 of a struct of 4 bytes"),
        ('[4,[["a",-1,"int8"]]]', "the offset is -1"),
        ('[4,[["a",true,"int8"]]]', "the offset is True"),
        ('[0,[["a",0,"int8"]]]', "the itemsize is 0"),
        (f'[{MAX_ITEMSIZE + 1},[["a",0,"int8"]]]', "the itemsize is"),
        ('[4,[["a",0,"int8"],["a",1,"int8"]]]', "names must be distinct"),
        ("[4,[]]", "1 to"),
        ('[4,[["a",0,"int8",[5]]]]', "ends at byte 5"),
        ('[4,[["a",0,"int8",[-1]]]]', "a size is -1"),
        ('[4,[["a",0,"int8",["2"]]]]', "a size is '2'"),
        (f'[4,[["a",0,"int8",[0,{MAX_ITEMSIZE},2]]]]', "its size in bytes is"),
        (f'[4,[["a",0,"int8",{[1] * 33}]]]', "33 dimensions"),
        ('[4,[["a",0,"int8",[]]]]', "is not a field"),
        ('[4,[["a",0,"int8",[1],1]]]', "is not a field"),
        ('[4,[["a",0,"O"]]]', "'O' is not a dtype"),
        ('[1,[["a",0,"[1,[[\\"a\\",0,\\"int8\\"]]]"]]]', "is not a struct"),
        ("S0", "the itemsize is 0"),
        (f"S{MAX_ITEMSIZE + 1}", "the itemsize is"),
        (f"U{2**29}", "the itemsize is"),
        ("M8[0s]", "the count of units is 0"),
        (f"M8[{2**31}s]", "the count of units is"),
        ("f3", "no numeric dtype has this size"),
        ("O", "is not a dtype"),
        ("", "is not a dtype"),
        ("float32\n", "is not a dtype"),
        ("__class__", "is not a dtype"),
    ],
)
def test_text_is_bounded(text: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message) as caught:
        dtype_of(text)
    assert len(str(caught.value)) < 400


def test_structs_up_to_the_bounds() -> None:
    assert dtype_of(nested(MAX_NESTING)).itemsize == 1
    assert len(dtype_of(wide(MAX_FIELDS)).fields) == MAX_FIELDS


def test_structs_of_numpy_are_bounded_too() -> None:
    def repeat(theirs: "np.dtype[Any]", count: int) -> "np.dtype[Any]":
        names = [str(n) for n in range(count)]
        return np.dtype({"names": names, "formats": [theirs] * count, "offsets": [0] * count})

    with pytest.raises(ConfigurationError, match="text of a struct has at most"):
        dtype_of(repeat(repeat(np.dtype("i1"), 100), 100))
    deep: np.dtype[Any] = np.dtype("i1")
    for _ in range(MAX_NESTING + 1):
        deep = repeat(deep, 1)
    with pytest.raises(ConfigurationError, match="nested more than"):
        dtype_of(deep)


@pytest.mark.parametrize(
    ("theirs", "message"),
    [
        (np.dtype("O"), "Python objects"),
        (np.dtype([("a", "i4"), ("b", [("c", "O")])]), "Python objects"),
        (np.dtype([(("title", "a"), "i4")]), "has a title"),
        (np.dtype(("f4", (2, 3))), "cannot be shared"),
        (np.dtype((np.int32, {"a": (np.int16, 0), "b": (np.int16, 2)})), "cannot be shared"),
    ],
    ids=str,
)
def test_what_cannot_be_shared(theirs: "np.dtype[Any]", message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        dtype_of(theirs)


@pytest.mark.parametrize("value", [None, 4, float, object(), b"f4", np.array(1.0), np.float32(1)])
def test_what_names_no_dtype(value: object) -> None:
    with pytest.raises(ConfigurationError, match="is not a dtype"):
        dtype_of(value)


def test_dtypes_are_values() -> None:
    dtype = dtype_of(np.dtype([("a", "i4")]))

    assert dtype_of(dtype) is dtype
    assert copy.deepcopy(dtype) == pickle.loads(pickle.dumps(dtype)) == dtype  # noqa: S301
    assert {dtype: 1}[from_text(dtype.name)] == 1
    assert dtype != from_text("int32")
    assert repr(from_text("int32")) == "DType('int32')"
    assert isinstance(dtype, DType)


def test_fields_that_are_renamed_keep_their_names_elsewhere() -> None:
    dtype = from_text('[8,[["a",0,"int32"],["b",4,[4,[["c",0,"int32"]]]]]]')
    one, other = to_numpy(dtype), to_numpy(dtype)
    one.names = ("x", "y")
    one["y"].names = ("z",)

    assert other.names == ("a", "b")
    assert other["b"].names == to_numpy(dtype)["b"].names == ("c",)
    assert dtype_of(one) != dtype == dtype_of(other)


def test_no_library_is_imported_to_name_a_dtype() -> None:
    code = """
import sys
from crossmem.arrays import dtype_of, from_text
dtype_of("bfloat16"), from_text('[4,[["a",0,"int32"]]]')
try:
    dtype_of(3)
except ValueError:
    pass
found = {"numpy", "torch", "cupy", "ml_dtypes"} & set(sys.modules)
assert not found, found
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60 * SLOWNESS)
