# SPDX-License-Identifier: Apache-2.0
"""The tables of one emulated host. They stand for a real kernel's records of device memory.

The tables are in an SQLite database. A transaction is atomic, and Linux releases the locks of a
killed process. So a killed process blocks no other process, even if it was killed during a
transaction. Other processes later remove the entries of the killed process. The memory itself is a
memfd of the process that allocated it. Linux frees a memfd when no process has a mapping or a
descriptor of the memfd any more.

All processes of one emulated host must be in one pid namespace and have the same user.
"""

import contextlib
import ctypes
import logging
import os
import sqlite3
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, TypeVar

from crossmem.errors import ConfigurationError, CrossmemError, OutOfMemoryError
from crossmem.guards import clause, shorten
from crossmem.models.identity import process_start_time
from crossmem_emulated.options import default_state

__all__ = ["HostLostError", "Machine", "log_fault", "ticks_since_boot"]

_log = logging.getLogger(__name__)

_BUSY_TIMEOUT_S: Final = 10.0
_RETRY_S: Final = 0.001
_PRIMARY: Final = 0xFF
_VERSION: Final = 3
_SPARE_NBYTES: Final = 128 << 10
"""If a call of SQLite fails while the file system has fewer free bytes than this number, the file
system counts as full, because the call may have needed several pages."""

_UNUSABLE: Final = frozenset(
    {
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_PERM,
        sqlite3.SQLITE_READONLY,
    }
)
_Result = TypeVar("_Result")

