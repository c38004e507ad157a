# SPDX-License-Identifier: Apache-2.0
"""What an exporter reads of leases, and how it makes sure of it. The caller holds the lock.

Only the rows of processes that were given a lease on an export are read for it, so a row keeps
nothing else. A row is never written here: that of a dead process is forgotten.
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
    """Whether a row holds any export of memory at this moment."""
    for export in list(unit.exports.values()):
        slot = export.slot
        if slot is not None and words.any_of(export.rows.values(), slot.at):
            return True
    return False


def seal(unit: Unit) -> bool:
    """Let nobody begin to hold memory, and tell whether nobody holds it.

    Who holds it sends a message at the end, so its owner can sleep until then.
    """
    if not unit.was_granted:
        return True
    if not unit.is_sealed:
        for export in list(unit.exports.values()):
            if export.slot is not None:
                export.slot.move_on(is_live=False)
        # An importer that saw the old generation has its word in the row when this ends.
        words.barrier()
        unit.is_sealed = True
    if is_held(unit):
        return False
    if not IS_ORDERED:
        # A store that was made under a hold may become visible after the 0 that ended it.
        words.barrier()
    return True


def reopen(unit: Unit) -> None:
    """Begin the next generation of live memory: it can be held, if it was sealed, too."""
    unit.is_sealed = False
    for export in list(unit.exports.values()):
        if export.slot is not None:
            export.slot.move_on(is_live=True)


def wish(units: Iterable[Unit]) -> None:
    """Have those who hold live memory send a message at the end; others can still begin to."""
    for unit in units:
        if not unit.is_retired:
            reopen(unit)
    # Who does not see that has written its 0 where the owner reads it next.
    words.barrier()


def leases_of(unit: Unit) -> tuple[Lease, ...]:
    """Return who holds memory, oldest lease first."""
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
    """Return the rows that held an export and hold it no longer."""
    slot = export.slot
    assert slot is not None  # noqa: S101 - it has rows
    return [row for row in export.since if not words.load(export.rows[row], slot.at)]
