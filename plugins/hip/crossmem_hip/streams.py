# SPDX-License-Identifier: Apache-2.0
"""Order between streams of several processes, by values in host memory and by IPC events."""

from contextlib import AbstractContextManager
from typing import Any, Final, Protocol

from crossmem.driver import SharedEvent
from crossmem.driver.recording import call_into
from crossmem.errors import DriverError
from crossmem.models import TimelineLevel
from crossmem_hip.capture import refuse_capture, refuse_captured
from crossmem_hip.errors import NOT_READY, error_for
from crossmem_hip.runtime import Vendor

__all__ = ["StreamOrder"]

_EVENTS: Final = (
    "eventCreateWithFlags",
    "eventDestroy",
    "eventQuery",
    "eventRecord",
    "ipcGetEventHandle",
    "ipcOpenEventHandle",
    "streamWaitEvent",
)
"""The functions that a runtime needs for the level ``event`` of timelines."""

_WORK: Final = ("memcpyAsync", "streamCreateWithFlags", "streamDestroy")
"""The functions that a runtime needs so that the conformance kit can run work on streams."""

_NON_BLOCKING: Final = 1
_DEVICE_TO_DEVICE: Final = 3
_MAPPED_FOR_ALL: Final = 1 | 2
"""``hipHostRegisterPortable`` and ``hipHostRegisterMapped``: all devices can access the page."""
_AT_LEAST: Final = 0
"""The condition of a stream's wait: the word is at least the value. CUDA tests whether the signed
difference is not negative, and HIP compares unsigned numbers. The results are equal, because all
values are below 2**63."""
_SHARED_UNTIMED: Final = 4 | 2
"""``hipEventInterprocess`` needs ``hipEventDisableTiming``."""


class _On(Protocol):
    def __call__(self, ordinal: int, operation: str) -> AbstractContextManager[None]:
        """Make a device current for this thread inside a ``with`` block."""
        ...