_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS process (
    number INTEGER PRIMARY KEY AUTOINCREMENT, pid INTEGER NOT NULL, start_time INTEGER NOT NULL,
    UNIQUE (pid, start_time)
) STRICT;
CREATE TABLE IF NOT EXISTS pages (
    number INTEGER PRIMARY KEY AUTOINCREMENT, device INTEGER NOT NULL, nbytes INTEGER NOT NULL,
    owner INTEGER NOT NULL, descriptor INTEGER NOT NULL, filesystem INTEGER NOT NULL,
    inode INTEGER NOT NULL
) STRICT;
CREATE INDEX IF NOT EXISTS pages_by_device ON pages (device, nbytes);
CREATE TABLE IF NOT EXISTS holding (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    pages INTEGER NOT NULL REFERENCES pages ON DELETE CASCADE,
    process INTEGER NOT NULL REFERENCES process ON DELETE CASCADE
) STRICT;
CREATE INDEX IF NOT EXISTS holding_by_pages ON holding (pages);
CREATE INDEX IF NOT EXISTS holding_by_process ON holding (process);
CREATE TABLE IF NOT EXISTS violation (
    number INTEGER PRIMARY KEY AUTOINCREMENT, pid INTEGER NOT NULL, call TEXT NOT NULL,
    rule TEXT NOT NULL, text TEXT NOT NULL
) STRICT;
CREATE TABLE IF NOT EXISTS fault (
    number INTEGER PRIMARY KEY AUTOINCREMENT, call TEXT NOT NULL, code INTEGER NOT NULL,
    skip INTEGER NOT NULL, count INTEGER NOT NULL, pid INTEGER, start_time INTEGER,
    process INTEGER NOT NULL REFERENCES process ON DELETE CASCADE
) STRICT;
CREATE INDEX IF NOT EXISTS fault_by_process ON fault (process);
CREATE TABLE IF NOT EXISTS pending_write (
    number INTEGER PRIMARY KEY AUTOINCREMENT, pages INTEGER NOT NULL, first INTEGER NOT NULL,
    nbytes INTEGER NOT NULL, call TEXT NOT NULL,
    process INTEGER NOT NULL REFERENCES process ON DELETE CASCADE
) STRICT;
CREATE INDEX IF NOT EXISTS pending_write_by_pages ON pending_write (pages);
"""


_DELETE_UNHELD: Final = "DELETE FROM pages WHERE number NOT IN (SELECT pages FROM holding)"


def ticks_since_boot() -> int:
    """Return the time since boot in clock ticks, the unit of the start times of processes."""
    return int(time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK"))


def _in_time(step: Callable[..., _Result], *arguments: object) -> _Result:
    """Call ``step`` again and again while another process has locked the database.

    Return the result of ``step``, or raise after 10 seconds. SQLite's own wait is not used: its
    pauses become longer and longer. Also, SQLite does not wait while the first connection opens the
    file or while the last connection closes the file.
    """
    deadline = time.monotonic() + _BUSY_TIMEOUT_S
    while True:
        try:
            return step(*arguments)
        except sqlite3.OperationalError as error:
            is_busy = error.sqlite_errorcode & _PRIMARY == sqlite3.SQLITE_BUSY
            if not is_busy or time.monotonic() > deadline:
                raise
        time.sleep(_RETRY_S)


class HostLostError(Exception):
    """The emulated host is lost: this process cannot use it."""


class Machine:
    """The tables of one emulated host, as this process sees them.

    Parameters
    ----------
    folder
        The folder of the database. One folder is one host. The folder is created if necessary. Its
        parent is not created, because another process may have removed the parent on purpose.
    schema
        SQL that creates the tables of one vendor if they do not exist. After the death of a
        process, its row in the table ``process`` is deleted. Each row that must be deleted at the
        same time must refer to that row with ``ON DELETE CASCADE``.

    Attributes
    ----------
    identity
        The device number and inode of the folder, which identify the host while the folder exists.

    Raises
    ------
    ConfigurationError
        The folder cannot be used or belongs to another user, or its parent does not exist.
    """

    def __init__(self, folder: Path, schema: str) -> None:
        self.folder = folder
        self._is_shared = folder == default_state()
        """Whether this is the default host, which unrelated programs use. If a process enters the
        default host while no other process uses the host, the process deletes the violations of
        earlier programs. A host that the user named keeps its violations."""
        self._schema = schema
        self._lock = threading.RLock()
        self._connection: sqlite3.Connection | None = None
        self._closing: weakref.finalize[..., Machine] | None = None
        self._is_inside = False
        """Whether a transaction is in progress, in the thread that holds the lock."""
        self._undo = contextlib.ExitStack()
        """The steps that undo the transaction in progress if it fails."""
        self._is_busy = False
        """Whether another thread was using the tables when a fork began."""
        self._opens = 0
        self._me: tuple[int, int] | None = None
        try:
            folder.mkdir(mode=0o700, exist_ok=True)
            status = folder.stat()
        except FileNotFoundError:
            msg = f"the parent folder of the emulated host {shorten(str(folder))} does not exist"
            hint = (
                "set CROSSMEM_EMULATED_STATE to a folder whose parent exists; `crossmem emulate` "
                "removes its own folder when it ends"
            )
            raise ConfigurationError(msg, hint=hint) from None
        except OSError as error:
            shown = shorten(str(folder))
            msg = f"the folder {shown} of the emulated host cannot be used: {error.strerror}"
            raise ConfigurationError(msg, hint="set CROSSMEM_EMULATED_STATE") from None
        if status.st_uid != os.geteuid():
            shown = shorten(str(folder))
            msg = f"the folder {shown} of the emulated host belongs to user {status.st_uid}"
            raise ConfigurationError(msg, hint="set CROSSMEM_EMULATED_STATE")
        self.identity = (status.st_dev, status.st_ino)
        _machines.add(self)

    @property
    def boot(self) -> Path:
        """The path of the database.

        After a boot, a new database is used, because all processes in the old database have ended.
        """
        path = Path("/proc/sys/kernel/random/boot_id")
        try:
            boot_id = path.read_text("utf-8").strip()
        except (FileNotFoundError, PermissionError) as error:
            raise ConfigurationError(
                f"an emulated host needs {path}: {error.strerror}",
                hint="mount the proc file system at /proc: mount -t proc proc /proc",
            ) from None
        return self.folder / f"host-{_VERSION}-{boot_id}.sqlite"

    def _opened(self) -> sqlite3.Connection:
        """Return the connection, after opening it if necessary. The caller holds the lock."""
        if _is_sqlite_lost or self.identity in _lost:
            raise HostLostError(
                "this process was forked while another thread used the emulated host: start "
                "processes with spawn"
            )
        if self._connection is None:
            self._connection = _in_time(self._open)
            # At the exit of this process, the release of memory still needs the connection. So the
            # finaliser does not run at exit, and the kernel closes the file of the database. Python
            # 3.13 warns when it deletes an open connection; the extra reference prevents the
            # deletion.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._connection))
            self._closing = weakref.finalize(self, _end, self._connection)
            self._closing.atexit = False
            self._opens += 1
            try:
                self._begin()
            except BaseException:
                self.close()
                raise
        return self._connection

    def _begin(self) -> None:
        """Enter this process into the tables, and remove the entries of dead processes."""
        me = (*self.identity, os.getpid())
        with _beginning:
            with self.transaction() as tables:
                if me not in _known:
                    # If this program was started by exec, entries with the same pid and start time
                    # belong to the earlier program of this process. They are removed, too.
                    started = (os.getpid(), process_start_time("self") or 0)
                    tables.execute("DELETE FROM process WHERE pid = ? AND start_time = ?", started)
                    tables.execute(_DELETE_UNHELD)
                self.reap(tables)
                if self._is_shared and not tables.execute("SELECT 1 FROM process").fetchone():
                    tables.execute("DELETE FROM violation")
                self.me(tables)
            _known.add(me)

    def _open(self) -> sqlite3.Connection:
        try:
            status = self.folder.stat()
        except FileNotFoundError:
            status = None
        if status is None or (status.st_dev, status.st_ino) != self.identity:
            # Without this check, SQLite might make a new database in a new folder of the same name.
            raise HostLostError(f"the emulated host {shorten(str(self.folder))} was removed")
        connection = sqlite3.connect(
            self.boot, timeout=0, isolation_level=None, check_same_thread=False
        )
        try:
            # The tables must survive the death of a process, but need not survive a power cut. So
            # nothing is synced to disk.
            connection.executescript(
                "PRAGMA journal_mode = WAL; PRAGMA synchronous = OFF; "
                "PRAGMA foreign_keys = ON; BEGIN IMMEDIATE;" + _SCHEMA + self._schema + "COMMIT;"
            )
        except BaseException:
            connection.close()
            raise
        return connection

    @contextlib.contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Yield the tables in a transaction. Nested blocks belong to the outermost transaction.

        The changes are kept if the outermost block ends without an exception. Other processes
        cannot begin a transaction before the end of the block, so the block must be short.
        """
        with self._lock:
            tables = self._opened()
            if self._is_inside:
                yield tables
                return
            try:
                self._is_inside = True
                with contextlib.ExitStack() as self._undo:
                    self._undo.callback(self._roll_back, tables)
                    _in_time(tables.execute, "BEGIN IMMEDIATE")
                    yield tables
                    tables.execute("COMMIT")
                    self._undo.pop_all()
            finally:
                self._is_inside = False

    def _roll_back(self, tables: sqlite3.Connection) -> None:
        # The rollback may remove the entry of this process. So the entry's number is forgotten.
        self._me = None
        # If the disk is full, SQLite may have rolled the transaction back already.
        if tables.in_transaction:
            tables.execute("ROLLBACK")

    def undo(self, step: Callable[..., object], *arguments: object) -> None:
        """Register a step that runs if the outermost transaction in progress fails."""
        self._undo.callback(step, *arguments)

    @property
    def version(self) -> tuple[int, int]:
        """A value that changes when another connection has changed the tables."""
        with self._lock:
            tables = self._opened()
            (number,) = _in_time(tables.execute, "PRAGMA data_version").fetchone()
            return self._opens, number

    def me(self, tables: sqlite3.Connection) -> int:
        """Return the number of this process in the tables. The first call adds the process."""
        pid = os.getpid()
        if self._me is None or self._me[0] != pid:
            identity = (pid, process_start_time("self") or 0)
            tables.execute(
                "INSERT OR IGNORE INTO process (pid, start_time) VALUES (?, ?)", identity
            )
            (number,) = tables.execute(
                "SELECT number FROM process WHERE pid = ? AND start_time = ?", identity
            ).fetchone()
            self._me = (pid, number)
        return self._me[1]

    def lives(self, tables: sqlite3.Connection, process: int) -> bool:
        """Whether a process is alive. If it is dead, remove its entries."""
        row = tables.execute(
            "SELECT pid, start_time FROM process WHERE number = ?", (process,)
        ).fetchone()
        if row is None:
            return False
        pid, start_time = row
        try:
            if process_start_time(pid) == start_time:
                return True
        except OSError:
            # The start time cannot be read, for example because this process has no free
            # descriptor. So the other process counts as alive.
            return True
        tables.execute("DELETE FROM process WHERE number = ?", (process,))
        tables.execute(_DELETE_UNHELD)
        return False

    def fault_of(self, error: Exception) -> CrossmemError | None:
        """Return crossmem's error if the file system makes the database unusable, otherwise None.

        The emulated vendor has no result code for an unusable database.
        """
        code = getattr(error, "sqlite_errorcode", 0) & _PRIMARY
        if code == sqlite3.SQLITE_FULL or (code in _UNUSABLE and self._is_full()):
            return OutOfMemoryError(
                f"the emulated host has no room: the file system of {shorten(str(self.folder))} "
                "is full",
                hint="delete files there, or set CROSSMEM_EMULATED_STATE to a folder of another "
                "file system; --shm-size sets the size of a container's /dev/shm",
            )
        if code not in _UNUSABLE:
            return None
        return ConfigurationError(
            f"the folder {shorten(str(self.folder), 80)} of the emulated host cannot be used: "
            f"{clause(str(error), 60)}",
            hint="set CROSSMEM_EMULATED_STATE to a folder that this user can write to",
        )

    def _is_full(self) -> bool:
        try:
            found = os.statvfs(self.folder)
        except OSError:
            return False
        # A file system that does not limit the number of files reports 0 as the total number.
        has_no_files = found.f_files > 0 and not found.f_favail
        return has_no_files or found.f_bavail * found.f_frsize < _SPARE_NBYTES

    def reap(self, tables: sqlite3.Connection) -> None:
        """Remove the entries of dead processes."""
        for (process,) in tables.execute("SELECT number FROM process").fetchall():
            self.lives(tables, process)

    def close(self) -> None:
        """Close the connection to the database. The next use opens a new connection."""
        with self._lock:
            if self._connection is not None and self._closing is not None:
                # While the process exits, a call of the finaliser does nothing. So the finaliser is
                # detached, and this method itself closes the connection.
                self._closing.detach()
                _end(self._connection)
                self._closing = self._connection = None
                self._me = None

    # Fork -------------------------------------------------------------------------------------

    def prepare_fork(self) -> None:
        """Close the connection before a fork, because a child cannot use its parent's connection.

        The connection stays open if another thread uses it, or during a transaction. This method
        does not wait for the other thread, which may itself be waiting for a lock that this thread
        holds for the fork.
        """
        self._is_busy = not self._lock.acquire(blocking=False)
        if not self._is_busy:
            try:
                if not self._is_inside:
                    self.close()
            finally:
                self._lock.release()

    def renew_after_fork(self) -> None:
        """Reset the state in a forked child, which never uses a connection of its parent."""
        global _is_sqlite_lost  # noqa: PLW0603 - one value for the process
        # If another thread was using SQLite at the fork, SQLite's own locks may stay held in this
        # child for ever. So the child cannot use any host.
        _is_sqlite_lost = _is_sqlite_lost or self._is_busy
        self._lock = threading.RLock()
        self._is_inside = False
        self._me = None
        if self._closing is not None:
            self._closing.detach()
            # The parent's connection was open at the fork, so the child cannot use this host. For a
            # new connection, SQLite would rely on its record of the old connection's locks, but a
            # child does not inherit these locks. A close of the old connection could wait for a
            # lock that no thread of the child releases.
            _lost.add(self.identity)


