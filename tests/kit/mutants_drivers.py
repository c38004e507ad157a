# SPDX-License-Identifier: Apache-2.0
"""Broken drivers: they take exports of anything, or keep what they should release."""

import os
from typing import Any

from mutation import always, instead, mutant, timeline_mutant

from crossmem.driver import Imported
from crossmem_emulated import memory as kernel
from crossmem_emulated.driver import EmulatedDriver
from crossmem_emulated.hip import blocks, shares
from crossmem_hip.driver import GpuDriver


@mutant
def c14_a_driver_takes_any_descriptors() -> None:
    @instead(EmulatedDriver, "import_")
    def _(_old: Any, _self: Any, ordinal: int, exported: Any, *, capacity: int, access: Any,
          **_options: Any) -> Any:  # fmt: skip
        (descriptor,) = exported.descriptors
        return Imported(ordinal, capacity, access, descriptor)


@mutant
def c16_freed_memory_stays_charged() -> None:
    always(EmulatedDriver, "_refund", None)


@mutant
def c18_a_forked_child_keeps_files_in_shared_memory() -> None:
    always(kernel, "close_inherited", None)
    always(kernel, "fcntl", 0)
    flags = os.O_RDWR | os.O_TMPFILE | os.O_CLOEXEC
    instead(kernel, "memfd_create")(lambda _old, _name, _flags: os.open("/dev/shm", flags, 0o600))
    instead(kernel, "sealed_nbytes")(lambda _old, descriptor: os.fstat(descriptor).st_size)


@timeline_mutant
def c09_a_device_is_not_waited_for() -> None:
    always(GpuDriver, "synchronize", None)
    # The vendor's own calls wait, too.
    for module in (blocks, shares):
        always(module, "finish_device", None)


@timeline_mutant
def c21_a_device_is_not_waited_for() -> None:
    always(GpuDriver, "synchronize", None)


@mutant
def c27_a_freed_block_stays_mapped() -> None:
    @instead(EmulatedDriver, "free")
    def _(old: Any, self: Any, block: Any) -> None:
        block.pointer = 0
        old(self, block)


@mutant
def c27_an_unmapped_import_stays_mapped() -> None:
    @instead(EmulatedDriver, "unmap")
    def _(old: Any, self: Any, mapped: Any) -> None:
        mapped.pointer = 0
        old(self, mapped)


@mutant
def c30_a_driver_does_not_record_what_it_gets() -> None:
    instead(kernel, "call_into")(lambda _old, _box, call, *arguments: call(*arguments))
