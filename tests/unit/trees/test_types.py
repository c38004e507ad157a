# SPDX-License-Identifier: Apache-2.0
"""The types of shared trees: ``mypy tests`` fails if a checker infers other ones.

mypy reports an ``ignore`` that it does not need, so each one here is a check too.
"""

from typing import Any, assert_type

import numpy as np
import numpy.typing as npt
import pytest

import crossmem
from crossmem import Shared

State = dict[str, npt.NDArray[np.float32]]


def make() -> State:
    return {"w": np.arange(4, dtype=np.float32)}


def test_a_tree_has_one_type_wherever_it_is() -> None:
    with crossmem.share(make(), copy="allow") as shared:
        assert_type(shared, Shared[State])
        assert_type(shared.value, State)
        assert_type(crossmem.receive(shared), State)
        assert_type(crossmem.receive(shared, readonly=True), State)
        assert_type(shared.update(make()), int)

        assert shared.value["w"].tolist() == [0, 1, 2, 3]


def test_bytes_are_of_any_type() -> None:
    with crossmem.share(make(), copy=True) as shared:
        blob = shared.to_bytes()
        for one in (blob, bytearray(blob), memoryview(blob)):
            assert_type(crossmem.receive(one), Any)
            other = Shared.from_bytes(one)
            assert_type(other, Shared[Any])
            assert_type(other.value, Any)

            assert other.value["w"].tolist() == [0, 1, 2, 3]
            other.close()


def test_new_arrays_have_the_type_of_their_pattern() -> None:
    new = crossmem.empty_like(make())
    assert_type(new, State)

    assert new["w"].shape == (4,)


def version_of(shared: Shared[object]) -> int:
    return shared.version


def test_a_function_for_any_tree_takes_every_tree() -> None:
    with crossmem.share(make(), copy=True) as shared:
        assert version_of(shared) == 0


def test_what_checkers_refuse_is_refused() -> None:
    with pytest.raises(crossmem.ConfigurationError, match="copy must be one of"):
        crossmem.share(make(), copy="never")  # type: ignore[arg-type]
    with crossmem.share(make(), copy=True) as shared, pytest.raises(KeyError):
        shared.value[0]  # type: ignore[index]
