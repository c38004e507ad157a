# SPDX-License-Identifier: Apache-2.0
"""The places of one process in a queue: exclusive imports, one for each role."""

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from threading import get_ident
from typing import ClassVar, Final

from crossmem.errors import AccessDeniedError, BusyError, ClosedError
from crossmem.models import QueueRole, ShareableHandle
from crossmem.sharing.base.deferred import Record
from crossmem.sharing.base.ending import end_later
from crossmem.sharing.base.process import Part, Process
from crossmem.sharing.importer.attach import attach
from crossmem.sharing.importer.mapping import Mapping

__all__ = ["JOIN_PAUSE_S", "Places", "TakenPlaces", "take_place"]

JOIN_PAUSE_S: Final = 1e-3
_GRACE_S: Final = 0.5
"""The longest time, in seconds, for which :func:`take_place` retries while all places are taken. If
a process has just died, its place becomes free after a moment."""
_PAUSE_S: Final = 2e-3


class TakenPlaces(Part):
    """The places that this process has in queues."""

    closing: ClassVar = -4

    def __init__(self, process: Process) -> None:
        super().__init__(process)
        self.taken: set[bytes] = set()


class Places(Record):
    """The record of a queue in a process that takes places in the queue.

    Parameters
    ----------
    mine
        For each role, the handles of the places that this process may take.
    """

    __slots__ = ("_joining", "is_ending", "is_finished", "mappings", "mine", "process")

    def __init__(self, process: Process, mine: dict[QueueRole, list[ShareableHandle]]) -> None:
        super().__init__()
        self.process = process
        self.mine = mine
        self.is_ending = False
        """Whether the queue object has ended, and this process takes no more places."""
        self.is_finished = False
        """Whether this process has called finish(), and cannot put anything more."""
        self.mappings: list[Mapping] = []
        """The mappings of the places that this process has taken."""
        self._joining: dict[QueueRole, list[int]] = {}
        """For each role, a list with the id of the thread that is taking a place. Each call of
        :meth:`join` makes its own list. If a call finds the id of its own thread in another call's
        list, this call comes from a signal handler that interrupted the other call."""

    def has_place(self, role: QueueRole) -> bool:
        """Whether this process has a place for a role."""
        raise NotImplementedError

    def begin(self, role: QueueRole, timeout_s: float) -> None:
        """Take a place for a role with :func:`take_place`, and begin to use the place."""
        raise NotImplementedError

    def join(self, role: QueueRole, timeout_s: float) -> None:
        """Take a place for a role, unless this process has one.

        Raises
        ------
        AccessDeniedError, BusyError, ClosedError, OwnerGoneError, OwnerUnresponsiveError
            This process cannot get a place.
        """
        mine = [get_ident()]
        try:
            # The entry in ``_joining`` replaces a lock, because a thread should hold no lock while
            # it waits for the owner's reply or while the driver maps memory.
            while True:
                other = self._joining.setdefault(role, mine)
                if other is mine:
                    break
                if other == mine:
                    msg = "a signal handler cannot use a queue that its own thread is joining"
                    raise BusyError(msg, operation=role, hint="use the queue after the handler")
                time.sleep(JOIN_PAUSE_S)
            if not self.has_place(role):
                if role not in self.mine:
                    msg = f"this process opened the queue to {next(iter(self.mine))}, not to {role}"
                    hint = f"open it with the handle of queue.export(role={role!r})"
                    raise AccessDeniedError(msg, operation=role, hint=hint)
                self.check_role(role)
                self.begin(role, timeout_s)
        finally:
            if self._joining.get(role) is mine:
                del self._joining[role]

    def check_role(self, role: QueueRole) -> None:
        """Raise if this process may take no further place for a role."""
        if self.is_ending:
            msg = "this process has closed the queue"
            raise ClosedError(msg, hint="open its handle again, or make a new queue")
        if self.is_finished and role == "produce":
            msg = "this process has called finish(), and cannot put anything more"
            raise ClosedError(msg, operation="put", hint="open the queue again")

    def leave(self, mappings: list[Mapping]) -> None:
        """Unmap places as soon as no view of them is alive."""
        taken = self.process.part(TakenPlaces).taken
        while mappings:
            taken.discard(mappings[-1].handle.core)
            end_later(mappings[-1])
            mappings.pop()


def take_place(
    process: Process,
    role: QueueRole,
    mine: Sequence[ShareableHandle],
    timeout_s: float,
    order: Callable[[], Iterable[int]] | None = None,
) -> tuple[int, Mapping]:
    """Take a place that no other process uses, and return its index and mapping.

    Parameters
    ----------
    mine
        The handles of the places.
    timeout_s
        The longest wait for the reply of the owner, in seconds.
    order
        Returns the indices of the places to try, in order. If ``order`` is None, the function tries
        all places in the order of ``mine``.

    Raises
    ------
    BusyError
        All places for the role are taken.
    """
    taken = process.part(TakenPlaces).taken
    end = time.monotonic() + min(timeout_s, _GRACE_S)
    while True:
        for index in range(len(mine)) if order is None else order():
            core = mine[index].core
            if core in taken:
                continue
            try:
                taken.add(core)
                with suppress(BusyError):
                    return index, attach(mine[index], timeout=timeout_s)
            except BaseException:
                taken.discard(core)
                raise
            taken.discard(core)
        if time.monotonic() > end:
            break
        time.sleep(_PAUSE_S)
    places = "producers" if role == "produce" else "consumers"
    msg = f"all {len(mine)} places for {places} of this queue are taken"
    hint = f"close the queue in a process that has a place, or make it with more {places}"
    raise BusyError(msg, operation="open_queue", hint=hint)
