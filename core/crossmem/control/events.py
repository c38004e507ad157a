# SPDX-License-Identifier: Apache-2.0
"""A queue of events about exports. The events are sent to observers when no lock is held."""

from collections import deque
from typing import Final

from crossmem.control.exclusive import Deaths
from crossmem.control.records import Export
from crossmem.models import Event, EventKind
from crossmem.plugin import Registry

__all__ = ["ENDED", "LOST", "EventQueue"]

ENDED: Final = (EventKind.LEASE_ENDED, EventKind.RESERVATION_ENDED)
LOST: Final = (EventKind.LEASE_LOST, EventKind.RESERVATION_LOST)
"""The kinds of events for the end of a lease (item 0) and of a reservation (item 1). If the holder
has died, the kind is in ``LOST``. Otherwise, the kind is in ``ENDED``."""


class EventQueue:
    """A queue of the events that observers have not received yet.

    Parameters
    ----------
    registry
        The plugins, which receive the events.
    """

    def __init__(self, registry: Registry) -> None:
        self.registry = registry
        self._events: deque[Event] = deque()
        self.deaths = Deaths()
        """Exports that were granted to dead processes. :meth:`tell` calls their ``on_death``."""

    def note(self, kind: EventKind, export: Export, peer_pid: int, detail: str = "") -> None:
        """Add an event, if an observer is registered."""
        if not self.registry.observed:
            return
        handle = export.handle
        self._events.append(
            Event(
                kind,
                backend=handle.backend,
                device=handle.device,
                allocation=handle.allocation,
                nbytes=handle.length,
                owner_pid=handle.owner.pid,
                peer_pid=peer_pid,
                detail=detail,
            )
        )

    def tell(self) -> None:
        """Call ``on_death`` of each export in :attr:`deaths`, and send the events in order.

        The caller holds no lock.
        """
        self.deaths.tell()
        while self._events:
            try:
                event = self._events.popleft()
            except IndexError:
                return
            self.registry.emit(event)
