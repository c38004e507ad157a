# SPDX-License-Identifier: Apache-2.0
"""Containers and plain values: written as JSON, read as what they were."""

import json
import math
import sys
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Sequence
from decimal import Decimal
from enum import IntEnum
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from generated import examples
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from typing_extensions import override

from crossmem import ConfigurationError, InvalidHandleError, UnsupportedError
from crossmem.trees import nodes
from crossmem.trees.nodes import MAX_DEPTH, read, write

if TYPE_CHECKING:
    from tests.unit.trees import tree_classes
    from tests.unit.trees.tree_classes import (
        Careful,
        Frozen,
        Inherited,
        Outer,
        Plain,
        Point,
        SlotsBelow,
    )
else:
    import tree_classes
    from tree_classes import Careful, Frozen, Inherited, Outer, Plain, Point, SlotsBelow

repeatable = examples(100)


class Thing:
    """Stands in for an array."""


def keep(kept: list[Thing]) -> Callable[[Any, Callable[[], str]], int | None]:
    def add(value: Any, where: Callable[[], str]) -> int | None:
        if not isinstance(value, Thing):
            return None
        kept.append(value)
        return len(kept) - 1

    return add


def there_and_back(value: Any) -> Any:
    kept: list[Thing] = []
    node = json.loads(json.dumps(write(value, keep(kept)), allow_nan=False))
    return read(node, kept)


def refuse(error: type[Exception], value: Any) -> str:
    with pytest.raises(error) as caught:
        write(value, keep([]))
    return str(caught.value)


def same(one: Any, other: Any) -> bool:
    """Whether two values are equal in type too, all the way down; NaN equals NaN."""
    return bool(exact(one) == exact(other))


def exact(value: Any) -> Any:
    """Return what is equal for values alone that nobody can tell apart."""
    kind = type(value).__name__
    if isinstance(value, list | tuple):
        return kind, [exact(one) for one in value]
    if isinstance(value, dict):
        return kind, [(exact(key), exact(one)) for key, one in value.items()]
    if isinstance(value, complex) and not isinstance(value, np.generic):
        return kind, value.real.hex(), value.imag.hex()
    if isinstance(value, np.generic):
        return kind, value.dtype.str, value.tobytes()
    return kind, value.hex() if isinstance(value, float) else value


numbers = st.integers(-(2**4000), 2**4000) | st.floats() | st.complex_numbers()
texts = st.text(st.characters(codec=None)) | st.sampled_from(["", "\ud800", "a\x00b", "\U0010ffff"])
scalars = npst.arrays(
    st.one_of(
        npst.scalar_dtypes(),
        npst.byte_string_dtypes(min_len=1, max_len=5),
        npst.unicode_string_dtypes(min_len=1, max_len=5),
    ),
    (1,),
).map(lambda array: array[0])
plain = st.none() | st.booleans() | numbers | texts | st.binary() | scalars
keys = st.none() | st.booleans() | st.integers() | texts | st.binary() | st.tuples(texts)
trees = st.recursive(
    plain,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.dictionaries(keys, inner, max_size=4),
        st.dictionaries(keys, inner, max_size=4).map(OrderedDict),
        st.builds(Plain, inner, inner),
        st.builds(Frozen, inner, st.integers()),
        st.builds(Point, inner, inner),
    ),
    max_leaves=12,
)


@repeatable
@given(trees)
def test_whatever_is_written_is_read(value: Any) -> None:
    found = there_and_back(value)

    if isinstance(value, Plain | Frozen):
        assert same([vars_of(value)], [vars_of(found)])
    else:
        assert same(strip(value), strip(found))


def vars_of(value: Any) -> Any:
    names = [one for one in ("weight", "bias", "steps", "more") if hasattr(value, one)]
    return type(value).__name__, [strip(getattr(value, one)) for one in names]


def strip(value: Any) -> Any:
    """Return a tree with the fields of dataclasses in their places, to be compared."""
    if isinstance(value, Plain | Frozen):
        return vars_of(value)
    if isinstance(value, Point):
        return ("Point", *map(strip, value))
    if isinstance(value, list | tuple):
        return type(value)(map(strip, value))
    if isinstance(value, dict):
        return type(value)((key, strip(one)) for key, one in value.items())
    return value


