# SPDX-License-Identifier: Apache-2.0
"""Broken address ranges; registered by importing this."""

import sys
from contextlib import nullcontext
from dataclasses import replace
from mmap import MAP_PRIVATE
from types import SimpleNamespace
from typing import Any

from mutation import always, changed, instead, mutant

from crossmem.errors import DriverError
from crossmem.sharing import allocation, mapping, ranges, reservation
from crossmem_emulated import memory as kernel
from crossmem_emulated.driver import EmulatedDriver


@mutant
def c01_pieces_show_a_copy() -> None:
    @instead(EmulatedDriver, "map_at")
    def _(old: Any, self: Any, *args: Any) -> None:
        with changed(kernel, "MAP_SHARED", MAP_PRIVATE):
            old(self, *args)


@mutant
def c04_a_part_is_mapped_as_the_whole() -> None:
    @instead(mapping.Import, "lend")
    def _(old: Any, self: Any) -> Any:
        with changed(self, "nbytes", self.handle.nbytes):
            return old(self)


@mutant
def c07_an_attached_import_has_no_pieces() -> None:
    @instead(EmulatedDriver, "map_at")
    def _(old: Any, self: Any, source: Any, pointer: int) -> None:
        # Memory that a mapping alone keeps cannot be mapped elsewhere.
        if not isinstance(source.reference, int):
            raise DriverError("the descriptor is closed")
        old(self, source, pointer)


@mutant
def c09_unmapping_a_piece_does_not_synchronise() -> None:
    @instead(reservation.Reservation, "_unmap")
    def _(old: Any, self: Any, placed: Any) -> None:
        with changed(self.device, "driver", SimpleNamespace(synchronize=lambda _: None)):
            old(self, placed)


@mutant
def c16_pieces_may_lie_anywhere() -> None:
    always(reservation.Reservation, "_check_place", None)


@mutant
def c16_a_failed_piece_keeps_its_place() -> None:
    @instead(reservation.Reservation, "_forget")
    def _(old: Any, self: Any, placed: Any) -> None:
        if sys.exception() is None:
            old(self, placed)


@mutant
def c17_memory_ends_while_a_range_shows_it() -> None:
    def lend(old: Any, self: Any) -> Any:
        loan = old(self)
        loan.end()
        return replace(loan, end=lambda: None)

    for lender in (allocation.Allocation, mapping.Import):
        instead(lender, "lend")(lend)


@mutant
def c18_inherited_ranges_work() -> None:
    always(ranges, "refuse_foreign", None)


@mutant
def c19_every_thread_gets_the_place() -> None:
    @instead(reservation.Reservation, "_check_place")
    def _(old: Any, self: Any, placed: Any) -> None:
        # Imports are left alone: what is read there while it is unmapped ends the whole kit.
        others = [one for one in self._placed if one.is_mapped or not one.loan.is_own]
        with changed(self, "_placed", others):
            old(self, placed)


@mutant
def c20_an_exit_leaves_ranges() -> None:
    always(reservation.Reservation, "release_at_exit", None)


@mutant
def c22_a_range_takes_every_kind_of_memory() -> None:
    always(reservation.Reservation, "_kinds", [])


@mutant
def c23_a_range_makes_memory_writable() -> None:
    @instead(EmulatedDriver, "map_at")
    def _(old: Any, self: Any, source: Any, pointer: int) -> None:
        with changed(source, "access", "rw") if hasattr(source, "access") else nullcontext():
            old(self, source, pointer)


@mutant
def c24_a_range_takes_memory_of_every_device() -> None:
    always(reservation.Reservation, "_check_memory", None)
