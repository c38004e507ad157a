# SPDX-License-Identifier: Apache-2.0
"""The record of a vendor's queue in one process, and the waits for room or a buffer in the queue.

When the owner closes the queue, it sets the last byte of each directory. The vendor reports a
closed queue and other failures by the same code, so only the byte tells them apart.
"""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from time import monotonic
from typing import ClassVar, Final, TypeVar

from typing_extensions import override

from crossmem.driver import VendorBuffer, VendorQueue, VendorQueues
from crossmem.driver.recording import call_into
from crossmem.errors import ClosedError, DriverError, OwnerGoneError
from crossmem.models import QueueRole, ShareableHandle
from crossmem.sharing.base.devices import LocalDevice
from crossmem.sharing.base.ending import end_later
from crossmem.sharing.base.memory import Memory
from crossmem.sharing.base.process import Part, Process
from crossmem.sharing.base.usage import Usage
from crossmem.sharing.importer.mapping import Mapping
from crossmem.sharing.queues.opened import LOOK_S
from crossmem.sharing.queues.places import Places, take_place
from crossmem.sharing.queues.vendor_buffer import (
    BufferOfVendor,
    Side,
    VendorBufferRecord,
    finish_work,
)
from crossmem.sharing.queues.vendor_terms import VendorTerms

__all__ = ["VendorQueueRecord", "VendorQueueTable"]

_T = TypeVar("_T")
_CLOSED: Final = b"\1"


def _always() -> bool:
    return True


class VendorQueueTable(Part):
    """The vendor's queues that this process has open."""

    closing: ClassVar = -4

    def __init__(self, process: Process) -> None:
        super().__init__(process)
        self.live: dict[VendorQueueRecord, None] = {}

    @override
    def close_at_exit(self) -> None:
        """Close all queues, because the vendor keeps the queues of a process that has ended."""
        with ExitStack() as steps:
            # If one step raises, the others still run.
            for record in list(self.live):
                steps.callback(record.give_back, blocking=True)