@pytest.mark.parametrize(
    "value",
    [
        Plain(1, [2]),
        Frozen((1,), 4),
        SlotsBelow(1, 2, "three"),
        Inherited(1, 2, {"a": 3}),
        Outer.Inner(5),
        Point(1),
        Point(Point(1, 2), [Point(3, 4)]),
    ],
)
def test_classes_come_back_as_themselves(value: Any) -> None:
    found = there_and_back(value)

    assert type(found) is type(value)
    assert found == value


def test_arrays_are_in_their_places() -> None:
    first, second = Thing(), Thing()
    value = {"w": first, 3: [second, (first, Plain(second))], "deep": Point(first)}

    found = there_and_back(value)

    assert found["w"] is found[3][1][0] is found["deep"].x is first
    assert found[3][0] is found[3][1][1].weight is second


def test_dicts_keep_their_order_and_their_kind() -> None:
    found = there_and_back([{"b": 1, "a": 2}, OrderedDict([("z", 1), ("y", 2)])])

    assert [list(one) for one in found] == [["b", "a"], ["z", "y"]]
    assert [type(one) for one in found] == [dict, OrderedDict]


def test_the_metadata_of_state_dicts_travels() -> None:
    value: Any = OrderedDict([("w", 1)])
    value._metadata = OrderedDict([("", {"version": 2})])
    value.other = object()

    found = there_and_back(value)

    assert found == value
    assert vars(found) == {"_metadata": value._metadata}


@pytest.mark.parametrize("attributes", [[[1, 2]], [["items", 2]], 5, [["_metadata"]], [5]])
def test_attributes_that_nobody_writes_are_refused(attributes: Any) -> None:
    with pytest.raises(InvalidHandleError):
        read({"o": [[], attributes]}, [])


def test_keys_that_python_takes_for_equal_stay_what_they_were() -> None:
    found = there_and_back({True: "yes", 2: "two", 3.5: "more", None: "none", (1, "a"): "pair"})

    assert same(list(found), [True, 2, 3.5, None, (1, "a")])


def test_zeros_at_the_end_of_numpy_s_texts_stay() -> None:
    values = [np.bytes_(b"a\0"), np.str_("a\0"), np.bytes_(b""), np.str_("")]

    found = there_and_back(values)

    assert [type(one) for one in found] == [type(one) for one in values]
    assert found == values


def test_integers_are_bounded() -> None:
    largest = 2**4096 - 1

    assert there_and_back([largest, -largest]) == [largest, -largest]
    assert "4096 bits" in refuse(ConfigurationError, {"n": 2**4096})


def nested(depth: int, make: Callable[[Any], Any]) -> Any:
    value = make(1)
    for _ in range(depth - 1):
        value = make(value)
    return value


@pytest.mark.parametrize(
    "make",
    [lambda one: [one], lambda one: (one,), lambda one: {"k": one}, Plain, Point],
    ids=["list", "tuple", "dict", "dataclass", "namedtuple"],
)
def test_depth_is_bounded(make: Callable[[Any], Any]) -> None:
    assert there_and_back(nested(MAX_DEPTH, make)) == nested(MAX_DEPTH, make)

    assert "nested more than" in refuse(ConfigurationError, nested(MAX_DEPTH + 1, make))


def test_deeper_trees_of_strangers_are_refused() -> None:
    node: Any = 1
    for _ in range(MAX_DEPTH + 5):
        node = {"t": [node]}

    with pytest.raises(InvalidHandleError):
        read(node, [])


def test_containers_that_multiply_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nodes, "MAX_VALUES", 1000)
    value: Any = []
    for _ in range(30):
        value = [value, value]

    with pytest.raises(ConfigurationError, match="more than 1000 values"):
        write(value, lambda _value, _where: None)


