# SPDX-License-Identifier: Apache-2.0
"""A traced driver's streams: every call that the contract forbids is noted."""

from typing import Any, cast

import pytest

from crossmem.driver import Driver, SharedEvent, TracingDriver
from crossmem.driver.tracing_streams import STREAM_GROUPS

PAGE = 4096
HOST, DEVICE = 5 * PAGE, 1 << 40


class Streams:
    """A driver with streams that does nothing."""

    backend = "none"

    def __init__(self) -> None:
        self.payload = b"event"

    def synchronize_stream(self, *_: int) -> None:
        pass

    def register_host(self, *_: int) -> int:
        return DEVICE

    def unregister_host(self, *_: int) -> None:
        pass

    def write_value(self, *_: int) -> None:
        pass

    def wait_value(self, *_: int) -> None:
        pass

    def create_event(self, ordinal: int) -> SharedEvent:
        return SharedEvent(ordinal, object(), self.payload)

    def open_event(self, ordinal: int, payload: bytes) -> SharedEvent:
        return SharedEvent(ordinal, object(), payload)

    def destroy_event(self, event: SharedEvent) -> None:
        pass

    def record_event(self, event: SharedEvent, stream: int) -> None:
        pass

    def wait_event(self, event: SharedEvent, stream: int) -> None:
        pass

    def is_event_done(self, event: SharedEvent) -> bool:
        return event.reference is not None

    def create_stream(self, ordinal: int) -> int:
        return 7

    def destroy_stream(self, *_: int) -> None:
        pass

    def copy_async(self, *_: int) -> None:
        pass


@pytest.fixture
def tracer() -> Any:
    """Return a driver of which the optional methods are known at run time only."""
    return TracingDriver(cast("Driver", Streams()))


def test_what_is_lawful_is_counted_and_not_noted(tracer: Any) -> None:
    address = tracer.register_host(0, HOST, PAGE)
    tracer.write_value(0, address + 8, 1, 0)
    tracer.wait_value(0, address + PAGE - 8, 2**63 - 1, 0)
    own, opened = tracer.create_event(0), tracer.open_event(0, b"theirs")
    tracer.record_event(own, 0)
    for event in (own, opened):
        tracer.wait_event(event, 0)
        assert tracer.is_event_done(event)
    stream = tracer.create_stream(0)
    tracer.copy_async(0, 1, 2, 3, stream)
    tracer.synchronize_stream(0, stream)

    found = tracer.live
    assert (found["registrations"], found["events"], found["streams"]) == (1, 2, 1)

    tracer.destroy_stream(0, stream)
    tracer.destroy_event(own)
    tracer.destroy_event(opened)
    tracer.unregister_host(0, HOST)

    assert not any(tracer.live.values())
    assert tracer.violations == []
    assert set(tracer.calls) == set().union(*STREAM_GROUPS.values())


def test_pages_are_registered_and_released_once(tracer: Any) -> None:
    tracer.unregister_host(0, HOST)
    tracer.register_host(0, HOST, PAGE)
    tracer.register_host(0, HOST, PAGE)

    assert tracer.violations == [
        f"unregister_host: {HOST:#x} is not registered",
        f"register_host: {HOST:#x} is registered already",
    ]


@pytest.mark.parametrize(
    ("address", "value", "text"),
    [
        (DEVICE - 8, 1, f"no registered page contains {DEVICE - 8:#x}"),
        (DEVICE + PAGE, 1, f"no registered page contains {DEVICE + PAGE:#x}"),
        (DEVICE + 4, 1, "is not aligned"),
        (DEVICE, 0, "value out of range: 0"),
        (DEVICE, 2**63, f"value out of range: {2**63}"),
    ],
)
@pytest.mark.parametrize("method", ["write_value", "wait_value"])
def test_words_lie_in_registered_pages(
    tracer: Any, method: str, address: int, value: int, text: str
) -> None:
    tracer.register_host(0, HOST, PAGE)
    getattr(tracer, method)(0, address, value, 0)

    (found,) = tracer.violations
    assert found.startswith(f"{method}: ")
    assert found.endswith(text)


def test_events_are_used_while_they_exist(tracer: Any) -> None:
    event = tracer.create_event(0)
    tracer.destroy_event(event)
    tracer.record_event(event, 0)
    tracer.wait_event(event, 0)
    tracer.is_event_done(event)
    tracer.destroy_event(event)

    assert tracer.violations == [
        f"{method}: unknown or destroyed event"
        for method in ("record_event", "wait_event", "is_event_done", "destroy_event")
    ]


def test_only_the_creator_records_an_event(tracer: Any) -> None:
    tracer.record_event(tracer.open_event(0, b"theirs"), 0)

    assert tracer.violations == ["record_event: another process created the event"]


def test_a_payload_has_a_limit(tracer: Any) -> None:
    tracer.inner.payload = bytes(113)
    tracer.create_event(0)

    assert tracer.violations == ["create_event: the payload has 113 bytes"]


def test_streams_are_destroyed_once(tracer: Any) -> None:
    stream = tracer.create_stream(0)
    tracer.destroy_stream(0, stream)
    tracer.destroy_stream(0, stream)

    assert tracer.violations == ["destroy_stream: unknown or destroyed stream"]


def test_a_driver_without_streams_offers_none() -> None:
    class Plain:
        backend = "none"

    tracer = TracingDriver(cast("Driver", Plain()))

    assert not any(hasattr(tracer, name) for group in STREAM_GROUPS.values() for name in group)
