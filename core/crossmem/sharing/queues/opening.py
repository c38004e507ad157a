# SPDX-License-Identifier: Apache-2.0
"""Opening a queue of another process: its directory, its segments, and a place in it."""

import base64
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, fields
from typing import Any, Final

from crossmem.errors import BusyError, CrossmemError, InvalidHandleError
from crossmem.guards import check_timeout, is_within, shorten
from crossmem.models import ShareableHandle
from crossmem.models.queue_handle import QueueHandle, QueueRole
from crossmem.sharing.base.devices import LocalDevice
from crossmem.sharing.base.memory import usage_of
from crossmem.sharing.base.process import Part, Process
from crossmem.sharing.importer.attach import attach
from crossmem.sharing.importer.mapping import Mapping
from crossmem.sharing.importer.record import Use
from crossmem.sharing.importer.request import request_of
from crossmem.sharing.importer.table import ImportTable
from crossmem.sharing.queues.layout import SESSION
from crossmem.sharing.queues.opened import Opened, Terms
from crossmem.sharing.queues.owner import QueueOwner, Segment

__all__ = ["Places", "claim", "make_directory", "open_segments"]

_LENGTH_NBYTES: Final = 8
_LOOK_S: Final = 0.25
_MAX: Final = {"depth": 2**16, "producers": 64, "consumers": 64, "prefetch": 2**16}


class Places(Part):
    """The places that this process has in queues, by the core of their handles."""

    def __init__(self, process: Process) -> None:
        super().__init__(process)
        self.taken: set[bytes] = set()


def make_directory(owner: QueueOwner, role: QueueRole, arena: ShareableHandle) -> Segment:
    """Return memory that names everything that a process with a role needs."""
    rings, places = len(owner.rings), owner.exclusive[len(owner.rings) :]
    mine = places if role == "consume" else owner.exclusive[:rings]
    shared = [one.export("ro").handle for one in (owner.control, *owner.rings, *owner.places)]
    text = json.dumps(
        {
            "terms": asdict(owner.terms),
            "arena": _pack(arena),
            "shared": [_pack(one) for one in shared],
            "mine": [_pack(one.handle) for one in mine],
        }
    ).encode()
    text += bytes(-len(text) % 8)
    made = Segment(owner.process, owner.control.allow, _LENGTH_NBYTES + len(text))
    made.view[_LENGTH_NBYTES:] = text
    made.view[:_LENGTH_NBYTES] = len(text).to_bytes(_LENGTH_NBYTES, "little")
    return made


def _pack(handle: ShareableHandle) -> str:
    return base64.b64encode(handle.to_bytes()).decode()


def _unpack(text: str) -> ShareableHandle:
    return ShareableHandle.from_bytes(base64.b64decode(text))


def _read_directory(handle: QueueHandle, timeout: float | None) -> tuple[Terms, Any]:
    """Return the contents of a directory, after all checks: its writer is another process."""
    with attach(handle.directory, readonly="advisory", timeout=timeout) as mapping:
        blob = mapping.read()
    try:
        size = int.from_bytes(blob[:_LENGTH_NBYTES], "little")
        found = json.loads(blob[_LENGTH_NBYTES : _LENGTH_NBYTES + size].rstrip(b"\0"))
        terms = Terms(**{field.name: found["terms"][field.name] for field in fields(Terms)})
        numbers = {name: getattr(terms, name) for name in _MAX}
        is_right = all(is_within(numbers[name], 1, most) for name, most in _MAX.items())
        is_right = is_right and is_within(terms.nbytes, 1, terms.stride)
        if not is_right or len(found["shared"]) != 1 + terms.producers + terms.consumers:
            raise ValueError(shorten(numbers))
    except (ValueError, KeyError, TypeError) as error:
        msg = f"the directory of the queue cannot be read: {shorten(str(error))}"
        raise InvalidHandleError(msg, operation="open_queue") from error
    return terms, found


