# SPDX-License-Identifier: Apache-2.0
"""Copies: which are possible, in which direction, and when they are done."""

import ctypes
from dataclasses import dataclass
from typing import Final

from crossmem_emulated import memory
from crossmem_emulated.addresses import Piece
from crossmem_emulated.hip.blocks import find_host_block
from crossmem_emulated.hip.calls import Refused, entry
from crossmem_emulated.hip.codes import Kind, MemoryType, Status
from crossmem_emulated.hip.origins import Origin
from crossmem_emulated.hip.process import HipProcess
from crossmem_emulated.hip.shares import Import
from crossmem_emulated.hip.streams import (
    Stream,
    Work,
    find_stream,
    finish,
    legacy_of,
    submit,
)
from crossmem_emulated.hip.virtual import READ, READ_WRITE, access_of

__all__ = ["Side"]

_SIDES: Final = {
    Kind.HOST_TO_HOST: (False, False),
    Kind.HOST_TO_DEVICE: (False, True),
    Kind.DEVICE_TO_HOST: (True, False),
    Kind.DEVICE_TO_DEVICE: (True, True),
}
"""Whether source and target are on a device."""


@dataclass(frozen=True, slots=True)
class Side:
    """One end of a copy.

    Parameters
    ----------
    pointer
        First address.
    is_device
        Whether it is on a device, None where it is both there and on the host.
    parts
        Where the emulation reaches its bytes, and how many there are each.
    """

    pointer: int
    is_device: bool | None
    parts: tuple[tuple[int, int], ...]


def _side(process: HipProcess, pointer: int, nbytes: int, device: int, access: int) -> Side:
    """Return one end of a copy that a device makes, or refuse."""
    if process.space.region_of(pointer) is None:
        block = find_host_block(process, pointer)
        if block is not None and pointer + nbytes > block.start + block.nbytes:
            raise Refused(Status.INVALID_VALUE, f"{nbytes} bytes are too many", "HIP-X4")
        is_managed = block is not None and block.kind is MemoryType.MANAGED
        return Side(pointer, None if is_managed else False, ((pointer, nbytes),))
    spans = list(process.space.spans(pointer, nbytes))
    if sum(size for _, _, size in spans) != nbytes:
        raise Refused(
            Status.INVALID_VALUE, f"{nbytes} bytes at {pointer:#x} are not all mapped", "HIP-X4"
        )
    for piece, _, _ in spans:
        if piece.origin is Origin.IPC:
            _check_peers(process, piece.source)
        elif piece.origin is Origin.VIRTUAL:
            _check_virtual_access(piece, device, access)
    parts = tuple((place, size) for _, place, size in spans)
    return Side(pointer, is_device=True, parts=parts)


def _is_pageable(process: HipProcess, pointer: int) -> bool:
    """Whether an address is in memory of the host that is not pinned."""
    return process.space.region_of(pointer) is None and find_host_block(process, pointer) is None


def _check_peers(process: HipProcess, opened: Import) -> None:
    """Refuse where a device has no access to the memory of another that was opened for it."""
    index, context = opened.pages.device, opened.context
    home = process.ordinal_of(index)
    is_far = home is not None and process.setup.visible[context.device] != index
    if is_far and home not in context.peers:
        text = f"device {context.device} was not given access to device {home}"
        raise Refused(Status.INVALID_VALUE, text)


def _check_virtual_access(piece: Piece, device: int, access: int) -> None:
    """Refuse where a device was not given the access that it needs to what is mapped."""
    found = access_of(piece, device)
    if found & access != access:
        text = f"device {device} has access {found} at {piece.start:#x}, and needs {access}"
        raise Refused(Status.INVALID_VALUE, text, "HIP-V5")


def _check_direction(process: HipProcess, call: str, kind: int, target: Side, source: Side) -> None:
    if kind == Kind.DEFAULT:
        return
    for claimed, side in zip(_SIDES[Kind(kind)], (source, target), strict=True):
        if side.is_device is None or side.is_device == claimed:
            continue
        text = f"kind {kind}, but {side.pointer:#x} is on the {'host' if claimed else 'device'}"
        # What is taken for a device's address and is none may be no address at all any more.
        if claimed or process.profile.is_documented:
            raise Refused(Status.INVALID_VALUE, text, "HIP-X2")
        process.violate(call, "HIP-X2", text)


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


def _prepared(
    process: HipProcess,
    call: str,
    target: tuple[int, int],
    source: tuple[int, int],
    nbytes: int,
    kind: int,
) -> tuple[Work, bool]:
    """Return a copy, checked, and whether the host has no part in it.

    Each end is an address and the device that has to reach it.
    """
    if kind not in set(Kind):
        raise Refused(Status.INVALID_MEMCPY_DIRECTION, f"there is no kind {kind}", "HIP-X2")
    if not target[0] or not source[0]:
        raise Refused(Status.INVALID_VALUE, "an address is null", "HIP-X4")
    to = _side(process, target[0], nbytes, target[1], READ_WRITE)
    start = _side(process, source[0], nbytes, source[1], READ)
    _check_direction(process, call, kind, to, start)
    ranges = ((target[0], nbytes), (source[0], nbytes))
    is_on_devices = to.is_device is True and start.is_device is True
    return Work(call, ranges, lambda: _move(to, start)), is_on_devices


