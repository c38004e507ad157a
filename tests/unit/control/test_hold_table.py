# SPDX-License-Identifier: Apache-2.0
"""Signal handlers that import what they interrupt neither lose a hold nor keep one."""

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from crossmem.control import segments, words
from crossmem.control.holds import HoldTable
from crossmem.control.segments import HEADER_WORDS

AT = HEADER_WORDS
GENERATION = 5


class Scene:
    """A control segment and a row, and the importer's table for them."""

    def __init__(self) -> None:
        descriptors: list[int] = []
        self.control = segments.create("control", descriptors, is_written_by_maker=True)
        self.row = segments.create("row", descriptors, is_written_by_maker=False)
        self.control.words[AT] = GENERATION
        self.table = HoldTable()
        self.table.add(0, descriptors)
        for descriptor in descriptors:
            os.close(descriptor)

    @property
    def word(self) -> int:
        """What the exporter reads."""
        return self.row.words[AT]


@pytest.fixture
def scene() -> Iterator[Scene]:
    made = Scene()
    yield made
    made.table.close()
    made.row.close()
    made.control.close()


def interrupt_after(
    monkeypatch: pytest.MonkeyPatch, name: str, handler: Callable[[], object]
) -> None:
    """Run a handler at the end of the next call of an operation on words."""
    operation: Any = getattr(words, name)
    armed = [True]

    def call(*arguments: Any) -> Any:
        result = operation(*arguments)
        if armed:
            armed.clear()
            handler()
        return result

    monkeypatch.setattr(words, name, call)


@pytest.mark.parametrize("name", ["load", "store", "observe"])
@pytest.mark.parametrize("is_kept", [False, True])
def test_a_hold_that_is_interrupted_by_another(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, name: str, *, is_kept: bool
) -> None:
    def handler() -> None:
        assert scene.table.hold(0, GENERATION, "handler")
        if not is_kept:
            assert not scene.table.end(0, "handler")

    interrupt_after(monkeypatch, name, handler)
    assert scene.table.hold(0, GENERATION, "outer")
    assert scene.word == GENERATION

    scene.table.end(0, "outer")
    assert scene.word == (GENERATION if is_kept else 0)
    scene.table.end(0, "handler")
    assert scene.word == 0


@pytest.mark.parametrize("name", ["load", "store"])
def test_an_end_that_is_interrupted_by_a_hold(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    scene.table.hold(0, GENERATION, "outer")

    interrupt_after(monkeypatch, name, lambda: scene.table.hold(0, GENERATION, "handler"))
    scene.table.end(0, "outer")

    assert scene.word == GENERATION
    scene.table.end(0, "handler")
    assert scene.word == 0


def test_the_words_are_accessed_by_c_code() -> None:
    # A handler runs at the entry of a Python function, and so between a question and its store.
    assert not hasattr(words.load, "__code__")
    assert not hasattr(words.store, "__code__")
