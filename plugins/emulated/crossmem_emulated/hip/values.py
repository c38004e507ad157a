# SPDX-License-Identifier: Apache-2.0
"""Streams write values into memory, and wait for values in memory (rule HIP-E26).

AMD's functions are ``hipStreamWriteValue64`` and ``hipStreamWaitValue64``, with variants for 32
bits. NVIDIA's driver library has equivalents.
"""

from typing import Final

from crossmem_emulated.hip.blocks import find_host_block
from crossmem_emulated.hip.calls import Refused, entry
from crossmem_emulated.hip.codes import MemoryType, Status
from crossmem_emulated.hip.copies import side_of
from crossmem_emulated.hip.process import HipProcess
from crossmem_emulated.hip.streams import Stream, find_stream, finish, submit
from crossmem_emulated.hip.virtual import READ, READ_WRITE
from crossmem_emulated.queues import Work
from crossmem_emulated.words import Comparison, finish_later, is_satisfied, load, store, waiting

__all__: list[str] = []

_RULE: Final = "HIP-E26"
_FLUSH: Final = 1 << 30
"""CUDA's flag that makes a wait flush the writes of other devices when the wait ends."""
_ALL: Final = (1 << 64) - 1


def _place_of(process: HipProcess, stream: Stream, pointer: int, nbytes: int, access: int) -> int:
    """Return the address at which the emulation itself accesses a word of ``nbytes`` bytes.

    Refuse an invalid pointer. ``access`` is the access that the stream's device needs.
    """
    if not pointer or pointer % nbytes:
        text = f"{pointer:#x} is null, or not aligned for {nbytes} bytes"
        raise Refused(Status.INVALID_VALUE, text, _RULE)
    side = side_of(process, pointer, nbytes, stream.device, access)
    if side.is_device is False:
        text = f"{pointer:#x} is in host memory that is neither pinned nor registered"
        raise Refused(Status.INVALID_VALUE, text, _RULE)
    block = find_host_block(process, pointer)
    if block is not None and block.kind is MemoryType.MANAGED and not process.profile.is_hip:
        raise Refused(Status.INVALID_VALUE, f"{pointer:#x} is in managed memory", _RULE)
    return side.parts[0][0]


def _write(  # noqa: PLR0917 - the parameters of C
    process: HipProcess, call: str, nbytes: int, handle: int, pointer: int, value: int, flags: int
) -> None:
    stream = find_stream(process, handle)
    place = _place_of(process, stream, pointer, nbytes, READ_WRITE)
    # AMD reserves the flags for later use, and only AMD's newest runtime checks them. CUDA accepts
    # the flags 0 and 1.
    known = process.profile.flags_of_write
    if known is not None and flags not in known:
        raise Refused(Status.INVALID_VALUE, f"the flags {flags:#x} are unknown", _RULE)
    work = Work(call, ((pointer, nbytes),), lambda: store(place, nbytes, value))
    submit(process, stream, work)
    if process.setup.slow_streams and stream.capture is None:
        finish_later(process.lock, lambda: finish(process, [stream], work.sequence))


def _wait(  # noqa: PLR0917 - the parameters of C
    process: HipProcess,
    call: str,
    nbytes: int,
    handle: int,
    pointer: int,
    value: int,
    flags: int,
    mask: int,
) -> None:
    stream = find_stream(process, handle)
    place = _place_of(process, stream, pointer, nbytes, READ)
    if flags & _FLUSH and not process.profile.is_hip:
        raise Refused(Status.NOT_SUPPORTED, "the device cannot flush other devices' writes", _RULE)
    if flags not in set(Comparison):
        raise Refused(Status.INVALID_VALUE, f"the flags {flags:#x} are unknown", _RULE)
    comparison = Comparison(flags)
    masked = mask if process.profile.is_hip else None

    def is_over() -> bool:
        word = load(place, nbytes)
        return is_satisfied(comparison, word, value, nbytes=nbytes, mask=masked)

    work = waiting(call, stream, process.lock, (pointer, nbytes), is_over)
    submit(process, stream, work)


def _add(bits: int, kind: str) -> None:
    """Register the two functions for words of ``bits`` bits and C type ``kind``."""
    ends = f"intptr_t stream, intptr_t ptr, {kind} value, unsigned int flags"
    nbytes = bits // 8

    @entry(f"streamWriteValue{bits}({ends})")
    def _stream_write_value(
        process: HipProcess, handle: int, pointer: int, value: int, flags: int
    ) -> None:
        _write(process, f"streamWriteValue{bits}", nbytes, handle, pointer, value, flags)

    # Only AMD's functions have the argument mask.
    @entry(f"streamWaitValue{bits}({ends}, unsigned long long mask={_ALL})")
    def _stream_wait_value(
        process: HipProcess, handle: int, pointer: int, value: int, flags: int, mask: int
    ) -> None:
        _wait(process, f"streamWaitValue{bits}", nbytes, handle, pointer, value, flags, mask)


_add(32, "unsigned int")
_add(64, "unsigned long long")
