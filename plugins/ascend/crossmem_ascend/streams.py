# SPDX-License-Identifier: Apache-2.0
"""The order of streams in several processes. A stream writes a value; other streams wait for it.

ACL's "notify" object cannot replace the values, because it has only one waiter and carries no
value. ACL's IPC events are not used, because every product with IPC events also has value writes.
"""

from contextlib import AbstractContextManager
from typing import Final, Protocol

from crossmem.driver.recording import call_into
from crossmem.models import TimelineLevel
from crossmem_ascend.errors import SUCCESS
from crossmem_ascend.runtime import STREAM_VALUES, Vendor

__all__ = ["StreamOrder"]

_MAPPED: Final = 0
"""``ACL_HOST_REGISTER_MAPPED``: the registration gives devices an address for host memory."""
_DEVICE_TO_DEVICE: Final = 3
_AT_LEAST: Final = 0
"""The flag for a wait until the word is at least the value. ACL subtracts the value from the word.
The wait ends when the difference, as a signed 64-bit number, is not negative. All values are below
2**63, so both conditions are the same."""


class _On(Protocol):
    def __call__(self, ordinal: int, operation: str) -> AbstractContextManager[None]:
        """Make a device current for this thread inside a ``with`` block."""
        ...


class StreamOrder:
    """The driver's methods of the optional groups ``Streams``, ``StreamWords``, ``StreamWork``."""

    def __init__(self, vendor: Vendor, on: _On) -> None:
        self._vendor = vendor
        self._on = on
        self.levels: tuple[TimelineLevel, ...] = (
            ("host",) if vendor.missing(STREAM_VALUES) else ("word", "host")
        )
        """The levels of timelines, the strongest first."""
        self._registered: dict[int, list[tuple[int, int]]] = {}
        """A list for each host page. The key is the page's address. The list holds the result of
        ``host_register``: the page's device address and the return code. Before
        ``host_register`` and after ``host_unregister``, the list is empty."""

    def _check(self, ordinal: int, function: str, *arguments: int) -> None:
        with self._on(ordinal, "timeline"):
            code = getattr(self._vendor.rt, function)(*arguments)
            self._vendor.check(f"rt.{function}", code)

    def synchronize_stream(self, ordinal: int, stream: int) -> None:
        """Wait on the host for the work of a stream."""
        self._check(ordinal, "synchronize_stream", stream)

    def register_host(self, ordinal: int, pointer: int, nbytes: int) -> int:
        """Make a host page accessible to the devices, and return the page's device address."""
        made: list[tuple[int, int]] = []
        self._registered[pointer] = made
        rt = self._vendor.rt
        try:
            with self._on(ordinal, "timeline"):
                call_into(made, rt.host_register, pointer, nbytes, _MAPPED)
                self._vendor.check("rt.host_register", made[0][1])
        except BaseException:
            if made and made[0][1] == SUCCESS:
                self.unregister_host(ordinal, pointer)
            raise
        return made[0][0]

    def unregister_host(self, ordinal: int, pointer: int) -> None:
        """Undo :meth:`register_host`."""
        made = self._registered.get(pointer)
        if made:
            unregister, answer = self._vendor.rt.host_unregister, made[0]
            with self._on(ordinal, "timeline"):
                # No signal handler can raise between these two statements. If one did, the page
                # would stay registered.
                del made[:]
                code = unregister(pointer)
                if code != SUCCESS:
                    made.append(answer)
                self._vendor.check("rt.host_unregister", code)
        self._registered.pop(pointer, None)

    def write_value(self, ordinal: int, address: int, value: int, stream: int) -> None:
        """Let a stream write a word when the stream's earlier work is complete."""
        self._check(ordinal, "value_write", address, value, 0, stream)

    def wait_value(self, ordinal: int, address: int, value: int, stream: int) -> None:
        """Let a stream wait until a word is at least ``value``."""
        self._check(ordinal, "value_wait", address, value, _AT_LEAST, stream)

    # Work for the conformance kit ----------------------------------------------------------

    def create_stream(self, ordinal: int) -> int:
        """Create a stream in the device's default context, and make this context current."""
        rt = self._vendor.rt
        self._vendor.check("rt.set_device", rt.set_device(ordinal))
        return self._vendor.value("rt.create_stream", rt.create_stream())

    def destroy_stream(self, ordinal: int, stream: int) -> None:
        """Destroy a stream whose work is complete."""
        self._check(ordinal, "destroy_stream", stream)

    def copy_async(self, ordinal: int, target: int, source: int, nbytes: int, stream: int) -> None:
        """Copy memory of the device, as work of a stream."""
        self._check(
            ordinal, "memcpy_async", target, nbytes, source, nbytes, _DEVICE_TO_DEVICE, stream
        )
