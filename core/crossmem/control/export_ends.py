# SPDX-License-Identifier: Apache-2.0
"""The end of exports: with their memory, or withdrawn while the memory lives on (law C28).

The caller holds the lock of the lease registry.
"""

from contextlib import suppress
from heapq import heappush

from crossmem.control import words
from crossmem.control.events import EventQueue
from crossmem.control.exports import ExportTable
from crossmem.control.records import Export, Unit
from crossmem.control.slots import SlotTable
from crossmem.errors import DriverError
from crossmem.models import EventKind

__all__ = ["ExportEnds"]


class ExportEnds:
    """Forgets exports without holders.

    Parameters
    ----------
    exports
        The exports by number.
    slots
        Receives the slots of forgotten exports.
    granted
        The exports that rows may hold, by slot.
    events
        Receives the ends of leases that were not noted before.
    """

    def __init__(
        self, exports: ExportTable, slots: SlotTable, granted: dict[int, Export], events: EventQueue
    ) -> None:
        self._exports = exports
        self._slots = slots
        self._granted = granted
        self._events = events

    def forget(self, unit: Unit, withdrawn: Export | None = None) -> None:
        """Forget exports without holders. A second call does nothing.

        Parameters
        ----------
        unit
            The memory.
        withdrawn
            One of its exports; None: all of them.
        """
        for export in list(unit.exports.values()) if withdrawn is None else (withdrawn,):
            slot = export.slot
            if slot is not None:
                self._granted.pop(slot.number, None)
                # No signal handler runs between these statements.
                export.slot = None
                if slot.length == 1:
                    heappush(self._slots.free, slot.number)
                elif slot.length:
                    self._slots.free_ranges += ((slot.number, slot.length),)
            for row in export.since if self._events.registry.observed else ():
                self._events.note(EventKind.LEASE_ENDED, export, row.holder.pid)
            export.since.clear()
            # The last step: while the set contains the export, its rows are still forgotten with
            # the holder.
            for row in export.rows:
                row.holder.exports.discard(export)
        if withdrawn is None:
            unit.withdrawn.clear()
            self._exports.forget(unit)
        else:
            self._exports.drop(withdrawn)
            unit.withdrawn.discard(withdrawn)

    def withdraw(self, export: Export) -> None:
        """Refuse new holds of an export, except by reservation. A second call does nothing.

        Raises
        ------
        DriverError
            The kernel refuses the barrier. An importer with an earlier grant may still begin to
            hold, until a repeated call succeeds.
        """
        # From here on, every request for it is refused.
        export.unit.withdrawn.add(export)
        self._end(export)

    def settle(self, unit: Unit) -> None:
        """Forget withdrawn exports of live memory that have no holder any more."""
        for export in list(unit.withdrawn):
            slot = export.slot
            if _is_reserved(export):
                continue
            if slot is None or not words.any_of(export.rows.values(), slot.at):
                # Without a barrier, the export is forgotten together with its memory.
                with suppress(DriverError):
                    self._end(export)

    def _end(self, export: Export) -> None:
        """Make earlier grants stale, and forget the export if it has no holder."""
        slot = export.slot
        if slot is not None:
            slot.move_on(is_live=True)
            # After the barrier, an importer that saw the old generation has its word in the row.
            words.barrier()
            if words.any_of(export.rows.values(), slot.at):
                return
        if not _is_reserved(export):
            if slot is not None:
                slot.move_on(is_live=False)
            self.forget(export.unit, export)


def _is_reserved(export: Export) -> bool:
    """Whether a message or this process itself has a lease on an export."""
    leases = export.unit.leases
    return any(one.export == export.handle.export for one in list(leases.values()))