def _do_now(process: HipProcess, work: Work, *, is_on_devices: bool) -> None:
    """Do a copy of a function that the vendor calls synchronous."""
    stream = legacy_of(process, process.current().device)
    submit(process, stream, work)
    # The host does not wait for those between devices, the documents say.
    if not is_on_devices:
        finish(process, [stream], work.sequence)


@entry("memcpy(intptr_t dst, intptr_t src, size_t size, int kind)")
def _memcpy(process: HipProcess, target: int, source: int, nbytes: int, kind: int) -> None:
    if nbytes:
        here = process.current().device
        ends = (target, here), (source, here)
        work, is_on_devices = _prepared(process, "memcpy", *ends, nbytes, kind)
        _do_now(process, work, is_on_devices=is_on_devices)


@entry("memcpyAsync(intptr_t dst, intptr_t src, size_t size, int kind, intptr_t stream)")
def _memcpy_async(
    process: HipProcess, target: int, source: int, nbytes: int, kind: int, stream: int
) -> None:
    where = find_stream(process, stream)
    if nbytes:
        ends = (target, where.device), (source, where.device)
        work, _ = _prepared(process, "memcpyAsync", *ends, nbytes, kind)
        submit(process, where, work)
        if not process.setup.slow_streams and any(
            _is_pageable(process, one) for one in (target, source)
        ):
            # It is the caller's again, though a function of the program be in the stream.
            finish(process, [where], work.sequence)


@entry("memcpyPeer(intptr_t dst, int dstDevice, intptr_t src, int srcDevice, size_t size)")
def _memcpy_peer(
    process: HipProcess, target: int, to: int, source: int, start: int, nbytes: int
) -> None:
    process.check_device(to)
    process.check_device(start)
    if nbytes:
        ends = (target, to), (source, start)
        work, _ = _prepared(process, "memcpyPeer", *ends, nbytes, Kind.DEVICE_TO_DEVICE)
        _do_now(process, work, is_on_devices=True)


@entry(
    "memcpyPeerAsync(intptr_t dst, int dstDevice, intptr_t src, int srcDevice, size_t size, "
    "intptr_t stream)"
)
def _memcpy_peer_async(  # noqa: PLR0917 - as CuPy passes them
    process: HipProcess, target: int, to: int, source: int, start: int, nbytes: int, stream: int
) -> None:
    process.check_device(to)
    process.check_device(start)
    where = find_stream(process, stream)
    if nbytes:
        ends = (target, to), (source, start)
        work, _ = _prepared(process, "memcpyPeerAsync", *ends, nbytes, Kind.DEVICE_TO_DEVICE)
        submit(process, where, work)


def _fill(side: Side, pattern: bytes) -> None:
    done = 0
    for place, size in side.parts:
        if len(pattern) == 1:
            ctypes.memset(place, pattern[0], size)
        else:
            # A part can begin inside of the pattern.
            first = done % len(pattern)
            data = pattern[first:] + pattern * (size // len(pattern) + 1)
            ctypes.memmove(place, data, size)
        done += size


def _prepared_fill(
    process: HipProcess, call: str, pointer: int, pattern: bytes, count: int, stream: Stream
) -> Work:
    if not pointer:
        raise Refused(Status.INVALID_VALUE, "the address is null", "HIP-X4")
    nbytes = len(pattern) * count
    side = _side(process, pointer, nbytes, stream.device, READ_WRITE)
    if side.is_device is False:
        text = f"{pointer:#x} is no address of a device"
        raise Refused(Status.INVALID_VALUE, text, "HIP-X4")
    return Work(call, ((pointer, nbytes),), lambda: _fill(side, pattern))


def _add_fill(name: str, nbytes: int, size: str) -> None:
    """Register a function that fills memory, and the one that does it in a stream."""
    mask = (1 << 8 * nbytes) - 1

    def fill(
        process: HipProcess, call: str, pointer: int, value: int, count: int, stream: Stream
    ) -> None:
        if count:
            pattern = (value & mask).to_bytes(nbytes, "little")
            submit(process, stream, _prepared_fill(process, call, pointer, pattern, count, stream))

    @entry(f"{name}(intptr_t ptr, int value, size_t {size})")
    def _now(process: HipProcess, pointer: int, value: int, count: int) -> None:
        stream = legacy_of(process, process.current().device)
        fill(process, name, pointer, value, count, stream)

    @entry(f"{name}Async(intptr_t ptr, int value, size_t {size}, intptr_t stream)")
    def _in_stream(process: HipProcess, pointer: int, value: int, count: int, stream: int) -> None:
        where = find_stream(process, stream)
        fill(process, f"{name}Async", pointer, value, count, where)


_add_fill("memset", 1, "size")
_add_fill("memsetD16", 2, "count")
_add_fill("memsetD32", 4, "count")
