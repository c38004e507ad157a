# SPDX-License-Identifier: Apache-2.0
"""The table of a process's exports, and the reasons why requests for exports are refused.

Callers hold the lock of the lease registry.
"""

from crossmem.control.leases import Holder
from crossmem.control.records import Export, Unit
from crossmem.control.rows import leases_of
from crossmem.control.wire import Refusal, Status, Wanted
from crossmem.models import ShareableHandle

__all__ = ["ExportTable"]


class ExportTable:
    """Finds exports, and distinguishes stale numbers from numbers that never existed."""

    def __init__(self) -> None:
        self._exports: dict[int, dict[int, Export]] = {}
        """The exports of each allocation. The first key is the number of the allocation, and the
        second key is the number of the export."""
        self._made: dict[int, int] = {}
        """How many exports each allocation has had. The key is the number of the allocation. The
        entry exists until the memory is released."""
        self._newest_allocation = 0
        self.is_exiting = False
        """Whether this process is exiting. From then on, an importer can lease an export only with
        a reservation."""

    def add(self, export: Export) -> None:
        """Add an export."""
        number, which = export.handle.allocation, export.handle.export
        exports = self._exports.get(number)
        if exports is None:
            exports = self._exports[number] = {}
        self._made[number] = max(self._made.get(number, 0), which + 1)
        self._newest_allocation = max(self._newest_allocation, number)
        export.unit.exports[which] = exports[which] = export

    def get(self, allocation: int, export: int) -> Export:
        """Return an export. It must exist."""
        return self._exports[allocation][export]

    def find(self, allocation: int, export: int) -> Export | None:
        """Return the export with these numbers, or None if it does not exist."""
        exports = self._exports.get(allocation)
        return None if exports is None else exports.get(export)

    def units(self) -> list[Unit]:
        """Return all exported memory, in the order of the exports."""
        exports = (one for some in self._exports.values() for one in some.values())
        return list({id(one.unit): one.unit for one in exports}.values())

    def refusal(self, allocation: int, export: int, *, is_reserved: bool = False) -> Refusal | None:
        """Return the refusal of a request for an export, or None if the export can be leased.

        Parameters
        ----------
        allocation, export
            The requested export.
        is_reserved
            Whether the requester has a reservation for the export. A reservation stays valid after
            a free or a withdrawal, and while this process exits.
        """
        if self.is_exiting and not is_reserved:
            return Refusal(Status.EXITING, "the exporting process is exiting")
        found = self.find(allocation, export)
        if found is not None:
            unit = found.unit
            if is_reserved or not (unit.is_retired or found in unit.withdrawn):
                return None
            is_live = not unit.is_retired
        else:
            if not 0 < allocation <= self._newest_allocation:
                return Refusal(Status.UNKNOWN, "no allocation has the handle's allocation number")
            is_live = allocation in self._made
            arena = self.find(allocation, 0)
            if export and arena is not None and arena.is_arena:
                # The request is for a block of a pool. An importer requests a block only if a
                # message has reserved the block, and this table contains all reserved blocks. So
                # the block is not reserved any more, and its handle is stale.
                is_live = False
            elif is_live and export >= self._made[allocation]:
                return Refusal(Status.UNKNOWN, "no export has the handle's export number")
        if is_live:
            # The allocation lives, so the export was withdrawn.
            return Refusal(Status.WITHDRAWN, "the handle was withdrawn")
        return Refusal(Status.STALE, "the allocation was freed")

    def refusal_of_reservation(
        self, wanted: Wanted | ShareableHandle, holder: Holder
    ) -> Refusal | None:
        """Return the refusal if no message of ``holder`` can reserve the export, else None.

        A process that holds freed memory may forward this memory. No process may forward a
        withdrawn export, because a withdrawal forbids imports by further processes.
        """
        refusal = self.refusal(wanted.allocation, wanted.export)
        if refusal is not None:
            export = self.find(wanted.allocation, wanted.export)
            if (
                export is not None
                and export not in export.unit.withdrawn
                and holder in {one.holder for one in leases_of(export.unit)}
            ):
                refusal = self.refusal(wanted.allocation, wanted.export, is_reserved=True)
        return refusal

    def drop(self, export: Export) -> None:
        """Forget one export of memory that lives on. A second call does nothing."""
        number = export.handle.export
        self._exports.get(export.unit.allocation, {}).pop(number, None)
        export.unit.exports.pop(number, None)

    def forget(self, unit: Unit) -> None:
        """Forget all exports of a unit. A second call does nothing."""
        exports = self._exports.get(unit.allocation, {})
        for number in list(unit.exports):
            exports.pop(number, None)
        if not exports:
            self._exports.pop(unit.allocation, None)
            self._made.pop(unit.allocation, None)
