# SPDX-License-Identifier: Apache-2.0
"""Optional groups of driver methods for streams, and for ordering streams across processes.

A stream is the vendor's handle as an integer; 0 is the default stream. Each method may be called
from any thread, and preserves the thread's current device (law C19).
"""

from dataclasses import dataclass
from typing import Any, Protocol

__all__ = ["SharedEvent", "StreamEvents", "StreamWords", "StreamWork", "Streams"]


class Streams(Protocol):
    """The device runs work in streams. A call that issues work may return before the work ends.

    A driver without this group completes all work before the issuing call returns. A driver with
    this group may also offer :class:`StreamWords`, :class:`StreamEvents` or both. If it offers
    neither, its only timeline level is ``"host"``.
    """

    def synchronize_stream(self, ordinal: int, stream: int) -> None:
        """Wait on the host for all work that was issued on one stream."""
        ...


class StreamWords(Protocol):
    """Streams write and await 64-bit words in host memory: level ``"word"``.

    A wait may compare values cyclically, as CUDA does, or as unsigned numbers. Both comparisons
    agree, because all values are below 2**63.
    """

    def register_host(self, ordinal: int, pointer: int, nbytes: int) -> int:
        """Make a host page accessible to every device of the driver; return its device address.

        Core registers a page again only after :meth:`unregister_host`. The page is shared memory
        that other processes also register.
        """
        ...

    def unregister_host(self, ordinal: int, pointer: int) -> None:
        """Undo :meth:`register_host`. Core calls this method when no stream uses the page any more.

        If a signal handler interrupts a call of this method, core calls the method again. The
        second call must not repeat a vendor call that has succeeded.
        """
        ...

    def write_value(self, ordinal: int, address: int, value: int, stream: int) -> None:
        """Let a stream write a word when the stream's earlier work is complete and visible.

        The method makes one vendor call.
        """
        ...

    def wait_value(self, ordinal: int, address: int, value: int, stream: int) -> None:
        """Hold the later work of the stream until a word is at least ``value``.

        The method makes one vendor call.
        """
        ...


@dataclass(slots=True)
class SharedEvent:
    """An event of the vendor that several processes use.

    The driver makes the object, and core owns it.

    Parameters
    ----------
    ordinal
        The device.
    reference
        The vendor's event. The driver sets the reference to None right before the vendor call that
        destroys the event. If the vendor refuses, the driver restores the reference.
    payload
        The data by which other processes open the event; at most 112 bytes.
    """

    ordinal: int
    reference: Any
    payload: bytes


class StreamEvents(Protocol):
    """Streams record and await events that processes share: level ``"event"``."""

    def create_event(self, ordinal: int) -> SharedEvent:
        """Create an event that other processes can open."""
        ...

    def open_event(self, ordinal: int, payload: bytes) -> SharedEvent:
        """Open an event of another process. The payload is untrusted."""
        ...

    def destroy_event(self, event: SharedEvent) -> None:
        """Destroy an event that :meth:`create_event` or :meth:`open_event` returned."""
        ...

    def record_event(self, event: SharedEvent, stream: int) -> None:
        """Record the event after the work that was issued on a stream.

        Only the process that created the event records it.
        """
        ...

    def wait_event(self, event: SharedEvent, stream: int) -> None:
        """Hold the later work of a stream until the last recording of the event is complete."""
        ...

    def is_event_done(self, event: SharedEvent) -> bool:
        """Return whether the last recording of the event is complete."""
        ...


class StreamWork(Protocol):
    """Methods that create streams and issue work on them. Only the conformance kit calls them.

    Applications create streams with their own framework, but the kit uses no framework. Without
    this group, the kit skips its tests of streams.
    """

    def create_stream(self, ordinal: int) -> int:
        """Create a stream whose work is not ordered with the work of any other stream."""
        ...

    def destroy_stream(self, ordinal: int, stream: int) -> None:
        """Destroy a stream that :meth:`create_stream` returned.

        The kit calls this method when all work of the stream is complete.
        """
        ...

    def copy_async(self, ordinal: int, target: int, source: int, nbytes: int, stream: int) -> None:
        """Copy bytes as work of a stream. Source and target are memory of the device."""
        ...
