# SPDX-License-Identifier: Apache-2.0
"""The shared memory of a tree in the process that shares it: its value, and updates."""

import os
import threading
import weakref
from collections import OrderedDict
from resource import RUSAGE_THREAD, getrusage
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import crossmem
from crossmem import ConfigurationError, Shared, UnsupportedError
from crossmem.trees import building

if TYPE_CHECKING:
    from tests.unit.trees.tree_classes import Plain, Point
else:
    from tree_classes import Plain, Point


PAGE_NBYTES = os.sysconf("SC_PAGE_SIZE")


pytestmark = pytest.mark.usefixtures("nothing_left")


# Value -------------------------------------------------------------------------------------------


def test_what_is_written_to_the_value_is_received() -> None:
    state = {"w": np.arange(6.0), "more": [np.arange(3), (np.float32(2), "text")], "step": 7}
    with crossmem.share(state, copy="allow") as shared:
        value: Any = shared.value
        found: Any = crossmem.receive(shared.to_bytes())
        value["w"] += 1
        value["more"][0][1] = -5

        assert shared.publish() == 1
        assert found["w"].tolist() == [1, 2, 3, 4, 5, 6]
        assert found["more"][0].tolist() == [0, -5, 2]
        assert value["more"][1] == (2, "text")
        assert value["step"] == 7
        assert not np.shares_memory(value["w"], state["w"])
        assert shared.value is value


@pytest.mark.parametrize("kind", [Plain, Point, lambda a, b: OrderedDict(a=a, b=b)])
def test_the_value_has_the_containers_that_were_shared(kind: Any) -> None:
    tree = kind(np.zeros(2), [np.ones(3)])
    with crossmem.share([tree, tree], copy="allow") as shared:
        first, second = shared.value

    assert type(first) is type(tree)
    assert type(tree) is Point or first is second


def test_arrays_of_the_value_overlap_as_they_did() -> None:
    base = np.arange(12.0).reshape(3, 4)
    with crossmem.share({"a": base, "b": base[1], "c": base.T}, copy="allow") as shared:
        shared.value["a"][1, 2] = -1

        assert shared.value["b"][2] == shared.value["c"][2, 1] == -1


def test_the_value_has_the_arrays_themselves_that_were_shared_where_they_lie() -> None:
    born, ordinary, nothing = crossmem.empty(4), np.ones(3), np.empty((0, 2))
    born[:] = 2
    with crossmem.share([born, ordinary, nothing], copy="allow") as shared:
        first, second, third = shared.value

        assert first is born
        assert second is not ordinary
        assert third is nothing
        assert second.tolist() == [1, 1, 1]
    with crossmem.share([born]) as shared:
        assert shared.value[0] is born


def test_the_value_of_bytes_is_what_they_are_received_as() -> None:
    with crossmem.share({"w": np.arange(3)}, copy="allow") as shared:
        other: Shared[Any] = Shared.from_bytes(shared.to_bytes())
        shared.value["w"][0] = 9

        assert other.value["w"].tolist() == [9, 1, 2]
        assert other.value is other.value
        with pytest.raises(
            UnsupportedError, match="only the process that shares this tree can call update"
        ):
            other.update({"w": np.zeros(3)})
        other.value["w"][1] = 8
        other.close()
        with pytest.raises(crossmem.ClosedError):
            other.value  # noqa: B018
    del other


def test_this_process_may_write_where_others_only_read() -> None:
    with crossmem.share(np.arange(3), copy="allow", access="ro") as shared:
        received = crossmem.receive(shared.to_bytes())
        shared.value[0] = 5
        shared.publish()
        assert received.tolist() == [5, 1, 2]
        shared.update(np.arange(7, 10))
        assert received.tolist() == [7, 8, 9]

        assert not received.flags.writeable


def test_a_process_that_may_not_receive_may_update() -> None:
    nobody = crossmem.Allow(pids=(2**22 + 1,))
    with crossmem.share(np.arange(3), copy="allow", allow=nobody) as shared:
        assert shared.update(np.ones(3, int)) == 1
        assert shared.value.tolist() == [1, 1, 1]


def test_the_value_outlives_the_tree() -> None:
    shared = crossmem.share(np.arange(4), copy="allow")
    blob, value = shared.to_bytes(), shared.value
    shared.close()

    value += 1
    with pytest.raises(crossmem.ClosedError):
        shared.value  # noqa: B018
    with pytest.raises(crossmem.ClosedError):
        shared.update(value)
    assert value.tolist() == crossmem.receive(blob).tolist() == [1, 2, 3, 4]
    del value
    crossmem.collect()
    with pytest.raises(crossmem.StaleHandleError):
        crossmem.receive(blob)


