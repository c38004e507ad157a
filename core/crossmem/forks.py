# SPDX-License-Identifier: Apache-2.0
"""The locks that a thread takes before it forks, so that no other thread holds them at the fork.

A lock that another thread holds at a fork stays locked in the child for ever. Python has a lock for
each module that is being imported. If a process forks while another thread imports a module, the
child's import of this module never returns. So crossmem holds :data:`MODULES` or :data:`PLUGINS`
during the imports that it makes at a first use, and a fork waits for both locks.

While a fork waits for these locks, another thread may import a module of crossmem that has locks of
its own. The fork does not call hooks that a module registers with ``os.register_at_fork`` during
this wait. So each module of crossmem with locks calls :func:`register` instead, and the fork checks
for new registrations after the wait.

A thread takes :data:`PLUGINS` before :data:`MODULES`, and both before the locks of
:mod:`crossmem.locks`. The body of a module of crossmem must not use a name that
:mod:`crossmem.lazy` provides, because such a use takes :data:`MODULES`. The thread that imports the
module holds the module's import lock. If that thread waits for :data:`MODULES` while the holder of
:data:`MODULES` waits for the import lock, neither thread continues.
"""

import logging  # noqa: F401 - see the end of this module
import os
import threading
from collections.abc import Callable, Iterable
from functools import partial
from itertools import chain, repeat
from operator import methodcaller
from typing import Final

__all__ = ["MODULES", "PLUGINS", "register"]

MODULES: Final = threading.RLock()
"""Held while a thread imports a module of crossmem at the first use of the module.

If two threads import modules of an import cycle, each may wait for a module that the other thread
imports. Python then gives one of the threads an unfinished module. For the import cycles in
crossmem, this lock prevents such waits."""
PLUGINS: Final = threading.RLock()
"""Held while a thread imports modules of plugins, or an array library. The imported modules may use
names of crossmem, and such a use takes :data:`MODULES`. So a thread takes :data:`PLUGINS` first."""

_sources: Final[list[Callable[[], Iterable[threading.RLock]]]] = []
_in_child: Final[list[Callable[[], None]]] = []
_held: Final[dict[int, list[threading.RLock]]] = {}
"""The locks that a thread has taken for a fork. The key is the thread's identifier."""
_of_this_thread: Final = map(_held.pop, iter(threading.get_ident, None), repeat(()))
_releases: Final = map(
    any, map(partial(map, methodcaller("release")), map(reversed, _of_this_thread))
)
"""Each ``next()`` of this iterator releases the locks that the calling thread has taken for a fork.
The iterator's ``__next__`` is the hook after a fork. The iterator consists of C code only: at the
entry of a Python function, a signal handler could raise and leave the locks held."""


def register(locks: Callable[[], Iterable[threading.RLock]], in_child: Callable[[], None]) -> None:
    """Register the locks of a module, and a function to call in forked children.

    Parameters
    ----------
    locks
        Returns the locks that the forking thread holds during a fork. The thread takes each lock
        before it requests the next one from the iterable.
    in_child
        Called in each forked child, before the locks are released.
    """
    _sources.append(locks)
    _in_child.append(in_child)


def _before_fork() -> None:
    while True:
        # C code takes and records each lock, so no signal handler runs between the two steps.
        held, count = _held.setdefault(threading.get_ident(), []), len(_sources)
        wanted = chain.from_iterable(source() for source in _sources)
        # PLUGINS and MODULES come first, because the wait for another thread's import can take
        # seconds. During that wait, this thread must hold no lock that the lease server needs.
        held.extend(filter(methodcaller("acquire"), chain((PLUGINS, MODULES), wanted)))
        if count == len(_sources):
            return
        # During the wait, another thread has imported a module that registered further locks. So
        # this thread releases its locks and begins again.
        next(_releases)


def _after_fork_in_child() -> None:
    for call in _in_child:
        call()


# Before a fork, Python runs the hooks in reverse order of their registration. The hook of logging
# takes a lock that imports need, so it must run after _before_fork(). Therefore this module imports
# logging, which registers its hook at the import.
os.register_at_fork(
    before=_before_fork,
    after_in_parent=_releases.__next__,
    after_in_child=_after_fork_in_child,
)
# This hook is separate from _after_fork_in_child(), which calls drivers of plugins. If a driver
# raises, Python still runs this hook.
os.register_at_fork(after_in_child=_releases.__next__)
