# SPDX-License-Identifier: Apache-2.0
"""Messages and hints keep their limits, whatever value a user or a peer chooses."""

import pickle
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from generated import examples
from hypothesis import given
from hypothesis import strategies as st
from typing_extensions import override

import crossmem
from crossmem import errors, guards
from crossmem.arrays import Layout, dtype_of
from crossmem.control.records import Allow
from crossmem.control.wire import Refusal, Status
from crossmem.models import ProcessIdentity, ShareableHandle
from crossmem.plugin.backend import Availability
from crossmem.settings import VARIABLES, Settings
from crossmem.sharing.importer import messages
from crossmem.sharing.importer.errors import error_of
from crossmem.trees.leaves import collect
from crossmem.trees.pairing import pair_arrays

LIMIT = 200
HANDLE = ShareableHandle(
    backend="host", mechanism="memfd", device="d" * 128, allocation=2**64 - 1, export=0,
    secret=bytes(16), owner=ProcessIdentity.of_this_process(), nbytes=1, capacity=4096, access="rw",
)  # fmt: skip
CLASSES = [
    one
    for name in errors.__all__
    if isinstance(one := getattr(errors, name), type) and issubclass(one, crossmem.CrossmemError)
]
texts = st.one_of(
    st.text(max_size=300),
    st.builds(lambda one, n: one * n, st.text(min_size=1, max_size=3), st.integers(200, 1000)),
)
values: Any = st.one_of(
    texts,
    st.binary(max_size=400),
    st.integers(),
    st.sampled_from([10**5000, -(10**5000), float("nan")]),
    st.lists(texts, max_size=4),
    st.builds(lambda one: {one: one}, texts),
    st.just(np.zeros((60, 60))),
)


class Unprintable:
    """A value whose repr raises."""

    @override
    def __repr__(self) -> str:
        raise RuntimeError


def caught(call: Callable[[], object]) -> crossmem.CrossmemError | None:
    """Return the error of crossmem that a call raises; its constructor checks the limits."""
    error = None
    try:
        call()
    except crossmem.CrossmemError as raised:
        error = raised
    if error is not None:
        assert len(error.message) <= LIMIT
        assert len(error.hint or "") <= LIMIT
        assert len(f"{error.message}{error.hint}".splitlines()) <= 1
    return error


# The check ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", CLASSES)
def test_the_longest_message_and_hint_survive_pickling(kind: type[crossmem.CrossmemError]) -> None:
    error = kind("m" * LIMIT, hint="h" * LIMIT, details="d\n" * 1000)

    copy = pickle.loads(pickle.dumps(error))  # noqa: S301 - its own bytes

    assert type(copy) is kind
    assert (copy.message, copy.hint, copy.details) == (error.message, error.hint, error.details)
    assert str(copy) == str(error)


@pytest.mark.parametrize("kind", CLASSES)
@pytest.mark.parametrize("text", ["m" * (LIMIT + 1), "two\nlines", "two\x85lines"])
def test_a_test_run_refuses_a_longer_text(kind: type[crossmem.CrossmemError], text: str) -> None:
    with pytest.raises(AssertionError, match="a message is one line of at most 200") as refused:
        kind(text)
    assert repr(text) in str(refused.value)
    with pytest.raises(AssertionError, match="a hint is one line of at most 200"):
        kind("short", hint=text)


def test_other_runs_refuse_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CROSSMEM_TEST_MESSAGES")
    program = "import crossmem; crossmem.CrossmemError('m' * 201 + '\\n', hint='h' * 201)"

    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_every_process_of_the_tests_checks() -> None:
    program = "import crossmem; crossmem.CrossmemError('m' * 201)"

    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, timeout=60, check=False
    )

    assert b"AssertionError: a message is one line" in done.stderr


# The one way to cut ---------------------------------------------------------------------------


@examples(60)
@given(values, st.integers(10, 200))
def test_a_shown_value_is_one_line_within_its_limit(value: Any, most: int) -> None:
    shown = guards.shorten(value, most)

    assert 0 < len(shown) <= most
    assert len(shown.splitlines()) == 1


