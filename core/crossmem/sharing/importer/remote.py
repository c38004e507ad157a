# SPDX-License-Identifier: Apache-2.0
"""Imports of another process's memory, with leases from the exporter."""

from collections.abc import Callable
from functools import partial
from typing import Final

from typing_extensions import override

from crossmem.control import words
from crossmem.control.answers import Leased
from crossmem.control.client import OwnerConnection
from crossmem.control.descriptors import close_aside
from crossmem.control.link import Deadline
from crossmem.control.segments import BLOCKS_AT, HEADER_WORDS, SLOTS
from crossmem.control.wire import Refusal
from crossmem.driver import Block, Imported, Mapped
from crossmem.driver.recording import call_into
from crossmem.errors import (
    ClosedError,
    DriverError,
    InvalidHandleError,
    OwnerGoneError,
    StaleHandleError,
)
from crossmem.models import Event, EventKind, PoolCore, ShareableHandle
from crossmem.sharing.base.process import Process
from crossmem.sharing.importer.errors import error_of, not_of_the_pool
from crossmem.sharing.importer.key import ImportKey, ImportRequest
from crossmem.sharing.importer.record import ImportRecord, LeaseWords, State

__all__ = ["RemoteImport"]

_DYING_S: Final = 0.1
_HINT: Final = (
    "in the process that exported the memory, call handle.to_bytes(); pass these bytes unchanged"
)


