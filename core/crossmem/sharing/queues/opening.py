# SPDX-License-Identifier: Apache-2.0
"""Opening a queue of another process: its directory and its segments."""

import base64
import json
from typing import Any, ClassVar, Final, get_args

from typing_extensions import override

from crossmem.control.barrier import IS_REGISTERED, WHY_NOT
from crossmem.errors import InvalidHandleError, UnsupportedError
from crossmem.guards import check_timeout, is_within, shorten
from crossmem.models import ShareableHandle
from crossmem.models.queue_handle import QueueHandle, QueueRole
from crossmem.sharing.base.devices import LocalDevice
from crossmem.sharing.base.memory import leave_to_views, usage_of
from crossmem.sharing.base.process import Part, Process
from crossmem.sharing.importer.attach import attach
from crossmem.sharing.importer.mapping import Mapping
from crossmem.sharing.importer.record import Use
from crossmem.sharing.importer.request import request_of
from crossmem.sharing.importer.table import ImportTable
from crossmem.sharing.queues.layout import Delivery, Overflow, Terms
from crossmem.sharing.queues.opened import Opened
from crossmem.sharing.queues.owner import QueueOwner
from crossmem.sharing.queues.segments import LENGTH_NBYTES

__all__ = [
    "MAX_DEPTH",
    "MAX_PLACES",
    "Queues",
    "handle_in",
    "open_segments",
    "read_directory",
    "refusal_of",
]

MAX_DEPTH: Final = 2**16
MAX_PLACES: Final = 64
_LIMITS: Final = {
    "depth": MAX_DEPTH,
    "stride": 2**48,
    "producers": MAX_PLACES,
    "consumers": MAX_PLACES,
    "prefetch": MAX_DEPTH,
}


class Queues(Part):
    """The queues that this process owns."""

    closing: ClassVar = -4

    def __init__(self, process: Process) -> None:
        super().__init__(process)
        self.owned: dict[QueueOwner, None] = {}

    @override
    def close_at_exit(self) -> None:
        """Close the queues, so that the other processes see that the queues have ended."""
        for owner in list(self.owned):
            owner.close()


def handle_in(text: str) -> ShareableHandle:
    """Return the handle that a base64 text in a directory encodes."""
    return ShareableHandle.from_bytes(base64.b64decode(text))


def read_directory(mapping: Mapping) -> dict[str, Any]:
    """Return the unchecked contents of a directory. Another process wrote them."""
    blob = mapping.read()
    size = int.from_bytes(blob[:LENGTH_NBYTES], "little")
    try:
        found = json.loads(blob[LENGTH_NBYTES : LENGTH_NBYTES + size])
        if not isinstance(found, dict):
            raise TypeError(shorten(found))
    except (ValueError, TypeError) as error:
        raise refusal_of(error) from error
    return found


def refusal_of(error: Exception) -> InvalidHandleError:
    """Return the error for a directory with wrong contents."""
    msg = f"the directory of the queue cannot be read: {shorten(str(error), 80)}"
    hint = "pass the bytes of queue.export(role=...).to_bytes() unchanged"
    return InvalidHandleError(msg, operation="open_queue", hint=hint)


def _check_directory(
    found: dict[str, Any], role: QueueRole
) -> tuple[Terms, list[ShareableHandle], list[ShareableHandle]]:
    """Check a directory. Return its terms, its shared handles, and the handles for the role.

    The shared handles are those of the arena, of the control segment and of each ring and place,
    in this order. Through the shared handles, the segments are read-only. The handles for the role
    are additional handles of all rings (``produce``), or of all places (``consume``). Through an
    additional handle, one process at a time can write the segment.
    """
    try:
        terms = Terms(**found["terms"])
        named, mine = ([handle_in(one) for one in found[name]] for name in ("shared", "mine"))
        if not (
            all(is_within(getattr(terms, name), 1, most) for name, most in _LIMITS.items())
            and is_within(terms.nbytes, 1, terms.stride)
            and terms.delivery in get_args(Delivery)
            and terms.overflow in get_args(Overflow)
            and found["role"] == role
            and len(named) == 2 + terms.places
            and len(mine) == getattr(terms, role + "rs")
        ):
            raise ValueError(shorten(terms))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise refusal_of(error) from error
    if not (IS_REGISTERED or terms.is_fenced):
        msg = f"this process takes no part in the barriers of the queue's owner: {WHY_NOT}"
        hint = "set CROSSMEM_BARRIER=fence for the owner of the queue before the owner starts"
        raise UnsupportedError(msg, operation="open_queue", hint=hint)
    return terms, named, mine


def open_segments(
    process: Process,
    handle: QueueHandle,
    found: dict[str, Any],
    device: LocalDevice | str | None,
    timeout: float | None,
) -> tuple[Opened, list[ShareableHandle]]:
    """Map the arena and the segments that a directory names.

    Return the opened queue, and the writable handles of all rings (role ``produce``) or of all
    places (``consume``).
    """
    terms, (arena_handle, *handles), mine = _check_directory(found, handle.role)
    timeout_s = check_timeout(timeout, default_s=process.settings.timeout_s)
    readonly: Any = False
    if handle.role == "consume" and terms.delivery == "each" and arena_handle.access == "rw":
        readonly = "advisory"
    requests = [request_of(process, one, None, False)._replace(extras=1) for one in handles]  # noqa: FBT003
    uses = [Use(process, one.core) for one in handles]
    kept: list[Mapping] = []
    try:
        process.part(ImportTable).acquire(requests, uses, timeout_s)
        bells = []
        for use, one in zip(uses, handles, strict=True):
            assert use.record is not None  # noqa: S101 - acquire() has set it
            base = use.record.map(use, remappable=False)
            kept.append(Mapping(use, use.record, one, base, readonly=True))
            bells += use.record.extras  # type: ignore[attr-defined]
        control, *segments = [one.view().cast("Q") for one in kept]
        arena = attach(arena_handle, device=device, readonly=readonly, timeout=timeout)
        kept.append(arena)
        sizes = [len(one) for one in (control, *segments)]
        is_whole = arena.nbytes >= terms.stride * terms.depth * terms.producers
        if sizes != terms.sizes or len(bells) != len(sizes) or not is_whole:
            msg = "the queue's segments do not have the sizes that the queue's directory states"
            hint = "pass the bytes of queue.export(role=...).to_bytes() unchanged"
            raise InvalidHandleError(msg, operation="open_queue", hint=hint)
    except BaseException:
        for mapping in kept:
            leave_to_views(mapping)
        for use in uses:
            process.deferred.ready[use] = None
        process.drain()
        raise
    usage, mapped = usage_of(arena), kept[0]
    opened = Opened(
        process,
        arena.device,
        terms,
        control,
        segments,
        bells[0],
        bells[1:],
        arena.ptr,
        usage,
        kept,
        lambda: mapped.owner_alive,
    )
    return opened, mine