@pytest.mark.parametrize("is_pooled", [False, True])
def test_the_value_is_shared_again_beyond_the_tree(*, is_pooled: bool) -> None:
    with crossmem.device("host").pool(4096, 1) as pool:
        first = crossmem.share(np.arange(4), copy=True, pool=pool if is_pooled else None)
        again = crossmem.share(first.value)

        first.close()

        assert crossmem.receive(again.to_bytes()).tolist() == [0, 1, 2, 3]
        again.close()


def test_a_tree_that_is_dropped_keeps_nothing_but_its_value() -> None:
    shared = crossmem.share(np.arange(4), copy="allow")
    value = shared.value
    del shared
    crossmem.collect()

    assert value.tolist() == [0, 1, 2, 3]


def test_a_copy_needs_its_original_no_more() -> None:
    array = np.ones(3)
    original = weakref.ref(array)
    with crossmem.share(array, copy="allow") as shared:
        del array
        assert original() is None
        assert shared.value.tolist() == [1, 1, 1]


def test_closing_while_the_value_is_made_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    shared = crossmem.share({"w": np.arange(3)}, copy="allow")
    other: Shared[Any] = Shared.from_bytes(shared.to_bytes())
    begun, closed, errors = threading.Event(), threading.Event(), []

    def slow(*arguments: Any, **options: Any) -> Any:
        made = building.build(*arguments, **options)
        begun.set()
        assert closed.wait(10)
        return made

    def look() -> None:
        try:
            other.value  # noqa: B018
        except crossmem.CrossmemError as error:
            errors.append(type(error))

    monkeypatch.setattr("crossmem.trees.shared.build", slow)
    looking = threading.Thread(target=look)
    looking.start()
    assert begun.wait(10)
    other.close()
    closed.set()
    looking.join(10)

    assert errors == [crossmem.ClosedError]
    shared.close()


# Publishing --------------------------------------------------------------------------------------


def test_publishing_copies_that_nobody_writes_to_is_refused() -> None:
    with crossmem.share({"w": np.arange(300)}, copy="allow") as shared:
        with pytest.raises(UnsupportedError, match=r"copied 2400 bytes.*the originals") as caught:
            shared.publish()
        assert caught.value.hint == "write to shared.value, or call shared.update(tree)"
        assert shared.version == 0
        # With one of the two, it is right.
        assert shared.update({"w": np.ones(300, int)}) == 1
        assert shared.publish() == 2


@pytest.mark.parametrize("way", ["value", "receive"])
def test_publishing_what_this_process_has_taken_is_right(way: str) -> None:
    with crossmem.share({"w": np.arange(3)}, copy=True) as shared:
        state = shared.value if way == "value" else crossmem.receive(shared)
        state["w"][:] = 1
        assert shared.publish() == 1
        del state


def test_publishing_what_was_not_copied_is_right() -> None:
    born = crossmem.empty(3)
    with crossmem.share([born, "plain"]) as shared:
        born[:] = 1
        assert shared.publish() == 1
    del born


# Updates -----------------------------------------------------------------------------------------


def test_an_update_is_published_whole() -> None:
    born = crossmem.empty((2, 2), "int32")
    state: Any = {"born": born, "copied": np.arange(4), "empty": np.empty(0), "step": 1}
    with crossmem.share(state, copy="allow") as shared:
        found: Any = crossmem.receive(shared.to_bytes())
        new = {
            # In another order, and lying otherwise.
            "copied": np.arange(10, 18)[::-2],
            "empty": np.empty(0),
            "born": np.full((2, 2), 7, "int32").T,
            "step": 1,
        }
        assert shared.update(new) == 1
        assert found["copied"].tolist() == [17, 15, 13, 11]
        assert born.tolist() == found["born"].tolist() == [[7, 7], [7, 7]]
        # What is the shared array itself is not copied.
        born[:] = 8
        assert shared.update({**shared.value, "born": born}) == 2
        assert found["born"].tolist() == [[8, 8], [8, 8]]
        assert Shared.from_bytes(shared.to_bytes()).wait(1, timeout=0) == 2
    del born, state


def test_the_first_update_of_a_large_copy_maps_many_pages_at_a_time() -> None:
    pages = 4096
    new = np.ones(pages * PAGE_NBYTES, "uint8")
    with crossmem.share(np.zeros_like(new), copy="allow") as shared:
        before = getrusage(RUSAGE_THREAD).ru_minflt
        shared.update(new)
        faults = getrusage(RUSAGE_THREAD).ru_minflt - before

        assert shared.value.sum() == new.nbytes
    assert faults < pages / 2


