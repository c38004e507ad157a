# SPDX-License-Identifier: Apache-2.0
"""What the process that shares a tree writes is what readers get, or it is told."""

import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import crossmem


@pytest.fixture
def state() -> dict[str, Any]:
    return {"w": np.arange(6.0).reshape(2, 3), "b": [np.ones(3), 7], "none": np.zeros((0, 2))}


@pytest.fixture
def shared(state: dict[str, Any]) -> Iterator[crossmem.Shared[dict[str, Any]]]:
    with crossmem.share(state, copy=True) as made:
        yield made


def received(shared: crossmem.Shared[dict[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = crossmem.receive(shared.to_bytes())
    return found


def test_the_value_of_a_copy_is_what_readers_have(
    shared: crossmem.Shared[dict[str, Any]], state: dict[str, Any]
) -> None:
    reader = received(shared)
    shared.value["w"][0, 0] = 42.0

    assert reader["w"][0, 0] == 42.0
    assert state["w"][0, 0] == 0.0
    assert shared.value["w"] is shared.value["w"]
    assert shared.value["b"][1] == 7
    assert shared.value["none"].shape == (0, 2)


def test_the_value_of_what_was_not_copied_is_what_was_shared() -> None:
    born = crossmem.empty((4, 4))
    ordinary = np.zeros(3)
    with crossmem.share({"a": born, "view": born[1:], "o": ordinary}, copy=True) as shared:
        assert shared.value["a"] is born
        assert np.shares_memory(shared.value["view"], born)
        assert not np.shares_memory(shared.value["o"], ordinary)


def test_the_owner_writes_to_what_readers_only_read(state: dict[str, Any]) -> None:
    with crossmem.share(state, copy=True, access="ro") as shared:
        reader = received(shared)
        shared.value["w"][:] = 3.0

        assert (reader["w"] == 3.0).all()
        assert not reader["w"].flags.writeable


def test_the_value_in_a_reader_is_what_it_receives(shared: crossmem.Shared[Any]) -> None:
    reader = crossmem.Shared.from_bytes(shared.to_bytes())
    shared.value["w"][:] = 5.0

    assert (reader.value["w"] == 5.0).all()
    assert reader.value["w"] is reader.value["w"]


def test_an_update_reaches_readers_with_its_version(
    shared: crossmem.Shared[Any], state: dict[str, Any]
) -> None:
    reader = received(shared)
    state["w"] += 1
    state["b"][0] *= 3

    assert shared.update(state) == 1

    assert (reader["w"] == state["w"]).all()
    assert (reader["b"][0] == 3.0).all()
    # Its own arrays, too: nothing is copied onto itself.
    assert shared.update(shared.value) == 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"w": np.zeros((3, 3))}, r"tree\['w'\] has shape \(3, 3\)"),
        ({"w": np.zeros((2, 3), "float32")}, "float32; shape"),
        ({"w": 3}, r"tree\['w'\] is a plain value where an array was shared"),
        ({"new": 1}, "tree has 'new', which was not shared"),
        ({"b": (np.ones(3), 7)}, r"tree\['b'\] is a tuple where a list was shared"),
    ],
)
def test_an_update_by_another_tree_names_the_difference_and_writes_nothing(
    shared: crossmem.Shared[Any], state: dict[str, Any], change: dict[str, Any], message: str
) -> None:
    state["b"][0] *= 5

    with pytest.raises(crossmem.ConfigurationError, match=message):
        shared.update({**state, **change})

    assert shared.version == 0
    assert (received(shared)["b"][0] == 1.0).all()


def test_publishing_what_nobody_could_have_written_is_refused(
    shared: crossmem.Shared[Any], state: dict[str, Any]
) -> None:
    state["w"] += 1
    with pytest.raises(crossmem.UnsupportedError, match="was copied") as caught:
        shared.publish()
    assert "shared.update(tree)" in str(caught.value.hint)
    assert shared.version == 0

    shared.value["w"][:] = state["w"]
    assert shared.publish() == 1


def test_the_owner_may_publish_what_it_has_received(shared: crossmem.Shared[Any]) -> None:
    crossmem.receive(shared)["w"][:] = 1.0

    assert shared.publish() == 1


def test_what_lies_in_shared_memory_is_published_as_before() -> None:
    born = crossmem.empty(4)
    with crossmem.share(born) as shared:
        born[:] = 1.0

        assert shared.publish() == 1


def test_readers_do_not_update(shared: crossmem.Shared[Any], state: dict[str, Any]) -> None:
    reader = crossmem.Shared.from_bytes(shared.to_bytes())

    with pytest.raises(crossmem.UnsupportedError, match="another process"):
        reader.update(state)


def test_a_wait_that_times_out_blames_nobody(shared: crossmem.Shared[Any]) -> None:
    for timeout in (0, 0.05):
        start = time.monotonic()
        with pytest.raises(crossmem.WaitTimeoutError, match="no version after 0"):
            shared.wait(0, timeout=timeout)
        assert time.monotonic() - start < 5
    shared.update(shared.value)
    assert shared.wait(0, timeout=0) == 1


@pytest.mark.parametrize("copy", [1, "yes", "", 0.0])
def test_what_is_no_answer_about_copies(copy: Any, state: dict[str, Any]) -> None:
    with pytest.raises(crossmem.ConfigurationError, match="copy must be True, False"):
        crossmem.share(state, copy=copy)


@pytest.mark.parametrize("copy", [False, None])
def test_without_a_copy_the_error_says_how_to_make_one(copy: Any, state: dict[str, Any]) -> None:
    with pytest.raises(crossmem.UnsupportedError) as caught:
        crossmem.share(state, copy=copy)
    assert "copy=True" in str(caught.value.hint)


# From birth -----------------------------------------------------------------------------------


def test_a_tree_like_another_needs_no_copy(state: dict[str, Any]) -> None:
    state["tied"] = state["w"]
    state["view"] = state["w"].T
    born = crossmem.empty_like(state)

    assert born["tied"] is born["w"]
    assert born["view"].shape == (3, 2)
    assert born["none"].shape == (0, 2)
    assert born["b"][1] == 7
    assert born["w"].dtype == state["w"].dtype
    born["w"][:] = state["w"]
    with crossmem.share(born) as shared:
        assert shared.copied_nbytes == 0
        assert len(shared.message.handles) == 1
        assert (received(shared)["w"] == state["w"]).all()


def test_an_array_alone_and_a_tree_without_arrays() -> None:
    assert crossmem.empty_like(np.zeros((2, 2), "int8")).dtype == np.int8
    assert crossmem.empty_like({"a": [1, None]}) == {"a": [1, None]}


def test_the_memory_of_a_tree_goes_with_its_last_array(state: dict[str, Any]) -> None:
    born = crossmem.empty_like(state, device="emulated:1")
    part = born["w"][1:]
    del born
    handle = crossmem.share(part).message.handles[0]
    assert crossmem.device("emulated:1").identity == handle.device
    del part
