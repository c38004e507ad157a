# SPDX-License-Identifier: Apache-2.0
"""Ends exports: when their memory is freed, or when the owner withdraws them (law C28).

The caller of each method holds the lock of the lease registry.
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
    """Removes exports from the lease registry if no process holds them.

    Parameters
    ----------
    exports
        The exports of this process.
    slots
        Receives the slots of forgotten exports.
    granted
        The exports that importers may hold. The key is the number of the slot.
    events
        Receives an event for each lease whose end was not reported yet.
    """

    def __init__(
        self, exports: ExportTable, slots: SlotTable, granted: dict[int, Export], events: EventQueue
    ) -> None:
        self._exports = exports
        self._slots = slots
        self._granted = granted
        self._events = events

    def forget(self, unit: Unit, withdrawn: Export | None = None) -> None:
        """Remove exports that no process holds. A second call does nothing.

        Parameters
        ----------
        withdrawn
            The export to remove; None: all exports of the memory.
        """
        for export in list(unit.exports.values()) if withdrawn is None else (withdrawn,):
            slot = export.slot
            if slot is not None:
                if slot.generation % 2:
                    # The owner does not seal memory that was never granted, so the generation may
                    # still be odd.
                    slot.move_on(is_live=False)
                self._granted.pop(slot.number, None)
                # No signal handler runs between these statements, so the slot is freed only once.
                export.slot = None
                if slot.length == 1:
                    heappush(self._slots.free, slot.number)
                elif slot.length:
                    self._slots.free_ranges += ((slot.number, slot.length),)
            for row in export.since if self._events.registry.observed else ():
                self._events.note(EventKind.LEASE_ENDED, export, row.holder.pid)
            export.since.clear()
            # This step comes last. If a signal handler raises before this step, the record of each
            # holder still lists the export. So the holder's death still removes the holder's rows.
            for row in export.rows:
                row.holder.exports.discard(export)
        if withdrawn is None:
            unit.withdrawn.clear()
            self._exports.forget(unit)
        else:
            self._exports.drop(withdrawn)
            unit.withdrawn.discard(withdrawn)

    def withdraw(self, export: Export) -> None:
        """Refuse new holds of an export, unless the importer has a reservation.

        The call can be repeated.

        Raises
        ------
        DriverError
            The kernel refuses the barrier. Until a repeated call succeeds, an importer with an
            earlier grant may still begin a hold.
        """
        # From now on, requests without a reservation are refused.
        export.unit.withdrawn.add(export)
        self._end(export)

    def settle(self, unit: Unit) -> None:
        """Forget withdrawn exports of live memory, once they have no holder and no reservation."""
        for export in list(unit.withdrawn):
            slot = export.slot
            if _is_reserved(export):
                continue
            if slot is None or not words.any_of(export.rows.values(), slot.at):
                # If the barrier fails, the export stays registered, and a later call tries again.
                with suppress(DriverError):
                    self._end(export)

    def _end(self, export: Export) -> None:
        """Begin a new generation, which makes earlier grants stale.

        Forget the export if no process holds it and no message reserves it.
        """
        slot = export.slot
        if slot is not None:
            slot.move_on(is_live=True)
            # After the barrier, every importer that saw the old generation has written that
            # generation into its row.
            words.barrier()
            if words.any_of(export.rows.values(), slot.at):
                return
        if not _is_reserved(export):
            if slot is not None:
                slot.move_on(is_live=False)
            self.forget(export.unit, export)


def _is_reserved(export: Export) -> bool:
    """Whether the reservation of a message, or a lease of this process itself, keeps an export."""
    leases = export.unit.leases
    return any(one.export == export.handle.export for one in list(leases.values()))
