# SPDX-License-Identifier: Apache-2.0
"""The watcher of owners, without another process."""

import weakref
from typing import Any

import pytest

import crossmem
from crossmem.models import ProcessIdentity
from crossmem.sharing.base.deferred import Record
from crossmem.sharing.base.process import current
from crossmem.sharing.importer import watcher
from crossmem.sharing.importer.record import ImportRecord
from crossmem.sharing.importer.watcher import OwnerWatcher


class Shown:
    """Something that can be ended."""

    closed = False


class Connection:
    """An owner that looks dead as often as it is said to."""

    def __init__(self, looks: list[bool]) -> None:
        self.owner = ProcessIdentity.of_this_process()
        self.looks = looks

    def is_owner_dead(self, *, within_s: float) -> bool:
        assert within_s == 0
        found = self.looks.pop(0)
        if found is None:
            raise TypeError
        return found


class Scene:
    def __init__(self, monkeypatch: pytest.MonkeyPatch, looks: list[Any]) -> None:
        self.ended: list[Any] = []
        monkeypatch.setattr(watcher, "end_because", lambda one, _why: self.ended.append(one))
        monkeypatch.setattr(watcher, "_LOOK_S", 0.0)
        monkeypatch.setattr(watcher, "_LOOK_AGAIN_S", 0.0)
        self.watcher = OwnerWatcher(current())
        self.record, self.shown = Record(), Shown()
        self.connection = Connection(looks)
        watched: Any = {}
        gone = weakref.ref(self.record)
        shown: Any = weakref.ref(self.shown)
        watched[1] = watcher._Watched(gone, shown)
        connections: dict[Any, Any] = {self.connection: watched}
        self.watcher._watched = connections

    def look(self) -> list[Any]:
        self.watcher._look()
        return self.ended


def test_an_owner_that_looks_dead_once_is_not_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    # Without a pidfd, a connection that is being made anew looks like that.
    scene = Scene(monkeypatch, [True, False, True, False])

    assert [list(scene.look()) for _ in range(4)] == [[], [], [], []]


def test_an_owner_that_looks_dead_twice_is(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(monkeypatch, [False, True, True])

    assert [list(scene.look()) for _ in range(3)] == [[], [], [scene.shown]]


def test_a_connection_that_was_closed_meanwhile_is_nobody_dead(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scene = Scene(monkeypatch, [None, None])

    assert [list(scene.look()) for _ in range(2)] == [[], []]


def test_what_was_given_back_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(monkeypatch, [True, True])
    scene.record.is_done = True

    assert [list(scene.look()) for _ in range(2)] == [[], []]


def test_memory_without_an_owner_to_watch_is_not_watched() -> None:
    with crossmem.device("emulated:0").allocate(1) as allocation:
        handle = allocation.export()
        with crossmem.attach(handle, on_owner_death="release") as mapping:
            use: Any = mapping._record
            assert isinstance(use.record, ImportRecord)
            assert current().part(OwnerWatcher)._watched == {}
