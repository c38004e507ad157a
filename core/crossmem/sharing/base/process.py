# SPDX-License-Identifier: Apache-2.0
"""The one state that a process has: settings, plugins, lease server and deferred work.

A forked child gets a new state. Objects of the old one notice by comparing it with
:func:`current`. Packages above this one keep what they have for the process in *parts*
(:meth:`Process.part`), so this module names none of them.
"""

import atexit
import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from itertools import count, repeat
from operator import methodcaller
from typing import Any, ClassVar, Final, TypeVar

from crossmem.control.leases import name_holders
from crossmem.control.server import LeaseServer
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
    "refuse_foreign",
    "refuse_forked_backend",
]

_log = logging.getLogger(__name__)

CATCH_UP_S: Final = 1.0
"""How long the lease server's thread may take to read what importers have sent."""


class Part:
    """What a package keeps for the process."""

    closing: ClassVar = 0
    """When it closes at exit. Parts with lower numbers go first, and those below 0 before this
    process waits for the leases of others."""

    def __init__(self, process: "Process") -> None:
        """Make it; of two that threads make at once, one is dropped."""
        self._process = process

    def tend(self) -> None:
        """Do what waits for the next call, other than giving back."""

    def close_at_exit(self) -> None:
        """Give everything back; for a normal exit."""

    def abandon(self) -> None:
        """Close every descriptor, and nothing else: for a forked child."""


_P = TypeVar("_P", bound=Part)