class StreamOrder:
    """The driver's methods for streams.

    These methods form the optional groups ``Streams``, ``StreamWords``, ``StreamEvents`` and
    ``StreamWork`` of :mod:`crossmem.driver`.
    """

    def __init__(self, vendor: Vendor, on: _On) -> None:
        self._vendor = vendor
        self._on = on
        self._registered: dict[int, list[object]] = {}
        """Each key is the address of a host page. The value is a list. While the page is registered
        with the vendor, the list has an entry; otherwise the list is empty."""

    def levels(self, ordinal: int) -> tuple[TimelineLevel, ...]:
        """Return the levels of timelines that a device offers, the strongest first."""
        found: list[TimelineLevel] = []
        if self._vendor.can_wait_for_values(ordinal):
            found.append("word")
        if all(map(self._vendor.has, _EVENTS)):
            found.append("event")
        return (*found, "host")

    @property
    def has_work(self) -> bool:
        """Whether the runtime has the functions for the kit's own streams."""
        return all(map(self._vendor.has, _WORK))

    def _call(self, ordinal: int, function: str, *arguments: Any) -> Any:
        with self._on(ordinal, "timeline"), self._vendor.calling(function):
            return getattr(self._vendor.rt, function)(*arguments)

    def _call_for(self, ordinal: int, stream: int, function: str, *arguments: Any) -> None:
        with self._on(ordinal, "timeline"):
            refuse_captured(self._vendor, stream)
            with self._vendor.calling(function):
                getattr(self._vendor.rt, function)(*arguments)

    def synchronize_stream(self, ordinal: int, stream: int) -> None:
        """Wait on the host for the work of a stream."""
        self._call_for(ordinal, stream, "streamSynchronize", stream)

    # Words --------------------------------------------------------------------------------

    def register_host(self, ordinal: int, pointer: int, nbytes: int) -> int:
        """Make a host page accessible to the devices, and return the page's address on a device."""
        registered: list[object] = []
        self._registered[pointer] = registered
        try:
            with self._on(ordinal, "timeline"):
                refuse_capture(self._vendor)
                with self._vendor.calling("hostRegister"):
                    call_into(
                        registered, self._vendor.rt.hostRegister, pointer, nbytes, _MAPPED_FOR_ALL
                    )
            address: int = self._call(ordinal, "hostGetDevicePointer", pointer, 0)
        except BaseException:
            self.unregister_host(ordinal, pointer)
            raise
        return address

    def unregister_host(self, ordinal: int, pointer: int) -> None:
        """Undo :meth:`register_host`."""
        registered = self._registered.get(pointer)
        with self._on(ordinal, "timeline"), self._vendor.calling("hostUnregister"):
            unregister = self._vendor.rt.hostUnregister
            if registered:
                try:
                    # No signal handler runs between these two statements, so the list becomes empty
                    # only if the call begins.
                    del registered[:]
                    unregister(pointer)
                except Exception:
                    registered.append(None)
                    raise
        self._registered.pop(pointer, None)

    def write_value(self, ordinal: int, address: int, value: int, stream: int) -> None:
        """Write a word after the earlier work of a stream."""
        self._call_for(ordinal, stream, "streamWriteValue64", stream, address, value, 0)

    def wait_value(self, ordinal: int, address: int, value: int, stream: int) -> None:
        """Let a stream wait until a word is at least a value."""
        self._call_for(ordinal, stream, "streamWaitValue64", stream, address, value, _AT_LEAST)

    # Events -------------------------------------------------------------------------------

    def create_event(self, ordinal: int) -> SharedEvent:
        """Create an event that other processes can open."""
        event = SharedEvent(ordinal, None, b"")
        made: list[int] = []
        try:
            with self._on(ordinal, "timeline"), self._vendor.calling("eventCreateWithFlags"):
                call_into(made, self._vendor.rt.eventCreateWithFlags, _SHARED_UNTIMED)
            event.reference = made[0]
            event.payload = self._call(ordinal, "ipcGetEventHandle", made[0])
        except BaseException:
            self._discard(event, made)
            raise
        return event

    def open_event(self, ordinal: int, payload: bytes) -> SharedEvent:
        """Open an event of another process."""
        event = SharedEvent(ordinal, None, payload)
        made: list[int] = []
        try:
            with self._on(ordinal, "timeline"), self._vendor.calling("ipcOpenEventHandle"):
                call_into(made, self._vendor.rt.ipcOpenEventHandle, payload)
            event.reference = made[0]
        except BaseException:
            self._discard(event, made)
            raise
        return event

    def _discard(self, event: SharedEvent, made: list[int]) -> None:
        """Destroy the event that a failed or interrupted call has made, if any."""
        if made:
            event.reference = made[0]
            self.destroy_event(event)

    def destroy_event(self, event: SharedEvent) -> None:
        """Destroy an event."""
        reference = event.reference
        if reference is None:
            return
        with self._on(event.ordinal, "timeline"), self._vendor.calling("eventDestroy"):
            destroy = self._vendor.rt.eventDestroy
            try:
                # No signal handler runs between these two statements, so the reference is cleared
                # only if the call begins.
                event.reference = None
                destroy(reference)
            except Exception:
                event.reference = reference
                raise

    def record_event(self, event: SharedEvent, stream: int) -> None:
        """Record an event after the earlier work of a stream."""
        self._call_for(event.ordinal, stream, "eventRecord", event.reference, stream)

    def wait_event(self, event: SharedEvent, stream: int) -> None:
        """Let a stream wait until the last recording of an event is complete."""
        self._call_for(event.ordinal, stream, "streamWaitEvent", stream, event.reference, 0)

    def is_event_done(self, event: SharedEvent) -> bool:
        """Return whether the last recording of an event is complete."""
        try:
            # CuPy's eventQuery returns the code. LibraryRuntime raises an error with the code.
            code = self._call(event.ordinal, "eventQuery", event.reference)
        except DriverError as error:
            if error.code != NOT_READY:
                raise
            return False
        if code and code != NOT_READY:
            raise error_for(self._vendor.family, "eventQuery", code)
        return not code

    # Work of the conformance kit ----------------------------------------------------------

    def create_stream(self, ordinal: int) -> int:
        """Create a stream that is not ordered with the default stream."""
        made: list[int] = []
        with self._on(ordinal, "timeline"), self._vendor.calling("streamCreateWithFlags"):
            call_into(made, self._vendor.rt.streamCreateWithFlags, _NON_BLOCKING)
        return made[0]

    def destroy_stream(self, ordinal: int, stream: int) -> None:
        """Destroy a stream."""
        self._call(ordinal, "streamDestroy", stream)

    def copy_async(self, ordinal: int, target: int, source: int, nbytes: int, stream: int) -> None:
        """Copy memory of the device as work of a stream."""
        self._call(ordinal, "memcpyAsync", target, source, nbytes, _DEVICE_TO_DEVICE, stream)
