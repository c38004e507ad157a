# SPDX-License-Identifier: Apache-2.0
"""The single state of a process: settings, plugins, lease server and deferred work.

A forked child gets a new state. An object whose state is not the result of :func:`current` was
inherited through a fork. The packages that import this module keep their own state in *parts*
(:meth:`Process.part`), so this module imports none of them.
"""

import atexit
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import count
from typing import Any, ClassVar, Final, TypeVar

from crossmem import forks
from crossmem.control.leases import warn_of_leases
from crossmem.control.server import LeaseServer
from crossmem.control.stdio import occupy
from crossmem.driver.recording import call_into
from crossmem.errors import ClosedError, ForkedProcessError
from crossmem.guards import shorten
from crossmem.locks import Rank, ordered_lock
from crossmem.models import ProcessIdentity
from crossmem.plugin import Registry
from crossmem.settings import Settings
from crossmem.sharing.base.array_index import ArrayIndex
from crossmem.sharing.base.deferred import DeferredWork
from crossmem.sharing.base.forks import block_inherited
from crossmem.sharing.base.regions import Described, RegionIndex

__all__ = [
    "CATCH_UP_S",
    "Part",
    "Process",
    "current",
    "drain",
    "is_current",
    "may_release",
    "open_pools",
    "refuse_foreign",
    "refuse_forked_backend",
]

CATCH_UP_S: Final = 1.0
"""The longest wait, in seconds, for the lease server's thread to read the importers' messages."""


class Part:
    """One package's state in this process, such as its table of imports."""

    closing: ClassVar = 0
    """Order of closing at exit: a part with a lower number closes first. A part with a negative
    number closes before this process waits for other processes' leases to end."""

    def __init__(self, process: "Process") -> None:
        """Create the part without side effects.

        If two threads create a part at the same time, one of the two parts is dropped.
        """
        self._process = process

    def tend(self) -> None:
        """Do the part's pending work that is not deferred work.

        :func:`crossmem.collect` calls this method for each part.
        """

    def prepare_exit(self) -> None:
        """At a normal exit, do the work that precedes all releases, such as a wait for streams."""

    def close_at_exit(self) -> None:
        """Release all resources of the part at a normal exit."""

    def abandon(self) -> None:
        """In a forked child, close the part's inherited descriptors, and change nothing else."""


_P = TypeVar("_P", bound=Part)


