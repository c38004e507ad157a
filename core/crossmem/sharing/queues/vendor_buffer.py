# SPDX-License-Identifier: Apache-2.0
"""Buffers of a vendor's queue in this process."""

from contextlib import ExitStack
from typing import Any, ClassVar

from typing_extensions import override

from crossmem.driver import VendorBuffer, VendorQueues
from crossmem.errors import CrossmemError
from crossmem.locks import Rank, ordered_lock
from crossmem.sharing.base.devices import LocalDevice, wait_for_work
from crossmem.sharing.base.process import Part, Process
from crossmem.sharing.queues.buffer import BufferRecord, SharedBuffer, Source
from crossmem.sharing.queues.vendor_terms import refuse

__all__ = ["BufferOfVendor", "Side", "VendorBufferRecord", "VendorBuffers"]


class VendorBuffers(Part):
    """The vendor's buffers that this process has."""

    closing: ClassVar = -5
    """At its exit, the process frees the buffers before it closes the queues."""

    def __init__(self, process: Process) -> None:
        super().__init__(process)
        self.live: dict[VendorBufferRecord, None] = {}

    @override
    def close_at_exit(self) -> None:
        """Free all buffers."""
        with ExitStack() as steps:
            # If one step raises, the others still run.
            for record in list(self.live):
                steps.callback(record.give_back, blocking=True)


class Side:
    """One role of this process in a vendor's queue, and the buffers held in this role."""

    def __init__(self, opened: Source, driver: VendorQueues) -> None:
        self.is_readonly = False
        self.opened = opened
        self.driver = driver
        self.held: dict[VendorBufferRecord, None] = {}
        """The buffers that the application has."""

    def end_plainly(self, _buffer: SharedBuffer, /) -> bool:
        """Return False. Only :meth:`take_back` can free a vendor's buffer."""
        return False

    def take_back(self, record: BufferRecord, _stream: int | None) -> None:
        """Wait for the device's running work, which may use the buffer, and then free the buffer.

        If the work failed, first free the buffer, and then raise the work's error.
        """
        assert isinstance(record, VendorBufferRecord)  # noqa: S101
        failure = finish_work(self.opened.device)
        # The application's thread and a thread that does deferred work may release the same buffer.
        # The lock ensures that the vendor frees the buffer only once.
        with record.lock:
            if record.vendor.pointer:
                self.driver.free_buffer(record.vendor)
            record.forget()
        if failure is not None:
            raise failure


def finish_work(device: LocalDevice) -> CrossmemError | None:
    """Wait for the running work of a GPU or NPU. Return the work's error, or None.

    For a device with the capability ``host_visible``, this function does not wait.
    """
    return None if device.capabilities.host_visible else wait_for_work(device)


class VendorBufferRecord(BufferRecord):
    """A vendor's buffer that this process has allocated or received.

    Parameters
    ----------
    is_received
        True: this process received the buffer. False: this process allocated it.
    """

    __slots__ = ("_side", "lock", "vendor")

    def __init__(self, side: Side, vendor: VendorBuffer, *, is_received: bool) -> None:
        super().__init__(side, 0, vendor.pointer, int(is_received), int(is_received))
        self.vendor = vendor
        self._side = side
        self.lock = ordered_lock(Rank.ALLOCATION)
        side.held[self] = None
        side.opened.process.part(VendorBuffers).live[self] = None

    def forget(self) -> None:
        """Forget a buffer that was freed or handed over."""
        self._side.held.pop(self, None)
        self._side.opened.process.part(VendorBuffers).live.pop(self, None)
        # This statement is the last one, because deferred work drops a record whose ``is_done`` is
        # True.
        self.is_done = True


class BufferOfVendor(SharedBuffer):
    """A buffer of a vendor's queue, with the methods of :class:`crossmem.SharedBuffer`."""

    __slots__ = ()

    def __init__(self, record: VendorBufferRecord, length: int, user_data: bytes) -> None:
        super().__init__(record, length, user_data)
        # The size may differ from the queue's ``nbytes``, because a program without crossmem can
        # enqueue buffers of any size through the vendor's API.
        self.nbytes = record.vendor.capacity
        # This statement is the last one. After it, the finaliser of this object can release the
        # buffer.
        self._record = record

    @override
    def release(self, *, stream: Any = None) -> None:
        """Free the buffer; see :meth:`crossmem.SharedBuffer.release`.

        Parameters
        ----------
        stream
            Not supported, because a vendor's queue cannot wait for a stream.

        Raises
        ------
        UnsupportedError
            ``stream`` was passed.
        """
        if stream is not None:
            self._usable()
            raise refuse(self.device, "release(stream=)", "synchronize the stream first")
        super().release()
