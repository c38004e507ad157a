# SPDX-License-Identifier: Apache-2.0
"""Copies of memory, as work of streams. The host waits for some of the copies."""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from crossmem_emulated import memory
from crossmem_emulated.addresses import Piece
from crossmem_emulated.hip.blocks import find_host_block
from crossmem_emulated.hip.calls import Refused, entry
from crossmem_emulated.hip.codes import Kind, Status
from crossmem_emulated.hip.origins import Origin
from crossmem_emulated.hip.process import HipProcess
from crossmem_emulated.hip.shares import Import
from crossmem_emulated.hip.streams import (
    PER_THREAD,
    Stream,
    check_wait,
    current_legacy,
    find_stream,
    finish,
    submit,
)
from crossmem_emulated.hip.virtual import READ, READ_WRITE, access_of
from crossmem_emulated.queues import Work

__all__ = [
    "Parts",
    "Side",
    "check_direction",
    "check_kind",
    "do_now",
    "give_back",
    "is_waiting",
    "move",
    "side_of",
    "staged",
]

Parts = Sequence[tuple[int, int]]
"""Ranges of memory: the address and the size in bytes of each range. The emulation accesses the
memory at these addresses. For device memory, they differ from the program's addresses."""


_SIDES: Final = {
    Kind.HOST_TO_HOST: (False, False),
    Kind.HOST_TO_DEVICE: (False, True),
    Kind.DEVICE_TO_HOST: (True, False),
    Kind.DEVICE_TO_DEVICE: (True, True),
    Kind.DEVICE_TO_DEVICE_NO_CU: (True, True),
}
"""For each kind of copy except ``DEFAULT``: whether the kind claims that the source is on a device,
and whether the kind claims that the target is on a device."""


@dataclass(frozen=True, slots=True)
class Side:
    """One end of a copy, or the range of a fill.

    Parameters
    ----------
    pointer
        First address.
    is_device
        Whether this end is on a device. None: on the host, but accessible to devices.
    parts
        The memory ranges of this end.
    is_synchronous
        Whether synchronous functions wait for the copy or fill even if all of its memory is on
        devices.
    kept
        If the emulation has copied the caller's bytes: the buffer with the copy. This reference
        keeps the buffer alive.
    """

    pointer: int
    is_device: bool | None
    parts: Parts
    is_synchronous: bool = False
    kept: object = None


def side_of(process: HipProcess, pointer: int, nbytes: int, device: int, access: int) -> Side:
    """Return one end of a copy. Refuse a range that the copy cannot access.

    ``access`` is ``READ`` or ``READ_WRITE``. If the range is virtual memory, ``device`` must have
    this access to the range.
    """
    if process.space.region_of(pointer) is None:
        block = find_host_block(process, pointer)
        if block is not None and pointer + nbytes > block.start + block.nbytes:
            raise Refused(
                Status.INVALID_VALUE,
                f"{nbytes} bytes at {pointer:#x} end after the allocation",
                "HIP-X4",
            )
        # Freed device memory, like host memory, is in no region. Without this check, a copy from or
        # to freed device memory would cause a page fault.
        if block is None and not memory.is_mapped(pointer, nbytes):
            text = f"{nbytes} bytes at {pointer:#x} are in no allocation, or in one that was freed"
            raise Refused(Status.INVALID_VALUE, text, "HIP-X4")
        # Devices use pinned and managed memory at the addresses that the host uses.
        return Side(pointer, False if block is None else None, ((pointer, nbytes),))
    spans = list(process.space.spans(pointer, nbytes))
    if sum(size for _, _, size in spans) != nbytes:
        raise Refused(
            Status.INVALID_VALUE, f"{nbytes} bytes at {pointer:#x} are not all mapped", "HIP-X4"
        )
    # A range of virtual memory may span several mappings. Any other range must lie in a single
    # allocation.
    if len(spans) > 1 and any(piece.origin is not Origin.VIRTUAL for piece, _, _ in spans):
        text = f"{nbytes} bytes at {pointer:#x} belong to several allocations"
        raise Refused(Status.INVALID_VALUE, text, "HIP-X4")
    for piece, _, _ in spans:
        if piece.origin is Origin.IPC:
            _check_peers(process, piece.source)
        elif piece.origin is Origin.VIRTUAL:
            _check_virtual_access(piece, device, access)
    parts = tuple((place, size) for _, place, size in spans)
    is_synchronous = any(piece.is_synchronous for piece, _, _ in spans)
    return Side(pointer, is_device=True, parts=parts, is_synchronous=is_synchronous)


