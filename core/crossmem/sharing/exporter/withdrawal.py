# SPDX-License-Identifier: Apache-2.0
"""The withdrawal of an export whose memory stays allocated (law C28)."""

from crossmem.control.records import Unit
from crossmem.errors import ClosedError, InvalidHandleError, UnsupportedError
from crossmem.models import ShareableHandle
from crossmem.sharing.exporter.record import AllocationRecord

__all__ = ["withdraw"]


def withdraw(record: AllocationRecord, handle: ShareableHandle) -> None:
    """Withdraw the export that a handle names; see :meth:`crossmem.Allocation.withdraw`."""
    device, process = record.device, record.process
    if handle.raw is not None:
        msg = "a raw handle cannot be withdrawn: its importers need no lease"
        raise UnsupportedError(
            msg, operation="withdraw", backend=device.backend, hint="export with lease=True"
        )
    export = handle.allocation, handle.export
    with record.lock:
        unit, server = record.unit, process.server
        if record.is_done or record.is_retired:
            msg = f"allocation {record.number} of this process was freed"
            raise ClosedError(msg, operation="withdraw")
        is_mine = handle.owner == process.identity and handle.allocation == record.number
        if not is_mine or unit is None or server is None:
            raise _no_export(record, handle)
        # Adoptions in one allocation of the vendor have the same allocation number, so the export
        # may belong to another adoption.
        if record.allocations.exported.get(export) is record:
            # When the memory is freed, the record removes its ``loose_exports`` from ``exported``.
            # A signal can interrupt the statements below, so this statement comes before them.
            record.loose_exports.add(export)
        for arguments, known in list(record.handles.items()):
            if known.core == handle.core:
                del record.handles[arguments]
    refusal = server.leases.withdraw(unit, handle)
    with record.lock:
        _forget_gone(record, unit)
    server.leases.tell()
    if refusal is not None:
        raise _no_export(record, handle)


def _forget_gone(record: AllocationRecord, unit: Unit) -> None:
    """Forget the exports in ``loose_exports`` that the lease registry no longer has.

    Such an export was withdrawn and has no holder, or the call that made the export was
    interrupted. The caller holds the record's lock.
    """
    for export in list(record.loose_exports):
        if export[1] not in unit.exports and not record.is_done:
            record.allocations.exported.pop(export, None)
            record.loose_exports.discard(export)


def _no_export(record: AllocationRecord, handle: ShareableHandle) -> InvalidHandleError:
    msg = (
        f"the handle of allocation {handle.allocation} of process {handle.owner.pid} names no "
        f"export of allocation {record.number} of this process"
    )
    hint = "withdraw a handle through the allocation that exported it"
    return InvalidHandleError(msg, operation="withdraw", hint=hint)
