# SPDX-License-Identifier: Apache-2.0
"""Refuses second holders of exclusive exports, and reports the deaths of importers."""

from collections.abc import Iterable
from contextlib import suppress

from crossmem.control import words
from crossmem.control.records import Export
from crossmem.control.wire import Refusal, Status

__all__ = ["Deaths", "claim"]


def claim(export: Export) -> Refusal | None:
    """Return a refusal if an export is exclusive and a process holds it, else None.

    If the exclusive export has no lease, the export's earlier grants become stale. So no process
    can begin a hold with an earlier grant. The caller holds the lock of the lease registry.

    Raises
    ------
    DriverError
        The kernel refuses the barrier.
    """
    slot, number = export.slot, export.handle.export
    if not export.is_exclusive:
        return None
    is_held = any(one.export == number for one in list(export.unit.leases.values()))
    if not is_held and slot is not None:
        slot.move_on(is_live=True)
        # An importer writes its row before it checks the generation. If the importer found the
        # earlier generation, this process sees the importer's row after the barrier.
        words.barrier()
        is_held = words.any_of(export.rows.values(), slot.at)
    return Refusal(Status.TAKEN, "another process holds it") if is_held else None


class Deaths:
    """Keeps exports that were granted to dead processes, until ``on_death`` is called."""

    def __init__(self) -> None:
        self._exports: dict[Export, None] = {}

    def note(self, exports: Iterable[Export]) -> None:
        """Remember exports that were granted to a dead process, if they have an ``on_death``."""
        self._exports.update((one, None) for one in exports if one.on_death is not None)

    def tell(self) -> None:
        """Call ``on_death`` for each remembered export. The caller holds no lock."""
        while self._exports:
            with suppress(KeyError):
                # Another thread may have taken the last export.
                export, _ = self._exports.popitem()
                if export.on_death is not None:
                    export.on_death()