class Process:
    """What this process shares and imports. Made by :func:`current`, ended at exit."""

    def __init__(self, settings: Settings, registry: Registry) -> None:
        self.settings = settings
        self.identity = ProcessIdentity.of_this_process()
        self.registry = registry
        self.lock = ordered_lock(Rank.PROCESS)
        self.state = ordered_lock(Rank.STATE)
        """Guards which objects are open and who uses them. Held for moments."""
        self._notifies = [threading.Condition(self.state).notify]
        """Of the locks that are held for moments. Nobody waits for these conditions."""
        # The program that this one replaced by exec had the same pid and start time. It used up
        # more than a microsecond for each of its numbers, so these are none of them (C6).
        self.numbers = count(time.process_time_ns() // 1000 + 1)
        self.deferred = DeferredWork()
        self.index_lock = ordered_lock(Rank.INDEX)
        self.regions: RegionIndex[Described] = RegionIndex(self.index_lock)
        """Device addresses of crossmem's own memory."""
        self.arrays = ArrayIndex(self.index_lock, _inherited_arrays)
        """Memory in which arrays can lie."""
        self._parts: dict[type[Part], Any] = {}
        self.open_pools: dict[bytes, Callable[[bytes], Any]] = {}
        """What attaches blocks of open pools, by what the bytes of their handles have in common."""
        self.is_exiting = False
        """Nothing new is exported or imported."""
        self.is_closed = False
        """Nothing is usable any more; set with the lock of the state held."""
        self.is_inherited = False
        """This process is a forked child of the one that made this state."""
        self._servers: list[LeaseServer] = []
        """The lease server from before its thread starts."""
        self.server: LeaseServer | None = None
        """The lease server, None before the first leased export."""

    def part(self, kind: type[_P]) -> _P:
        """Return what a package keeps for this process, made at the first call."""
        found: _P | None = self._parts.get(kind)
        if found is None:
            # A part that a second thread made is dropped: making one has no effect.
            found = self._parts.setdefault(kind, kind(self))
        return found

    @property
    def is_usable(self) -> bool:
        """Whether objects of this process can be used: it is not a parent, and not exiting."""
        return not (self.is_closed or self.is_inherited)

    @property
    def is_inside(self) -> bool:
        """Whether this thread is in the middle of changing what other objects depend on.

        The garbage collector may run a finaliser of the application's anywhere, and a signal may
        run its handler. The objects that those end are given back later.
        """
        for notify in self._notifies:
            try:
                # Documented to raise if the thread does not hold the lock.
                notify(0)
            except RuntimeError:
                continue
            return True
        return False

    def start_server(self) -> LeaseServer:
        """Return the lease server, starting it at the first call."""
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

    def drain(self) -> None:
        """Go on with deferred work. Called first by every public call off the hot path."""
        if not self.is_inside:
            self.deferred.drain()

    def catch_up(self) -> None:
        """Learn which leases have ended, and go on with deferred work."""
        if self.is_inside:
            return
        if self.server is not None:
            self.server.catch_up(CATCH_UP_S)
        self.deferred.drain(wait=True)

    def tend(self) -> None:
        """Do what waits for the next call, other than giving back."""
        for part in list(self._parts.values()):
            part.tend()

    # The end ------------------------------------------------------------------------------

    def shut_down(self) -> None:
        """Release everything in the vendor's order; for a normal exit."""
        with self.lock:
            if self.is_exiting or _current is not self:
                return
            self.is_exiting = True
        parts = sorted(self._parts.values(), key=_closing_of)
        with ExitStack() as steps:
            # Whatever interrupts a step, an impatient user too, those after it are taken. The
            # last one lets owners go whose adoptions end here.
            steps.callback(self.deferred.drain)
            for part in reversed([one for one in parts if one.closing >= 0]):
                steps.callback(part.close_at_exit)
            if self.server is not None:
                steps.callback(self.server.stop)
                steps.callback(self._await_leases, self.server)
            # First what is held here: the other side may be waiting for it in the same way.
            for part in reversed([one for one in parts if one.closing < 0]):
                steps.callback(part.close_at_exit)
            self.deferred.stop()
            self.deferred.drain()
            with self.state:
                self.is_closed = True

    def _await_leases(self, server: LeaseServer) -> None:
        if server.leases.wait_all_idle(self.settings.exit_wait_s):
            return
        for unit, _exports, leases in server.leases.report():
            if leases:
                _log.warning(
                    "exiting while allocation %d is leased by %s",
                    unit.allocation,
                    name_holders(leases),
                )

    def abandon(self) -> frozenset[str]:
        """Close every descriptor; for a forked child, which owns nothing of its parent's.

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
    """Backends of which every device that was found here says that it is fork-safe."""

    @property
    def held_for_fork(self) -> list["threading.RLock"]:
        """Locks that let no other thread be in the middle of something while the process forks."""
        server = self.server
        return [self.lock] if server is None else [self.lock, server.leases.lock]


def _closing_of(part: Part) -> int:
    return part.closing


_current: Process | None = None
# Reentrant: a signal handler may come in while its thread makes or forks the state.
_lock = ordered_lock(Rank.FORK)
_held_for_fork: dict[int, list["threading.RLock"]] = {}
"""By thread: the locks that it has taken in order to fork, :data:`_lock` first."""
_of_this_thread: Final = map(_held_for_fork.pop, iter(threading.get_ident, None), repeat(()))
_releases: Final = map(
    any, map(partial(map, methodcaller("release")), map(reversed, _of_this_thread))
)
"""Each step releases those of the calling thread. A hook after a fork is C code, because a signal
that came during the fork would end one in Python at its entry, and the locks would stay held."""
_inherited: Registry | None = None
"""The plugins that the parent had found, in a forked child."""
_inherited_arrays: ArrayIndex | None = None
"""The memory in which arrays of the parent can lie, in a forked child."""
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
    deferred = process.deferred
    if deferred.ready or deferred.idle:
        process.drain()
    return process


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
            msg = f"{shorten(what)} cannot be used any more: this process is exiting"
            raise ClosedError(msg)
        return
    msg = f"{shorten(what)} was inherited from process {process.identity.pid} through fork"
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
    # Each step takes and records locks, and no signal handler can cut it in half.
    held = _held_for_fork.setdefault(threading.get_ident(), [])
    held.extend(filter(methodcaller("acquire"), (_lock,)))
    # Asked under the first lock: no other thread makes or ends the state from then on.
    if _current is not None:
        held.extend(filter(methodcaller("acquire"), _current.held_for_fork))


def _after_fork_in_child() -> None:
    global _current, _inherited, _inherited_arrays, _forked_backends  # noqa: PLW0603
    parent, _current = _current, None
    next(_releases)
    block_inherited()
    if parent is not None:
        parent.is_inherited = True
        _inherited, _inherited_arrays = parent.registry, parent.arrays
        _forked_backends |= parent.abandon()
        atexit.unregister(parent.shut_down)


os.register_at_fork(
    before=_before_fork,
    after_in_parent=_releases.__next__,
    after_in_child=_after_fork_in_child,
)
