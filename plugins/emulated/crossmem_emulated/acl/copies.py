# SPDX-License-Identifier: Apache-2.0
"""Copies and fills of memory, at once or as work of a stream."""

import ctypes
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from crossmem_emulated import memory
from crossmem_emulated.acl.addresses import Origin, device_of
from crossmem_emulated.acl.calls import Refused, entry
from crossmem_emulated.acl.codes import Code, Kind
from crossmem_emulated.acl.host import is_page_locked
from crossmem_emulated.acl.keys import is_withdrawn
from crossmem_emulated.acl.process import AclProcess
from crossmem_emulated.acl.streams import find_stream
from crossmem_emulated.addresses import Piece
from crossmem_emulated.pages import HOST
from crossmem_emulated.queues import Work

__all__ = ["Side", "check", "copy", "fill", "side_of"]

_DIRECTIONS: Final = {
    (False, False): Kind.HOST_TO_HOST,
    (False, True): Kind.HOST_TO_DEVICE,
    (True, False): Kind.DEVICE_TO_HOST,
    (True, True): Kind.DEVICE_TO_DEVICE,
}
"""The kind of a copy. The key says whether the source is on a device, and whether the target is."""

_SIDES: Final = {kind: sides for sides, kind in _DIRECTIONS.items()}
_SAME_DIRECTION: Final = {
    Kind.HOST_TO_BUF_TO_DEVICE: Kind.HOST_TO_DEVICE,
    Kind.INNER_DEVICE_TO_DEVICE: Kind.DEVICE_TO_DEVICE,
    Kind.INTER_DEVICE_TO_DEVICE: Kind.DEVICE_TO_DEVICE,
}


@dataclass(frozen=True, slots=True)
class Side:
    """One end of a copy.

    Parameters
    ----------
    pointer
        First address.
    device
        Host-wide index of the device for which the memory is mapped, None for the host.
    origins
        The functions that made the memory available; empty for host memory without a device
        address.
    parts
        Address and size of each range in which the emulation itself accesses the bytes. For device
        memory, these addresses are not the device addresses that the program uses.
    """

    pointer: int
    device: int | None
    origins: frozenset[StrEnum]
    parts: tuple[tuple[int, int], ...]


def side_of(process: AclProcess, pointer: int, nbytes: int) -> Side:
    """Describe the memory that a copy or other work uses. Refuse memory that cannot be used."""
    if process.space.region_of(pointer) is None:
        if not memory.is_mapped(pointer, nbytes):
            text = f"{pointer:#x} is not in an allocation, or its allocation was freed"
            raise Refused(Code.RT_PARAM_INVALID, text, "ACL-E29")
        return Side(pointer, None, frozenset(), ((pointer, nbytes),))
    spans = list(process.space.spans(pointer, nbytes))
    if sum(size for _, _, size in spans) != nbytes:
        raise Refused(
            Code.RT_DRV_INTERNAL_ERROR,
            f"some of the {nbytes} bytes at {pointer:#x} are not mapped",
            "ACL-X4",
        )
    for piece, _, _ in spans:
        if piece.origin is Origin.KEY:
            _check_key(process, piece)
        elif not process.accesses.get(piece.start, True):
            text = f"the access to the memory at {piece.start:#x} is not set yet"
            raise Refused(Code.RT_DRV_INTERNAL_ERROR, text, "ACL-E35")
    index = device_of(spans[0][0])
    return Side(
        pointer,
        None if index == HOST else index,
        frozenset(piece.origin for piece, _, _ in spans),
        tuple((place, size) for _, place, size in spans),
    )


def _check_key(process: AclProcess, piece: Piece) -> None:
    lost = is_withdrawn(process, piece.source)
    if lost is not None:
        is_closed = lost == "closed"
        reason = "its exporter closed the key" if is_closed else "its exporter is dead"
        text = f"the memory at {piece.start:#x} is gone: {reason}"
        rule = "ACL-E26" if is_closed else None
        raise Refused(Code.RT_DEVICE_MEM_ERROR, text, rule)


