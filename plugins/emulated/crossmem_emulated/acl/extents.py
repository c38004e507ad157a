# SPDX-License-Identifier: Apache-2.0
"""Copies of rows and in batches, and fills of 32-bit numbers."""

from typing import Final

from crossmem_emulated.acl.addresses import Origin
from crossmem_emulated.acl.calls import Refused, entry
from crossmem_emulated.acl.codes import Code, Kind
from crossmem_emulated.acl.copies import copy, fill
from crossmem_emulated.acl.process import AclProcess

__all__: list[str] = []

_SYNC_KINDS: Final = frozenset({Kind.HOST_TO_DEVICE, Kind.DEVICE_TO_HOST, Kind.DEFAULT})
_ASYNC_KINDS: Final = _SYNC_KINDS | {Kind.DEVICE_TO_DEVICE}
_WORD_NBYTES: Final = 4


def _copy_rows(
    process: AclProcess,
    target: tuple[int, int],
    source: tuple[int, int],
    extent: tuple[int, int],
    kind: int,
    stream: int | None = None,
) -> None:
    """Copy rows; a side is its first address and the distance of its rows in bytes."""
    (to, to_pitch), (start, pitch), (width, height) = target, source, extent
    if not width or not height:
        return
    if width > min(to_pitch, pitch):
        raise Refused(Code.INVALID_PARAM, f"rows of {width} bytes, {to_pitch} and {pitch} apart")
    if kind not in (_SYNC_KINDS if stream is None else _ASYNC_KINDS):
        raise Refused(Code.INVALID_PARAM, f"kind {kind}")
    call = "c.memcpy2d" if stream is None else "c.memcpy2d_async"
    for row in range(height):
        line = (start + row * pitch, width)
        copy(process, call, (to + row * to_pitch, to_pitch), line, kind, stream)


@entry("c.memcpy2d", "kkkkkki")
def _memcpy2d(  # noqa: PLR0917 - the vendor's order
    process: AclProcess,
    to: int,
    to_pitch: int,
    start: int,
    pitch: int,
    width: int,
    height: int,
    kind: int,
) -> None:
    _copy_rows(process, (to, to_pitch), (start, pitch), (width, height), kind)


@entry("c.memcpy2d_async", "kkkkkkik")
def _memcpy2d_async(  # noqa: PLR0917 - the vendor's order
    process: AclProcess,
    to: int,
    to_pitch: int,
    start: int,
    pitch: int,
    width: int,
    height: int,
    kind: int,
    stream: int,
) -> None:
    _copy_rows(process, (to, to_pitch), (start, pitch), (width, height), kind, stream)


def _copy_batch(
    process: AclProcess, call: str, copies: list[tuple[int, int, int, int]], stream: int | None
) -> None:
    """Make copies: target, room there, source and size of each. The first refusal ends it."""
    if not copies:
        raise Refused(Code.INVALID_PARAM, "there is nothing in the batch")
    for number, (to, largest, start, nbytes) in enumerate(copies):
        try:
            for pointer in (to, start):
                origins = {one.origin for one in process.space.overlapping(pointer, nbytes)}
                if origins & {Origin.IMPORTED, Origin.KEY}:
                    text = f"imported memory at {pointer:#x} is not copied in batches"
                    raise Refused(Code.RT_FEATURE_NOT_SUPPORT, text)
            copy(process, call, (to, largest), (start, nbytes), Kind.DEFAULT, stream)
        except Refused as refused:
            text = f"copy {number}: {refused.text}"
            raise Refused(refused.code, text, refused.rule, (number,)) from None


@entry("c.memcpy_batch", "o")
def _memcpy_batch(process: AclProcess, copies: list[tuple[int, int, int, int]]) -> None:
    _copy_batch(process, "c.memcpy_batch", copies, None)


@entry("c.memcpy_batch_async", "ok")
def _memcpy_batch_async(
    process: AclProcess, copies: list[tuple[int, int, int, int]], stream: int
) -> None:
    _copy_batch(process, "c.memcpy_batch_async", copies, stream)


def _word(pointer: int, value: int) -> bytes:
    if pointer % _WORD_NBYTES:
        raise Refused(Code.RT_PARAM_INVALID, f"{pointer:#x} is no address of 32-bit numbers")
    return value.to_bytes(_WORD_NBYTES, "little")


@entry("c.memset_d32", "kkIk")
def _memset_d32(process: AclProcess, pointer: int, nbytes: int, value: int, count: int) -> None:
    word = _word(pointer, value)
    fill(process, "c.memset_d32", (pointer, nbytes), word, count * _WORD_NBYTES)


@entry("c.memset_d32_async", "kkIkk")
def _memset_d32_async(
    process: AclProcess, pointer: int, nbytes: int, value: int, count: int, stream: int
) -> None:
    word = _word(pointer, value)
    fill(process, "c.memset_d32_async", (pointer, nbytes), word, count * _WORD_NBYTES, stream)
