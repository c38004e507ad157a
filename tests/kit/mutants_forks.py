# SPDX-License-Identifier: Apache-2.0
"""Broken crossmems whose forked children keep too much of their parent, or too little."""

import os
from typing import Any

from mutation import always, instead, mutant, property_is

from crossmem.control import holders, segments
from crossmem.driver.buffers import ViewAnchor
from crossmem.sharing import device
from crossmem.sharing.base import array_index, ending, memory, process
from crossmem_emulated import memory as kernel
from crossmem_emulated.driver import EmulatedDriver


@mutant
def c18_a_forked_child_keeps_its_parents_descriptors() -> None:
    always(process.Process, "abandon", frozenset())


@mutant
def c18_a_forked_child_keeps_its_parents_memory() -> None:
    always(kernel, "close_inherited", None)


@mutant
def c18_inherited_objects_work() -> None:
    property_is(process.Process, "is_usable", value=True)
    for module in (ending, device):
        always(module, "refuse_foreign_device" if module is device else "refuse_foreign", None)


@mutant
def c18_a_forked_child_has_the_words_of_leases() -> None:
    always(segments, "_madvise", 0)


@mutant
def c18_a_forked_child_has_no_memory_of_the_host() -> None:
    @instead(kernel, "map_shared")
    def _(old: Any, *args: Any, is_inherited: bool, **options: Any) -> Any:
        return old(*args, is_inherited=False, **options)


@mutant
def c18_freed_pages_are_wiped() -> None:
    @instead(EmulatedDriver, "free")
    def _(old: Any, self: Any, block: Any) -> None:
        if block.pointer:
            kernel.fill(block.pointer, block.capacity, 0)
        old(self, block)


@mutant
def c18_a_dropped_view_unmaps_the_memory() -> None:
    class Unmapping(ViewAnchor):
        __slots__ = ()

        def __del__(self) -> None:
            viewed: Any = self.memory
            if viewed._process.is_inherited:
                kernel.munmap(self._pointer, 4096)

    setattr(memory, "ViewAnchor", Unmapping)  # noqa: B010 - mypy knows modules


@mutant
def c18_an_inherited_array_is_shared_where_it_lies() -> None:
    @instead(array_index.ArrayIndex, "find")
    def _(old: Any, self: Any, *args: Any) -> Any:
        return old(self, *args) or (self._inherited and old(self._inherited, *args))


@mutant
def c18_views_wait_for_the_parents_lock() -> None:
    @instead(memory.Memory, "view")
    def _(old: Any, self: Any) -> Any:
        with self._process.state:
            return old(self)


@mutant
def c18_a_fork_after_exit_closes_twice() -> None:
    @instead(holders.HolderTable, "close")
    def _(_old: Any, self: Any) -> None:
        for holder in list(self._holders.values()):
            if holder.pidfd is not None:
                os.close(holder.pidfd)