def test_what_contains_itself_is_refused() -> None:
    cycle: list[Any] = []
    cycle.append({"again": cycle})

    assert "contains itself" in refuse(ConfigurationError, cycle)


class Colour(IntEnum):
    RED = 1


class ListOfMine(list[int]):
    pass


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"a": [1, {2, 3}]}, "x['a'][1] is a builtins.set"),
        ({"a": object()}, "x['a'] is a builtins.object"),
        (print, "builtins.builtin_function_or_method"),
        (Colour.RED, "Colour"),
        (ListOfMine([1]), "ListOfMine"),
        (defaultdict(list), "collections.defaultdict"),
        (Decimal(1), "decimal.Decimal"),
        (bytearray(b"1"), "bytearray"),
        (slice(1), "slice"),
        (np.array(None)[()].__class__, "type"),
    ],
)
def test_what_is_neither_array_nor_plain_is_refused_by_its_place(value: Any, words: str) -> None:
    assert words in refuse(UnsupportedError, value)


def test_a_class_that_others_cannot_find_is_refused() -> None:
    assert "cannot find" in refuse(UnsupportedError, [tree_classes.make_local()()])
    assert "cannot find" in refuse(UnsupportedError, [tree_classes.Impostor(1, 2)])


@pytest.mark.parametrize("name", ["Unset", "OfDict", "WithDescriptor"])
def test_a_dataclass_that_is_more_than_its_fields_is_refused(name: str) -> None:
    value = getattr(tree_classes, name)()

    assert "cannot be rebuilt from its fields" in refuse(UnsupportedError, {"one": value})


@pytest.mark.parametrize("value", [tree_classes.Derived[int](3), tree_classes.Labelled(1, 2)])
def test_an_attribute_that_is_no_field_is_refused(value: Any) -> None:
    assert getattr(value, "double", None) in {6, None}
    assert there_and_back(value) == value

    value.label = "lost"

    assert "attribute 'label', which is not a field of" in refuse(UnsupportedError, [value])


# Readers -----------------------------------------------------------------------------------------


def test_no_code_of_a_class_runs_while_it_is_read() -> None:
    node = write(Careful("w"), keep([]))
    tree_classes.ran.clear()

    found = read(node, [])

    assert (type(found), vars(found)) == (Careful, {"weight": "w"})
    assert tree_classes.ran == []


def test_a_class_with_code_that_runs_at_its_end_is_refused() -> None:
    assert "__del__" in refuse(UnsupportedError, [tree_classes.Ending("mine")])

    with pytest.raises(UnsupportedError, match="__del__"):
        read({"c": ["tree_classes:Ending", [["value", "of a stranger"]]]}, [])

    assert "of a stranger" not in tree_classes.ended


class Lazy(ModuleType):
    """A module with code that runs when something is asked of it."""

    @override
    def __getattribute__(self, name: str) -> Any:
        if name not in {"__dict__", "__class__"}:
            tree_classes.ran.append(name)
        return super().__getattribute__(name)


def test_no_code_of_a_module_runs_while_a_class_is_looked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module = Lazy("lazy_module")
    vars(module)["__getattr__"] = tree_classes.ran.append
    monkeypatch.setitem(sys.modules, "lazy_module", module)
    tree_classes.ran.clear()

    with pytest.raises(UnsupportedError):
        read({"c": ["lazy_module:Anything", []]}, [])

    assert tree_classes.ran == []


@pytest.mark.parametrize(
    "name",
    [
        "os:system",
        "os:environ",
        "subprocess:Popen",
        "builtins:object",
        "builtins:dict",
        "builtins:eval",
        "collections:OrderedDict",
        "decimal:Decimal",
        "tree_classes:ran",
        "tree_classes:Plain.__init__",
        "tree_classes:Plain.__class__",
        "tree_classes:Nothing",
        "tree_classes:",
        "tree_classes",
        "not_imported_by_anybody:Plain",
        ":Plain",
        ":",
        "",
        "os.path:join",
        "tree_classes:Outer.Inner.value",
        "x" * 100_000,
    ],
)
@pytest.mark.parametrize("tag", ["c", "n"])
def test_names_of_strangers_find_dataclasses_and_named_tuples_alone(tag: str, name: str) -> None:
    with pytest.raises((UnsupportedError, InvalidHandleError)) as caught:
        read({tag: [name, []]}, [])

    assert len(str(caught.value)) < 1000
    assert "not_imported_by_anybody" not in sys.modules


