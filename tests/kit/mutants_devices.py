# SPDX-License-Identifier: Apache-2.0
"""Broken crossmems whose fault lies in how devices are chosen, copied between, and left behind."""

from dataclasses import replace
from typing import Any

from mutation import always, instead, mutant, property_is

from crossmem.errors import CrossmemError
from crossmem.plugin import selection
from crossmem.sharing.base import copying, devices
from crossmem.sharing.exporter import record
from crossmem.sharing.importer import attach
from crossmem_emulated.driver import EmulatedDriver


@mutant
def c01_copies_on_the_device_start_at_the_beginning() -> None:
    @instead(copying.Copyable, "copy_from")
    def _(old: Any, self: Any, source: Any, *, source_offset: int = 0, **options: Any) -> None:
        nbytes = options.pop("nbytes", None)
        size = source.nbytes - source_offset if nbytes is None else nbytes
        old(self, source, nbytes=size, **options)


@mutant
def c16_copies_on_the_device_have_no_bounds() -> None:
    @instead(copying, "check_part")
    def _(old: Any, offset: Any, nbytes: Any, *, limit: int) -> Any:
        # The limit of the other memory: as if it were checked against the wrong one.
        return old(offset, nbytes, limit=200 if limit == 100 else limit)


@mutant
def c18_a_backend_that_cannot_be_forked_is_loaded() -> None:
    always(devices, "refuse_forked_backend", value=None)


@mutant
def c20_what_is_leased_is_pulled_from_importers() -> None:
    property_is(record.AllocationRecord, "_is_leased", value=False)


@mutant
def c24_devices_are_named_by_ordinal() -> None:
    @instead(EmulatedDriver, "devices")
    def _(old: Any, self: Any) -> Any:
        return tuple(replace(one, identity=f"host:{one.ordinal}") for one in old(self))


@mutant
def c24_the_device_that_was_asked_for_is_ignored() -> None:
    @instead(attach, "request_of")
    def _(old: Any, which: Any, handle: Any, _target: Any, *args: Any) -> Any:
        return old(which, handle, None, *args)


@mutant
def c25_another_mechanism_will_do() -> None:
    @instead(devices.LocalDevice, "for_mechanism")
    def _(old: Any, self: Any, mechanism: Any) -> Any:
        known = mechanism in self.capabilities.mechanisms
        return old(self, mechanism) if known else self


@mutant
def c25_an_emulation_will_do() -> None:
    @instead(selection, "choose")
    def _(old: Any, spec: Any, *args: Any, **options: Any) -> Any:
        try:
            return old(spec, *args, **options)
        except CrossmemError:
            return old("emulated:0", *args, runtime=None)
