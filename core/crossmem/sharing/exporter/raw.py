# SPDX-License-Identifier: Apache-2.0
"""Imports of this process's own raw exports.

Other processes import a raw handle without a lease. A process that imports its own raw handle takes
a lease (law C8).
"""

from crossmem.control.records import Allow, Export
from crossmem.errors import InvalidHandleError, StaleHandleError
from crossmem.models import ShareableHandle
from crossmem.sharing.base.process import Process
from crossmem.sharing.exporter.record import Allocations

__all__ = ["publish_raw"]


def publish_raw(process: Process, handle: ShareableHandle) -> None:
    """Publish a raw export of this process in the lease registry, so that the process can lease it.

    For a handle of another owner, this function does nothing. It also does nothing if the export
    that the handle names does not exist; the import refuses that handle later.

    Raises
    ------
    InvalidHandleError
        The handle names an export of this process, but differs from the raw handle of that export.
    StaleHandleError
        The memory was freed.
    """
    if handle.owner != process.identity:
        return
    record = process.part(Allocations).find(handle)
    if record is None:
        return
    unit = record.unit
    if unit is not None and handle.export in unit.exports:
        # The export is published already. The lease registry checks the handle when this process
        # takes the lease.
        return
    server = process.start_server()
    with record.lock:
        for known in list(record.handles.values()):
            if known.core == handle.core and known.raw is not None:
                exported = record.memory.find_export(known.access, raw=True)
                # Another thread may have freed the memory while this thread waited for the lock.
                if exported is None or record.is_retired:
                    msg = f"allocation {record.number} of this process was freed"
                    raise StaleHandleError(msg, operation="import")
                allow = Allow(pids=(process.identity.pid,))
                server.leases.publish(Export(record.unit_for_leases(), known, allow, exported))
                return
    msg = f"allocation {record.number} of this process has no raw export with this handle"
    raise InvalidHandleError(msg, operation="import")
