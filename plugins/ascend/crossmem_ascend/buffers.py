# SPDX-License-Identifier: Apache-2.0
"""The vendor's buffers, and their hand-over by queues.

The vendor's waits poll, so this module adds nothing but typed errors and exact times.
"""

import ctypes
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from math import ceil
from typing import Any, Final, Protocol

from typing_extensions import override

from crossmem.driver import VendorBuffer, VendorQueue
from crossmem.driver.cleanup import noting
from crossmem.driver.recording import call_into
from crossmem_ascend.errors import (
    DRV_INTERNAL_ERROR,
    FAILURE,
    QUEUE_EMPTY,
    QUEUE_FULL,
    SUCCESS,
)
from crossmem_ascend.runtime import Vendor

__all__ = ["MAX_BUFFER_NBYTES", "MAX_QUEUES", "About", "Attached", "HandOvers", "number_of"]

MAX_BUFFER_NBYTES: Final = 4 << 30
"""The limit that the vendor documents."""
MAX_QUEUES: Final = 4096
"""The ids of queues are smaller."""
_NORMAL: Final = 0
_USER_NBYTES: Final = 96
_PAUSE_S: Final = 1e-3
_BUSY_S: Final = 0.02
"""The least time for which a busy queue is tried again: a process uses it for microseconds."""


class About(Protocol):
    """Prepares a device, or names it in errors."""

    def __call__(self, ordinal: int, operation: str) -> AbstractContextManager[None]:
        """Return the context manager for a call."""
        ...


@dataclass(slots=True)
class Attached:
    """The driver's reference to a queue."""

    number: int
    is_own: bool
    """Whether this process has created it."""
    granted: dict[tuple[int, int | None], int] = field(default_factory=dict)
    """The permissions of other processes. The key is pid and start time."""


def number_of(queue: VendorQueue) -> int:
    """Return the id of a queue."""
    attached: Attached | None = queue.reference
    # The vendor refuses the id of no queue as it refuses a destroyed queue.
    return MAX_QUEUES - 1 if attached is None else attached.number