def log_fault(fault: CrossmemError | None) -> None:
    """Log an error of the emulation itself. A C program gets only one of the vendor's result codes.

    Each text is logged once in a process. If ``fault`` is None, nothing is logged.
    """
    text = str(fault)
    if fault is not None and text not in _told:
        _told.add(text)
        _log.error("%s", text)


_told: set[str] = set()


def _end(connection: sqlite3.Connection) -> None:
    connection.close()
    ctypes.pythonapi.Py_DecRef(ctypes.py_object(connection))


_machines: "weakref.WeakSet[Machine]" = weakref.WeakSet()
_lost: set[tuple[int, int]] = set()
"""The identities of the hosts that this process cannot use, because this process or an ancestor was
forked while a connection to the host was open."""
_is_sqlite_lost = False
"""Whether this process cannot use any host, because another thread used SQLite at a fork."""


_beginning = threading.Lock()
"""A thread holds this lock while it enters the process into a host. Without the lock, another
thread could take the new entries for entries of an earlier program, and remove them."""
_known: set[tuple[int, int, int]] = set()
"""The hosts that this program has entered, each with the pid of the process at that time."""


def _before_fork() -> None:
    for machine in list(_machines):
        machine.prepare_fork()


def _after_fork_in_child() -> None:
    global _beginning  # noqa: PLW0603 - another thread may have held the lock at the fork
    _beginning = threading.Lock()
    for machine in list(_machines):
        machine.renew_after_fork()


os.register_at_fork(before=_before_fork, after_in_child=_after_fork_in_child)
