# SPDX-License-Identifier: Apache-2.0
"""What was shared is given back at once, and not when the garbage collector happens to come."""

import gc
from collections.abc import Iterator

import pytest

import crossmem

NBYTES = 12_345


@pytest.fixture(autouse=True)
def without_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def is_exported() -> bool:
    crossmem.collect()
    return any(one.nbytes == NBYTES for one in crossmem.exports())


def test_a_tree_that_was_dropped() -> None:
    array = crossmem.empty(NBYTES, "uint8")
    shared = crossmem.share({"a": [array, (array[::2], None)]})
    assert is_exported()
    del array, shared

    assert not is_exported()


def test_a_tree_that_was_closed_and_received() -> None:
    array = crossmem.empty(NBYTES, "uint8")
    with crossmem.share({"a": array}) as shared:
        received = crossmem.receive(shared)
    del array, shared
    assert is_exported()
    del received

    assert not is_exported()
