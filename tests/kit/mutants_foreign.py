# SPDX-License-Identifier: Apache-2.0
"""Broken adoptions; registered by importing this."""

import os
import threading
from contextlib import suppress
from typing import Any

from mutation import FOREIGN, MUTANTS, always, changed, foreign_mutant, instead, property_is

from crossmem.driver import Foreign
from crossmem.errors import CrossmemError
from crossmem.sharing.base import process
from crossmem.sharing.base.regions import RegionIndex
from crossmem.sharing.exporter import (
    adoption,
    allocation,
    exporting,
    foreign,
    record,
    share_report,
)
from crossmem.sharing.importer import record as imports
from crossmem.sharing.importer.key import ImportRequest
from crossmem_emulated import memory as kernel

__all__ = ["FOREIGN", "MUTANTS"]


@foreign_mutant
def c01_adopted_parts_begin_at_the_block() -> None:
    setattr(adoption.AdoptionRecord, "offset", 0)  # noqa: B010 - it is a property


@foreign_mutant
def c02_what_is_adopted_is_the_block() -> None:
    @instead(adoption.AdoptionRecord, "adopt")
    def _(old: Any, self: Any, found: Any) -> None:
        old(self, found)
        self.nbytes = self.memory.block.nbytes


def export_every_time() -> None:
    """Have the vendor export memory for every handle."""

    @instead(record.BlockRecord, "export")
    def _(old: Any, self: Any, access: str, *, raw: bool) -> Any:
        # Made again, and released with the others at the end.
        self.exported[access, raw, len(self.exported)] = self.exported.pop((access, raw), [])
        return old(self, access, raw=raw)


@foreign_mutant
def c03_every_adoption_exports() -> None:
    export_every_time()


@foreign_mutant
def c03_every_adoption_has_a_block() -> None:
    @instead(foreign.ForeignAllocations, "enter")
    def _(old: Any, self: Any, *args: Any) -> None:
        with changed(self, "_known", RegionIndex(threading.RLock())):
            old(self, *args)


@foreign_mutant
def c05_adoptions_of_a_block_are_one_allocation() -> None:
    @instead(exporting, "_export")
    def _(old: Any, owned: Any, *args: Any, **options: Any) -> Any:
        with changed(owned, "export_numbers", iter([0])), changed(os, "urandom", bytes):
            return old(owned, *args, **options)


@foreign_mutant
def c06_giving_up_withdraws_nothing() -> None:
    @instead(adoption.AdoptionRecord, "give_back")
    def _(_old: Any, self: Any, *, blocking: bool) -> None:
        self.is_done = True
        self.process.part(record.Allocations).live.pop(self, None)


@foreign_mutant
def c07_every_adoption_is_opened() -> None:
    key: Any = ImportRequest.key
    setattr(ImportRequest, "key", property(  # noqa: B010
        lambda self: (key.fget(self), self.handle.export)))  # fmt: skip


@foreign_mutant
def c07_the_first_to_leave_closes_the_opening() -> None:
    @instead(imports.ImportRecord, "leave")
    def _(old: Any, self: Any, use: Any) -> Any:
        if len(self.leases) > 1:
            self.uses.clear()
            self.mapped_uses.clear()
        return old(self, use)


@foreign_mutant
def c08_own_adopted_memory_is_at_its_block() -> None:
    setattr(  # noqa: B010
        adoption.Adoption, "ptr", property(lambda self: self._record.memory.block.pointer)
    )


@foreign_mutant
def c09_owners_are_not_kept() -> None:
    @instead(adoption.AdoptionRecord, "__init__")
    def _(old: Any, self: Any, *args: Any, owner: Any, **options: Any) -> None:
        old(self, *args, owner=object(), **options)


@foreign_mutant
def c09_owners_are_kept_for_ever() -> None:
    kept: list[object] = []

    @instead(adoption.AdoptionRecord, "__init__")
    def _(old: Any, self: Any, *args: Any, owner: Any, **options: Any) -> None:
        kept.append(owner)
        old(self, *args, owner=owner, **options)


@foreign_mutant
def c09_owners_go_when_the_adoption_does() -> None:
    @instead(adoption.AdoptionRecord, "give_back")
    def _(old: Any, self: Any, *, blocking: bool) -> None:
        self._owner = None
        old(self, blocking=blocking)


@foreign_mutant
def c09_giving_up_frees_the_memory() -> None:
    @instead(foreign.ForeignAllocations, "leave")
    def _(old: Any, self: Any, user: Any) -> None:
        memory, blocks = user.memory, list(user.memory.blocks)
        old(self, user)
        for block in blocks:
            # The next program has it; this one would die if it were unmapped.
            memory.device.driver.calls["free"] += 1
            kernel.fill(block.pointer, block.nbytes, 0)


@foreign_mutant
def c09_a_lease_ends_while_the_device_works() -> None:
    @instead(imports, "wait_for_work")
    def _(_old: Any, device: Any) -> None:
        device.driver.calls["synchronize"] += 1


@foreign_mutant
def c10_giving_up_one_ends_all() -> None:
    @instead(foreign.ForeignAllocations, "leave")
    def _(old: Any, self: Any, user: Any) -> None:
        user.memory.users.clear()
        old(self, user)


@foreign_mutant
def c13_other_users_are_admitted_everywhere() -> None:
    @instead(exporting, "_check_export")
    def _(old: Any, device: Any, _allow: Any, access: Any, **options: Any) -> None:
        old(device, None, access, **options)


@foreign_mutant
def c16_a_failed_adoption_is_kept() -> None:
    @instead(foreign.ForeignAllocations, "leave")
    def _(old: Any, self: Any, user: Any) -> None:
        with suppress(CrossmemError):
            old(self, user)


@foreign_mutant
def c16_parts_may_lie_outside() -> None:
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
    property_is(process.Process, "is_usable", value=True)


@foreign_mutant
def c19_threads_adopt_at_once() -> None:
    @instead(foreign.ForeignAllocations, "enter")
    def _(old: Any, self: Any, *args: Any) -> None:
        with changed(self, "_known", RegionIndex(threading.RLock())):
            old(self, *args)


@foreign_mutant
def c20_an_exit_frees_what_was_adopted() -> None:
    @instead(adoption.AdoptionRecord, "free_at_exit")
    def _(_old: Any, self: Any) -> None:
        self.device.driver.free(self.memory.block)


@foreign_mutant
def c21_exports_of_adopted_memory_are_not_ordered() -> None:
    @instead(allocation, "export_again")
    def _(old: Any, owned: Any, *args: Any, **options: Any) -> Any:
        return old(owned, *args, **{**options, "synchronize": False})


@foreign_mutant
def c22_neighbours_are_exposed() -> None:
    always(adoption, "neighbours_of", None)


@foreign_mutant
def c22_memory_of_crossmem_is_adopted() -> None:
    always(RegionIndex, "find", None)


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
    instead(share_report, "look_at")(lambda _old, *_args: Foreign(obstacle="is what it is"))