def _is_pageable(process: HipProcess, pointer: int) -> bool:
    """Whether an address is in host memory that is not pinned."""
    return process.space.region_of(pointer) is None and find_host_block(process, pointer) is None


def give_back(process: HipProcess, stream: Stream, work: Work, ends: tuple[int, int]) -> None:
    """Finish an asynchronous copy if one end is host memory that is not pinned.

    ``ends`` are the first addresses of both ends. A program may reuse memory that is not pinned as
    soon as the copy function returns. So the copy must be complete before the copy function
    returns, even if a host function precedes the copy in the stream. Slow streams delay copies on
    purpose, so ``give_back`` does nothing for them. Before such a delay, :func:`staged` copies the
    bytes of the source.
    """
    if not process.setup.slow_streams and any(_is_pageable(process, one) for one in ends):
        finish(process, [stream], work.sequence)


def staged(process: HipProcess, source: Side, nbytes: int) -> Side:
    """Return the source that a stream reads: ``source`` itself, or a buffer with its bytes.

    A program may reuse host memory that is not pinned as soon as the copy function returns. A slow
    stream reads the source later, so ``staged`` copies the bytes of such memory into a buffer now.
    If earlier work of streams may still write some of the bytes, the stream must read the bytes
    after that work, so ``staged`` returns ``source``. It also returns ``source`` if streams are not
    slow, or if the memory is pinned or on a device.
    """
    if (
        not process.setup.slow_streams
        or source.is_device is not False
        or process.queues.may_write(source.pointer, nbytes)
    ):
        return source
    kept = ctypes.create_string_buffer(nbytes)
    memory.copy(ctypes.addressof(kept), source.pointer, nbytes)
    return replace(source, parts=((ctypes.addressof(kept), nbytes),), kept=kept)


def _check_peers(process: HipProcess, opened: Import) -> None:
    """Refuse opened memory if the device that opened it has no access to the memory's device."""
    index, context = opened.pages.device, opened.context
    home = process.ordinal_of(index)
    is_far = home is not None and process.setup.visible[context.device] != index
    if is_far and home not in context.peers:
        text = f"device {context.device} was not given access to device {home}"
        raise Refused(Status.INVALID_VALUE, text)


def _check_virtual_access(piece: Piece, device: int, access: int) -> None:
    """Refuse a copy or fill if the device does not have the requested access to the mapping."""
    found = access_of(piece, device)
    if found & access != access:
        text = f"device {device} has access {found} at {piece.start:#x}, and needs {access}"
        raise Refused(Status.INVALID_VALUE, text, "HIP-V5")


def check_kind(process: HipProcess, kind: int) -> None:
    """Refuse an invalid kind of copy."""
    profile = process.profile
    is_new = kind == Kind.DEVICE_TO_DEVICE_NO_CU
    if kind not in set(Kind) or (is_new and (not profile.is_hip or profile.is_before_6)):
        raise Refused(Status.INVALID_MEMCPY_DIRECTION, f"there is no kind {kind}", "HIP-X2")


def check_direction(process: HipProcess, call: str, kind: int, target: Side, source: Side) -> None:
    """Refuse a copy if its kind does not fit the locations of its ends.

    If the kind claims host memory at a device address, the editions that follow AMD's source code
    accept the copy, and record a violation.
    """
    check_kind(process, kind)
    if kind == Kind.DEFAULT:
        return
    for claimed, side in zip(_SIDES[Kind(kind)], (source, target), strict=True):
        if side.is_device is None or side.is_device == claimed:
            continue
        text = f"kind {kind}, but {side.pointer:#x} is on the {'host' if claimed else 'device'}"
        # If the kind claims device memory at a host address, the program may have freed device
        # memory at this address. So every edition refuses the copy.
        if claimed or process.profile.is_documented:
            raise Refused(Status.INVALID_VALUE, text, "HIP-X2")
        process.violate(call, "HIP-X2", text)


def is_waiting(target: Side, source: Side) -> bool:
    """Whether the host waits for a synchronous copy.

    For a copy from device to device, the host waits only if ``is_synchronous`` is true for one end.
    """
    is_on_devices = target.is_device is True and source.is_device is True
    return not is_on_devices or target.is_synchronous or source.is_synchronous


def move(target: Parts, source: Parts) -> None:
    """Copy the bytes of the parts ``source`` to the parts ``target``."""
    targets, sources = list(target), list(source)
    while targets:
        (to, room), (start, size) = targets.pop(0), sources.pop(0)
        nbytes = min(room, size)
        memory.copy(to, start, nbytes)
        if room > nbytes:
            targets.insert(0, (to + nbytes, room - nbytes))
        if size > nbytes:
            sources.insert(0, (start + nbytes, size - nbytes))


