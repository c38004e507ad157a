# SPDX-License-Identifier: Apache-2.0
"""The table of imports: the vendor opens memory once for each (allocation, device, access)."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import ClassVar, Final

from typing_extensions import override

from crossmem.control.answers import Leased
from crossmem.control.client import OwnerConnection
from crossmem.control.link import Deadline
from crossmem.control.wire import Refusal
from crossmem.driver import Exported
from crossmem.driver.recording import call_into
from crossmem.errors import BusyError, ClosedError, CrossmemError, OwnerUnresponsiveError
from crossmem.models import EventKind, ProcessIdentity, ShareableHandle
from crossmem.sharing.base.devices import check_device
from crossmem.sharing.base.process import Part, Process
from crossmem.sharing.exporter.raw import publish_raw
from crossmem.sharing.exporter.record import Allocations
from crossmem.sharing.importer.errors import error_of
from crossmem.sharing.importer.key import ImportKey, ImportRequest
from crossmem.sharing.importer.late import drop_late_replies
from crossmem.sharing.importer.own import OwnImport, own_memory_gone
from crossmem.sharing.importer.record import ImportRecord, State, Use
from crossmem.sharing.importer.remote import RemoteImport
from crossmem.sharing.importer.request import check_readonly

__all__ = ["ImportTable"]

_TEND_TIMEOUT_S: Final = 1.0

_Shortcut = tuple[bytes, object, object]


class ImportTable(Part):
    """The open imports of this process, and its connections to exporters.

    Any thread may call the methods.
    """

    closing: ClassVar = -1

    def __init__(self, process: Process) -> None:
        super().__init__(process)
        self._records: dict[ImportKey, ImportRecord] = {}
        self._shortcuts: dict[_Shortcut, ImportRecord] = {}
        self._connections: dict[ProcessIdentity, OwnerConnection] = {}

    def join(self, use: Use, device: object, readonly: object) -> ImportRecord | None:
        """Add a use to the open import of an earlier call with the same arguments.

        Return the record of that import, or None if there is no such import. Repeated imports take
        this hot path, which makes no system call and no vendor call.

        Raises
        ------
        ConfigurationError
            An argument is invalid.
        """
        if device is not None:
            check_device(device)
        if readonly is not False:
            check_readonly(readonly)
        record = self._shortcuts.get((use.core, device, readonly))
        if record is not None:
            with self._process.state:
                # The lease of this export may have ended, while users of other exports of the same
                # memory keep the import open.
                if record.is_ready_for(use.core):
                    use.record = record
                    record.uses.add(use)
                    return record
        return None

    def remember(self, shortcut: _Shortcut, record: ImportRecord) -> None:
        """Let :meth:`join` find an import by a shortcut while the import is open.

        The shortcut is the core of a handle, and the arguments ``device`` and ``readonly``.
        """
        with self._process.state:
            if record.state is State.OPEN:
                record.shortcuts.append(shortcut)
                self._shortcuts[shortcut] = record

    def acquire(
        self, requests: Sequence[ImportRequest], uses: Sequence[Use], timeout_s: float
    ) -> None:
        """Add each use to an import, and open the imports that are not open yet.

        Leases from the same exporter and for the same backend are requested together. If the call
        raises, the caller ends all uses.

        Raises
        ------
        CrossmemError
            An import failed. The call stops at the first failure.
        """
        deadline = Deadline(timeout_s)
        if self._process.is_exiting:
            msg = "this process is exiting and imports nothing more"
            raise ClosedError(msg, operation="import")
        known = len(self._connections)
        missing: dict[tuple[ImportRecord, bytes], tuple[ImportRequest, ImportRecord]] = {}
        for request, use in zip(requests, uses, strict=True):
            handle = request.handle
            if handle.raw is not None:
                publish_raw(self._process, handle)
            record = self._claim(request, use, deadline)
            if not record.is_ready_for(handle.core):
                missing[record, handle.core] = (request, record)
        if known and len(self._connections) > known:
            self.forget_dead_owners()
        if missing:
            self._open(list(missing.values()), deadline)

    def _claim(self, request: ImportRequest, use: Use, deadline: Deadline) -> ImportRecord:
        """Add a use to the record of the request's key; return the record, which may be new."""
        process, key = self._process, request.key
        while True:
            with process.state:
                record = self._records.get(key)
                if record is None or record.state is State.CLOSED:
                    record = self._new_record(request, key)
                    self._records[key] = record
                if record.state is not State.CLOSING:
                    use.record = record
                    record.uses.add(use)
                    record.keep_connection()
                    return record
            self._finish(record, request, deadline)

    def _finish(self, record: ImportRecord, request: ImportRequest, deadline: Deadline) -> None:
        """Close an import that has no users, or wait for the thread that is closing it."""
        taken: list[bool] = []
        try:
            call_into(taken, record.lock.acquire, True, deadline.remaining_s)  # noqa: FBT003
            if not taken[0]:
                raise _slow_thread()
            if record.state is State.CLOSING:
                try:
                    record.close()
                except CrossmemError as error:
                    msg = "the vendor refuses to close the previous import of this memory"
                    raise BusyError(
                        msg,
                        operation="import",
                        backend=request.handle.backend,
                        hint="call crossmem.collect() to try again",
                    ) from error
        finally:
            if taken and taken[0]:
                record.lock.release()

    def _new_record(self, request: ImportRequest, key: ImportKey) -> ImportRecord:
        process, handle = self._process, request.handle
        if handle.owner != process.identity:
            connection = self._connection_to(handle.owner) if handle.raw is None else None
            return RemoteImport(process, request, key, self._forget, connection)
        owned = process.part(Allocations).find(handle)
        if owned is None or (owned.is_retired and not request.reservation):
            raise own_memory_gone(process, handle)
        return OwnImport(process, request, key, self._forget, owned)

    def _open(self, missing: list[tuple[ImportRequest, ImportRecord]], deadline: Deadline) -> None:
        """Lease and open the missing imports.

        No lock of an import is held during a request, so other threads can map, unmap and close
        open imports.
        """
        remote: dict[tuple[ProcessIdentity, str], list[tuple[ImportRequest, RemoteImport]]] = {}
        for request, record in missing:
            handle = request.handle
            if isinstance(record, OwnImport):
                with record.lock:
                    _refuse_closed(record)
                    if not record.is_ready_for(handle.core):
                        record.open(handle, request.reservation)
            elif isinstance(record, RemoteImport):
                remote.setdefault((handle.owner, handle.backend), []).append((request, record))
        for batch in remote.values():
            self._open_remote(batch, deadline)
        if self._process.registry.observed:
            for _, record in missing:
                record.tell(EventKind.IMPORTED)

    def _open_remote(
        self, batch: list[tuple[ImportRequest, RemoteImport]], deadline: Deadline
    ) -> None:
        request, record = batch[0]
        connection = record.connection
        if connection is None:
            # A raw handle contains the vendor's payload, so this process sends no request.
            for one, opened in batch:
                handle = one.handle
                exported = Exported((handle.raw or b"",))
                _open_one(one, opened, Leased(0, 0, handle.nbytes, handle.capacity, exported))
            return
        reported = request.device.driver.peer_identity()
        while batch:
            answers: list[Leased | Refusal] = []
            try:
                batch = self._ask(connection, batch, reported, deadline, answers)
                late: list[tuple[ImportRequest, RemoteImport]] = []
                is_unused = False
                for pair, answer in zip(batch, answers, strict=True):
                    one, opened = pair
                    if isinstance(answer, Refusal):
                        raise error_of(answer, one.handle)
                    if not _open_one(one, opened, answer):
                        late.append(pair)
                    is_unused = is_unused or not answer.is_recorded
                if is_unused:
                    # An answer stays unused if another thread has opened the same memory first, or
                    # if the exporter has begun another generation.
                    connection.give_back(answers)
                if late and not deadline.remaining_s:
                    raise deadline.passed(connection.owner)
            except BaseException as error:
                connection.give_back(answers)
                # After a timeout, the reaper drops the late reply. After an interrupt, the reaper
                # gets no work, because the request may be unsent. Then no reply comes, and the
                # reaper would look for the reply for ever.
                if isinstance(error, OwnerUnresponsiveError):
                    drop_late_replies(self._process, connection)
                raise
            batch = late

    def _ask(
        self,
        connection: OwnerConnection,
        batch: list[tuple[ImportRequest, RemoteImport]],
        reported: int,
        deadline: Deadline,
        answers: list[Leased | Refusal],
    ) -> list[tuple[ImportRequest, RemoteImport]]:
        """Request leases for the imports that no other thread has opened. Return these imports.

        ``answers`` receives the exporter's replies. The caller releases the leases that no import
        uses, even after an error.
        """
        taken: list[bool] = []
        try:
            call_into(taken, connection.lock.acquire, True, deadline.remaining_s)  # noqa: FBT003
            if not taken[0]:
                raise deadline.passed(connection.owner)
            missing: list[tuple[ImportRequest, RemoteImport]] = []
            handles: list[ShareableHandle] = []
            reservations: list[int] = []
            for pair in batch:
                one, record = pair
                if record.state is not State.OPEN or one.handle.core not in record.leases:
                    missing.append(pair)
                    handles.append(one.handle)
                    reservations.append(one.reservation)
            answers += connection.request(
                handles, reservations, reported=reported, deadline=deadline
            )
            return missing
        finally:
            if taken and taken[0]:
                connection.lock.release()

    def _forget(self, record: ImportRecord) -> None:
        with self._process.state:
            if self._records.get(record.key) is record:
                del self._records[record.key]
            for shortcut in record.shortcuts:
                if self._shortcuts.get(shortcut) is record:
                    del self._shortcuts[shortcut]

    @contextmanager
    def connected(self, owner: ProcessIdentity) -> Iterator[OwnerConnection]:
        """Keep the connection to an exporter during a ``with`` block, and return the connection."""
        user = object()
        connection = None
        try:
            with self._process.state:
                connection = self._connection_to(owner)
                connection.users.add(user)
            yield connection
        finally:
            if connection is not None:
                connection.users.discard(user)

    def _connection_to(self, owner: ProcessIdentity) -> OwnerConnection:
        """Return the one connection to an exporter. The caller holds ``Process.state``."""
        connection = self._connections.get(owner)
        if connection is None:
            process = self._process
            run_dir = process.settings.run_dir
            connection = OwnerConnection(owner, process.identity, run_dir, process.state)
            self._connections[owner] = connection
        return connection

    @override
    def tend(self) -> None:
        """Send delayed messages, and forget dead exporters."""
        for connection in list(self._connections.values()):
            connection.tend(_TEND_TIMEOUT_S)
        self.forget_dead_owners()

    def forget_dead_owners(self) -> None:
        """Close the connections to dead exporters, unless an import or a call uses them."""
        for owner, connection in list(self._connections.items()):
            if connection.users or connection.is_owner_alive:
                continue
            # The connection leaves the table last. So after an interrupt, the next call finds the
            # connection and continues.
            if not _close_unused(connection):
                continue
            with self._process.state:
                if not connection.users and self._connections.get(owner) is connection:
                    del self._connections[owner]

    def close_records(self) -> None:
        """Close the imports at exit.

        An import stays open if a view, a copy or an address range uses it, or if another thread
        holds the lock of the import. When the process ends, the kernel releases such an import.
        """
        for record in list(self._records.values()):
            # Another thread may hold the lock during a vendor call. The exit does not wait for the
            # end of that call.
            if record.usage.is_active or not record.lock.acquire(blocking=False):
                continue
            try:
                if record.state is not State.CLOSED:
                    record.state = State.CLOSING
                    with suppress(CrossmemError):
                        record.close()
            finally:
                record.lock.release()

    @override
    def close_at_exit(self) -> None:
        """Close the imports and the connections."""
        self.close_records()
        for connection in list(self._connections.values()):
            connection.close_at_exit()

    @override
    def abandon(self) -> None:
        """In a forked child, close the descriptors of all connections and change nothing else."""
        for connection in self._connections.values():
            connection.abandon()


