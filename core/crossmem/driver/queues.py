# SPDX-License-Identifier: Apache-2.0
"""An optional group of driver methods: the queues and buffers of a vendor's mechanism."""

from dataclasses import dataclass
from typing import Any, Protocol

from crossmem.driver.base import Peer
from crossmem.models.queue_handle import QueueRole

__all__ = ["VendorBuffer", "VendorQueue", "VendorQueues"]


@dataclass(slots=True)
class VendorQueue:
    """A vendor's queue, as one process uses it.

    The driver makes the object, and crossmem's core owns it.

    Parameters
    ----------
    ordinal
        The device.
    payload
        The data by which other processes attach the queue; at most 112 bytes.
    reference
        The driver's own reference to the queue. The driver sets it to None right before the vendor
        call that ends this process's use of the queue, and restores it if the vendor refuses.
    """

    ordinal: int
    payload: bytes
    reference: Any


@dataclass(slots=True)
class VendorBuffer:
    """A buffer that this process has allocated or received.

    The driver makes the object, and crossmem's core owns it.

    Parameters
    ----------
    ordinal
        The device.
    pointer
        Address of the data in this process. The driver sets it to 0 right before the vendor call
        that frees the buffer, and restores it if the vendor refuses. The driver also sets the
        pointer to 0 after a hand-over of the buffer.
    capacity
        Size of the data area in bytes.
    length
        Number of valid bytes of a received buffer.
    user_data
        The 96 bytes of user data of a received buffer.
    reference
        The driver's own reference to the buffer.
    """

    ordinal: int
    pointer: int = 0
    capacity: int = 0
    length: int = 0
    user_data: bytes = b""
    reference: Any = None


class VendorQueues(Protocol):
    """The vendor's queues, which hand the vendor's buffers over to other processes.

    The capability ``vendor_queues`` is true for mechanisms with such queues. crossmem's core calls
    these methods from any thread, but uses a buffer in one thread at a time.
    """

    def create_queue(self, ordinal: int, depth: int, mechanism: str) -> VendorQueue:
        """Create a queue that holds ``depth`` buffers. This process may take both roles.

        Raises
        ------
        InvalidSizeError
            The vendor has no queues of that depth.
        """
        ...

    def attach_queue(
        self, ordinal: int, payload: bytes, role: QueueRole, mechanism: str
    ) -> VendorQueue:
        """Attach another process's queue, after the queue's owner has granted the role.

        Parameters
        ----------
        payload
            The ``payload`` of the owner's :class:`VendorQueue`. It is untrusted.
        role
            The role that this process takes.
        mechanism
            The mechanism of the owner's queue.

        Raises
        ------
        InvalidHandleError
            No queue can have this payload.
        AccessDeniedError
            The vendor does not permit the role.
        """
        ...

    def close_queue(self, queue: VendorQueue) -> None:
        """End this process's use of a queue.

        If this process created the queue, the method ends the queue for all processes and frees the
        buffers in the queue. Waits of other threads and processes then end with an error of the
        vendor.
        """
        ...

    def grant_queue(self, queue: VendorQueue, role: QueueRole, peer: Peer) -> None:
        """Let another process take a role in a queue that this process has created.

        crossmem's core calls this method on the lease server's thread, before the other process
        attaches the queue. The rules of :meth:`crossmem.driver.Driver.grant` also apply to this
        method.
        """
        ...

    def allocate_buffer(self, ordinal: int, nbytes: int, mechanism: str) -> VendorBuffer:
        """Allocate a buffer. Its contents are undefined."""
        ...

    def free_buffer(self, buffer: VendorBuffer) -> None:
        """Free a buffer that this process has allocated or received, and has not handed over."""
        ...

    def enqueue(
        self,
        queue: VendorQueue,
        buffer: VendorBuffer,
        length: int,
        user_data: bytes,
        timeout_s: float,
    ) -> bool:
        """Hand a buffer over; return False if the queue stayed full.

        If this method returns False, the buffer still belongs to this process. If this method
        raises, ``buffer.pointer`` shows the state: if the pointer is 0, the buffer was handed over;
        otherwise the buffer still belongs to this process.

        Parameters
        ----------
        queue, buffer
            The queue, and a buffer that this process has allocated.
        length
            Number of valid bytes; at most the capacity.
        user_data
            At most 96 bytes; zeros fill the rest of the 96 bytes.
        timeout_s
            The longest wait, at most a second. 0: one attempt without a wait. Signal handlers do
            not run during a vendor call, so crossmem's core repeats short waits.
        """
        ...

    def dequeue(self, queue: VendorQueue, timeout_s: float) -> VendorBuffer | None:
        """Receive the next buffer; return None if the queue stayed empty.

        crossmem's core frees the returned buffer. If the vendor cannot describe a received buffer,
        this method frees the buffer and raises.
        """
        ...
