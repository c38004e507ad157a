# SPDX-License-Identifier: Apache-2.0
"""Broken adoptions; registered by importing this."""

import os
from contextlib import suppress
from dataclasses import replace
from typing import Any

from mutation import FOREIGN, MUTANTS, always, changed, foreign_mutant, instead

from crossmem.driver import Foreign
from crossmem.errors import CrossmemError
from crossmem.sharing import adoption, allocation, foreign, opening

__all__ = ["FOREIGN", "MUTANTS"]


@foreign_mutant
def c01_adopted_parts_begin_at_the_block() -> None:
    setattr(adoption.Adopted, "offset", 0)  # noqa: B010 - it is a property


@foreign_mutant
def c02_what_is_adopted_is_the_block() -> None:
    setattr(adoption.Adopted, "nbytes", property(lambda self: self.block.nbytes))  # noqa: B010


@foreign_mutant
def c03_every_adoption_exports() -> None:
    @instead(adoption.Adopted, "__init__")
    def _(old: Any, self: Any, *args: Any, **options: Any) -> None:
        old(self, *args, **options)
        self.exported = {}


@foreign_mutant
def c03_every_adoption_has_a_block() -> None:
    always(foreign.Ground, "overlaps", False)


@foreign_mutant
def c05_adoptions_of_a_block_are_one_allocation() -> None:
    @instead(allocation, "_export")
    def _(old: Any, owned: Any, *args: Any) -> Any:
        with changed(owned, "number", 1), changed(os, "urandom", bytes):
            return old(owned, *args)


@foreign_mutant
def c06_giving_up_withdraws_nothing() -> None:
    @instead(adoption.Adopted, "retire")
    def _(_old: Any, self: Any) -> None:
        self.process.owned.pop(self.number, None)


@foreign_mutant
def c07_every_adoption_is_opened() -> None:
    @instead(opening.OpeningTable, "enter")
    def _(old: Any, self: Any, user: Any, handle: Any, leased: Any, *args: Any,
          **options: Any) -> Any:  # fmt: skip
        other = replace(leased, capacity=leased.capacity + len(self._openings))
        return old(self, user, handle, other, *args, **options)


@foreign_mutant
def c07_the_first_to_leave_closes_the_opening() -> None:
    @instead(opening.OpeningTable, "leave")
    def _(old: Any, self: Any, user: Any, one: Any) -> None:
        one.users.clear()
        old(self, user, one)


@foreign_mutant
def c08_own_adopted_memory_is_at_its_block() -> None:
    setattr(adoption.Adoption, "ptr", property(lambda self: self._live().block.pointer))  # noqa: B010


@foreign_mutant
def c09_owners_are_not_kept() -> None:
    @instead(adoption.Adopted, "__init__")
    def _(old: Any, self: Any, *args: Any, owner: Any, **options: Any) -> None:
        old(self, *args, owner=object(), **options)


@foreign_mutant
def c09_owners_are_kept_for_ever() -> None:
    kept: list[object] = []
    instead(adoption, "_let_go")(lambda _old, owner: kept.append(owner))


@foreign_mutant
def c09_owners_go_when_the_adoption_does() -> None:
    @instead(adoption.Adopted, "retire")
    def _(old: Any, self: Any) -> None:
        self._owner = None
        old(self)


@foreign_mutant
def c09_giving_up_frees_the_memory() -> None:
    @instead(foreign.GroundTable, "leave")
    def _(old: Any, self: Any, ground: Any, number: int) -> None:
        old(self, ground, number)
        ground.driver.free(ground.block)


@foreign_mutant
def c09_a_lease_ends_while_the_device_works() -> None:
    @instead(opening.Opening, "unmap")
    def _(old: Any, self: Any, imported: Any) -> None:
        self.device.driver.calls["synchronize"] += 1
        old(self, imported)

    from crossmem.sharing import entry

    @instead(entry.Entry, "_unmap_now")
    def _(_old: Any, self: Any) -> None:
        pointer, self.pointer = self.pointer, 0
        self._unmap(pointer)


@foreign_mutant
def c10_giving_up_one_ends_all() -> None:
    @instead(foreign.GroundTable, "leave")
    def _(old: Any, self: Any, ground: Any, number: int) -> None:
        ground.users.clear()
        old(self, ground, number)


@foreign_mutant
def c16_a_failed_adoption_is_kept() -> None:
    @instead(foreign.GroundTable, "leave")
    def _(old: Any, self: Any, ground: Any, number: int) -> None:
        with suppress(CrossmemError):
            old(self, ground, number)


@foreign_mutant
def c16_parts_may_lie_outside() -> None:
    @instead(foreign.GroundTable, "enter")
    def _(old: Any, self: Any, *args: Any) -> Any:
        return old(self, *args)

    @instead(adoption, "look_at")
    def _(old: Any, *args: Any) -> Any:
        found = old(*args)
        # As if everything had one byte more.
        return Foreign(
            found.base, found.nbytes + 1, found.exposed_base, found.exposed_nbytes + 1,
            found.obstacle,
        )  # fmt: skip


@foreign_mutant
def c17_dropped_adoptions_stay() -> None:
    always(adoption.Adoption, "__del__", None)


@foreign_mutant
def c18_inherited_adoptions_work() -> None:
    always(allocation, "refuse_foreign", None)


@foreign_mutant
def c19_threads_adopt_at_once() -> None:
    @instead(foreign.GroundTable, "enter")
    def _(old: Any, self: Any, *args: Any) -> Any:
        known, self._grounds = self._grounds, []
        ground = old(self, *args)
        self._grounds = [*known, ground]
        return ground


@foreign_mutant
def c20_an_exit_frees_what_was_adopted() -> None:
    @instead(adoption.Adopted, "free_at_exit")
    def _(_old: Any, self: Any) -> None:
        self.device.driver.free(self.block)


@foreign_mutant
def c21_exports_of_adopted_memory_are_not_ordered() -> None:
    @instead(allocation, "_export")
    def _(old: Any, owned: Any, *args: Any) -> Any:
        return old(owned, *args[:-1], False)


@foreign_mutant
def c22_neighbours_are_exposed() -> None:
    always(adoption, "neighbours_of", None)


@foreign_mutant
def c22_memory_of_crossmem_is_adopted() -> None:
    always(foreign, "_own_use_of", None)


@foreign_mutant
def c22_obstacles_are_ignored() -> None:
    @instead(adoption, "look_at")
    def _(old: Any, *args: Any) -> Any:
        found = old(*args)
        if found.obstacle is None:
            return found
        return Foreign(args[-1], 4096, args[-1], 4096)


@foreign_mutant
def c25_nothing_is_said_to_apply() -> None:
    from crossmem.sharing import ways

    instead(ways, "look_at")(lambda _old, *_args: Foreign(obstacle="is what it is"))