class HandOvers:
    """The driver's methods for buffers.

    Parameters
    ----------
    vendor
        The runtime.
    tdt
        Its functions for queues and buffers.
    about
        Names the device in errors. Buffers need no current device, but an opened one.
    """

    def __init__(self, vendor: Vendor, tdt: Any, about: About) -> None:
        self._vendor = vendor
        self._tdt = tdt
        self._about = about

    def allocate_buffer(
        self,
        ordinal: int,
        nbytes: int,
        mechanism: str,  # noqa: ARG002
    ) -> VendorBuffer:
        """Allocate a buffer."""
        made: list[tuple[int, int]] = []
        with self._about(ordinal, "allocate"), self._kept(ordinal, made) as buffer:
            call_into(made, self._tdt.alloc_buf, nbytes, _NORMAL)
            buffer.reference = self._vendor.value("tdt.alloc_buf", made[0])
            self._find_data(buffer)
        return buffer

    def free_buffer(self, buffer: VendorBuffer) -> None:
        """Free a buffer."""
        pointer, free = buffer.pointer, self._tdt.free_buf
        if pointer:
            with self._about(buffer.ordinal, "release"):
                # No signal handler runs between these two statements.
                buffer.pointer = 0
                code = free(buffer.reference)
                if code != SUCCESS:
                    buffer.pointer = pointer
                self._vendor.check("tdt.free_buf", code)

    def enqueue(
        self,
        queue: VendorQueue,
        buffer: VendorBuffer,
        length: int,
        user_data: bytes,
        timeout_s: float,
    ) -> bool:
        """Hand a buffer over."""
        tdt, handle = self._tdt, buffer.reference
        made: list[int] = []
        with self._about(buffer.ordinal, "put"):
            # A new buffer has the length 0, which the vendor's call refuses.
            if length:
                code = tdt.set_buf_data_len(handle, length)
                self._vendor.check("tdt.set_buf_data_len", code)
            user = ctypes.create_string_buffer(user_data, _USER_NBYTES)
            code = tdt.set_buf_user_data(handle, ctypes.addressof(user), _USER_NBYTES, 0)
            self._vendor.check("tdt.set_buf_user_data", code)
            number = number_of(queue)
            try:
                return self._repeat(
                    "tdt.enqueue",
                    lambda ms: call_into(made, tdt.enqueue, number, handle, ms),
                    timeout_s,
                )
            finally:
                if made and made[-1] == SUCCESS:
                    buffer.pointer = 0

    def dequeue(self, queue: VendorQueue, timeout_s: float) -> VendorBuffer | None:
        """Receive a buffer, its length and its user data."""
        tdt, value, number = self._tdt, self._vendor.value, number_of(queue)
        made: list[tuple[int, int]] = []
        with self._about(queue.ordinal, "get"), self._kept(queue.ordinal, made) as buffer:
            if not self._repeat(
                "tdt.dequeue", lambda ms: call_into(made, tdt.dequeue, number, ms)[1], timeout_s
            ):
                return None
            handle = buffer.reference = made[-1][0]
            self._find_data(buffer)
            buffer.length = value("tdt.get_buf_data_len", tdt.get_buf_data_len(handle))
            user = ctypes.create_string_buffer(_USER_NBYTES)
            code = tdt.get_buf_user_data(handle, ctypes.addressof(user), _USER_NBYTES, 0)
            self._vendor.check("tdt.get_buf_user_data", code)
            buffer.user_data = user.raw
        return buffer

    def _find_data(self, buffer: VendorBuffer) -> None:
        pointer, nbytes, code = self._tdt.get_buf_data(buffer.reference)
        self._vendor.check("tdt.get_buf_data", code)
        buffer.capacity, buffer.pointer = nbytes, pointer

    def _kept(self, ordinal: int, made: list[tuple[int, int]]) -> "_Kept":
        """Yield a new buffer. If the block raises, free what the vendor's last call has made."""
        return _Kept(self, VendorBuffer(ordinal), made)

    # Waits --------------------------------------------------------------------------------

    def _repeat(self, call: str, once: Callable[[int], int], timeout_s: float) -> bool:
        """Make a call that waits; return False if its time is up.

        If another process uses the queue at the same moment, the vendor does not wait, and answers
        what it answers to a queue that was destroyed. So the call is tried again for a while.
        """
        began = time.monotonic()
        end = began + timeout_s
        while True:
            start = time.monotonic()
            wait_ms = ceil(1000 * max(0.0, end - start))
            code = once(wait_ms)
            now = time.monotonic()
            if code == SUCCESS:
                return True
            # The vendor has one code for a full or empty queue and for other failures, which do not
            # take the time.
            is_late = code == FAILURE and now - start >= wait_ms / 1000 - _PAUSE_S
            if is_late or code in {QUEUE_EMPTY, QUEUE_FULL}:
                return False
            if code != DRV_INTERNAL_ERROR or now >= max(end, began + _BUSY_S):
                self._vendor.check(call, code)
            time.sleep(_PAUSE_S)


class _Kept(AbstractContextManager[VendorBuffer]):
    """A buffer that is freed if the block around its making raises."""

    def __init__(
        self, mechanism: HandOvers, buffer: VendorBuffer, made: list[tuple[int, int]]
    ) -> None:
        self._mechanism = mechanism
        self._buffer = buffer
        self._made = made

    @override
    def __enter__(self) -> VendorBuffer:
        return self._buffer

    @override
    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if error is not None and self._made and self._made[-1][1] == SUCCESS:
            buffer = self._buffer
            buffer.reference = self._made[-1][0]
            # The address of the data may be unknown.
            buffer.pointer = buffer.pointer or buffer.reference
            with noting(error):
                self._mechanism.free_buffer(buffer)
