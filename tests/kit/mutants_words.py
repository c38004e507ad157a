# SPDX-License-Identifier: Apache-2.0
"""Broken crossmems whose exporters do not learn which leases have ended."""

from typing import Any

from mutation import always, instead, mutant

from crossmem.control import holders, registry, words


@mutant
def c09_rows_are_not_read() -> None:
    always(words, "any_of", value=False)


@mutant
def c10_one_end_counts_for_everybody() -> None:
    @instead(words, "any_of")
    def _(_old: Any, rows: Any, index: int) -> Any:
        return all([one[index] for one in rows] or [0])


@mutant
def c11_the_rows_of_the_dead_are_read() -> None:
    always(registry.LeaseRegistry, "forget_row", None)


@mutant
def c11_the_death_of_an_importer_ends_nothing() -> None:
    always(holders.HolderTable, "lose_if_dead", False)
