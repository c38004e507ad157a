# SPDX-License-Identifier: Apache-2.0
"""The errors for refused leases."""

from typing import Final, NamedTuple

from crossmem.control.wire import Refusal, Status
from crossmem.errors import (
    AccessDeniedError,
    BusyError,
    CrossmemError,
    DriverError,
    InvalidHandleError,
    OwnerGoneError,
    StaleHandleError,
    UnsupportedError,
)
from crossmem.guards import clause
from crossmem.models import ShareableHandle

__all__ = ["error_of", "not_of_the_pool"]


class _Text(NamedTuple):
    """The type, message and hint of the error for a status.

    ``{pid}`` becomes the owner's pid, and ``{reason}`` becomes the text of the owner's refusal.
    """

    error: type[CrossmemError]
    message: str
    hint: str


_TEXTS: Final = {
    Status.STALE: _Text(
        StaleHandleError,
        "the owner (pid {pid}) freed this memory before this process imported it",
        "keep the allocation, or the Shared, open until all readers have received the memory",
    ),
    Status.WITHDRAWN: _Text(
        StaleHandleError,
        "the handle was withdrawn by its owner (pid {pid})",
        "ask the owner for a new handle; Allocation.export() makes one",
    ),
    Status.UNKNOWN: _Text(
        InvalidHandleError,
        "the owner (pid {pid}) does not know this handle: {reason}",
        "pass the unchanged bytes that handle.to_bytes() returned in the exporting process",
    ),
    Status.DENIED: _Text(
        AccessDeniedError,
        "the owner (pid {pid}) does not admit this process: {reason}",
        "in the owner, call export(allow=crossmem.Allow(uids=..., pids=...)) to admit processes",
    ),
    Status.EXITING: _Text(
        OwnerGoneError,
        "the owner (pid {pid}) is exiting",
        "export the memory again in a living process and send the new handle",
    ),
    Status.FAILED: _Text(
        DriverError,
        "the owner (pid {pid}) could not grant a lease: {reason}",
        "see the log of the owner",
    ),
    Status.FULL: _Text(
        BusyError,
        "the owner (pid {pid}) cannot make more reservations for messages: {reason}",
        "receive or discard earlier messages, or raise CROSSMEM_MAX_RESERVATIONS in the owner",
    ),
    Status.TOO_MANY: _Text(
        BusyError,
        "the owner (pid {pid}) refuses this request as too large: {reason}",
        "send fewer handles in one message, or raise CROSSMEM_MAX_RESERVATIONS in the owner",
    ),
    Status.UNWATCHED: _Text(
        UnsupportedError,
        "the owner (pid {pid}) cannot grant this process a block of a pool: {reason}",
        "between containers, share single allocations instead of a pool, or run Linux 6.5 or later",
    ),
    Status.TAKEN: _Text(
        BusyError,
        "the owner (pid {pid}) has given this place in its queue to another process: {reason}",
        "wait until that process closes the queue or ends",
    ),
    Status.NO_ROW: _Text(
        BusyError,
        "the owner (pid {pid}) has no room for the leases of this process: {reason}",
        "each exec() of a process takes further room; start a new process instead of exec()",
    ),
}


def error_of(refusal: Refusal, handle: ShareableHandle) -> CrossmemError:
    """Return the error for a refused lease."""
    error, message, hint = _TEXTS[refusal.status]
    reason = clause(refusal.reason)
    return error(
        message.format(pid=handle.owner.pid, reason=reason),
        hint=hint,
        details="" if reason == refusal.reason else refusal.reason,
        operation="import",
        backend=handle.backend,
        device=handle.device,
    )


def not_of_the_pool() -> InvalidHandleError:
    """Return the error for a block's handle whose fields do not match the pool."""
    return InvalidHandleError(
        "the bytes are not a handle of a block of this pool",
        hint="pass the bytes of handle.to_bytes() unchanged",
    )