def _prepared(
    process: HipProcess,
    call: str,
    target: tuple[int, int],
    source: tuple[int, int],
    nbytes: int,
    kind: int,
) -> tuple[Work, bool]:
    """Check a copy. Return its work, and whether a synchronous copy function waits for the work.

    ``target`` and ``source`` are pairs: an address, and the device that must access the address.
    """
    if not target[0] or not source[0]:
        raise Refused(Status.INVALID_VALUE, "an address is null", "HIP-X4")
    to = side_of(process, target[0], nbytes, target[1], READ_WRITE)
    start = side_of(process, source[0], nbytes, source[1], READ)
    check_direction(process, call, kind, to, start)
    start = staged(process, start, nbytes)
    ranges = ((target[0], nbytes), (source[0], nbytes))
    work = Work(call, ranges, lambda: move(to.parts, start.parts), written=ranges[:1])
    return work, is_waiting(to, start)


def do_now(process: HipProcess, stream: Stream, work: Work, *, waits: bool) -> None:
    """Submit the work of a copy or a fill. If ``waits``, return only after the work is done.

    Even for a synchronous function of the vendor, ``waits`` can be False, for example if the
    function copies between devices.
    """
    submit(process, stream, work, is_awaited=waits)
    if waits:
        finish(process, [stream], work.sequence)


def _copy(
    process: HipProcess, call: str, stream: Stream, ends: tuple[int, int], nbytes: int, kind: int
) -> None:
    if nbytes:
        target, source = ((pointer, stream.device) for pointer in ends)
        work, waits = _prepared(process, call, target, source, nbytes, kind)
        do_now(process, stream, work, waits=waits)


@entry("memcpy(intptr_t dst, intptr_t src, size_t size, int kind)")
def _memcpy(process: HipProcess, target: int, source: int, nbytes: int, kind: int) -> None:
    _copy(process, "memcpy", current_legacy(process), (target, source), nbytes, kind)


@entry("memcpy_spt(intptr_t dst, intptr_t src, size_t size, int kind)")
def _memcpy_spt(process: HipProcess, target: int, source: int, nbytes: int, kind: int) -> None:
    _copy(process, "memcpy_spt", find_stream(process, PER_THREAD), (target, source), nbytes, kind)


@entry("memcpyAsync(intptr_t dst, intptr_t src, size_t size, int kind, intptr_t stream)")
def _memcpy_async(
    process: HipProcess, target: int, source: int, nbytes: int, kind: int, stream: int
) -> None:
    where = find_stream(process, stream)
    if nbytes:
        ends = (target, where.device), (source, where.device)
        work, _ = _prepared(process, "memcpyAsync", *ends, nbytes, kind)
        submit(process, where, work)
        give_back(process, where, work, (target, source))


@entry("memcpyWithStream(intptr_t dst, intptr_t src, size_t size, int kind, intptr_t stream)")
def _memcpy_with_stream(
    process: HipProcess, target: int, source: int, nbytes: int, kind: int, handle: int
) -> None:
    """Copy in a stream. The call is synchronous, like ``memcpy``."""
    stream = find_stream(process, handle)
    check_wait(process, stream)
    _copy(process, "memcpyWithStream", stream, (target, source), nbytes, kind)


@entry("memcpyPeer(intptr_t dst, int dstDevice, intptr_t src, int srcDevice, size_t size)")
def _memcpy_peer(
    process: HipProcess, target: int, to: int, source: int, start: int, nbytes: int
) -> None:
    process.check_device(to)
    process.check_device(start)
    if nbytes:
        ends = (target, to), (source, start)
        work, _ = _prepared(process, "memcpyPeer", *ends, nbytes, Kind.DEVICE_TO_DEVICE)
        submit(process, current_legacy(process), work)


@entry(
    "memcpyPeerAsync(intptr_t dst, int dstDevice, intptr_t src, int srcDevice, size_t size, "
    "intptr_t stream)"
)
def _memcpy_peer_async(  # noqa: PLR0917 - CuPy's parameters
    process: HipProcess, target: int, to: int, source: int, start: int, nbytes: int, stream: int
) -> None:
    process.check_device(to)
    process.check_device(start)
    where = find_stream(process, stream)
    if nbytes:
        ends = (target, to), (source, start)
        work, _ = _prepared(process, "memcpyPeerAsync", *ends, nbytes, Kind.DEVICE_TO_DEVICE)
        submit(process, where, work)