def open_segments(
    process: Process,
    handle: QueueHandle,
    device: LocalDevice | str | None,
    timeout: float | None,
) -> tuple[Opened, list[ShareableHandle], list[Mapping]]:
    """Map the segments of a queue.

    Returns
    -------
    tuple
        The queue, the handles of the places of the role, and the mappings to unmap at the end.
    """
    terms, found = _read_directory(handle, timeout)
    handles = [_unpack(one) for one in found["shared"]]
    timeout_s = check_timeout(timeout, default_s=process.settings.timeout_s)
    requests = [
        request_of(process, one, None, False)._replace(extras=index > 0)  # noqa: FBT003
        for index, one in enumerate(handles)
    ]
    uses = [Use(process, one.core) for one in handles]
    kept: list[Mapping] = []
    try:
        process.part(ImportTable).acquire(requests, uses, timeout_s)
        for use, one in zip(uses, handles, strict=True):
            assert use.record is not None  # noqa: S101 - acquire() has set it
            base = use.record.map(use, remappable=False)
            kept.append(Mapping(use, use.record, one, base, readonly=True))
        is_readonly = handle.role == "consume" and terms.delivery == "each"
        arena_handle = _unpack(found["arena"])
        readonly: Any = "advisory" if is_readonly and arena_handle.access == "rw" else False
        arena = attach(arena_handle, device=device, readonly=readonly, timeout=timeout)
        kept.append(arena)
        shape = terms.shape
        sizes = [shape.control_nbytes, *[shape.ring_nbytes] * terms.producers]
        sizes += [shape.place_nbytes] * terms.consumers
        views = [one.view().cast("Q") for one in kept[:-1]]
        if any(8 * len(one) != size for one, size in zip(views, sizes, strict=True)):
            msg = "the segments of the queue have other sizes than its directory says"
            raise InvalidHandleError(msg, operation="open_queue")
        bells = [use.record.extras[0] for use in uses[1:]]  # type: ignore[union-attr]
        opened = Opened(
            process,
            arena.device,
            terms,
            segments=views,
            bells=bells,
            base=arena.ptr,
            usage=usage_of(arena),
            tell_owner=_teller(uses, terms),
            is_owner_alive=_looker(kept[0]),
            kept=kept,
        )
    except BaseException:
        for mapping in kept:
            mapping._is_left = True
        for use in uses:
            process.deferred.ready[use] = None
        process.drain()
        raise
    return opened, [_unpack(one) for one in found["mine"]], kept


def _teller(uses: Sequence[Use], terms: Terms) -> Callable[[bool, int], None]:
    def tell(is_producer: bool, index: int) -> None:  # noqa: FBT001
        use = uses[1 + index + (0 if is_producer else terms.producers)]
        if use.record is not None:
            use.record.hint(use.record.row_of(use.core).slot)

    return tell


def _looker(mapping: Mapping) -> Callable[[], bool]:
    """Return a function that looks at the owner at most every quarter of a second."""
    look_at, is_alive = 0.0, True

    def look() -> bool:
        nonlocal look_at, is_alive
        now = time.monotonic()
        if now >= look_at:
            is_alive, look_at = mapping.owner_alive, now + _LOOK_S
        return is_alive

    return look


def claim(
    opened: Opened, role: QueueRole, mine: Sequence[ShareableHandle], timeout: float | None
) -> tuple[int, Mapping]:
    """Take a place, which no other process has from then on.

    Raises
    ------
    BusyError
        All places are taken.
    """
    taken = opened.process.part(Places).taken
    words = opened.rings if role == "produce" else opened.places
    # Places that look free come first. Only the owner knows.
    for index in sorted(range(len(mine)), key=lambda one: words[one][SESSION] % 2):
        core = mine[index].core
        if core in taken:
            continue
        taken.add(core)
        try:
            return index, attach(mine[index], timeout=timeout)
        except BusyError:
            taken.discard(core)
        except CrossmemError:
            taken.discard(core)
            raise
    places = "producers" if role == "produce" else "consumers"
    msg = f"all {len(mine)} places for {places} of this queue are taken"
    hint = f"close one of them, or make the queue with more {places}"
    raise BusyError(msg, operation="open_queue", hint=hint)
