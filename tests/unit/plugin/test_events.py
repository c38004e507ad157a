# SPDX-License-Identifier: Apache-2.0
"""Observers see every event, cost nothing where there are none, and cannot do harm."""

import logging
from typing import Any

import pytest

from crossmem.models import Event, EventKind
from crossmem.plugin import hookimpl

EVENT = Event(EventKind.ALLOCATED, backend="acme", nbytes=64)


def test_observers_see_events(world: Any) -> None:
    first: list[Event] = []
    second: list[Event] = []
    world.install("acme", acme=world.plugin(event=first.append))
    registry = world.registry()
    registry.names()
    registry.register(world.plugin(event=second.append), name="mine")
    registry.emit(EVENT)
    registry.unregister("mine")
    registry.emit(Event(EventKind.FREED))

    assert registry.observed is True
    assert first == [EVENT, Event(EventKind.FREED)]
    assert second == [EVENT]


def test_no_observer(world: Any) -> None:
    world.install("acme", acme=world.plugin(world.backend()))
    registry = world.registry()
    registry.emit(EVENT)

    assert registry.observed is False
    registry.names()
    assert registry.observed is False
    registry.emit(EVENT)


def test_event_discovers_nothing(world: Any) -> None:
    seen: list[Event] = []
    world.install("acme", acme=world.plugin(event=seen.append))
    registry = world.registry()
    registry.emit(EVENT)

    assert seen == []
    assert registry.observed is False


@pytest.mark.parametrize("fault", [ValueError("cannot count"), SystemExit("cannot count")])
def test_observer_that_raises(
    world: Any, caplog: pytest.LogCaptureFixture, fault: BaseException
) -> None:
    def broken(event: Event) -> None:
        raise fault

    seen: list[Event] = []
    registry = world.registry()
    registry.register(world.plugin(event=seen.append), name="a")
    registry.register(world.plugin(event=broken), name="b")
    registry.register(world.plugin(event=seen.append), name="c")
    with caplog.at_level(logging.ERROR, "crossmem"):
        registry.emit(EVENT)

    assert seen == [EVENT, EVENT]
    assert caplog.messages == ["plugin b raised while it observed allocated"]
    assert "cannot count" in caplog.text


def test_observer_that_takes_no_event(world: Any) -> None:
    calls = []

    class Counter:
        @hookimpl
        def crossmem_event(self) -> None:
            calls.append(1)

    registry = world.registry()
    registry.register(Counter(), name="counter")
    registry.emit(EVENT)

    assert calls == [1]