@pytest.mark.parametrize("name", ["WithDescriptor", "Abstract", "OfDict"])
def test_a_stranger_cannot_make_what_nobody_shares(name: str) -> None:
    tree_classes.ran.clear()

    with pytest.raises(InvalidHandleError):
        read({"c": [f"tree_classes:{name}", [["value", 1]]]}, [])

    assert tree_classes.ran == []


@pytest.mark.parametrize(
    "node",
    [
        {"c": ["tree_classes:Plain", [["weight", 1]]]},
        {"c": ["tree_classes:Plain", [["weight", 1], ["bias", 2], ["more", 3]]]},
        {"c": ["tree_classes:Plain", [["weight", 1], ["__class__", 2]]]},
        {"n": ["tree_classes:Point", [1]]},
        {"n": ["tree_classes:Point", [1, 2, 3]]},
        {"n": ["tree_classes:Plain", [1, 2]]},
        {"c": ["tree_classes:Point", [["x", 1], ["y", 2]]]},
    ],
)
def test_a_class_that_is_different_here_is_refused(node: Any) -> None:
    with pytest.raises(UnsupportedError, match="other fields"):
        read(node, [])


@pytest.mark.parametrize(
    "node",
    [
        {},
        {"a": 1, "t": []},
        {"?": 1},
        {"a": 3},
        {"a": -1},
        {"a": True},
        {"a": "0"},
        {"a": 0.0},
        {"a": [0]},
        {"t": 1},
        {"t": {"a": 0}},
        {"t": "abc"},
        {"d": [[1]]},
        {"d": [[1, 2, 3]]},
        {"d": [[[], 1]]},
        {"d": ["ab"]},
        {"d": 5},
        {"o": [1]},
        {"b": "?"},
        {"b": 5},
        {"b": "é"},
        {"u": "/w=="},
        {"u": None},
        {"f": "1.0"},
        {"f": []},
        {"z": ["1"]},
        {"z": ["1", "x"]},
        {"z": [10**400, "1"]},
        {"z": 5},
        {"s": ["float32", "AA=="]},
        {"s": ["float99", "AA=="]},
        {"s": [5, "AA=="]},
        {"s": [["float32"], "AA=="]},
        {"s": ["|V2147483647", ""]},
        {"s": ["<U1", "/////w=="]},
        {"s": "float32"},
        {"c": [5, []]},
        {"c": ["tree_classes:Plain", 5]},
        {"c": ["tree_classes:Plain", [[[], 1]]]},
        {"n": [None, []]},
        {"n": ["tree_classes:Point", 7]},
        {"c": {"x": 1}},
    ],
)
def test_what_nobody_writes_is_refused(node: Any) -> None:
    with pytest.raises(InvalidHandleError):
        read([node], ["only"])


nodes_of_strangers = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.sampled_from([*"atdocnbfzsui", "x"]),
            inner | st.tuples(st.sampled_from(["tree_classes:Point", "float32"]), inner).map(list),
            max_size=2,
        ),
    ),
    max_leaves=10,
)


@repeatable
@given(nodes_of_strangers)
def test_nodes_of_strangers_raise_nothing_else(node: Any) -> None:
    arrays: Sequence[Any] = ["only"]
    try:
        read(node, arrays)
    except (InvalidHandleError, UnsupportedError) as error:
        assert len(str(error)) < 1000  # noqa: PT017 - most of them are refused, and some are not


def test_floats_that_json_has_no_words_for_travel_too() -> None:
    found = there_and_back([math.nan, math.inf, -math.inf, -0.0, complex(math.nan, -0.0)])

    assert same(found, [math.nan, math.inf, -math.inf, -0.0, complex(math.nan, -0.0)])
