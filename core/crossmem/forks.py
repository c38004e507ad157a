# SPDX-License-Identifier: Apache-2.0
"""The locks that a thread holds while it forks, so that the child inherits no other thread's lock.

Python has a lock for each module that is being imported. If a process forks while another thread
imports a module, that module's lock stays locked in the child, and the child's import of the module
never returns. So crossmem holds :data:`MODULES` or :data:`PLUGINS` during the imports that it makes
at a first use, and a fork waits for both.

``os.register_at_fork`` does not suffice for modules that are imported late: a fork that has begun
does not call hooks that are registered afterwards. So such modules call :func:`register`.

A thread takes :data:`PLUGINS` before :data:`MODULES`, and both before the locks of
:mod:`crossmem.locks`. The body of a module of crossmem must not use a name that
:mod:`crossmem.lazy` provides: the importing thread holds the module's lock, and would wait for
:data:`MODULES`. The thread that holds :data:`MODULES` may wait for the module's lock.
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
"""Held while a thread imports a module of crossmem at its first use. Without this lock, two threads
that import modules of one cycle could each wait for a module of the other thread."""
PLUGINS: Final = threading.RLock()
"""Held while a thread imports modules of plugins, or an array library. These modules may use names
of crossmem, which are imported under :data:`MODULES`."""

_sources: Final[list[Callable[[], Iterable[threading.RLock]]]] = []
_in_child: Final[list[Callable[[], None]]] = []
_held: Final[dict[int, list[threading.RLock]]] = {}
"""The locks that a thread has taken for a fork. The key is the thread."""
_of_this_thread: Final = map(_held.pop, iter(threading.get_ident, None), repeat(()))
_releases: Final = map(
    any, map(partial(map, methodcaller("release")), map(reversed, _of_this_thread))
)
"""Each step of this iterator releases the locks of the calling thread. The iterator is the hook
after a fork. It is C code, because a signal handler that raises at the entry of a Python function
would leave the locks held."""


def register(locks: Callable[[], Iterable[threading.RLock]], in_child: Callable[[], None]) -> None:
    """Register what a module does at each fork.

    Parameters
    ----------
    locks
        Returns the locks that are held during a fork. Each lock is taken before the next one is
        requested from the iterable.
    in_child
        Called in the child before the locks are released.
    """
    _sources.append(locks)
    _in_child.append(in_child)


def _before_fork() -> None:
    while True:
        # C code takes and records each lock, so no signal handler runs in between.
        held, count = _held.setdefault(threading.get_ident(), []), len(_sources)
        wanted = chain.from_iterable(source() for source in _sources)
        # PLUGINS and MODULES come first, because the wait for another thread's import can take
        # seconds. During that wait, this thread must hold no lock that the lease server needs.
        held.extend(filter(methodcaller("acquire"), chain((PLUGINS, MODULES), wanted)))
        if count == len(_sources):
            return
        # During the waits, another thread has imported a module that registered further locks.
        next(_releases)


def _after_fork_in_child() -> None:
    for call in _in_child:
        call()


# Before a fork, the hook that was registered last runs first. The hook of logging takes a lock that
# imports need, so it must run after this hook. Therefore this module has imported logging.
os.register_at_fork(
    before=_before_fork,
    after_in_parent=_releases.__next__,
    after_in_child=_after_fork_in_child,
)
# This hook is separate, because the hook above calls drivers of plugins, which may raise.
os.register_at_fork(after_in_child=_releases.__next__)