class RemoteImport(ImportRecord):
    """An import of another process's memory."""

    __slots__ = ("_was_opened", "connection", "extras", "handle", "imported")

    def __init__(
        self,
        process: Process,
        request: ImportRequest,
        key: ImportKey,
        forget: Callable[[ImportRecord], None],
        connection: OwnerConnection | None,
    ) -> None:
        super().__init__(process, request, key, forget)
        self.connection = connection
        self.handle = request.handle
        self.imported: list[Imported] = []
        """The driver's object for the memory; empty while the memory is not open."""
        self.extras: list[int] = []
        """Descriptors that came with the lease and that the driver does not get, such as bells."""
        self._was_opened = False

    def open(self, request: ImportRequest, leased: Leased) -> bool:
        """Begin and record the hold; open the memory if it is not open yet.

        The caller holds :attr:`lock`.

        Returns
        -------
        bool
            False if the exporter has begun another generation. The lease is then out of date, and
            this call has opened no memory.

        Raises
        ------
        InvalidHandleError
            The handle does not match the memory:

            - The size or capacity in the handle differs from the one that the exporter reports.
            - The size or capacity of the open memory differs from the one in the report.
            - The arena's slot in the handle of a block differs from the slot in the lease.
            - The block size in the handle of a block differs from the pool's.
        DriverError
            The vendor's call failed. The caller still owns the lease.
        """
        handle = request.handle
        if (leased.nbytes, leased.capacity) != (handle.nbytes, handle.capacity):
            msg = (
                f"the handle has size {handle.nbytes} and capacity {handle.capacity}, but its "
                f"exporter reports {leased.nbytes} and {leased.capacity}"
            )
            raise InvalidHandleError(msg, operation="import", hint=_HINT)
        known = self.handle
        if (known.nbytes, known.capacity) != (leased.nbytes, leased.capacity):
            msg = (
                f"the exporter reports size {leased.nbytes} and capacity {leased.capacity}, but "
                f"the open memory has {known.nbytes} and {known.capacity}"
            )
            raise InvalidHandleError(msg, operation="import", hint=_HINT)
        device, opened, core = self.device, self.imported, handle.core
        if self.connection is not None and not self.connection.hold(leased):
            return False
        if request.pool is not None:
            _check_pool(request.pool, leased)
        if opened:
            leased.close_descriptors()
        try:
            if not opened:
                if request.extras:
                    # No signal handler runs between these statements. So after an interrupt, each
                    # descriptor is either in ``extras`` or in ``leased``.
                    self.extras += leased.exported.descriptors[-request.extras :]
                    leased.exported.descriptors = leased.exported.descriptors[: -request.extras]
                call_into(
                    opened,
                    partial(
                        device.driver.import_,
                        device.ordinal,
                        leased.exported,
                        home=request.home,
                        mechanism=handle.mechanism,
                        nbytes=leased.nbytes,
                        capacity=leased.capacity,
                        access=self.access,
                    ),
                )
        finally:
            # Once the vendor has opened the memory, the driver owns the descriptors, and this
            # record owns the lease. No signal handler runs between these statements.
            if opened:
                leased.exported.descriptors = ()
                leased.is_recorded = True
                if core in self.leases:
                    # A signal handler has leased the same export during this call. The handler's
                    # lease is not needed any more.
                    self.ending += (self.leases[core],)
                self.leases[core] = leased
                self.state = State.OPEN
                self._was_opened = True
        if len(self.leases) > 1:
            self.tidy()
        return True

    @override
    def tell(self, kind: EventKind) -> None:
        """Emit an event about this import, if it was opened and an observer is registered."""
        registry, handle = self.process.registry, self.handle
        if registry.observed and self._was_opened:
            registry.emit(
                Event(
                    kind,
                    backend=handle.backend,
                    device=handle.device,
                    allocation=handle.allocation,
                    nbytes=handle.length,
                    owner_pid=handle.owner.pid,
                )
            )

    @override
    def keep_connection(self) -> None:
        """Add this import to the users of the connection."""
        if self.connection is not None:
            self.connection.users.add(self)

    @override
    def end_reservations(self, numbers: list[int]) -> None:
        """Send the numbers of the reservations to the exporter, without a wait.

        If the socket has no room, a later call of crossmem sends the numbers.
        """
        if self.connection is not None:
            self.connection.end_reservations(numbers)

    @override
    def words_of(self, core: bytes, slot: int) -> tuple[memoryview, memoryview, bool]:
        """Return the slot's control segment and row, and whether this process uses fences."""
        leased = self._leased(core)
        if slot != leased.slot:
            raise not_of_the_pool()
        holds = leased.holds
        assert holds is not None  # noqa: S101 - OwnerConnection.request() has set it
        found: tuple[memoryview, memoryview, bool] = holds.words_of(slot)
        return found

    def _leased(self, core: bytes) -> Leased:
        leased: Leased | None = self.leases.get(core)
        if leased is None:
            # At the exit of this process, memory is closed even if it has users.
            msg = "the imported memory was closed, because this process is exiting"
            raise ClosedError(msg, operation="import")
        return leased

    @override
    def row_of(self, core: bytes) -> LeaseWords:
        """Return the words by which this process holds an export; see :class:`LeaseWords`."""
        leased = self._leased(core)
        assert leased.holds is not None  # noqa: S101 - OwnerConnection.request() has set it
        control, row = leased.holds.segments_of(leased.slot)
        return LeaseWords(leased.slot, control.words, row.words, row.address)

    @override
    def reserved_generation(
        self, handle: ShareableHandle, reservation: int, deadline: Deadline
    ) -> int:
        """Ask the owner for the generation of a block that a message reserves."""
        connection, device = self.connection, self.device
        assert connection is not None  # noqa: S101 - a pool has no raw handles
        reported = device.driver.peer_identity()
        answers = connection.request(
            (handle,), (reservation,), reported=reported, deadline=deadline
        )
        connection.give_back(answers)
        answer = answers[0]
        if isinstance(answer, Refusal):
            raise error_of(answer, handle)
        return answer.generation

    @override
    def hint(self, slot: int) -> None:
        """Send a hint to the exporter, if that is possible without waiting."""
        if self.connection is not None:
            self.connection.send_hint(slot)

    @property
    @override
    def is_owner_alive(self) -> bool:
        """Whether the exporting process still runs. For a raw handle, the result is always true."""
        return self.connection is None or self.connection.is_owner_alive

    @property
    @override
    def source(self) -> Block | Imported:
        """The driver's object for the open memory."""
        return self.imported[0]

    def describe(self) -> str:
        """Return the reason why the memory cannot be adopted."""
        return f"was imported from process {self.handle.owner.pid}: pass on the memory's handle"

    @override
    def _map(self, *, remappable: bool) -> None:
        device = self.device
        try:
            mapped = call_into(
                self.mapped, partial(device.driver.map, self.imported[0], remappable=remappable)
            )
        except (DriverError, StaleHandleError) as error:
            if device.capabilities.survives_owner or not self._has_lost_its_owner():
                raise
            msg = "the process that exported the memory is dead, so the memory is gone"
            raise OwnerGoneError(
                msg,
                operation="map",
                backend=device.backend,
                device=device.identity,
                hint="export the memory again in a living process and send the new handle",
            ) from error
        self.process.regions.add(self, mapped.pointer, self.imported[0].capacity, device.driver)

    def _has_lost_its_owner(self) -> bool:
        """Whether the exporter is dead or dying.

        A dying process loses its memory shortly before its pidfd reports the death. So this method
        waits up to 0.1 seconds for the report.
        """
        return self.connection is not None and self.connection.is_owner_dead(within_s=_DYING_S)

    @override
    def _unmap_at_vendor(self, mapped: Mapped) -> None:
        self.device.driver.unmap(mapped)
        self.mapped.clear()
        self.process.regions.remove(self)

    @override
    def _close(self) -> None:
        if self.imported:
            self.device.driver.close(self.imported[0])
            self.imported.clear()
        self.process.regions.remove(self)
        close_aside(self.extras)
        connection = self.connection
        if connection is not None:
            self.ending += self.leases.values()
            self.leases.clear()
            self._end_leases()
            connection.users.discard(self)

    @override
    def _end_leases(self) -> None:
        while self.ending and self.connection is not None:
            self.connection.end(self.ending[0])
            del self.ending[0]


def _check_pool(pool: PoolCore, leased: Leased) -> None:
    """Refuse a block's handle that does not match the pool, before any driver call (C14)."""
    holds, slot = leased.holds, pool.slot - BLOCKS_AT
    if holds is None or slot != leased.slot:
        raise not_of_the_pool()
    control = holds.words_of(slot)[0]
    if words.load(control, HEADER_WORDS + slot % SLOTS + 1) != pool.stride:
        raise not_of_the_pool()
