# SPDX-License-Identifier: Apache-2.0
"""Updates and copies between trees whose arrays share memory: right, or refused."""

from typing import Any

import numpy as np
import pytest

import crossmem
from crossmem import ConfigurationError

A, B = np.arange(4.0), np.arange(4.0) + 10


def shared(tree: Any) -> Any:
    return crossmem.share(tree, copy=True)


def received(one: Any) -> Any:
    return crossmem.receive(one.to_bytes())


def is_equal(found: Any, expected: Any) -> bool:
    return {key: list(one) for key, one in found.items()} == {
        key: list(one) for key, one in expected.items()
    }


@pytest.mark.parametrize("late", [False, True])
def test_one_array_at_two_places_gets_no_two_contents(late: bool) -> None:
    zeros = np.zeros(4)
    places = {"first": zeros, "m": zeros, "v": zeros} if late else {"m": zeros, "v": zeros}
    with shared(places) as one:
        with pytest.raises(
            ConfigurationError, match="are one array, but the new arrays differ"
        ) as raised:
            one.update({**dict.fromkeys(places, A), "v": B})
        assert "tree['v']" in raised.value.message
        assert raised.value.hint
        assert is_equal(received(one), dict.fromkeys(places, np.zeros(4)))

        one.update(dict.fromkeys(places, A))
        assert is_equal(received(one), dict.fromkeys(places, A))
        # Other memory with equal contents loses nothing.
        one.update({**dict.fromkeys(places, B), "v": B.copy()})
        assert is_equal(received(one), dict.fromkeys(places, B))


@pytest.mark.parametrize("is_copied", [False, True])
def test_overlapping_views_are_updated_from_views_that_overlap_alike(is_copied: bool) -> None:
    base, new = np.zeros(6), np.arange(6.0)
    views = {"a": base[:4], "b": base[1:], "c": base[2:6].reshape(2, 2).T}
    news = {"a": new[:4], "b": new[1:], "c": new[2:6].reshape(2, 2).T}
    if is_copied:
        # As after a round trip through a file.
        news = {key: one.copy() for key, one in news.items()}
    with shared(views) as one:
        one.update(news)

        for key, found in received(one).items():
            assert np.array_equal(found, news[key])


def test_equal_bytes_are_equal_also_if_they_are_no_numbers() -> None:
    tied = np.full(3, np.nan)
    with shared({"m": tied, "v": tied}) as one:
        one.update({"m": np.full(3, np.nan), "v": np.full(3, np.nan)})


def test_an_array_and_its_tensor_are_not_compared() -> None:
    torch = pytest.importorskip("torch")
    array = np.zeros(3)
    with shared({"n": array, "t": torch.from_numpy(array)}) as one:
        one.update({"n": np.ones(3), "t": torch.ones(3, dtype=torch.float64)})
        assert received(one)["n"].tolist() == [1, 1, 1]


def test_tied_tensors_get_no_two_contents() -> None:
    torch = pytest.importorskip("torch")
    tied = torch.zeros(3)
    with shared({"m": tied, "v": tied}) as one:
        one.update({"m": torch.full((3,), torch.nan), "v": torch.full((3,), torch.nan)})
        with pytest.raises(ConfigurationError, match="are one array"):
            one.update({"m": torch.ones(3), "v": torch.zeros(3)})
        one.update({"m": torch.ones(3), "v": torch.ones(3)})
        assert received(one)["v"].tolist() == [1, 1, 1]


def test_views_that_lie_between_each_other_share_nothing() -> None:
    base = np.zeros(8)
    with shared({"even": base[::2], "odd": base[1::2]}) as one:
        one.update({"even": A, "odd": B})

        assert is_equal(received(one), {"even": A, "odd": B})


def test_arrays_of_the_value_can_change_places() -> None:
    with shared({"cur": A, "prev": B}) as one:
        value = one.value
        one.update({"cur": value["prev"], "prev": value["cur"]})
        assert is_equal(received(one), {"cur": B, "prev": A})
        one.update({"cur": np.full(4, 3.0), "prev": value["cur"]})
        assert is_equal(received(one), {"cur": np.full(4, 3.0), "prev": B})
        one.update({"cur": value["cur"][::-1], "prev": value["prev"]})
        assert is_equal(received(one), {"cur": np.full(4, 3.0), "prev": B})
        value["prev"][:] = A
        one.update(value)
        assert is_equal(received(one), {"cur": np.full(4, 3.0), "prev": A})
        del value


def test_what_was_written_in_place_does_not_excuse_its_alias() -> None:
    zeros = np.zeros(4)
    with shared({"m": zeros, "v": zeros}) as one:
        value = one.value
        with pytest.raises(ConfigurationError, match="are one array"):
            one.update({"m": value["m"], "v": B})
        del value


def test_one_array_does_not_receive_two_contents() -> None:
    target = np.zeros(4)
    with shared({"m": A, "v": B}) as one:
        with pytest.raises(ConfigurationError, match="are one array, but the shared arrays differ"):
            crossmem.receive(one.to_bytes(), into={"m": target, "v": target})
        assert list(target) == [0] * 4
    tied = A.copy()
    with shared({"m": tied, "v": tied}) as one:
        crossmem.receive(one.to_bytes(), into={"m": target, "v": target})
        assert list(target) == list(A)


def test_many_arrays_of_one_buffer_are_updated() -> None:
    flat = np.zeros(4000)
    with shared([flat[4 * one : 4 * one + 4] for one in range(1000)] + [np.zeros(0)]) as one:
        new = [np.full(4, float(number)) for number in range(1000)] + [np.zeros(0)]
        one.update(new)

        assert [list(array) for array in received(one)] == [list(array) for array in new]
