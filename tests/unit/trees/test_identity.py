# SPDX-License-Identifier: Apache-2.0
"""Containers that occur in several places of a tree are one again, within the same bounds."""

from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import crossmem
from crossmem import ConfigurationError, InvalidHandleError
from crossmem.trees.nodes import MAX_DEPTH, read

if TYPE_CHECKING:
    from tests.unit.trees.tree_classes import Frozen, Plain
else:
    from tree_classes import Frozen, Plain


def there_and_back(value: Any) -> Any:
    with crossmem.share(value, copy="allow") as shared:
        return crossmem.receive(shared.to_bytes())


@pytest.mark.parametrize("make", [list, dict, OrderedDict, Plain])
def test_a_container_that_occurs_twice_is_one(make: Callable[[Any], Any]) -> None:
    one = make(OrderedDict(a=1))
    equal = make(OrderedDict(a=1))
    value = [(one,), {"again": one}, [one], equal]

    (first,), second, third, other = there_and_back(value)

    assert type(first) is type(one)
    assert first is second["again"] is third[0]
    assert first == other
    assert first is not other


def test_what_is_in_containers_that_occur_twice_is_one_too() -> None:
    inner = [np.ones(2)]
    outer = {"inner": inner}

    found = there_and_back([outer, outer, inner, (outer, inner), Plain(outer, inner)])

    assert found[0] is found[1] is found[3][0] is found[4].weight
    assert found[0]["inner"] is found[2] is found[3][1] is found[4].bias


def test_the_metadata_of_a_state_dict_is_counted_behind_what_is_in_it() -> None:
    twice, noted = {"version": 1}, {"version": 1}
    state: Any = OrderedDict(a=twice, b=twice, c=[noted], d=["only here"])
    state._metadata = OrderedDict({"": noted, "a": [1, 2], "b": OrderedDict()})

    found = there_and_back([state, state])

    assert found[0] is found[1]
    assert found[0] == state
    assert found[0]._metadata == state._metadata
    assert found[0]["a"] is found[0]["b"]
    assert found[0]["a"] is not found[0]._metadata[""]
    assert found[0]["c"][0] is found[0]._metadata[""]


def test_keys_that_occur_elsewhere_are_one() -> None:
    key = Frozen("k")

    found = there_and_back([{key: 1}, {key: 2}, key])

    assert next(iter(found[0])) is next(iter(found[1])) is found[2]


def test_trees_are_filled_whichever_containers_occur_twice() -> None:
    key, inner = Frozen(1), {"a": np.ones(2)}
    one: Any = [inner, inner, {key: np.ones(1)}, {key: np.ones(1)}]
    other: Any = [{"a": np.zeros(2)} for _ in range(2)]
    other += [{Frozen(1): np.zeros(1)} for _ in range(2)]
    for value, into in ((one, other), (other, one)):
        with crossmem.share(value, copy="allow") as shared:
            crossmem.receive(shared, into=into)

    assert [found["a"].tolist() for found in other[:2]] == [[1, 1], [1, 1]]


@pytest.mark.parametrize(
    "make",
    [lambda one: [one], lambda one: OrderedDict(k=one), Plain],
    ids=["list", "ordered", "dataclass"],
)
def test_deep_trees_of_containers_that_occur_twice_fit(make: Callable[[Any], Any]) -> None:
    parts = [make(b"x")]
    for _ in range(MAX_DEPTH - 2):
        parts.append(make(parts[-1]))

    assert there_and_back(parts) == parts

    parts.append(make(parts[-1]))
    with pytest.raises(ConfigurationError, match="nested more than"):
        crossmem.share(parts)


@pytest.mark.parametrize(
    "node",
    [
        [[1], {"i": [0, [2]]}],
        [[1], {"i": [1, [1]]}],
        [[1], {"i": [-1, [1]]}],
        [[1], {"i": [False, [1]]}],
        [[1], {"i": [0]}],
        [{"i": [0, []]}],
        [{"t": []}, {"i": [0, {"t": []}]}],
        {"i": 0},
    ],
)
def test_what_no_container_was_before_is_refused(node: Any) -> None:
    with pytest.raises(InvalidHandleError):
        read(node, [])


@pytest.mark.parametrize("value", [1.0, np.float64(1), np.str_("a"), np.ones(1), "text"], ids=repr)
def test_only_containers_count_as_levels(value: Any) -> None:
    nested = value
    for _ in range(MAX_DEPTH):
        nested = [nested]

    found = there_and_back(nested)
    for _ in range(MAX_DEPTH):
        (found,) = found
    assert found == value
    with pytest.raises(ConfigurationError, match=f"nested more than {MAX_DEPTH} levels deep"):
        crossmem.share([nested], copy="allow")
