# SPDX-License-Identifier: Apache-2.0
"""Broken crossmems: for every law at least one that breaks it, which the kit must notice.

A plugin: with ``CROSSMEM_PLUGINS=crossmem_mutants`` and ``CROSSMEM_MUTANT`` in the environment,
every process that uses crossmem is broken in that way before it loads a driver. A mutant's name
begins with the law that it breaks.
"""

import os
import threading
from contextlib import suppress
from mmap import MAP_PRIVATE
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mutants_devices  # noqa: F401 - registers its own
import mutants_drivers  # noqa: F401 - registers its own
import mutants_ends  # noqa: F401 - registers its own
import mutants_foreign
import mutants_forks  # noqa: F401 - the same
import mutants_pools  # noqa: F401 - the same
import mutants_queues  # noqa: F401 - the same
import mutants_ranges  # noqa: F401 - the same
import mutants_timelines  # noqa: F401 - the same
import mutants_vendor  # noqa: F401 - the same
import mutants_words  # noqa: F401 - the same
from mutation import MUTANTS, always, changed, instead, mutant, property_is
from typing_extensions import override

from crossmem.conformance.speed import SLOWNESS
from crossmem.control import (
    admission,
    answers,
    client,
    exports,
    holders,
    link,
    registry,
    server,
)
from crossmem.control.leases import LeaseTable
from crossmem.control.records import Allow
from crossmem.control.wire import Status
from crossmem.driver import Exported
from crossmem.errors import (
    ClosedError,
    CrossmemError,
    DeviceNotFoundError,
    DriverError,
    OwnerGoneError,
    WrongHostError,
)
from crossmem.models import handle as handles
from crossmem.sharing import device
from crossmem.sharing.base import copying, deferred, ending, memory
from crossmem.sharing.exporter import allocation, record
from crossmem.sharing.importer import attach, errors, mapping, remote, request, table
from crossmem.sharing.importer import record as imports
from crossmem.sharing.importer.key import ImportRequest
from crossmem_emulated import memory as kernel
from crossmem_emulated.driver import EmulatedDriver


@mutant
def c01_fresh_memory_is_filled_from_its_start() -> None:
    @instead(kernel, "write")
    def write(old: Any, descriptor: int, offset: int, source: int, nbytes: int) -> None:
        old(descriptor, 0, source, nbytes)


@mutant
def c01_importers_map_a_copy() -> None:
    @instead(EmulatedDriver, "map")
    def _(old: Any, self: Any, imported: Any, *, remappable: bool) -> Any:
        with changed(kernel, "MAP_SHARED", MAP_PRIVATE):
            return old(self, imported, remappable=remappable)


@mutant
def c02_the_size_is_the_capacity() -> None:
    @instead(EmulatedDriver, "allocate")
    def _(old: Any, *args: Any) -> Any:
        block = old(*args)
        block.nbytes = block.capacity
        return block


@mutant
def c02_the_capacity_is_not_rounded() -> None:
    @instead(EmulatedDriver, "allocate")
    def _(old: Any, self: Any, *args: Any) -> Any:
        with changed(self, "_granularity_mask", 0):
            return old(self, *args)


@mutant
def c03_every_export_is_a_new_one() -> None:
    @instead(allocation.Allocation, "export")
    def _(old: Any, self: Any, **options: Any) -> Any:
        if self._record is not None:
            self._record.handles.clear()
        return old(self, **options)


@mutant
def c03_the_vendor_exports_for_every_handle() -> None:
    mutants_foreign.export_every_time()


@mutant
def c04_parts_start_at_the_beginning() -> None:
    @instead(mapping.Mapping, "__init__")
    def _(old: Any, self: Any, use: Any, which: Any, handle: Any, base: int,
          **options: Any) -> None:  # fmt: skip
        old(self, use, which, handle, base - handle.offset, **options)


@mutant
def c04_access_may_go_over_the_end() -> None:
    @instead(copying, "check_part")
    def _(old: Any, offset: int, nbytes: int, *, limit: int) -> Any:
        # Only a little, so that it is the check that fails and not the process.
        return old(offset, nbytes, limit=limit + 64)


@mutant
def c05_allocations_are_named_by_their_address() -> None:
    setattr(allocation, "os", SimpleNamespace(urandom=bytes))  # noqa: B010 - mypy knows modules

    @instead(record.AllocationRecord, "obtain")
    def _(old: Any, self: Any, nbytes: int) -> None:
        old(self, nbytes)
        self.number = self.memory.block.pointer


@mutant
def c06_freed_memory_can_be_imported() -> None:
    @instead(exports.ExportTable, "refusal")
    def _(old: Any, self: Any, number: int, export: int, **options: Any) -> Any:
        known = self.find(number, export)
        return None if known is not None else old(self, number, export, **options)


@mutant
def c06_messages_are_as_stale_as_handles() -> None:
    always(LeaseTable, "find_reservation", None)


@mutant
def c06_stale_handles_are_called_invalid() -> None:
    errors._TEXTS[Status.STALE] = errors._TEXTS[Status.UNKNOWN]