def _open_one(request: ImportRequest, record: RemoteImport, leased: Leased) -> bool:
    """Open the requested memory unless it is ready. Return False if the lease is out of date."""
    with record.lock:
        if record.state is State.NEW:
            return record.open(request, leased)
        _refuse_closed(record)
        return record.is_ready_for(request.handle.core) or record.open(request, leased)


def _refuse_closed(record: ImportRecord) -> None:
    # A record with a user is closed only at the exit of this process.
    if record.state is State.CLOSED:
        msg = "this process is exiting and imports nothing more"
        raise ClosedError(msg, operation="import")


def _close_unused(connection: OwnerConnection) -> bool:
    """Close a connection unless it has a user; return whether it was closed.

    A later user connects again.
    """
    taken: list[bool] = []
    try:
        # A new user adds itself to ``users`` before it takes this lock. So either this check sees
        # the user, or the user takes the lock after the close and connects again.
        is_unused = call_into(taken, connection.lock.acquire, False) and not connection.users  # noqa: FBT003
        if is_unused:
            connection.close()
        return is_unused
    finally:
        if taken and taken[0]:
            connection.lock.release()


def _slow_thread() -> OwnerUnresponsiveError:
    msg = "another thread did not close its import of the same memory in time"
    return OwnerUnresponsiveError(msg, hint="pass a longer timeout")