class Process:
    """The state of this process. :func:`current` makes the state, and the exit ends it."""

    def __init__(self, settings: Settings, registry: Registry) -> None:
        self.settings = settings
        self.identity = ProcessIdentity.of_this_process()
        self.registry = registry
        self.lock = ordered_lock(Rank.PROCESS)
        self.state = ordered_lock(Rank.STATE)
        """Guards the open objects and their users. Threads hold this lock only briefly."""
        self._notifies = [threading.Condition(self.state).notify]
        """``notify`` methods of conditions. The first condition uses the lock ``state``. Once the
        lease server runs, a second one uses the lock of the lease registry. :attr:`is_inside` calls
        the methods to find out whether this thread holds one of the two locks. No thread ever waits
        on these conditions."""
        # This program may have replaced another program by exec, with the same pid and start time.
        # The allocation numbers of that program must not occur again (C6). So the numbers begin
        # with the CPU time of the process in microseconds, which exec does not reset. An allocation
        # takes more than a microsecond of CPU time, so all earlier numbers are smaller.
        self.numbers = count(time.process_time_ns() // 1000 + 1)
        self.deferred = DeferredWork()
        self.index_lock = ordered_lock(Rank.INDEX)
        self.regions: RegionIndex[Described] = RegionIndex(self.index_lock)
        """Device addresses of memory that crossmem allocated, mapped or reserved."""
        self.arrays = ArrayIndex(self.index_lock, _inherited_arrays)
        """Memory that may contain arrays."""
        self._parts: dict[type[Part], Any] = {}
        self.stuck: set[object] = set()
        """Drivers whose streams still wait for another process when this process exits. The memory
        of these drivers is left to the vendor, because its release would first wait for the
        streams, perhaps for ever."""
        self.is_exiting = False
        """Whether the exit has begun. Imports and the start of the server are refused from then
        on."""
        self.is_closed = False
        """Whether all objects have become unusable. Set under the lock ``state``."""
        self.is_inherited = False
        """Whether this state was made by an ancestor and inherited through fork."""
        self._servers: list[LeaseServer] = []
        """Contains the lease server once the server is made. The server enters the list before its
        thread starts, so no interrupt loses the server."""
        self.server: LeaseServer | None = None
        """The lease server, or None before the first call of :meth:`start_server`."""

    def part(self, kind: type[_P]) -> _P:
        """Return the part of a package. The first call makes the part."""
        found: _P | None = self._parts.get(kind)
        if found is None:
            found = self._parts.setdefault(kind, kind(self))
        return found

    @property
    def is_usable(self) -> bool:
        """Whether objects of this state can be used: the state is neither closed nor inherited."""
        return not (self.is_closed or self.is_inherited)

    @property
    def is_inside(self) -> bool:
        """Whether this thread holds a lock under which a release could deadlock; see ``_notifies``.

        Finalisers and signal handlers may run at any point, even while their thread holds such a
        lock. If a finaliser or handler then ends an object, the object's resources are released
        later: by the reaper, or during a later call of crossmem.
        """
        for notify in self._notifies:
            try:
                # By its documentation, notify() raises if this thread does not hold the lock.
                notify(0)
            except RuntimeError:
                continue
            return True
        return False

    def start_server(self) -> LeaseServer:
        """Return the lease server. The first call starts the server."""
        if self.server is None:
            with self.lock:
                if self.is_exiting:
                    msg = "this process is exiting and exports nothing more"
                    raise ClosedError(msg)
                if not self._servers:
                    settings = self.settings
                    call_into(
                        self._servers,
                        LeaseServer,
                        self.identity,
                        settings.run_dir,
                        self.registry,
                        settings.max_reservations,
                    )
                server = self._servers[0]
                server.start()
                self._notifies = [
                    threading.Condition(self.state).notify,
                    threading.Condition(server.leases.lock).notify,
                ]
                self.server = server
        return self.server

    def drain(self, *, patient: bool = False) -> None:
        """Continue with deferred work. Public calls do this first, except on the hot path.

        :meth:`DeferredWork.drain` explains ``patient``.
        """
        if not self.is_inside:
            self.deferred.drain(patient=patient)

    def catch_up(self, *, patient: bool = False) -> None:
        """Read which leases have ended, and continue with deferred work."""
        if self.is_inside:
            return
        if self.server is not None:
            self.server.catch_up(CATCH_UP_S)
        self.deferred.drain(look=True, patient=patient)

    def tend(self) -> None:
        """Do the pending work of all parts; see :meth:`Part.tend`."""
        for part in list(self._parts.values()):
            part.tend()

    # The end ------------------------------------------------------------------------------

    def shut_down(self) -> None:
        """Release all resources at a normal exit, in the order that vendors require."""
        with self.lock:
            if self.is_exiting or _current is not self:
                return
            self.is_exiting = True
        parts = sorted(self._parts.values(), key=_closing_of)
        with ExitStack() as steps:
            # The steps run from the last one pushed to the first one. If one step is interrupted,
            # for example by Ctrl-C, the others still run. The step that runs last releases the
            # resources that the other steps have queued.
            steps.callback(self.deferred.drain)
            for part in reversed([one for one in parts if one.closing >= 0]):
                steps.callback(part.close_at_exit)
            if self.server is not None:
                steps.callback(self.server.stop)
                steps.callback(self._await_leases, self.server)
            # The imports close first: their exporters may be exiting, too, and may be waiting for
            # this process.
            for part in reversed([one for one in parts if one.closing < 0]):
                steps.callback(part.close_at_exit)
            for part in parts:
                part.prepare_exit()
            self.deferred.stop()
            self.deferred.drain()
            with self.state:
                self.is_closed = True
                open_pools.clear()

    def _await_leases(self, server: LeaseServer) -> None:
        if not server.leases.wait_all_idle(self.settings.exit_wait_s):
            warn_of_leases(server.leases.report())

    def abandon(self) -> frozenset[str]:
        """In a forked child, close this inherited state's descriptors.

        Returns
        -------
        frozenset
            Names of the backends that the parent used and that the child cannot use.
        """
        if self.server is not None:
            self.server.abandon()
        for part in self._parts.values():
            part.abandon()
        drivers = self.registry.after_fork_in_child()
        for driver in drivers:
            driver.after_fork_in_child()
        return frozenset(driver.backend for driver in drivers) - self.fork_safe_backends

    fork_safe_backends: frozenset[str] = frozenset()
    """Backends whose known devices are all fork-safe."""

    @property
    def held_for_fork(self) -> list["threading.RLock"]:
        """The locks to hold during a fork, so that no other thread changes the data they guard."""
        server = self.server
        return [self.lock] if server is None else [self.lock, server.leases.lock]


def _closing_of(part: Part) -> int:
    return part.closing


open_pools: Final[dict[bytes, Any]] = {}
"""The open arenas of pools, for attaches that name no device and do not request read-only access. A
key is the bytes that all handles of a pool have in common. A fork empties the child's dict, and the
exit empties this process's dict."""

_current: Process | None = None
# Reentrant: a signal handler may use crossmem while the interrupted thread holds this lock.
_lock = ordered_lock(Rank.FORK)
_inherited: Registry | None = None
"""In a forked child: the plugins that the parent had found."""
_inherited_arrays: ArrayIndex | None = None
"""In a forked child: the parent's memory that may contain arrays."""
_forked_backends: frozenset[str] = frozenset()
"""Backends that an ancestor used before its fork, and that this process cannot use."""


def current() -> Process:
    """Return the state of this process. The first call makes the state."""
    if _current is not None:
        return _current
    return _begin()


def _begin() -> Process:
    global _current  # noqa: PLW0603 - the one state of the process
    with _lock:
        if _current is None:
            occupy()
            settings = Settings.from_environ(os.environ)
            process = Process(settings, _inherited or Registry(settings))
            util = sys.modules.get("multiprocessing.util")
            if util is None:
                atexit.register(process.shut_down)
            else:
                # Children of multiprocessing exit through os._exit, which skips atexit. A parent
                # joins its children before it calls finalizers with a negative priority, so the
                # children can import the parent's memory until they end.
                util.Finalize(None, process.shut_down, exitpriority=-10)
            # A signal handler may have made the state by now.
            if _current is None:
                _current = process
        return _current


def drain() -> Process:
    """Continue with deferred work and return the state of this process.

    Raises
    ------
    ClosedError
        This process is exiting.
    """
    process = _current
    if process is None:
        return _begin()
    if process.is_closed:
        msg = "crossmem has shut down in this process, which is exiting"
        raise ClosedError(msg)
    deferred = process.deferred
    if deferred.ready or deferred.idle:
        process.drain()
    return process


def is_current(process: Process) -> bool:
    """Whether a state belongs to this process and was not inherited through fork."""
    return process is _current


def may_release(process: Process) -> bool:
    """Whether a finaliser of an object with this state may add deferred work.

    A finaliser may not do so if the state was inherited through fork, or once the exit has begun.
    """
    return is_current(process) and not process.is_exiting


def refuse_foreign(process: Process, what: object) -> None:
    """Refuse an object that this process cannot use.

    Raises
    ------
    ForkedProcessError
        The object belongs to a parent process. The hint says what to do instead.
    ClosedError
        This process is exiting.
    """
    if process is _current:
        if process.is_closed:
            msg = f"{shorten(what)} cannot be used any more: this process is exiting"
            raise ClosedError(msg)
        return
    msg = f"{shorten(what)} was inherited from process {process.identity.pid} through fork"
    raise ForkedProcessError(
        msg,
        hint="open the device and attach the handle in the child, or start the child with spawn",
    )


def refuse_forked_backend(backend: str) -> None:
    """Raise an error for a backend that an ancestor used, unless the backend is fork-safe."""
    if backend in _forked_backends:
        msg = f"backend {backend!r} was used before this process was forked and cannot be used now"
        raise ForkedProcessError(
            msg,
            hint="start children with multiprocessing's spawn or forkserver method",
            backend=backend,
        )


def _locks_for_fork() -> Iterator["threading.RLock"]:
    yield _lock
    # The first lock is held while the state is read, so no other thread replaces the state.
    if _current is not None:
        yield from _current.held_for_fork


def _after_fork_in_child() -> None:
    global _current, _inherited, _inherited_arrays, _forked_backends  # noqa: PLW0603
    parent, _current = _current, None
    open_pools.clear()
    block_inherited()
    if parent is not None:
        parent.is_inherited = True
        _inherited, _inherited_arrays = parent.registry, parent.arrays
        _forked_backends |= parent.abandon()
        atexit.unregister(parent.shut_down)


forks.register(_locks_for_fork, _after_fork_in_child)
