# SPDX-License-Identifier: Apache-2.0
"""The vendor's buffers, and their hand-over by queues.

This module adds typed errors and exact time limits to the vendor's calls, and repeats a call while
another process uses the queue.
"""

import ctypes
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from math import ceil
from typing import Any, Final, Protocol

from crossmem.driver import VendorBuffer, VendorQueue
from crossmem.driver.cleanup import noting
from crossmem.driver.recording import call_into
from crossmem.errors import ClosedError, UnsupportedError
from crossmem_ascend.errors import (
    BACKEND,
    DRV_INTERNAL_ERROR,
    FAILURE,
    QUEUE_EMPTY,
    QUEUE_FULL,
    SUCCESS,
)
from crossmem_ascend.runtime import Vendor

__all__ = ["MAX_BUFFER_NBYTES", "MAX_QUEUES", "About", "Attached", "HandOvers", "attached_in"]

MAX_BUFFER_NBYTES: Final = 4 << 30
"""The largest size that the vendor documents for a buffer."""
MAX_QUEUES: Final = 4096
"""Every id of a queue is below this number."""
_NORMAL: Final = 0
_USER_NBYTES: Final = 96
_PAUSE_S: Final = 1e-3
_BUSY_S: Final = 0.02
"""A call on a busy queue is repeated at least for this time, even if the caller's time limit is 0.
If the queue is still busy after this time, a process has probably died during a call on the queue:
a living process keeps a queue busy for microseconds only."""


class About(Protocol):
    """Makes a device current for vendor calls, or only names the device in their errors."""

    def __call__(self, ordinal: int, operation: str) -> AbstractContextManager[None]:
        """Return the context manager for the vendor calls of one operation."""
        ...


@dataclass(slots=True)
class Attached:
    """The driver's reference to a queue."""

    number: int
    is_own: bool
    """Whether this process created the queue."""
    granted: dict[tuple[int, int | None], int] = field(default_factory=dict)
    """The permission bits that the vendor has given to other processes. Each key consists of the
    pid and the start time of one process."""


def attached_in(queue: VendorQueue) -> Attached:
    """Return the driver's reference to a queue.

    Raises
    ------
    ClosedError
        Another thread has closed the queue.
    """
    attached: Attached | None = queue.reference
    if attached is None:
        msg = "another thread has closed this queue of the vendor"
        raise ClosedError(msg, backend=BACKEND)
    return attached


class HandOvers:
    """The driver's methods for buffers.

    ``about`` names the device in errors. The vendor's functions for buffers require that the device
    is open. The device need not be current.
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
        buffer, made = VendorBuffer(ordinal), list[tuple[int, int]]()
        try:
            with self._about(ordinal, "allocate"):
                call_into(made, self._tdt.alloc_buf, nbytes, _NORMAL)
                buffer.reference = self._vendor.value("tdt.alloc_buf", made[0])
                self._find_data(buffer)
        except BaseException as error:
            self._undo(error, buffer, made)
            raise
        return buffer

    def free_buffer(self, buffer: VendorBuffer) -> None:
        """Free a buffer."""
        free = self._tdt.free_buf
        with self._about(buffer.ordinal, "release"):
            # No signal handler and no other thread runs between this statement and the call.
            pointer, buffer.pointer = buffer.pointer, 0
            if pointer:
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
        """Hand a buffer over. Return False if the queue stayed full."""
        tdt, handle = self._tdt, buffer.reference
        made: list[int] = []
        with self._about(buffer.ordinal, "put"):
            number = attached_in(queue).number
            # The vendor's call refuses the length 0. A new buffer has this length without a call.
            if length:
                buffer.length = length
                code = tdt.set_buf_data_len(handle, length)
                self._vendor.check("tdt.set_buf_data_len", code)
            elif buffer.length:
                msg = f"a put with the length {buffer.length} has failed, and the vendor cannot "
                hint = "allocate another buffer"
                raise UnsupportedError(f"{msg}set the length back to 0", hint=hint, backend=BACKEND)
            user = ctypes.create_string_buffer(user_data, _USER_NBYTES)
            code = tdt.set_buf_user_data(handle, ctypes.addressof(user), _USER_NBYTES, 0)
            self._vendor.check("tdt.set_buf_user_data", code)
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
        """Return the next buffer, or None if the queue stayed empty."""
        tdt, value = self._tdt, self._vendor.value
        buffer, made = VendorBuffer(queue.ordinal), list[tuple[int, int]]()
        try:
            with self._about(queue.ordinal, "get"):
                number = attached_in(queue).number
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
        except BaseException as error:
            self._undo(error, buffer, made)
            raise
        return buffer

    def _find_data(self, buffer: VendorBuffer) -> None:
        pointer, nbytes, code = self._tdt.get_buf_data(buffer.reference)
        self._vendor.check("tdt.get_buf_data", code)
        buffer.capacity, buffer.pointer = nbytes, pointer

    def _undo(
        self, error: BaseException, buffer: VendorBuffer, made: list[tuple[int, int]]
    ) -> None:
        """Free the buffer that the vendor's last call returned, if that call succeeded."""
        if made and made[-1][1] == SUCCESS:
            buffer.reference = made[-1][0]
            # free_buffer() does nothing if the pointer is 0. So if the address of the data is still
            # unknown, the pointer gets the value of the reference.
            buffer.pointer = buffer.pointer or buffer.reference
            with noting(error):
                self.free_buffer(buffer)

    # Waits --------------------------------------------------------------------------------

    def _repeat(self, call: str, once: Callable[[int], int], timeout_s: float) -> bool:
        """Repeat a call on a queue until the call succeeds.

        Return False if the queue stays full or empty. If another process uses the queue at the same
        moment, the vendor does not wait, and returns the same code as for a destroyed queue. So
        this method raises the error of this code only when the time limit and ``_BUSY_S`` have
        passed.
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
            # FAILURE means a full or empty queue only if the call has waited for the whole time.
            # Other failures return the same code earlier.
            is_late = code == FAILURE and now - start >= wait_ms / 1000 - _PAUSE_S
            if is_late or code in {QUEUE_EMPTY, QUEUE_FULL}:
                return False
            if code != DRV_INTERNAL_ERROR or now >= max(end, began + _BUSY_S):
                self._vendor.check(call, code)
            time.sleep(_PAUSE_S)
