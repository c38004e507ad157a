# SPDX-License-Identifier: Apache-2.0
"""Reports which processes hold the blocks of a pool, according to the rows and reservations."""

import time
from itertools import compress
from operator import attrgetter
from typing import NamedTuple

from crossmem.control import words
from crossmem.control.arenas import Arena
from crossmem.control.leases import Lease
from crossmem.models import BlockHandle

__all__ = ["BlockReport", "report_of"]


class BlockReport(NamedTuple):
    """One generation of a block, with the holders of this generation.

    Parameters
    ----------
    handle
        The handle of this generation, for the whole capacity of the block.
    leases
        The leases of the generation's holders, oldest first.
    is_freed
        Whether the block was freed and waits for the end of these leases.
    is_withdrawn
        Whether the handle was withdrawn, and the block lives on in a later generation.
    """

    handle: BlockHandle
    leases: tuple[Lease, ...]
    is_freed: bool
    is_withdrawn: bool


def report_of(arena: Arena) -> list[BlockReport]:
    """Return one report for each generation that is live or has a holder.

    The reports are sorted by block.
    """
    first, count, pool = arena.at, arena.fresh, arena.core
    with arena.registry.lock:
        found: dict[tuple[int, int], list[Lease]] = {}
        for index, word in enumerate(arena.words[first : first + count]):
            if word % 2:
                found[index, word] = []
        for lease, row in _leases_of(arena):
            mine = row[first : first + count]
            for index in compress(range(count), mine):
                # A hostile process can write any word into its row. ``| 1`` makes the word odd,
                # because each handle of a block has an odd generation.
                found.setdefault((index, mine[index] | 1), []).append(lease)
        for index, unit in arena.reserved.items():
            for export in unit.exports.values():
                leases = found.setdefault((index, _generation_of(export.handle)), [])
                leases += [one for one in unit.leases.values() if one.in_message]
        reports = []
        for (index, generation), leases in sorted(found.items()):
            word = words.load(arena.words, first + index)
            if word != generation and not leases:
                continue
            handle = BlockHandle(pool, (0, pool.stride, index, generation, pool.stride))
            is_live = word % 2 == 1
            ordered = tuple(sorted(leases, key=attrgetter("since")))
            reports.append(
                BlockReport(handle, ordered, not is_live, is_live and word != generation)
            )
        return reports


def _leases_of(arena: Arena) -> list[tuple[Lease, memoryview]]:
    """Return a lease on the pool for each row, together with the row.

    The process that writes the row is the holder of the lease. The caller holds the registry's
    lock.
    """
    registry, export = arena.registry, arena.export
    unit, since = export.unit, export.since
    now = time.time()
    found = [
        (Lease(0, unit, 0, row.holder, since.get(row, now)), one)
        for row, one in export.rows.items()
    ]
    own = registry.pools.own_rows.get(arena.which)
    if own is not None:
        myself = registry.myself
        mine = [one for one in unit.leases.values() if one.holder is myself]
        found.append((mine[0] if mine else Lease(0, unit, 0, myself, now), own))
    return found


def _generation_of(handle: object) -> int:
    assert isinstance(handle, BlockHandle)  # noqa: S101 - Arena.enter() made the handle
    return int(handle.generation)
