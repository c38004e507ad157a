# SPDX-License-Identifier: Apache-2.0
"""The process-wide table of imports: one vendor open for each (allocation, device, access)."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Final

from crossmem.control.client import Asked, Leased, OwnerConnection
from crossmem.control.link import Deadline
from crossmem.control.wire import Refusal, Status
from crossmem.driver import Exported
from crossmem.errors import (
    AccessDeniedError,
    BusyError,
    ClosedError,
    CrossmemError,
    DriverError,
    InvalidHandleError,
    OwnerGoneError,
    StaleHandleError,
)
from crossmem.models import Access, Event, EventKind, ProcessIdentity, ShareableHandle
from crossmem.sharing.entry import Entry, LocalEntry, RemoteEntry
from crossmem.sharing.opening import OpeningTable

if TYPE_CHECKING:
    from crossmem.sharing.device import Device
    from crossmem.sharing.process import Process

__all__ = ["ImportTable", "Wish", "error_of"]

_TEND_TIMEOUT_S: Final = 1.0

_ERRORS: dict[Status, type[CrossmemError]] = {
    Status.STALE: StaleHandleError,
    Status.UNKNOWN: InvalidHandleError,
    Status.DENIED: AccessDeniedError,
    Status.EXITING: OwnerGoneError,
    Status.FAILED: DriverError,
    Status.FULL: BusyError,
    Status.TOO_MANY: BusyError,
}


class Wish:
    """One import that a caller wants: which memory, for which device, with which access.

    ``home`` is the ordinal here of the device that holds the memory, ``hold`` the number with
    which it came in a message, 0 without one.
    """

    __slots__ = ("access", "device", "handle", "hold", "home", "key")

    def __init__(
        self,
        handle: ShareableHandle,
        device: "Device",
        access: Access,
        *,
        home: int,
        hold: int = 0,
    ) -> None:
        self.handle = handle
        self.device = device
        self.access = access
        self.home = home
        self.hold = hold
        self.key = (handle.owner, handle.allocation, device, access, handle.raw is None)


class ImportTable:
    """Finds, opens and closes entries. All methods may be called from any thread."""

    def __init__(self, process: "Process") -> None:
        self._process = process
        self.lock = threading.RLock()
        self._entries: dict[object, Entry] = {}
        self._unfinished: dict[object, Entry] = {}
        """What the vendor refused to close, and is asked to close by later calls."""
        self._shortcuts: dict[tuple[bytes, object, object], Entry] = {}
        self._connections: dict[ProcessIdentity, OwnerConnection] = {}
        self.openings = OpeningTable(self.lock)

    def join(self, shortcut: tuple[bytes, object, object]) -> Entry | None:
        """Return the open entry that was opened with the same arguments, with one more user.

        This is the path of repeated imports: it makes no system call and no vendor call.
        """
        with self.lock:
            entry = self._shortcuts.get(shortcut)
            if entry is None or not entry.is_open or not entry.users:
                return None
            entry.users += 1
            return entry

    def remember(self, shortcut: tuple[bytes, object, object], entry: Entry) -> None:
        """Let :meth:`join` find an entry by these arguments as long as it is open."""
        with self.lock:
            if entry.is_open:
                self._shortcuts[shortcut] = entry
                entry.shortcuts.append(shortcut)

    def acquire(self, wishes: Sequence[Wish], timeout_s: float) -> list[Entry]:
        """Return an open entry for each wish, each with one more user; all or none.

        Each exporter is asked once, for everything of it that is not open yet.

        Raises
        ------
        CrossmemError
            The first of the reasons why not; nothing is left then.
        """
        deadline = Deadline(timeout_s)
        while True:
            if self._process.is_exiting:
                msg = "this process is exiting and imports nothing more"
                raise ClosedError(msg, operation="import")
            try:
                return self._acquire(wishes, deadline)
            except _ClosedMeanwhileError:
                continue

    def _acquire(self, wishes: Sequence[Wish], deadline: Deadline) -> list[Entry]:
        claimed: list[Entry] = []
        locked: list[Entry] = []
        for wish in wishes:
            self._publish_raw(wish, deadline)
        try:
            # Not a comprehension: what is claimed before one raises must be released again.
            for wish in wishes:
                claimed.append(self._claim(wish))  # noqa: PERF401
            pairs = list(zip(wishes, claimed, strict=True))
            closed = {id(entry): entry for entry in claimed if not entry.is_open}
            # One order for all threads, so that two batches cannot wait for each other.
            for _, entry in sorted(closed.items()):
                entry.lock_within(deadline.remaining_s)
                if entry.is_open:
                    entry.lock.release()
                    continue
                locked.append(entry)
                if entry.is_dead:
                    raise _ClosedMeanwhileError
            missing = {
                (id(entry), wish.handle.core): (wish, entry)
                for wish, entry in pairs
                if not _is_ready(wish, entry)
            }
            if missing:
                self._open(list(missing.values()), deadline)
        except BaseException as error:
            _unlock(locked)
            for entry in claimed:
                try:
                    self.release(entry)
                except CrossmemError as failure:
                    # Later calls go on with it.
                    error.add_note(f"cleaning up failed too: {failure}")
            raise
        _unlock(locked)
        return claimed

    def _publish_raw(self, wish: Wish, deadline: Deadline) -> None:
        """Prepare what this process exported raw itself. The table's lock is not held.

        It may have to wait for another thread, which nobody else shall wait for.
        """
        handle = wish.handle
        if handle.raw is None or handle.owner != self._process.identity:
            return
        owned = self._process.owned.get(handle.allocation)
        if owned is not None and not owned.is_retired:
            owned.publish_raw(handle, deadline.remaining_s)

    def _claim(self, wish: Wish) -> Entry:
        with self.lock:
            entry = self._entries.get(wish.key)
            if entry is None and wish.key in self._unfinished:
                msg = "the vendor does not let this process close its last import of this memory"
                raise BusyError(
                    msg,
                    operation="import",
                    backend=wish.handle.backend,
                    hint="each call of crossmem tries it again; crossmem.collect() does only that",
                )
            if entry is None:
                entry = self._entries[wish.key] = self._new_entry(wish)
            entry.users += 1
            return entry

    def _new_entry(self, wish: Wish) -> Entry:
        process, handle = self._process, wish.handle
        if handle.owner != process.identity:
            connection = None
            if handle.raw is None:
                connection = self._connection_to(handle.owner)
                connection.entries += 1
            return RemoteEntry(wish.key, wish.device, wish.access, connection, self.openings)
        owned = process.owned.get(handle.allocation)
        server = process.server
        if owned is None or server is None or (owned.is_retired and not wish.hold):
            msg = f"allocation {handle.allocation} of this process was freed"
            raise StaleHandleError(msg, operation="import")
        return LocalEntry(wish.key, wish.device, wish.access, owned, server.book.release_mine)

    def _open(self, missing: list[tuple[Wish, Entry]], deadline: Deadline) -> None:
        """Lease and open what is missing. The entries' locks are held."""
        asked: dict[tuple[ProcessIdentity, str], list[tuple[Wish, RemoteEntry]]] = {}
        for wish, entry in missing:
            if isinstance(entry, RemoteEntry):
                asked.setdefault((wish.handle.owner, wish.handle.backend), []).append((wish, entry))
            elif isinstance(entry, LocalEntry):
                self._lease_locally(wish, entry)
        for batch in asked.values():
            answers = self._lease(batch, deadline)
            for index, ((wish, entry), answer) in enumerate(zip(batch, answers, strict=True)):
                try:
                    if isinstance(answer, Refusal):
                        raise error_of(answer, wish.handle)
                    entry.open(wish.handle, answer, home=wish.home)
                except BaseException:
                    if entry.connection is not None:
                        entry.connection.give_back(answers[index:])
                    raise
                if self._process.registry.observed:
                    self._tell(EventKind.IMPORTED, wish.handle)

    def _lease(
        self, batch: list[tuple[Wish, RemoteEntry]], deadline: Deadline
    ) -> list[Leased | Refusal]:
        wish, entry = batch[0]
        if entry.connection is None:
            # Raw handles carry what a lease would have brought; nobody is asked.
            return [
                Leased(
                    0, one.handle.nbytes, one.handle.capacity, Exported((one.handle.raw or b"",))
                )
                for one, _ in batch
            ]
        reported = wish.device.driver.peer_identity()
        asked = [Asked(one.handle, one.hold) for one, _ in batch]
        return entry.connection.request(asked, reported=reported, deadline=deadline)

    def _lease_locally(self, wish: Wish, entry: LocalEntry) -> None:
        server = self._process.start_server()
        lease = server.book.lease_to_myself(wish.handle, wish.hold)
        if isinstance(lease, Refusal):
            raise error_of(lease, wish.handle)
        entry.add_lease(wish.handle.core, lease.number)

    def release(self, entry: Entry) -> None:
        """Count one user less; the last one closes the entry."""
        with self.lock:
            entry.users -= 1
            if entry.users:
                return
        with entry.lock:
            with self.lock:
                # Another thread may have joined, and left and closed it, before the lock was ours.
                if not self._may_close(entry):
                    return
                # From here on nobody joins; whoever claims it waits for the lock and begins anew.
                entry.is_open = False
                entry.is_dead = True
            try:
                self._finish(entry)
            finally:
                self._forget(entry)
                if entry.handle is not None and self._process.registry.observed:
                    self._tell(EventKind.RELEASED, entry.handle)

    def _finish(self, entry: Entry) -> None:
        """Close an entry that nobody uses; where the vendor refuses, later calls go on with it."""
        with entry.lock:
            try:
                entry.close()
            except BaseException:
                self._unfinished[entry.key] = entry
                self._process.unfinished.append(partial(self._finish, entry))
                raise
            self._unfinished.pop(entry.key, None)

    @staticmethod
    def _may_close(entry: Entry) -> bool:
        return not entry.users and not entry.is_dead

    def _forget(self, entry: Entry) -> None:
        with self.lock:
            if self._entries.get(entry.key) is entry:
                del self._entries[entry.key]
                if isinstance(entry, RemoteEntry) and entry.connection is not None:
                    entry.connection.entries -= 1
            for shortcut in entry.shortcuts:
                if self._shortcuts.get(shortcut) is entry:
                    del self._shortcuts[shortcut]

    @contextmanager
    def connected(self, owner: ProcessIdentity) -> Iterator[OwnerConnection]:
        """Lend the kept connection to an exporter."""
        with self.lock:
            connection = self._connection_to(owner)
            connection.entries += 1
        try:
            yield connection
        finally:
            with self.lock:
                connection.entries -= 1

    def _connection_to(self, owner: ProcessIdentity) -> OwnerConnection:
        """Return the kept connection to an exporter. The table's lock is held."""
        connection = self._connections.get(owner)
        if connection is None:
            self._forget_dead_owners()
            process = self._process
            connection = OwnerConnection(owner, process.identity, process.settings.run_dir)
            self._connections[owner] = connection
        return connection

    def _forget_dead_owners(self) -> None:
        """Close connections to dead exporters of which nothing is imported any more."""
        for owner, connection in list(self._connections.items()):
            if not connection.entries and not connection.is_owner_alive:
                del self._connections[owner]
                connection.close()

    def tend(self) -> None:
        """Send releases that could not be sent before, and forget dead exporters."""
        for connection in list(self._connections.values()):
            connection.tend(_TEND_TIMEOUT_S)
        with self.lock:
            self._forget_dead_owners()

    def close_all(self) -> None:
        """Close what is still open, at exit; what is viewed or copied is left to the kernel."""
        for entry in list(self._entries.values()):
            if entry.uses.are_going_on:
                continue
            # A thread that waits for an exporter has the lock; exit does not wait for it.
            if not entry.lock.acquire(blocking=False):
                continue
            try:
                if not entry.is_dead:
                    entry.is_open = False
                    entry.is_dead = True
                    with suppress(CrossmemError):
                        entry.close()
                    self._forget(entry)
            finally:
                entry.lock.release()
        for connection in self._connections.values():
            connection.close_at_exit()

    def abandon(self) -> None:
        """Close every descriptor, and nothing else: for a forked child."""
        for connection in self._connections.values():
            connection.abandon()

    def _tell(self, kind: EventKind, handle: ShareableHandle) -> None:
        self._process.registry.emit(
            Event(
                kind,
                backend=handle.backend,
                device=handle.device,
                allocation=handle.allocation,
                nbytes=handle.length,
                owner_pid=handle.owner.pid,
            )
        )


class _ClosedMeanwhileError(Exception):
    """The entry was closed by its last user while this thread waited for it."""


def _is_ready(wish: Wish, entry: Entry) -> bool:
    return entry.is_open and wish.handle.core in entry.cores


def _unlock(entries: list[Entry]) -> None:
    for entry in entries:
        entry.lock.release()


def error_of(refusal: Refusal, handle: ShareableHandle) -> CrossmemError:
    """Return the error for a lease that was refused."""
    error = _ERRORS[refusal.status]
    return error(
        f"process {handle.owner.pid} gives no lease on allocation {handle.allocation}: "
        f"{refusal.reason}",
        operation="import",
        backend=handle.backend,
        device=handle.device,
    )
