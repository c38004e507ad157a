# SPDX-License-Identifier: Apache-2.0
"""Broken crossmems in which exports are not withdrawn, or something does not end with its owner."""

import tempfile
from typing import Any

from mutation import always, instead, mutant

from crossmem.control import export_ends, exports, wire
from crossmem.sharing.base import ending
from crossmem.sharing.base.process import current
from crossmem.sharing.exporter import allocation
from crossmem.sharing.importer import mapping, watcher
from crossmem_emulated.driver import EmulatedDriver


@mutant
def c03_a_withdrawn_handle_is_given_again() -> None:
    @instead(allocation, "withdraw")
    def _(old: Any, record: Any, handle: Any) -> None:
        known = dict(record.handles)
        old(record, handle)
        record.handles.update(known)


@mutant
def c12_memory_has_a_name_that_nobody_sweeps() -> None:
    named: dict[int, Any] = {}

    @instead(EmulatedDriver, "allocate")
    def _(old: Any, self: Any, *args: Any) -> Any:
        block = old(self, *args)
        # Removed when it is closed, and not when its process is killed.
        named[id(block)] = tempfile.NamedTemporaryFile(dir=current().settings.run_dir)  # noqa: SIM115
        return block

    @instead(EmulatedDriver, "free")
    def _(old: Any, self: Any, block: Any) -> None:
        old(self, block)
        named.pop(id(block)).close()


@mutant
def c28_withdrawn_exports_are_granted() -> None:
    always(export_ends.ExportEnds, "withdraw", None)


@mutant
def c28_who_had_it_gets_it_again() -> None:
    @instead(exports.ExportTable, "refusal")
    def _(old: Any, self: Any, number: int, export: int, **options: Any) -> Any:
        found = self.find(number, export)
        if found is not None and found in found.unit.withdrawn:
            return None
        return old(self, number, export, **options)


@mutant
def c28_withdrawing_takes_the_memory_from_who_has_it() -> None:
    @instead(export_ends.ExportEnds, "withdraw")
    def _(old: Any, self: Any, export: Any) -> None:
        old(self, export)
        self.forget(export.unit, export)


@mutant
def c28_withdrawn_exports_are_called_freed() -> None:
    @instead(exports.ExportTable, "refusal")
    def _(old: Any, self: Any, *args: Any, **options: Any) -> Any:
        refusal = old(self, *args, **options)
        if refusal is not None and refusal.status is wire.Status.WITHDRAWN:
            return refusal._replace(status=wire.Status.STALE)
        return refusal


@mutant
def c28_every_export_is_withdrawn() -> None:
    @instead(export_ends.ExportEnds, "withdraw")
    def _(old: Any, self: Any, export: Any) -> None:
        for one in list(export.unit.exports.values()):
            old(self, one)


@mutant
def c28_messages_lose_what_was_withdrawn() -> None:
    always(export_ends, "_is_reserved", value=False)


@mutant
def c28_any_handle_can_be_withdrawn() -> None:
    @instead(allocation, "withdraw")
    def _(old: Any, record: Any, handle: Any) -> None:
        if handle.raw is None and record.handles and handle in record.handles.values():
            old(record, handle)


@mutant
def c28_withdrawn_exports_are_never_forgotten() -> None:
    always(export_ends.ExportEnds, "forget", None)


@mutant
def c29_nobody_watches() -> None:
    always(watcher.OwnerWatcher, "watch", None)


@mutant
def c29_every_import_ends_with_its_owner() -> None:
    always(watcher, "asks_for_release", value=True)

    @instead(mapping.Mapping, "__init__")
    def _(old: Any, self: Any, use: Any, *args: Any, **options: Any) -> None:
        old(self, use, *args, **options)
        watcher.end_with_owner(self, use, use)


@mutant
def c29_views_keep_nothing() -> None:
    always(mapping.Mapping, "_refuse_if_used", None)


@mutant
def c29_views_keep_for_ever() -> None:
    @instead(watcher.OwnerWatcher, "_let_go")
    def _(old: Any, self: Any, connection: Any) -> None:
        old(self, connection)
        self._watched.pop(connection, None)


@mutant
def c29_mappings_of_an_import_are_kept() -> None:
    always(mapping, "end_with_owner", None)


@mutant
def c29_nobody_says_why_it_was_closed() -> None:
    @instead(watcher, "end_because")
    def _(_old: Any, one: Any, _why: str) -> None:
        ending.end_because(one, "")


@mutant
def c29_the_watcher_stays() -> None:
    always(watcher.OwnerWatcher, "_is_needed", value=True)
