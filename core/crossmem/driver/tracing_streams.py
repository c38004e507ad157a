# SPDX-License-Identifier: Apache-2.0
"""The part of ``TracingDriver`` that traces the optional groups of stream methods."""

import threading
from collections.abc import Callable
from typing import Any, Final, cast

from crossmem.driver.streams import SharedEvent, StreamEvents, StreamWords, StreamWork

__all__ = ["STREAM_GROUPS", "StreamTracer"]

_PAYLOAD_NBYTES: Final = 112

STREAM_GROUPS: Final = {
    "Streams": frozenset({"synchronize_stream"}),
    "StreamWords": frozenset({"register_host", "unregister_host", "write_value", "wait_value"}),
    "StreamEvents": frozenset(
        {
            "create_event",
            "open_event",
            "destroy_event",
            "record_event",
            "wait_event",
            "is_event_done",
        }
    ),
    "StreamWork": frozenset({"create_stream", "destroy_stream", "copy_async"}),
}
"""The names of the methods of each group."""


class StreamTracer:
    """Counts calls of stream methods, and checks that pages, events and streams are released once.

    Parameters
    ----------
    inner
        The driver that does the work.
    note
        Counts a call of a method and records the rules that the call breaks. This class holds
        ``lock`` while it calls ``note``.
    """

    def __init__(self, inner: object, note: Callable[..., None], lock: threading.Lock) -> None:
        self._inner = inner
        self._note = note
        self._lock = lock
        self._pages: dict[int, tuple[int, int]] = {}
        """Device address and size of each registered page. The key is the page's host address."""
        self._events: dict[int, tuple[SharedEvent, bool]] = {}
        """Each event, and whether this process created it. The key is the event's ``id()``."""
        self._streams: set[int] = set()

    @property
    def live(self) -> dict[str, int]:
        """Number of unreleased objects of each kind. The caller holds the lock."""
        return {
            "registrations": len(self._pages),
            "events": len(self._events),
            "streams": len(self._streams),
        }

    def method(self, name: str) -> Any:
        """Return the traced version of the driver's method ``name``."""
        return getattr(self, name, None) or self._counted(name)

    def _counted(self, name: str) -> Callable[..., Any]:
        inner = getattr(self._inner, name)

        def counted(*arguments: Any) -> Any:
            with self._lock:
                self._note(name)
            return inner(*arguments)

        return counted

    # Words --------------------------------------------------------------------------------

    @property
    def _words(self) -> StreamWords:
        return cast("StreamWords", self._inner)

    def register_host(self, ordinal: int, pointer: int, nbytes: int) -> int:
        """Trace the registration of a page."""
        with self._lock:
            is_known = pointer in self._pages
            self._note("register_host", (is_known, f"{pointer:#x} is registered already"))
        address = self._words.register_host(ordinal, pointer, nbytes)
        with self._lock:
            self._pages[pointer] = address, nbytes
        return address

    def unregister_host(self, ordinal: int, pointer: int) -> None:
        """Trace the end of a registration."""
        with self._lock:
            is_known = pointer in self._pages
            self._note("unregister_host", (not is_known, f"{pointer:#x} is not registered"))
        self._words.unregister_host(ordinal, pointer)
        with self._lock:
            self._pages.pop(pointer, None)

    def write_value(self, ordinal: int, address: int, value: int, stream: int) -> None:
        """Trace a stream's write to a word."""
        with self._lock:
            self._note("write_value", *self._word_rules(address, value))
        self._words.write_value(ordinal, address, value, stream)

    def wait_value(self, ordinal: int, address: int, value: int, stream: int) -> None:
        """Trace a stream's wait for a value of a word."""
        with self._lock:
            self._note("wait_value", *self._word_rules(address, value))
        self._words.wait_value(ordinal, address, value, stream)

    def _word_rules(self, address: int, value: int) -> list[tuple[bool, str]]:
        pages = self._pages.values()
        is_inside = any(first <= address <= first + nbytes - 8 for first, nbytes in pages)
        return [
            (not is_inside, f"no registered page contains {address:#x}"),
            (address % 8 != 0, f"{address:#x} is not aligned"),
            (not 0 < value < 2**63, f"value out of range: {value}"),
        ]

    # Events -------------------------------------------------------------------------------

    @property
    def _event_driver(self) -> StreamEvents:
        return cast("StreamEvents", self._inner)

    def create_event(self, ordinal: int) -> SharedEvent:
        """Trace the creation of an event."""
        event = self._event_driver.create_event(ordinal)
        with self._lock:
            is_long = len(event.payload) > _PAYLOAD_NBYTES
            self._note("create_event", (is_long, f"the payload has {len(event.payload)} bytes"))
            self._events[id(event)] = event, True
        return event

    def open_event(self, ordinal: int, payload: bytes) -> SharedEvent:
        """Trace the opening of another process's event."""
        with self._lock:
            self._note("open_event")
        event = self._event_driver.open_event(ordinal, payload)
        with self._lock:
            self._events[id(event)] = event, False
        return event

    def destroy_event(self, event: SharedEvent) -> None:
        """Trace the destruction of an event."""
        with self._lock:
            self._note("destroy_event", *self._event_rules(event))
        self._event_driver.destroy_event(event)
        with self._lock:
            self._events.pop(id(event), None)

    def record_event(self, event: SharedEvent, stream: int) -> None:
        """Trace the recording of an event on a stream."""
        with self._lock:
            _, is_own = self._events.get(id(event), (event, True))
            rule = not is_own, "another process created the event"
            self._note("record_event", *self._event_rules(event), rule)
        self._event_driver.record_event(event, stream)

    def wait_event(self, event: SharedEvent, stream: int) -> None:
        """Trace a stream's wait for an event."""
        with self._lock:
            self._note("wait_event", *self._event_rules(event))
        self._event_driver.wait_event(event, stream)

    def is_event_done(self, event: SharedEvent) -> bool:
        """Trace a query of an event's completion."""
        with self._lock:
            self._note("is_event_done", *self._event_rules(event))
        return self._event_driver.is_event_done(event)

    def _event_rules(self, event: SharedEvent) -> list[tuple[bool, str]]:
        return [(id(event) not in self._events, "unknown or destroyed event")]

    # Streams that the kit creates ---------------------------------------------------------

    @property
    def _work(self) -> StreamWork:
        return cast("StreamWork", self._inner)

    def create_stream(self, ordinal: int) -> int:
        """Trace the creation of a stream."""
        stream = self._work.create_stream(ordinal)
        with self._lock:
            self._note("create_stream")
            self._streams.add(stream)
        return stream

    def destroy_stream(self, ordinal: int, stream: int) -> None:
        """Trace the destruction of a stream."""
        with self._lock:
            is_known = stream in self._streams
            self._note("destroy_stream", (not is_known, "unknown or destroyed stream"))
        self._work.destroy_stream(ordinal, stream)
        with self._lock:
            self._streams.discard(stream)
