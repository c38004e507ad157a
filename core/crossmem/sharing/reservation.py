# SPDX-License-Identifier: Apache-2.0
"""What this process counts of an address range: which memory is mapped where."""

import warnings
from bisect import bisect
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING

from crossmem.driver import AddressRanges
from crossmem.errors import BusyError, CrossmemError, InvalidSizeError, UnsupportedError
from crossmem.guards import check_integer
from crossmem.sharing.allocation import Allocation
from crossmem.sharing.loan import Loan
from crossmem.sharing.mapping import Import
from crossmem.sharing.process import Process, is_mine, refuse_foreign
from crossmem.sharing.work import after_work

if TYPE_CHECKING:
    from crossmem.sharing.device import Device
    from crossmem.sharing.ranges import AddressRange

__all__ = ["Placed", "Reservation"]


class Placed:
    """The record of a piece, from before it is mapped until it is unmapped.

    Through it the process keeps the range and the memory's lender, in whatever order the
    garbage collector comes across them.
    """

    __slots__ = ("addresses", "is_mapped", "loan", "offset")

    def __init__(self, addresses: "AddressRange", loan: Loan, offset: int) -> None:
        self.addresses = addresses
        self.loan = loan
        self.offset = offset
        self.is_mapped = False
        """Guarded by the loan's lock."""

    @property
    def end(self) -> int:
        """First offset after the piece."""
        return self.offset + self.loan.memory.capacity


class Reservation:
    """The record of an address range. It outlives a dropped :class:`AddressRange`."""

    __slots__ = ("_driver", "_placed", "_shows_own", "device", "nbytes", "pointer", "process")

    def __init__(
        self,
        process: Process,
        device: "Device",
        driver: AddressRanges,
        pointer: int,
        nbytes: int,
    ) -> None:
        self.process = process
        self.device = device
        self.pointer = pointer
        self.nbytes = nbytes
        self._driver = driver
        self._placed: list[Placed] = []
        """By offset; guarded by the lock of lifetimes."""
        self._shows_own: bool | None = None
        """Whether the first piece was this process's own memory, None before there was one."""
        process.ranges[id(self)] = self

    @property
    def pieces(self) -> int:
        """How many pieces are mapped, or about to be."""
        return len(self._placed)

    def claim(self, addresses: "AddressRange", memory: Allocation | Import, at: object) -> Placed:
        """Check every rule, and let nobody else have the place. The lock of lifetimes is held."""
        offset = check_integer("at", at)
        loan = memory.lend()
        with ExitStack() as undo:
            undo.callback(loan.end)
            placed = Placed(addresses, loan, offset)
            self._check_memory(memory, loan)
            self._check_place(placed)
            undo.pop_all()
        self._placed.insert(bisect(self._placed, offset, key=_offset_of), placed)
        loan.uses.pieces += 1
        return placed

    def map(self, placed: Placed) -> None:
        """Map what was claimed; where that fails, the place is free again."""
        loan = placed.loan
        try:
            with loan.lock:
                # An exit does not wait for what is not mapped yet.
                refuse_foreign(self.process, placed.addresses)
                self._driver.map_at(loan.memory, self.pointer + placed.offset)
                placed.is_mapped = True
                self._shows_own = loan.is_own
        except BaseException:
            self._forget(placed)
            raise

    def _check_place(self, placed: Placed) -> None:
        offset, end = placed.offset, placed.end
        granularity = self.device.capabilities.granularity_nbytes
        if offset % granularity:
            msg = f"at is {offset}; it must be a multiple of the granularity, {granularity} bytes"
            raise InvalidSizeError(msg, operation="map")
        if offset < 0 or end > self.nbytes:
            msg = f"bytes [{offset}, {end}) do not lie in a range of {self.nbytes} bytes"
            raise InvalidSizeError(
                msg, operation="map", hint="memory takes up its capacity, not only its nbytes"
            )
        index = bisect(self._placed, offset, key=_offset_of)
        for other in self._placed[max(0, index - 1) : index + 1]:
            if other.offset < end and offset < other.end:
                msg = f"bytes [{other.offset}, {other.end}) of the range are mapped already"
                raise BusyError(msg, operation="map", hint="unmap that piece first")

    def _check_memory(self, memory: Allocation | Import, loan: Loan) -> None:
        device, refused = self.device, None
        if memory.device is not device or loan.home != device.identity:
            refused = "only memory that this device holds, opened for it and its mechanism"
        elif loan.memory.capacity % self.device.capabilities.granularity_nbytes:
            refused = "only memory in whole blocks of the granularity"
        elif any(shows_own is not loan.is_own for shows_own in self._kinds()):
            kind = "imported" if loan.is_own else "this process's own"
            refused = f"only {kind} memory, because its first piece was that"
        if refused is not None:
            msg = f"this range of {device.name} takes {refused}; not {memory!r}"
            raise UnsupportedError(
                msg, operation="map", backend=device.backend, hint="reserve another range for it"
            )

    def _kinds(self) -> list[bool]:
        """Return what decides which kind of memory may come: the first piece, for ever."""
        if self._shows_own is not None:
            return [self._shows_own]
        return [one.loan.is_own for one in self._placed]

    def unmap(self, placed: Placed) -> bool:
        """Unmap a piece; False where this thread is in the middle of changing the memory.

        Where the vendor refuses, the piece keeps its place, and later calls try again.
        """
        if is_mine(placed.loan.lock):
            return False
        with placed.loan.lock:
            self._unmap(placed)
        return True

    def _unmap(self, placed: Placed) -> None:
        """Unmap a piece after the device's running work (law C9). The memory's lock is held."""
        # Another thread's exit may have done it.
        if not placed.is_mapped:
            return
        try:
            with after_work(self.device):
                self._driver.unmap_at(placed.loan.memory, self.pointer + placed.offset)
                placed.is_mapped = False
                self._forget(placed)
        except BaseException:
            if placed.is_mapped:
                self.process.unfinished.append(partial(self._unmap_again, placed))
            raise

    def _unmap_again(self, placed: Placed) -> None:
        if not self.unmap(placed):
            self.process.unfinished.append(partial(self._unmap_again, placed))

    def _forget(self, placed: Placed) -> None:
        with self.process.lifetimes:
            self._placed.remove(placed)
            placed.loan.uses.pieces -= 1
            placed.loan.end()

    def release(self) -> None:
        """Give the addresses back; no piece is mapped there.

        Where the vendor refuses, later calls try again.
        """
        if self.process.ranges.pop(id(self), None) is None:
            return
        try:
            self._driver.release(self.device.ordinal, self.pointer, self.nbytes)
        except BaseException:
            self.process.ranges[id(self)] = self
            self.process.unfinished.append(self.release)
            raise

    def release_at_exit(self) -> None:
        """Unmap every piece and give the addresses back, at a normal exit.

        What is viewed, copied or changed at this moment is left to the kernel.
        """
        steps: list[Callable[[], None]] = [
            partial(self._unmap_at_exit, placed) for placed in list(self._placed)
        ]
        for step in (*steps, self._release_if_empty):
            try:
                step()
            except CrossmemError as error:
                warnings.warn(f"at exit: {error}", ResourceWarning, stacklevel=1)

    def _unmap_at_exit(self, placed: Placed) -> None:
        loan = placed.loan
        if loan.uses.are_touching or not loan.lock.acquire(blocking=False):
            return
        try:
            self._unmap(placed)
        finally:
            loan.lock.release()

    def _release_if_empty(self) -> None:
        if not self._placed:
            self.release()


def _offset_of(placed: Placed) -> int:
    return placed.offset
