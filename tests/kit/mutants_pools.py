# SPDX-License-Identifier: Apache-2.0
"""Broken crossmems whose pools give blocks out too early, too late, or without a word."""

from collections.abc import Callable
from typing import Any

from mutation import always, instead, mutant

from crossmem.conformance.speed import SLOWNESS
from crossmem.control import arenas, registry, words
from crossmem.sharing.importer import block_holds, blocks
from crossmem.sharing.pools import block, pool


class _Words:
    """The words of an arena, of which some are stored otherwise."""

    def __init__(self, view: memoryview, stored: Callable[[memoryview, int, int], int]) -> None:
        self.view = view
        self._stored = stored

    def __getitem__(self, at: int) -> int:
        return self.view[at]

    def __setitem__(self, at: int, word: int) -> None:
        self.view[at] = self._stored(self.view, at, word)


def _stores(stored: Callable[[memoryview, int, int], int]) -> None:
    """Let owners store another word than they should."""

    @instead(arenas.Arena, "__init__")
    def _(old: Any, self: Any, *args: Any) -> None:
        old(self, *args)
        self.words = _Words(self.words, stored)


@mutant
def p01_rows_are_not_read() -> None:
    instead(arenas.Arena, "_busy")(lambda _old, *_args: set())


@mutant
def p01_a_freed_block_is_free_at_once() -> None:
    @instead(block.Block, "_end")
    def _(old: Any, self: Any) -> None:
        record = self._record
        old(self)
        if record is not None:
            record.arena.free.extend(record.arena.freed)
            record.arena.freed.clear()


@mutant
def p01_blocks_are_given_out_twice() -> None:
    @instead(arenas.Arena, "reclaim")
    def _(old: Any, self: Any, **options: Any) -> Any:
        count = old(self, **options)
        self.free.extend(self.free[-1:])
        return count


@mutant
def p01_own_holds_do_not_count() -> None:
    instead(arenas.Arena, "_rows")(lambda _old, self: list(self.export.rows.values()))


@mutant
def p01_messages_hold_no_block() -> None:
    @instead(arenas.Arena, "_busy")
    def _(old: Any, self: Any, indices: Any) -> Any:
        return old(self, indices) - self.reserved.keys()


@mutant
def p01_one_row_counts_for_all() -> None:
    @instead(arenas.Arena, "_rows")
    def _(old: Any, self: Any) -> Any:
        return old(self)[:1]


@mutant
def p01_the_rows_of_the_dead_are_read() -> None:
    always(registry.LeaseRegistry, "forget_row", None)


@mutant
def p01_a_stopped_importer_is_called_dead() -> None:
    # What looks whether a peer lives gives it a moment, as an answer to a message would need.
    @instead(arenas.Arena, "reclaim")
    def _(old: Any, self: Any, **options: Any) -> Any:
        for row in list(self.export.rows):
            with open(f"/proc/{row.holder.pid}/stat", encoding="utf-8") as stat:  # noqa: PTH123
                if stat.read().rpartition(") ")[2].startswith("T"):
                    del self.export.rows[row]
        return old(self, **options)


@mutant
def p01_each_kind_of_access_counts_alone() -> None:
    @instead(blocks.PoolImports, "open")
    def _(old: Any, self: Any, *args: Any) -> Any:
        known = list(self.arenas.values())
        arena = old(self, *args)
        if arena not in known:
            arena.holders = {}
        return arena


@mutant
def p02_the_generation_stays() -> None:
    always(arenas.Arena, "retire", None)
    _stores(lambda view, at, word: word if word % 2 else view[at])


@mutant
def p02_generations_begin_anew() -> None:
    _stores(lambda _view, _at, word: 1 if word % 2 else word)


@mutant
def p02_control_is_not_read() -> None:
    @instead(block_holds.ArenaImport, "__init__")
    def _(old: Any, self: Any, *args: Any) -> None:
        old(self, *args)
        # Whatever this process holds, it takes for live.
        self.control = self.row


@mutant
def p02_who_holds_a_block_gets_any_life_of_it() -> None:
    @instead(block_holds.BlockHold, "take")
    def _(old: Any, self: Any, generation: int) -> bool:
        held = words.load(self.arena.row, self.arena.at + self.index)
        return bool(old(self, generation) or held)


@mutant
def p03_one_held_block_keeps_all() -> None:
    @instead(arenas.Arena, "_busy")
    def _(old: Any, self: Any, indices: Any) -> Any:
        return set(indices) if old(self, indices) else set()


@mutant
def p04_any_process_holds_blocks() -> None:
    @instead(arenas.Arena, "_rows")
    def _(old: Any, self: Any) -> Any:
        known = list(self.registry.pools.arenas.values())
        return old(self) + [row for one in known for row in one.export.rows.values()]


@mutant
def p04_rows_are_believed() -> None:
    @instead(arenas.Arena, "_busy")
    def _(old: Any, self: Any, indices: Any) -> Any:
        for row in self._rows():
            for index in indices:
                at = self.at + index
                assert words.load(row, at) <= words.load(self.words, at)
        return old(self, indices)


@mutant
def p04_rubbish_is_no_hold_of_others() -> None:
    # A free word tells as little as a wrong one.
    @instead(arenas.Arena, "_busy")
    def _(old: Any, self: Any, indices: Any) -> Any:
        rows = self._rows()
        wrong = [row for row in rows if any(row[self.at + one] > 2**32 for one in indices)]
        return set() if wrong else old(self, indices)


@mutant
def p05_nobody_is_named() -> None:
    always(pool, "name_pids", "others")


@mutant
def p05_nothing_is_waited_for() -> None:
    @instead(pool.Pool, "_wait_for_block")
    def _(old: Any, self: Any, arena: Any, _timeout: float) -> None:
        old(self, arena, 0.0)


@mutant
def p05_a_timeout_is_taken_lightly() -> None:
    @instead(pool, "check_wait")
    def _(old: Any, timeout: Any, **default: float) -> float:
        limit_s: float = old(timeout, **default)
        return limit_s and limit_s + 5 * SLOWNESS
