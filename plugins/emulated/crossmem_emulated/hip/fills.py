# SPDX-License-Identifier: Apache-2.0
"""Fills: a device sets memory to a repeated value."""

import ctypes
from collections.abc import Callable

from crossmem_emulated.hip.calls import Refused, entry
from crossmem_emulated.hip.codes import Status
from crossmem_emulated.hip.copies import Parts, Side, do_now, side_of
from crossmem_emulated.hip.process import HipProcess
from crossmem_emulated.hip.streams import (
    PER_THREAD,
    Stream,
    current_legacy,
    find_stream,
)
from crossmem_emulated.hip.virtual import READ_WRITE
from crossmem_emulated.queues import Work

__all__ = ["fill", "filled_side", "give_fill"]


def fill(parts: Parts, pattern: bytes) -> None:
    """Fill the parts, in their order, with a repeated pattern."""
    done = 0
    for place, size in parts:
        if len(pattern) == 1:
            ctypes.memset(place, pattern[0], size)
        else:
            # The previous part may have ended in the middle of a pattern.
            first = done % len(pattern)
            data = pattern[first:] + pattern * (size // len(pattern) + 1)
            ctypes.memmove(place, data, size)
        done += size


def filled_side(process: HipProcess, pointer: int, nbytes: int, device: int) -> Side:
    """Return the range that a device fills. Refuse a range that the device cannot access."""
    if not pointer:
        raise Refused(Status.INVALID_VALUE, "the address is null", "HIP-X4")
    side = side_of(process, pointer, nbytes, device, READ_WRITE)
    if side.is_device is False:
        text = f"{pointer:#x} is not a device address"
        raise Refused(Status.INVALID_VALUE, text, "HIP-X4")
    return side


def give_fill(
    process: HipProcess, stream: Stream, work: Work, side: Side, *, is_async: bool
) -> None:
    """Submit a fill to a stream.

    A synchronous call waits for the fill only if the host can access the memory, or if the program
    has set the memory's attribute ``SYNC_MEMOPS``. An asynchronous call never waits.
    """
    is_seen = side.is_device is None or side.is_synchronous
    do_now(process, stream, work, waits=is_seen and not is_async)


def _add_fill(name: str, nbytes: int, size: str) -> None:
    """Register the functions that fill memory with a value of ``nbytes`` bytes.

    The functions are ``name``, its asynchronous variant and, for single bytes, a variant for the
    calling thread's own stream. ``size`` is the name of the parameter for the number of values.
    """
    mask = (1 << 8 * nbytes) - 1

    def add(name: str, stream_of: Callable[..., Stream], more: str = "") -> None:
        @entry(f"{name}(intptr_t ptr, int value, size_t {size}{more})")
        def _fill(process: HipProcess, pointer: int, value: int, count: int, *handle: int) -> None:
            stream = stream_of(process, *handle)
            if not count:
                return
            pattern = (value & mask).to_bytes(nbytes, "little")
            side = filled_side(process, pointer, nbytes * count, stream.device)
            ranges = ((pointer, nbytes * count),)
            work = Work(name, ranges, lambda: fill(side.parts, pattern), written=ranges)
            give_fill(process, stream, work, side, is_async=bool(more))

    add(name, current_legacy)
    add(f"{name}Async", find_stream, ", intptr_t stream")
    if nbytes == 1:
        add(f"{name}_spt", lambda process: find_stream(process, PER_THREAD))


_add_fill("memset", 1, "size")
_add_fill("memsetD16", 2, "count")
_add_fill("memsetD32", 4, "count")