def _check_arguments(
    process: AclProcess, target: int, largest: int, source: int, nbytes: int, kind: int
) -> None:
    if not target or not source or kind not in set(Kind):
        raise Refused(Code.INVALID_PARAM, f"an address is null, or there is no kind {kind}")
    process.current()
    if nbytes > largest:
        raise Refused(
            Code.RT_PARAM_INVALID, f"{nbytes} bytes are more than the target's {largest}", "ACL-E28"
        )


def _check_direction(process: AclProcess, call: str, kind: int, target: Side, source: Side) -> Kind:
    real = _DIRECTIONS[source.device is not None, target.device is not None]
    # A program on the device's own processor accesses the device's memory by host pointers, so the
    # kind does not matter.
    asked = Kind.DEFAULT if process.profile.is_on_device else Kind(kind)
    asked = _SAME_DIRECTION.get(asked, asked)
    if asked not in {Kind.DEFAULT, real}:
        text = f"kind {kind} does not fit a copy from {source.pointer:#x} to {target.pointer:#x}"
        # If the kind asks for a device address, but no device has the address, the device memory
        # may have been freed. Each profile refuses such a copy.
        claims = zip(_SIDES[asked], (source.device, target.device), strict=True)
        is_stale = any(on_device and device is None for on_device, device in claims)
        if process.profile.is_documented or is_stale:
            raise Refused(Code.RT_PARAM_INVALID, text, "ACL-E29")
        process.violate(call, "ACL-E29", text)
    if (_is_far(process, target) or _is_far(process, source)) and (
        asked is Kind.DEFAULT or real is not Kind.DEVICE_TO_DEVICE
    ):
        raise Refused(
            Code.RT_FEATURE_NOT_SUPPORT,
            "memory imported by key from another device can only be copied from device to device, "
            "and the kind must say so",
        )
    return real


def _is_far(process: AclProcess, side: Side) -> bool:
    """Whether ``side`` was imported by key for one device, but its memory is on another device."""
    return Origin.KEY in side.origins and any(
        piece.pages.device != side.device for piece in process.space.overlapping(side.pointer, 1)
    )


def _check_devices(process: AclProcess, target: Side, source: Side, *, is_async: bool) -> None:
    """Refuse an unsupported copy from device to device.

    Also refuse a copy between two devices without peer access.
    """
    origins = target.origins | source.origins
    if target.device == source.device:
        is_far = _is_far(process, target) or _is_far(process, source)
        if not is_async and (Origin.IMPORTED in origins or is_far):
            raise Refused(
                Code.RT_FEATURE_NOT_SUPPORT,
                "a synchronous copy within one device can use neither memory imported by "
                "shareable handle nor another device's memory imported by key",
            )
        return
    if not is_async and origins & {Origin.PHYSICAL, Origin.IMPORTED}:
        raise Refused(
            Code.RT_FEATURE_NOT_SUPPORT,
            "a synchronous copy between devices cannot use mapped physical memory",
        )
    first, second = (process.ordinal_of(side.device or 0) for side in (target, source))
    state = process.devices.get(first if first is not None else -1)
    other = process.devices.get(second if second is not None else -1)
    known = (state is not None and second in state.peers) or (
        other is not None and first in other.peers
    )
    if not known:
        text = f"neither device {second} nor device {first} has peer access to the other"
        raise Refused(Code.RT_PARAM_INVALID, text, "ACL-X6")


def _move(target: Side, source: Side) -> None:
    targets, sources = list(target.parts), list(source.parts)
    while targets:
        (to, room), (start, size) = targets.pop(0), sources.pop(0)
        nbytes = min(room, size)
        memory.copy(to, start, nbytes)
        if room > nbytes:
            targets.insert(0, (to + nbytes, room - nbytes))
        if size > nbytes:
            sources.insert(0, (start + nbytes, size - nbytes))


