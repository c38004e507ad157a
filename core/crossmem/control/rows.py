# SPDX-License-Identifier: Apache-2.0
"""The exporter's view of leases in the rows of importers.

The caller of each function holds the lock of the lease registry. For each export, the exporter
reads only the rows of processes with a grant, so a hold without a grant has no effect. The exporter
never writes a row, and forgets the row of a dead process.
"""

import time
from collections.abc import Iterable
from operator import attrgetter
from typing import Any

from crossmem.control import words
from crossmem.control.barrier import IS_ORDERED
from crossmem.control.leases import Lease
from crossmem.control.records import Export, Unit

__all__ = ["ended_of", "is_held", "leases_of", "reopen", "seal", "wish"]


def is_held(unit: Unit) -> bool:
    """Whether any row holds any export of a unit at this moment."""
    for export in list(unit.exports.values()):
        slot = export.slot
        if slot is not None and words.any_of(export.rows.values(), slot.at):
            return True
    return False


def seal(unit: Unit) -> bool:
    """Refuse new holds of memory, and return whether the memory has no holder.

    Each holder sends a hint when it ends its hold.
    """
    if not unit.was_granted:
        return True
    if not unit.is_sealed:
        for export in list(unit.exports.values()):
            if export.slot is not None:
                export.slot.move_on(is_live=False)
        # After the barrier, every importer that saw the old generation has written that generation
        # into its row.
        words.barrier()
        unit.is_sealed = True
    if is_held(unit):
        return False
    if not IS_ORDERED:
        # This processor reorders stores: an importer's last store to the memory may become visible
        # after the 0 that ended its hold. The second barrier orders the two stores.
        words.barrier()
    return True


def reopen(unit: Unit) -> None:
    """Begin the next odd generation, so that sealed memory can be held again."""
    unit.is_sealed = False
    for export in list(unit.exports.values()):
        if export.slot is not None:
            export.slot.move_on(is_live=True)


def wish(units: Iterable[Unit]) -> None:
    """Begin a new generation of live memory, so that its holders send a hint when their holds end.

    New holds stay possible.
    """
    for unit in units:
        if not unit.is_retired:
            reopen(unit)
    # If an importer ends its hold after the barrier, the importer sees the new generation. If the
    # hold ends before the barrier, the owner's next read sees the 0.
    words.barrier()


def leases_of(unit: Unit) -> tuple[Lease, ...]:
    """Return the leases on memory, the oldest first."""
    found: list[Lease] = list(unit.leases.values())
    for number, export in list(unit.exports.items()):
        slot, since = export.slot, export.since
        if slot is not None:
            found += [
                Lease(0, unit, number, row.holder, since.setdefault(row, time.time()))
                for row, one in export.rows.items()
                if words.load(one, slot.at)
            ]
    return tuple(sorted(found, key=attrgetter("since")))


def ended_of(export: Export) -> list[Any]:
    """Return the rows in ``export.since`` that do not hold the export now."""
    slot = export.slot
    assert slot is not None  # noqa: S101 - an export with rows has a slot
    return [row for row in export.since if not words.load(export.rows[row], slot.at)]