@mutant
def c07_every_import_opens() -> None:
    always(table.ImportTable, "join", None)
    setattr(ImportRequest, "key", property(lambda _self: object()))  # noqa: B010


@mutant
def c07_the_first_close_ends_the_lease() -> None:
    @instead(imports.ImportRecord, "leave")
    def _(old: Any, self: Any, use: Any) -> Any:
        connection = getattr(self, "connection", None)
        if connection is not None and len(self.uses) > 1:
            for leased in self.leases.values():
                connection.end(leased)
        return old(self, use)


@mutant
def c08_own_memory_is_imported_like_others() -> None:
    @instead(table.ImportTable, "_new_record")
    def _(_old: Any, self: Any, asked: Any, key: Any) -> Any:
        connection = self._connection_to(asked.handle.owner)
        return remote.RemoteImport(self._process, asked, key, self._forget, connection)


@mutant
def c09_free_takes_memory_from_leases() -> None:
    @instead(record.AllocationRecord, "give_back")
    def _(old: Any, self: Any, *, blocking: bool) -> None:
        old(self, blocking=blocking)
        self.free_now(blocking=blocking)


@mutant
def c09_busy_memory_is_no_error() -> None:
    always(allocation.Allocation, "_await_leases", None)


@mutant
def c09_deferred_memory_is_never_freed() -> None:
    @instead(registry.LeaseRegistry, "retire")
    def _(old: Any, self: Any, unit: Any, **options: Any) -> Any:
        return not (unit.was_granted and unit.is_retired) and old(self, unit, **options)


@mutant
def c09_unmapping_does_not_synchronise() -> None:
    always(imports, "wait_for_work", None)


@mutant
def c09_messages_hold_nothing() -> None:
    @instead(registry.LeaseRegistry, "retire")
    def _(old: Any, self: Any, unit: Any, **options: Any) -> Any:
        for one in list(unit.leases.values()):
            if one.in_message:
                self.end([one.number])
        return old(self, unit, **options)


@mutant
def c11_messages_outlive_their_senders() -> None:
    @instead(LeaseTable, "end_all")
    def _(_old: Any, self: Any, holder: Any) -> Any:
        leases = [one for one in holder.leases.values() if not one.in_message]
        return [self.end(one.number) for one in leases]


@mutant
def c11_a_lease_lasts_as_long_as_its_connection() -> None:
    always(holders, "open_peer", None)


@mutant
def c12_every_owner_is_alive() -> None:
    property_is(client.OwnerConnection, "is_owner_alive", value=True)


@mutant
def c12_an_owner_lives_as_long_as_its_connection() -> None:
    always(link, "open_peer", None)


@mutant
def c13_everybody_is_admitted() -> None:
    always(Allow, "refuses", None)


@mutant
def c13_nobody_hears_of_denials() -> None:
    @instead(admission.Admission, "admit")
    def _(old: Any, self: Any, *args: Any) -> Any:
        answer = old(self, *args)
        for unit in self.registry.exports.units():
            for export in unit.exports.values():
                export.denied = 0
        return answer


@mutant
def c14_damage_is_not_noticed() -> None:
    class Any32(int):
        __hash__ = int.__hash__

        @override
        def __eq__(self, _other: object) -> bool:
            return True

        @override
        def __ne__(self, _other: object) -> bool:
            return False

    @instead(handles, "crc32")
    def _(old: Any, *args: Any) -> Any:
        return Any32(old(*args))


@mutant
def c14_any_secret_is_right() -> None:
    always(admission, "verify", value=True)
    always(answers, "verify", value=True)


@mutant
def c14_drivers_see_what_nobody_exported() -> None:
    @instead(table.ImportTable, "acquire")
    def _(old: Any, self: Any, wishes: Any, uses: Any, timeout_s: float) -> Any:
        for wish in wishes:
            size, where = wish.handle.nbytes, wish.device
            with suppress(CrossmemError):
                where.driver.import_(
                    where.ordinal,
                    Exported(),
                    home=wish.home,
                    mechanism=wish.handle.mechanism,
                    nbytes=size,
                    capacity=size,
                    access="rw",
                )
        return old(self, wishes, uses, timeout_s)


@mutant
def c15_another_device_is_taken_for_an_absent_one() -> None:
    @instead(request, "find_by_identity")
    def _(old: Any, *args: Any) -> Any:
        try:
            return old(*args)
        except DeviceNotFoundError:
            return device.device("emulated:0")


@mutant
def c15_another_host_is_called_a_dead_owner() -> None:
    @instead(attach, "request_of")
    def _(old: Any, *args: Any) -> Any:
        try:
            return old(*args)
        except WrongHostError as error:
            raise OwnerGoneError(error.message) from error


@mutant
def c16_sizes_are_not_checked() -> None:
    @instead(allocation, "check_size")
    def _(_old: Any, _name: str, value: Any, *, limit: int) -> Any:
        return value


@mutant
def c16_nobody_hears_what_waits_on_leases() -> None:
    instead(allocation, "_out_of_memory")(lambda _old, *args: args[2])


