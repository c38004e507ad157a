# SPDX-License-Identifier: Apache-2.0
"""Broken address ranges; registered by importing this."""

from contextlib import nullcontext
from mmap import MAP_PRIVATE
from typing import Any

from mutation import always, changed, instead, mutant, property_is

from crossmem.errors import DriverError
from crossmem.sharing.base import process
from crossmem.sharing.ranges import address_range
from crossmem.sharing.ranges import record as ranges
from crossmem_emulated import memory as kernel
from crossmem_emulated.driver import EmulatedDriver


@mutant
def c01_pieces_show_a_copy() -> None:
    @instead(EmulatedDriver, "map_at")
    def _(old: Any, self: Any, *args: Any) -> Any:
        with changed(kernel, "MAP_SHARED", MAP_PRIVATE):
            return old(self, *args)


@mutant
def c04_a_part_is_mapped_as_the_whole() -> None:
    @instead(address_range, "_source_of")
    def _(old: Any, lender: Any) -> Any:
        if not hasattr(lender, "handle"):
            return old(lender)
        with changed(lender, "nbytes", lender.handle.nbytes):
            return old(lender)


@mutant
def c07_an_attached_import_has_no_pieces() -> None:
    @instead(EmulatedDriver, "map_at")
    def _(old: Any, self: Any, source: Any, pointer: int) -> Any:
        # Memory that a mapping alone keeps cannot be mapped elsewhere.
        if type(source.reference).__name__ == "_Kept":
            raise DriverError("the descriptor is closed")
        return old(self, source, pointer)


@mutant
def c09_unmapping_a_piece_does_not_synchronise() -> None:
    always(ranges, "wait_for_work", None)


@mutant
def c16_pieces_may_lie_anywhere() -> None:
    always(ranges.RangeRecord, "_check_place", None)


@mutant
def c16_a_failed_piece_keeps_its_place() -> None:
    @instead(ranges.PieceRecord, "_unmap")
    def _(old: Any, self: Any) -> Any:
        if self.mapped:
            return old(self)
        self.is_done = True
        return None


@mutant
def c17_memory_ends_while_a_range_shows_it() -> None:
    instead(address_range, "_source_of")(lambda old, lender: old(lender)._replace(users=set()))


@mutant
def c18_inherited_ranges_work() -> None:
    property_is(process.Process, "is_usable", value=True)


@mutant
def c19_every_thread_gets_the_place() -> None:
    @instead(ranges.RangeRecord, "_check_place")
    def _(old: Any, self: Any, piece: Any) -> None:
        # Imports are left alone: what is read there while it is unmapped ends the whole kit.
        others = [one for one in self.pieces if one.mapped or not one.source.is_own]
        with changed(self, "pieces", others):
            old(self, piece)


@mutant
def c20_an_exit_leaves_ranges() -> None:
    always(ranges.Ranges, "close_at_exit", None)


@mutant
def c22_a_range_takes_every_kind_of_memory() -> None:
    always(ranges.RangeRecord, "_kinds", [])


@mutant
def c23_a_range_makes_memory_writable() -> None:
    @instead(EmulatedDriver, "map_at")
    def _(old: Any, self: Any, source: Any, pointer: int) -> Any:
        with changed(source, "access", "rw") if hasattr(source, "access") else nullcontext():
            return old(self, source, pointer)


@mutant
def c24_a_range_takes_memory_of_every_device() -> None:
    always(ranges.RangeRecord, "_check_memory", None)