class VendorQueueRecord(Places):
    """The resources of a vendor's queue in this process.

    Parameters
    ----------
    mine
        For each role, the handles of the places that this process may take.
    """

    __slots__ = (
        "consuming",
        "device",
        "directories",
        "driver",
        "failure",
        "is_owner",
        "is_owner_alive",
        "kept",
        "marks",
        "producing",
        "queues",
        "roles",
        "terms",
        "usage",
    )

    consumer: ClassVar = None
    """Always None. So ``Queue._detach()`` ends the queue even if received buffers are still in use.
    A buffer of a vendor's queue may outlive the queue."""

    def __init__(
        self,
        process: Process,
        device: LocalDevice,
        driver: VendorQueues,
        terms: VendorTerms,
        mine: dict[QueueRole, list[ShareableHandle]],
    ) -> None:
        super().__init__(process, mine)
        self.device = device
        self.driver = driver
        self.terms = terms
        self.usage = Usage()
        self.producing = Side(self, driver)
        self.consuming = Side(self, driver)
        self.failure: DriverError | None = None
        """The failure of a get_many() that has returned some buffers. The next get() raises it."""
        self.queues: list[VendorQueue] = []
        """A list that contains only the vendor's queue. When the queue is closed, the list becomes
        empty."""
        self.roles: dict[QueueRole, Mapping | None] = {}
        """For each role, the mapping of this process's place, or None if the process has left the
        place."""
        self.is_owner = False
        self.directories: dict[QueueRole, ShareableHandle] = {}
        """In the owner: for each role, the handle of the directory."""
        self.kept: list[Memory] = []
        """The memory of places and directories."""
        self.marks: Sequence[memoryview | bytes] = ()
        """The bytes that say whether the queue is closed. In the owner: the last byte of each
        directory. In another process: the last byte of the attached directory."""
        self.is_owner_alive: Callable[[], bool] = _always

    def register(self) -> None:
        """Register the queue, so that it is closed when the process exits.

        If this call raises, the caller ends the record.
        """
        self.process.part(VendorQueueTable).live[self] = None

    def pointer(self, _producer: int, buffer: int) -> int:
        """Return ``buffer``, because the number of a vendor's buffer is its address."""
        return buffer

    @override
    def has_place(self, role: QueueRole) -> bool:
        """Whether this process has a place for a role."""
        return role in self.roles

    @override
    def begin(self, role: QueueRole, timeout_s: float) -> None:
        """Take a place for a role."""
        _, self.roles[role] = take_place(self.process, role, self.mine[role], timeout_s)
        try:
            self.check_open()
        except ClosedError:
            # The thread that closed the queue may not have seen this place, so this thread leaves
            # the place.
            self._leave_places()
            self.process.drain()
            raise

    # Hand-overs ---------------------------------------------------------------------------

    def check_open(self) -> None:
        """Raise if this process or the owner has closed the queue."""
        if bytes(self.marks[0]) == _CLOSED:
            msg = "this queue was closed"
            raise ClosedError(msg, hint="make a new queue")

    def check_owner(self) -> None:
        """Raise if the owner is dead."""
        if not self.is_owner_alive():
            msg = "the process that owns this queue is dead"
            raise OwnerGoneError(msg, hint="make a new queue in a living process")

    def _repeat(self, once: Callable[[VendorQueue, float], _T], timeout_s: float) -> _T | None:
        """Call ``once`` until its result is true. Return the result, or None if the time is up.

        Each call lets the vendor wait for a short time.
        """
        end = monotonic() + timeout_s
        while True:
            self.check_open()
            queue = next(iter(self.queues), None)
            try:
                # Another thread may close the queue at any time, and then the vendor refuses this
                # call. So no statement outside the ``try`` block uses the queue.
                found = once(queue, min(max(end - monotonic(), 0.0), LOOK_S)) if queue else None
            except DriverError:
                # The vendor's error code does not tell whether the queue still exists.
                self.check_open()
                self.check_owner()
                raise
            if found:
                return found
            self.check_owner()
            if monotonic() >= end:
                return None

    def put(
        self, record: VendorBufferRecord, length: int, user_data: bytes, timeout_s: float
    ) -> bool:
        """Hand a buffer over; return False if there was no room in time.

        After the hand-over, the record is done, even if this call raises.
        """
        driver, buffer = self.driver, record.vendor
        if (failure := finish_work(self.device)) is not None:
            raise failure
        try:
            return bool(
                self._repeat(
                    lambda queue, s: driver.enqueue(queue, buffer, length, user_data, s), timeout_s
                )
            )
        finally:
            if not buffer.pointer:
                record.forget()

    def get(self, timeout_s: float) -> BufferOfVendor | None:
        """Return the next buffer, or None if no buffer came in time."""
        failure, self.failure = self.failure, None
        if failure is not None:
            raise failure
        made: list[VendorBuffer | None] = []

        def receive(queue: VendorQueue, wait_s: float) -> VendorBuffer | None:
            made.clear()
            return call_into(made, self.driver.dequeue, queue, wait_s)

        try:
            found = self._repeat(receive, timeout_s)
            if found is None:
                return None
            record = VendorBufferRecord(self.consuming, found, is_received=True)
            # The buffer may come from a program that calls the vendor's API itself. Such a program
            # can set any length.
            return BufferOfVendor(record, min(found.length, found.capacity), found.user_data)
        except BaseException:
            self._drop(self.consuming, made)
            raise

    def allocate(self) -> BufferOfVendor:
        """Return a new buffer."""
        made: list[VendorBuffer | None] = []
        device = self.device
        try:
            call_into(
                made,
                self.driver.allocate_buffer,
                device.ordinal,
                self.terms.nbytes,
                device.mechanism,
            )
            assert made[-1] is not None  # noqa: S101
            record = VendorBufferRecord(self.producing, made[-1], is_received=False)
            return BufferOfVendor(record, self.terms.nbytes, b"")
        except BaseException:
            self._drop(self.producing, made)
            raise

    def _drop(self, side: Side, made: Sequence[VendorBuffer | None]) -> None:
        """Free the buffer that a failed or interrupted call has allocated or received, if any."""
        found = made[-1] if made else None
        if found is not None:
            kept = [one for one in list(side.held) if one.vendor is found]
            record = kept[0] if kept else VendorBufferRecord(side, found, is_received=True)
            self.process.deferred.ready[record] = None
            self.process.drain()

    # The end ------------------------------------------------------------------------------

    @override
    def give_back(self, *, blocking: bool) -> None:
        """Close the vendor's queue, then leave the places.

        The owner first marks the queue as closed for the other processes.
        """
        if self.is_owner:
            self._tell_others()
        with ExitStack() as steps:
            # _leave_all() runs at the end of the block, even if the vendor's call raises.
            steps.callback(self._leave_all)
            for queue in list(self.queues):
                self.driver.close_queue(queue)
            self.queues.clear()
        self.process.part(VendorQueueTable).live.pop(self, None)
        self.is_done = True

    def _tell_others(self) -> None:
        # This is a method of its own, so that no local variable keeps a view alive afterwards.
        for mark in self.marks:
            if isinstance(mark, memoryview):
                mark[:] = _CLOSED

    def _leave_all(self) -> None:
        self.marks = (_CLOSED,)
        # The attribute's previous function would keep the mapping of the directory alive.
        self.is_owner_alive = _always
        self._leave_places()
        while self.kept:
            end_later(self.kept[-1])
            self.kept.pop()

    def _leave_places(self) -> None:
        for role, mapping in list(self.roles.items()):
            if mapping is not None:
                self.leave([mapping])
                self.roles[role] = None