@mutant
def c16_a_failed_import_keeps_its_lease() -> None:
    @instead(client.OwnerConnection, "give_back")
    def _(_old: Any, _self: Any, given: Any) -> None:
        for one in given:
            if isinstance(one, answers.Leased):
                one.close_descriptors()


@mutant
def c16_a_failed_mapping_keeps_its_import() -> None:
    @instead(imports.ImportRecord, "map")
    def _(old: Any, self: Any, use: Any, *, remappable: bool) -> Any:
        try:
            return old(self, use, remappable=remappable)
        except CrossmemError:
            self.uses.add(imports.Use(self.process, use.core))
            raise


@mutant
def c17_unmapping_goes_on_under_views() -> None:
    always(memory.Memory, "_has_views", value=False)


@mutant
def c17_closing_twice_is_an_error() -> None:
    @instead(mapping.Import, "close")
    def _(old: Any, self: Any) -> None:
        if self.closed:
            raise ClosedError("closed")
        old(self)


@mutant
def c19_every_thread_opens() -> None:
    key: Any = ImportRequest.key
    always(table.ImportTable, "join", None)
    setattr(ImportRequest, "key", property(  # noqa: B010
        lambda self: (key.fget(self), threading.get_ident())))  # fmt: skip


@mutant
def c20_an_exit_waits_for_nobody() -> None:
    @instead(registry.LeaseRegistry, "wait_all_idle")
    def _(old: Any, self: Any, _timeout_s: float) -> Any:
        return old(self, 0.0)


@mutant
def c20_an_exit_forgets_its_messages() -> None:
    @instead(registry.LeaseRegistry, "wait_all_idle")
    def _(old: Any, self: Any, timeout_s: float) -> Any:
        self.release_mine(list(self._myself.leases))
        return old(self, timeout_s)


@mutant
def c20_an_exit_leaves_its_path() -> None:
    @instead(server.LeaseServer, "stop")
    def _(old: Any, self: Any) -> None:
        self._listeners._path = Path(os.devnull, "absent")
        old(self)


@mutant
def c20_an_exiting_process_still_grants() -> None:
    @instead(exports.ExportTable, "refusal")
    def _(old: Any, self: Any, *args: Any, **options: Any) -> Any:
        with changed(self, "is_exiting", value=False):
            return old(self, *args, **options)


@mutant
def c21_an_export_waits_for_no_work() -> None:
    @instead(allocation.Allocation, "export")
    def _(old: Any, self: Any, **options: Any) -> Any:
        return old(self, **{**options, "synchronize": False})


@mutant
def c21_every_export_waits() -> None:
    @instead(allocation.Allocation, "export")
    def _(old: Any, self: Any, **options: Any) -> Any:
        self.device.synchronize()
        return old(self, **options)


@mutant
def c22_memory_is_freed_while_it_is_exported() -> None:
    @instead(record.AllocationRecord, "_release")
    def _(old: Any, self: Any) -> Any:
        self.memory.exported.clear()
        return old(self)


@mutant
def c23_read_only_is_only_a_word() -> None:
    @instead(EmulatedDriver, "map")
    def _(old: Any, self: Any, imported: Any, *, remappable: bool) -> Any:
        access, imported.access = imported.access, "rw"
        try:
            return old(self, imported, remappable=remappable)
        except DriverError:
            imported.access = access
            return old(self, imported, remappable=remappable)
        finally:
            imported.access = access


@mutant
def c23_read_only_exports_can_be_written() -> None:
    @instead(EmulatedDriver, "export")
    def _(old: Any, self: Any, block: Any, mechanism: str, _access: str, *, raw: bool) -> Any:
        return old(self, block, mechanism, "rw", raw=raw)


@mutant
def c23_advisory_is_forgotten() -> None:
    @instead(mapping.Mapping, "__init__")
    def _(old: Any, self: Any, use: Any, which: Any, *args: Any, readonly: bool) -> None:
        old(self, use, which, *args, readonly=which.access == "ro")


@mutant
def c26_a_stopped_owner_is_called_dead() -> None:
    @instead(link.Deadline, "passed")
    def _(_old: Any, _self: Any, owner: Any) -> Any:
        return link.owner_gone(owner, "did not answer")


@mutant
def c26_the_environment_is_ignored() -> None:
    @instead(attach, "check_timeout")
    def _(old: Any, timeout: Any, *, default_s: float) -> Any:
        return old(timeout, default_s=default_s + 5.0)


@mutant
def c26_a_timeout_is_taken_lightly() -> None:
    @instead(link.Deadline, "__init__")
    def _(old: Any, self: Any, timeout_s: float) -> None:
        old(self, timeout_s + 5.0 * SLOWNESS)


@mutant
def c27_freed_memory_waits_for_the_next_call() -> None:
    always(deferred.DeferredWork, "start_reaper", None)


@mutant
def c30_an_interrupted_free_is_forgotten() -> None:
    @instead(ending.Endable, "_end")
    def _(old: Any, self: Any) -> None:
        try:
            old(self)
        except CrossmemError:
            raise
        except BaseException:
            self._process.deferred.ready.clear()
            raise


if name := os.environ.get("CROSSMEM_MUTANT"):
    MUTANTS[name]()
