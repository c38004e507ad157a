# SPDX-License-Identifier: Apache-2.0
"""The errors for refused leases."""

from typing import Final

from crossmem.control.wire import Refusal, Status
from crossmem.errors import (
    AccessDeniedError,
    BusyError,
    CrossmemError,
    DriverError,
    InvalidHandleError,
    OwnerGoneError,
    StaleHandleError,
)
from crossmem.models import ShareableHandle

__all__ = ["error_of"]

_ERRORS: Final[dict[Status, type[CrossmemError]]] = {
    Status.STALE: StaleHandleError,
    Status.WITHDRAWN: StaleHandleError,
    Status.UNKNOWN: InvalidHandleError,
    Status.DENIED: AccessDeniedError,
    Status.EXITING: OwnerGoneError,
    Status.FAILED: DriverError,
    Status.FULL: BusyError,
    Status.TOO_MANY: BusyError,
}

_HINTS: Final = {
    Status.WITHDRAWN: "ask the exporter for a new handle; Allocation.export() makes one"
}


def error_of(refusal: Refusal, handle: ShareableHandle) -> CrossmemError:
    """Return the error for a lease that was refused."""
    error = _ERRORS[refusal.status]
    return error(
        f"process {handle.owner.pid} gives no lease on allocation {handle.allocation}: "
        f"{refusal.reason}",
        hint=_HINTS.get(refusal.status),
        operation="import",
        backend=handle.backend,
        device=handle.device,
    )