def check(
    process: AclProcess,
    call: str,
    target: tuple[int, int],
    source: tuple[int, int],
    kind: int,
    *,
    is_async: bool,
) -> tuple[Side, Side] | None:
    """Return the target and the source of a copy. Refuse an invalid copy.

    ``target`` is the target's address and size. ``source`` is the source's address and the number
    of bytes to copy. The result is None if this number is 0, or if both addresses are equal.
    """
    (to_pointer, largest), (from_pointer, nbytes) = target, source
    if not nbytes:
        return None
    _check_arguments(process, to_pointer, largest, from_pointer, nbytes, kind)
    if to_pointer == from_pointer:
        return None
    to, start = side_of(process, to_pointer, nbytes), side_of(process, from_pointer, nbytes)
    real = _check_direction(process, call, kind, to, start)
    if is_async and real is Kind.HOST_TO_HOST:
        raise Refused(Code.RT_FEATURE_NOT_SUPPORT, "a stream cannot copy from host to host")
    if real is Kind.DEVICE_TO_DEVICE:
        _check_devices(process, to, start, is_async=is_async)
    return to, start


def copy(
    process: AclProcess,
    call: str,
    target: tuple[int, int],
    source: tuple[int, int],
    kind: int,
    stream: int | None = None,
) -> None:
    """Copy bytes from a source to a target.

    ``target`` and ``source`` are as in :func:`check`. If ``stream`` is the handle of a stream, the
    copy is work of that stream. If ``stream`` is None, this function makes the copy at once.
    """
    sides = check(process, call, target, source, kind, is_async=stream is not None)
    if sides is None:
        return
    ranges = tuple((side.pointer, source[1]) for side in sides)
    work = Work(call, ranges, lambda: _move(*sides), written=ranges[:1])
    if stream is None:
        process.queues.run_now(work)
        return
    found = find_stream(process, stream)
    # If one end of the copy is pageable host memory, the program may reuse this memory after the
    # call. So the call waits for the copy.
    is_locked = all(side.origins or is_page_locked(process, side.pointer) for side in sides)
    process.queues.submit(found, work, is_awaited=not is_locked)
    if not is_locked:
        process.finish(found, until=work.sequence)


@entry("rt.memcpy", "kkkki")
def _memcpy(
    process: AclProcess, target: int, largest: int, source: int, nbytes: int, kind: int
) -> None:
    copy(process, "rt.memcpy", (target, largest), (source, nbytes), kind)


@entry("rt.memcpy_async", "kkkkik")
def _memcpy_async(  # noqa: PLR0917 - the vendor's order
    process: AclProcess, target: int, largest: int, source: int, nbytes: int, kind: int, stream: int
) -> None:
    copy(process, "rt.memcpy_async", (target, largest), (source, nbytes), kind, stream)


def fill(
    process: AclProcess,
    call: str,
    target: tuple[int, int],
    pattern: bytes,
    count: int,
    stream: int | None = None,
) -> None:
    """Fill ``count`` bytes of a target with a repeated pattern.

    ``target`` is the target's address and size. If ``stream`` is the handle of a stream, the fill
    is work of that stream. If ``stream`` is None, this function fills the bytes at once.
    """
    pointer, largest = target
    if not pointer:
        raise Refused(Code.INVALID_PARAM, "the address is null")
    process.current()
    if count > largest:
        raise Refused(
            Code.RT_PARAM_INVALID, f"{count} bytes are more than the target's {largest}", "ACL-E28"
        )
    if not count:
        return
    side = side_of(process, pointer, count)
    ranges = ((pointer, count),)
    work = Work(call, ranges, lambda: _write(side, pattern), written=ranges)
    if stream is None:
        process.queues.run_now(work)
        return
    process.queues.submit(find_stream(process, stream), work)


def _write(side: Side, pattern: bytes) -> None:
    # All parts begin and end at multiples of the pattern's size, so each part contains only whole
    # patterns.
    for place, size in side.parts:
        if len(pattern) == 1:
            ctypes.memset(place, pattern[0], size)
        else:
            ctypes.memmove(place, pattern * (size // len(pattern)), size)


@entry("rt.memset", "kkik")
def _memset(process: AclProcess, pointer: int, largest: int, value: int, count: int) -> None:
    fill(process, "rt.memset", (pointer, largest), bytes([value & 0xFF]), count)


@entry("rt.memset_async", "kkikk")
def _memset_async(
    process: AclProcess, pointer: int, largest: int, value: int, count: int, stream: int
) -> None:
    fill(process, "rt.memset_async", (pointer, largest), bytes([value & 0xFF]), count, stream)
