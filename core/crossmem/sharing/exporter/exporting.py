# SPDX-License-Identifier: Apache-2.0
"""The exports of memory that this process owns."""

import os

from crossmem.control.records import Allow, Export
from crossmem.errors import ClosedError, UnsupportedError
from crossmem.guards import check_choice, check_flag
from crossmem.models import Access, EventKind, ShareableHandle
from crossmem.sharing.base.devices import LocalDevice
from crossmem.sharing.exporter.record import AllocationRecord

__all__ = ["export_again"]

_EVERYONE_OF_THIS_USER = Allow()


def export_again(
    record: AllocationRecord,
    allow: Allow | None,
    access: Access,
    *,
    lease: bool = True,
    synchronize: bool = True,
) -> ShareableHandle:
    """Return a new or earlier handle of this process's memory; see :meth:`Allocation.export`."""
    key = (allow, access, lease)
    device, process = record.device, record.process
    _check_export(device, allow, access, lease=lease)
    if lease and process.server is None:
        process.start_server()
    with record.lock:
        known, is_new = record.handles, False
        handle = known.get(key)
        if handle is None and record.memory.blocks and not record.is_done:
            if synchronize:
                device.driver.synchronize(device.ordinal)
            # A handle that was returned without a wait for the device is stored under the key
            # ``early``, not under ``key``. So a later call with synchronize=True reaches this
            # branch, waits for the device, and only then takes the handle from ``early``.
            early = (*key, "early")
            handle = known.get(early)
            is_new = handle is None
            if handle is None:
                handle = _export(record, allow, access, lease=lease)
            known[key if synchronize else early] = handle
            record.loose_exports.discard((handle.allocation, handle.export))
    if handle is None:
        msg = f"allocation {record.number} of this process was freed"
        raise ClosedError(msg, operation="export")
    if is_new and process.registry.observed:
        record.tell(EventKind.EXPORTED)
    return handle


def _export(
    record: AllocationRecord, allow: Allow | None, access: Access, *, lease: bool
) -> ShareableHandle:
    """Export a record's memory under a new number. The caller holds the lock of the record."""
    device, process, block = record.device, record.process, record.memory.blocks[0]
    raw = not lease
    exported = record.memory.export(access, raw=raw)
    handle = ShareableHandle(
        backend=device.backend,
        mechanism=device.mechanism,
        device=device.identity,
        allocation=record.number,
        export=next(record.export_numbers),
        secret=os.urandom(16),
        owner=process.identity,
        nbytes=block.nbytes,
        capacity=block.capacity,
        access=access,
        raw=b"".join(exported.payloads) if raw else None,
    )
    if (record.offset, record.nbytes) != (0, handle.nbytes):
        handle = handle.slice(record.offset, record.nbytes)
    named = handle.allocation, handle.export
    # When the record ends, it removes its exports from ``allocations.exported``. The record finds
    # these exports in ``record.handles`` and in ``record.loose_exports``. The new export is in
    # ``loose_exports`` until the caller has stored the handle in ``record.handles``.
    record.loose_exports.add(named)
    record.allocations.exported[named] = record
    if lease:
        export = Export(record.unit_for_leases(), handle, allow or _EVERYONE_OF_THIS_USER, exported)
        process.start_server().leases.publish(export)
    return handle


def _check_export(device: LocalDevice, allow: Allow | None, access: Access, *, lease: bool) -> None:
    """Raise if the device does not offer the requested export."""
    capabilities = device.capabilities
    check_choice("access", access, ("rw", "ro"), "export")
    check_flag("lease", lease, "export")
    refused = None
    if access == "ro" and not capabilities.readonly_exports:
        refused = "read-only exports (capability readonly_exports)"
    elif not lease and not capabilities.raw_handles:
        refused = "raw handles (capability raw_handles)"
    elif allow and not capabilities.other_users and {*(allow.uids or ())} - {os.geteuid()}:
        refused = "exports to other users (capability other_users)"
    if refused is not None:
        msg = f"{device.name} does not offer {refused}"
        raise UnsupportedError(msg, operation="export", backend=device.backend)