@pytest.mark.parametrize(
    ("tree", "words"),
    [
        ([], "tree is a list, but a dict was shared"),
        ({"a": {"w": np.zeros(2)}}, "tree lacks 'b', which was shared"),
        (
            {"a": {"w": np.zeros(2)}, "b": [np.zeros(2), 5], "c": 1},
            "tree has 'c', which was not shared",
        ),
        (
            {"a": {"w": np.zeros(3)}, "b": [np.zeros(2), 5]},
            r"tree\['a'\]\['w'\] has dtype float64 and shape \(3,\); .* float64 and shape \(2,\)",
        ),
        (
            {"a": {"w": np.zeros(2)}, "b": [np.zeros(2, "f4"), 5]},
            r"tree\['b'\]\[0\] has dtype float32 and shape \(2,\)",
        ),
        (
            {"a": {"w": 5}, "b": [np.zeros(2), 5]},
            r"tree\['a'\]\['w'\] is a plain value, but an array",
        ),
        ({"a": {"w": np.zeros(2)}, "b": [np.zeros(2), 6]}, r"tree\['b'\]\[1\] is 6, but 5 was"),
    ],
)
def test_another_tree_is_refused_and_changes_nothing(tree: Any, words: str) -> None:
    state = {"a": {"w": np.ones(2)}, "b": [np.ones(2), 5]}
    with crossmem.share(state, copy="allow") as shared:
        with pytest.raises(ConfigurationError, match=words) as caught:
            shared.update(tree)
        assert caught.value.operation == "update"
        assert shared.version == 0
        value: Any = shared.value
        assert value["a"]["w"].tolist() == value["b"][0].tolist() == [1, 1]
        del value


def test_an_update_that_cannot_be_shared_is_refused() -> None:
    with crossmem.share([np.ones(2)], copy="allow") as shared:
        with pytest.raises(UnsupportedError, match=r"x\[0\] is a builtins.set"):
            shared.update([{1, 2}])
        assert shared.version == 0


def test_an_array_that_is_shared_read_only_is_not_updated() -> None:
    born = crossmem.empty(2, "int8")
    born[:] = 1
    born.flags.writeable = False
    with crossmem.share({"a": np.ones(2), "b": born}, copy="allow") as shared:
        with pytest.raises(ConfigurationError, match=r"shared as tree\['b'\] .* read-only"):
            shared.update({"a": np.zeros(2), "b": np.zeros(2, "int8")})
        assert shared.value["a"].tolist() == [1, 1]
        # The application cannot have written to it, so there is nothing to copy.
        assert shared.update({"a": np.zeros(2), "b": born}) == 1
    del born


def test_an_array_that_is_repeated_is_not_updated() -> None:
    wide = np.broadcast_to(np.ones(1), (3,))
    with (
        crossmem.share([wide], copy="allow") as shared,
        pytest.raises(ConfigurationError, match="several indices refer to one element"),
    ):
        shared.update([np.zeros(3)])


def test_plain_values_that_are_equal_are_not_another_tree() -> None:
    values: Any = [np.float64(1.5), b"bytes", 2 + 3j, float("nan"), -0.0, None, "text", np.ones(1)]
    with crossmem.share(values, copy="allow") as shared:
        assert shared.update([*values[:-1], np.zeros(1)]) == 1


# Arguments ---------------------------------------------------------------------------------------


def test_copies_are_allowed_by_a_word_or_a_flag() -> None:
    for allowed in ("allow", True):
        with crossmem.share(np.ones(2), copy=allowed) as shared:
            assert shared.copied_nbytes == 16
    for refused in (None, False):
        with pytest.raises(UnsupportedError, match="ordinary host memory"):
            crossmem.share(np.ones(2), copy=refused)


@pytest.mark.parametrize("value", [1, 0, "never", "", b"allow", np.ones(2), ["allow"]])
def test_what_says_nothing_of_copies_is_refused(value: Any) -> None:
    with pytest.raises(ConfigurationError, match="copy must be one of"):
        crossmem.share(None, copy=value)


def test_plain_values_that_differ_are_named_as_the_program_wrote_them() -> None:
    one, two = np.int64(1), np.int64(2)
    with (
        crossmem.share({"step": one, "w": np.zeros(2)}, copy=True) as shared,
        pytest.raises(ConfigurationError) as raised,
    ):
        shared.update({"step": two, "w": np.zeros(2)})
    assert raised.value.message == f"tree['step'] is {two!r}, but {one!r} was shared"