@examples(60)
@given(texts, st.integers(10, 200))
def test_a_clause_is_one_line_within_its_limit(text: str, most: int) -> None:
    line = guards.clause(text, most)

    assert len(line) <= most
    assert len(line.splitlines()) <= 1
    assert guards.clause(line, most) == line


def test_a_value_that_cannot_be_shown_is_named_by_its_type() -> None:
    assert guards.shorten(10**5000) == "<int>"
    assert guards.shorten(Unprintable()) == "<Unprintable>"


# What a user chooses ---------------------------------------------------------------------------


@examples(60)
@given(values)
def test_arguments(value: Any) -> None:
    calls: list[Callable[[], object]] = [
        lambda: crossmem.device(value),
        lambda: crossmem.device("host", runtime=value),
        lambda: crossmem.attach(value),
        lambda: crossmem.receive(value),
        lambda: crossmem.share({}, copy=value),
        lambda: crossmem.how_can_share(value, "host"),
        lambda: Allow(pids=value),
        lambda: Availability(value, ""),
        lambda: dtype_of(value),
        lambda: Layout(dtype_of("int8"), value),
        lambda: Layout(dtype_of("int8"), (1,), value),
        lambda: Layout(dtype_of("int8"), (1,), None, value),
        lambda: guards.check_size("nbytes", value, limit=2**63),
        lambda: guards.check_part(value, value, limit=2**63),
        lambda: guards.check_timeout(value, default_s=1.0),
        lambda: messages.check_reservation(value),
    ]
    for call in calls:
        try:
            caught(call)
        except (TypeError, ValueError, AttributeError, OverflowError):
            continue


@examples(60)
@given(st.fixed_dictionaries({}, optional=dict.fromkeys(VARIABLES.values(), texts)))
def test_settings(environ: dict[str, str]) -> None:
    error = caught(lambda: Settings.from_environ(environ))

    # What does not fit is not lost.
    if error is not None:
        assert all(one in error.details for one in environ if one in error.message)


@examples(60)
@given(st.dictionaries(texts, values, max_size=3), st.dictionaries(texts, values, max_size=3))
def test_trees(one: Any, other: Any) -> None:
    trees: list[Any] = []
    for tree in (one, other, [one, {"k" * 3000: object()}]):
        error = caught(lambda tree=tree: trees.append(collect(tree)[0]))  # type: ignore[misc]
        if error is not None:
            assert error.message.startswith("x")
    for first in trees:
        for second in trees:
            caught(lambda: list(pair_arrays(first, second, "the tree", "update")))  # noqa: B023


@examples(60)
@given(st.integers(-(2**62), 2**62), st.integers(0, 2**62), st.integers(0, 2**62))
def test_layouts_out_of_bounds(stride: int, offset: int, limit: int) -> None:
    caught(lambda: Layout(dtype_of("float64"), (2,), (stride,), offset).check(limit))


@examples(60)
@given(texts)
def test_classes_and_fields(name: str) -> None:
    kind = type("C", (), {"__qualname__": name, "__module__": name})

    error = caught(lambda: collect({"a": kind()}))

    assert error is not None
    dtypes: list[Any] = [
        [(name, "f8"), ("b", "O")],
        {"names": [name], "formats": ["f8"], "titles": ["t" * 500]},
    ]
    for dtype in dtypes:
        try:
            struct = np.dtype(dtype)
        except (ValueError, TypeError):
            continue
        caught(lambda struct=struct: dtype_of(struct))  # type: ignore[misc]


# What a peer chooses ------------------------------------------------------------------------


@pytest.mark.parametrize("status", [one for one in Status if one is not Status.GRANTED])
@examples(20)
@given(texts)
def test_refusals_of_leases(status: Status, reason: str) -> None:
    refusal = Refusal(status, reason)

    for error in (error_of(refusal, HANDLE), messages._error_of(refusal, HANDLE)):
        assert error.hint


@examples(60)
@given(st.binary(max_size=500))
def test_bytes_of_others(blob: bytes) -> None:
    for call in (ShareableHandle.from_bytes, crossmem.receive):
        caught(lambda call=call: call(blob))  # type: ignore[misc]
