# SPDX-License-Identifier: Apache-2.0
"""The one state that a process has: settings, plugins, lease server, connections, queues.

A forked child gets a new state; objects of the old one notice by comparing it with
:func:`current`. Everything that waits to be done later (dropped objects, memory whose last lease
ended) waits in one queue, which each public call empties first.
"""

import atexit
import itertools
import logging
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final

from crossmem.control.leases import name_holders
from crossmem.control.limits import no_thread
from crossmem.control.server import LeaseServer
from crossmem.errors import ClosedError, CrossmemError, ForkedProcessError
from crossmem.models import ProcessIdentity
from crossmem.plugin import Registry
from crossmem.settings import Settings
from crossmem.sharing.foreign import GroundTable
from crossmem.sharing.table import ImportTable
from crossmem.sharing.whereabouts import Whereabouts

if TYPE_CHECKING:
    from crossmem.sharing.device import Device
    from crossmem.sharing.owned import Owned
    from crossmem.sharing.reservation import Reservation

__all__ = [
    "Process",
    "current",
    "drain",
    "is_current",
    "is_mine",
    "may_release",
    "refuse_foreign",
    "refuse_forked_backend",
]

_log = logging.getLogger(__name__)

_REAPER_PERIOD_S: Final = 0.1


class Process:
    """What this process shares and imports. Made by :func:`current`, ended at exit."""

    def __init__(self, settings: Settings, registry: Registry) -> None:
        self.settings = settings
        self.identity = ProcessIdentity.of_this_process()
        self.registry = registry
        self.lock = threading.RLock()
        self._exiting = threading.Event()
        self.lifetimes = threading.RLock()
        """Guards, for every allocation, import and mapping, whether it is closed or in use."""
        # The program that this one replaced by exec had the same pid and start time. It used up
        # more than a microsecond for each of its numbers, so these are none of them (C6).
        self.numbers = itertools.count(time.process_time_ns() // 1000 + 1)
        self.devices: dict[tuple[str, str | None], tuple[Device, ...]] = {}
        self.owned: dict[int, Owned] = {}
        """Every allocation that is not free yet, by number."""
        self.ranges: dict[int, Reservation] = {}
        """Every address range that is not released yet, by its id."""
        self.grounds = GroundTable()
        """The vendor's allocations in which memory is adopted."""
        self.whereabouts = Whereabouts()
        """Where arrays can lie."""
        self.imports = ImportTable(self)
        self.pending: deque[Callable[[], bool | None]] = deque()
        """What finalisers and the lease server left to be done; False: it must wait longer."""
        self.unfinished: deque[Callable[[], object]] = deque()
        """Releases that a vendor refused; each puts itself here again where it still does."""
        self.is_exiting = False
        """Nothing new is exported or imported."""
        self.is_closed = False
        """Nothing is usable any more; set with the lock of lifetimes held."""
        self._reaper: threading.Thread | None = None
        self._server: LeaseServer | None = None

    @property
    def is_inside(self) -> bool:
        """Whether this thread is in the middle of changing what other objects depend on.

        The garbage collector may run a finaliser of the application's anywhere, and so may a
        signal its handler: what those close has to wait then.
        """
        server = self._server
        return (
            is_mine(self.lifetimes)
            or is_mine(self.imports.lock)
            or is_mine(self.grounds.lock)
            or (server is not None and is_mine(server.lock))
        )

    @property
    def server(self) -> LeaseServer | None:
        """The lease server, None before the first leased export."""
        return self._server

    def start_server(self) -> LeaseServer:
        """Return the lease server, starting it at the first call."""
        if self._server is None:
            with self.lock:
                if self.is_exiting:
                    msg = "this process is exiting and exports nothing more"
                    raise ClosedError(msg)
                if self._server is None:
                    self._server = LeaseServer(
                        self.identity,
                        self.settings.run_dir,
                        self.registry,
                        self.settings.max_holds,
                    )
        return self._server

    def drain(self) -> None:
        """Do what waits. Called first by every public call that is not on the hot path."""
        if self.is_inside:
            return
        for _ in range(len(self.unfinished)):
            try:
                job: Callable[[], object] = self.unfinished.popleft()
            except IndexError:
                break
            try:
                job()
            except CrossmemError:
                # Whoever asked for it first was told; this was one try more.
                pass
            except Exception:  # noqa: BLE001 - logged with its traceback
                # A fault of the driver's, and no business of whoever called now.
                _log.exception("a release that was refused before failed")
        put_back: list[Callable[[], bool | None]] = []
        try:
            while self.pending:
                try:
                    job = self.pending.popleft()
                except IndexError:
                    break
                try:
                    if job() is False:
                        put_back.append(job)
                except Exception:  # noqa: BLE001 - logged with its traceback
                    # The job belonged to an object that nobody has any more: nobody to raise to.
                    _log.exception("a deferred release failed")
                # The job may hold the last reference to an object whose finaliser leaves a job too.
                del job
        finally:
            self.pending.extend(put_back)

    def catch_up(self) -> None:
        """Learn what importers have released and nobody has read yet, and do what waits."""
        if self.is_inside:
            return
        if self._server is not None:
            self._server.catch_up()
        self.drain()

    def start_reaper(self) -> None:
        """Do from now on what waits, as soon as it can be done, in a thread.

        Raises
        ------
        DriverError
            Where this process can have no more threads. What waits then waits for later calls.
        """
        with self.lock:
            if self._reaper is not None or self.is_exiting:
                return
            reaper = threading.Thread(target=self._reap, name="crossmem-reaper", daemon=True)
            try:
                reaper.start()
            except RuntimeError as error:
                raise no_thread("reaper") from error
            self._reaper = reaper

    def _reap(self) -> None:
        while not self._exiting.wait(_REAPER_PERIOD_S):
            self.drain()

    # The end ------------------------------------------------------------------------------

    def shut_down(self) -> None:
        """Release everything in the vendor's order; for a normal exit."""
        with self.lock:
            if self.is_exiting or _current is not self:
                return
            self.is_exiting = True
        self._exiting.set()
        with ExitStack() as steps:
            # Whatever interrupts a step, an impatient user too, those after it are taken. The
            # last one lets owners go whose adoptions end here.
            steps.callback(self.drain)
            for owned in list(self.owned.values()):
                steps.callback(owned.free_at_exit)
            if self._server is not None:
                steps.callback(self._server.stop)
                steps.callback(self._await_leases, self._server)
            # First what is held here: the other side may be waiting for it in the same way.
            steps.callback(self.imports.close_all)
            for reservation in list(self.ranges.values()):
                steps.callback(reservation.release_at_exit)
            if self._reaper is not None:
                steps.callback(self._reaper.join)
            self.drain()
            with self.lifetimes:
                self.is_closed = True

    def _await_leases(self, server: LeaseServer) -> None:
        if server.book.wait_all_idle(self.settings.exit_wait_s):
            return
        for shared, _exports, leases in server.book.report():
            if leases:
                _log.warning(
                    "exiting while allocation %d is leased by %s",
                    shared.allocation,
                    name_holders(leases),
                )

    def abandon(self) -> frozenset[str]:
        """Close every descriptor; for a forked child, which owns nothing of its parent's.

        Returns
        -------
        frozenset
            Names of the backends that the parent used and that the child cannot use.
        """
        if self._server is not None:
            self._server.abandon()
        self.imports.abandon()
        drivers = self.registry.after_fork_in_child()
        for driver in drivers:
            driver.after_fork_in_child()
        # What this process learned of its devices: asking a driver might call the vendor.
        safe = {
            backend
            for (backend, _), found in self.devices.items()
            if all(one.capabilities.fork_safe for one in found)
        }
        return frozenset(driver.backend for driver in drivers) - safe

    def hold_for_fork(self) -> None:
        """Let no other thread be in the middle of something while the process forks."""
        self.lock.acquire()
        if self._server is not None:
            self._server.lock.acquire()

    def resume_after_fork(self) -> None:
        """Undo :meth:`hold_for_fork`."""
        if self._server is not None:
            self._server.lock.release()
        self.lock.release()


_current: Process | None = None
# Reentrant: a signal handler may come in while its thread makes or forks the state.
_lock = threading.RLock()
_held: Process | None = None
_inherited: Registry | None = None
"""The plugins that the parent had found, in a forked child."""
_forked_backends: frozenset[str] = frozenset()
"""Backends that an ancestor used before it forked and that cannot be used after that."""


def current() -> Process:
    """Return the state of this process, made at the first call."""
    if _current is not None:
        return _current
    return _begin()


def _begin() -> Process:
    global _current  # noqa: PLW0603 - the one state of the process
    with _lock:
        if _current is None:
            settings = Settings.from_environ(os.environ)
            process = Process(settings, _inherited or Registry(settings))
            util = sys.modules.get("multiprocessing.util")
            if util is None:
                atexit.register(process.shut_down)
            else:
                # Children of multiprocessing leave through os._exit, where atexit does not run.
                # And a parent joins its children before it comes to what has no priority, so
                # they can still import.
                util.Finalize(None, process.shut_down, exitpriority=-10)
            # Asked again: a signal handler may have made one meanwhile.
            if _current is None:
                _current = process
                if settings.reaper:
                    process.start_reaper()
        return _current


def drain() -> Process:
    """Return the state of this process after doing what waited.

    Raises
    ------
    ClosedError
        Where this process is exiting and has given everything back.
    """
    process = _current
    if process is None:
        return _begin()
    if process.is_closed:
        msg = "crossmem has shut down in this process, which is exiting"
        raise ClosedError(msg)
    if process.pending or process.unfinished:
        process.drain()
    return process


def is_mine(lock: threading.RLock) -> bool:
    """Whether this thread holds a lock."""
    # The standard library's own Condition asks in this way; there is no public one.
    return bool(lock._is_owned())  # type: ignore[attr-defined]  # noqa: SLF001


def is_current(process: Process) -> bool:
    """Whether a state is this process's, not one that was inherited through fork."""
    return process is _current


def may_release(process: Process) -> bool:
    """Whether a finaliser may leave work behind: not in a forked child, not at exit."""
    return is_current(process) and not process.is_exiting


def refuse_foreign(process: Process, what: object) -> None:
    """Raise where an object belongs to the parent process, or this process is exiting.

    Raises
    ------
    ForkedProcessError, ClosedError
        With what to do instead.
    """
    if process is _current:
        if process.is_closed:
            msg = f"{what!r} cannot be used any more: this process is exiting"
            raise ClosedError(msg)
        return
    msg = f"{what!r} was inherited from process {process.identity.pid} through fork"
    raise ForkedProcessError(
        msg,
        hint="pass the handle to the child and import it there, or start children with spawn",
    )


def refuse_forked_backend(backend: str) -> None:
    """Raise where an ancestor used a backend that cannot be used after a fork."""
    if backend in _forked_backends:
        msg = f"backend {backend!r} was used before this process was forked and cannot be used now"
        raise ForkedProcessError(
            msg,
            hint="start children with multiprocessing's spawn or forkserver method",
            backend=backend,
        )


def _before_fork() -> None:
    global _held  # noqa: PLW0603
    _lock.acquire()
    _held = _current
    if _held is not None:
        _held.hold_for_fork()


def _after_fork_in_parent() -> None:
    global _held  # noqa: PLW0603
    if _held is not None:
        _held.resume_after_fork()
        _held = None
    _lock.release()


def _after_fork_in_child() -> None:
    global _current, _held, _inherited, _lock, _forked_backends  # noqa: PLW0603
    parent, _held, _current = _held, None, None
    # Locks that other threads of the parent held would stay locked for ever.
    _lock = threading.RLock()
    if parent is not None:
        _forked_backends |= parent.abandon()
        _inherited = parent.registry
        atexit.unregister(parent.shut_down)


os.register_at_fork(
    before=_before_fork,
    after_in_parent=_after_fork_in_parent,
    after_in_child=_after_fork_in_child,
)
