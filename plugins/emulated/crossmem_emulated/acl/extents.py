# SPDX-License-Identifier: Apache-2.0
"""Copies of rows, copies in batches, and fills with 32-bit numbers."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from crossmem_emulated.acl.addresses import Origin
from crossmem_emulated.acl.calls import Refused, entry
from crossmem_emulated.acl.codes import Code, Kind
from crossmem_emulated.acl.copies import check, copy, fill
from crossmem_emulated.acl.process import AclProcess

__all__ = ["Places"]

_SYNC_KINDS: Final = frozenset({Kind.HOST_TO_DEVICE, Kind.DEVICE_TO_HOST, Kind.DEFAULT})
_ASYNC_KINDS: Final = _SYNC_KINDS | {Kind.DEVICE_TO_DEVICE}
_WORD_NBYTES: Final = 4
_ON_HOST, _ON_DEVICE, _ON_NUMA_NODE = 0, 1, 4
_LOCATIONS: Final = frozenset({_ON_HOST, _ON_DEVICE, _ON_NUMA_NODE})


def _copy_rows(
    process: AclProcess,
    target: tuple[int, int],
    source: tuple[int, int],
    extent: tuple[int, int],
    kind: int,
    stream: int | None = None,
) -> None:
    """Copy rows of bytes.

    ``target`` and ``source`` are pairs: the address of the first row, and the distance in bytes
    between the starts of consecutive rows. ``extent`` is the number of bytes in a row, and the
    number of rows.
    """
    (to, to_pitch), (start, pitch), (width, height) = target, source, extent
    if not width or not height:
        return
    if width > min(to_pitch, pitch):
        text = f"rows of {width} bytes overlap: the pitches are {to_pitch} and {pitch} bytes"
        raise Refused(Code.INVALID_PARAM, text)
    if kind not in (_SYNC_KINDS if stream is None else _ASYNC_KINDS):
        raise Refused(Code.INVALID_PARAM, f"rows cannot be copied with kind {kind}")
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


@dataclass(frozen=True, slots=True)
class Places:
    """The locations of consecutive copies in a batch.

    Parameters
    ----------
    first
        Index of the first of these copies. The last of these copies is the one before ``first`` of
        the next ``Places``. Without a next ``Places``, it is the last copy of the batch.
    target, source
        Location of the copies' targets, and location of their sources. A location is a pair of a
        number and a type.
    is_reserved_used
        Whether the vendor's attributes for these copies have a reserved field that differs from 0.
    """

    first: int
    target: tuple[int, int]
    source: tuple[int, int]
    is_reserved_used: bool = False


Copy = tuple[int, int, int, int]
"""The target's address and size, the source's address, and the number of bytes."""


def _copy_batch(
    process: AclProcess,
    call: str,
    copies: Sequence[Copy],
    places: Sequence[Places],
    stream: int | None,
) -> None:
    """Execute a batch of copies. If one copy is refused, no copy is executed."""
    _check_batch(copies, places)
    starts = [one.first for one in places]
    for number, one in enumerate(copies):
        try:
            _check_in_batch(process, call, one, places[bisect_right(starts, number) - 1], stream)
        except Refused as refused:
            text = f"copy {number}: {refused.text}"
            raise Refused(refused.code, text, refused.rule, (number,)) from None
    for to, largest, start, nbytes in copies:
        copy(process, call, (to, largest), (start, nbytes), Kind.DEFAULT, stream)


def _check_batch(copies: Sequence[Copy], places: Sequence[Places]) -> None:
    if not copies:
        raise Refused(Code.INVALID_PARAM, "the batch has no copies")
    for number, (_, largest, _, nbytes) in enumerate(copies):
        if nbytes > largest:
            text = f"copy {number}: {nbytes} bytes do not fit into a target of {largest} bytes"
            raise Refused(Code.INVALID_PARAM, text, "ACL-E28")
    if any(one.is_reserved_used for one in places):
        raise Refused(Code.INVALID_PARAM, "reserved fields of the attributes must be 0")
    starts = [one.first for one in places]
    if starts[:1] != [0] or sorted(set(starts)) != starts or starts[-1] >= len(copies):
        text = (
            f"the attributes' indices must ascend from 0 to at most {len(copies) - 1}, not {starts}"
        )
        raise Refused(Code.RT_PARAM_INVALID, text)


def _check_in_batch(
    process: AclProcess, call: str, one: Copy, places: Places, stream: int | None
) -> None:
    to, largest, start, nbytes = one
    is_async = stream is not None
    sides = check(process, call, (to, largest), (start, nbytes), Kind.DEFAULT, is_async=is_async)
    if sides is None:
        return
    reals = []
    for side, (number, kind) in zip(sides, (places.target, places.source), strict=True):
        if side.origins & {Origin.IMPORTED, Origin.KEY}:
            text = f"a batch cannot copy the imported memory at {side.pointer:#x}"
            raise Refused(Code.RT_FEATURE_NOT_SUPPORT, text)
        real = None if side.device is None else process.ordinal_of(side.device)
        if (number if kind == _ON_DEVICE else None) != real or kind not in _LOCATIONS:
            where = "on the host" if real is None else f"on device {real}"
            text = f"{side.pointer:#x} is {where}, not at location {number} of type {kind}"
            raise Refused(Code.RT_PARAM_INVALID, text, "ACL-E42")
        reals.append(real)
    if (reals[0] is None) == (reals[1] is None):
        text = "a batch can only copy between the host and a device"
        raise Refused(Code.RT_PARAM_INVALID, text, "ACL-E42")


@entry("c.memcpy_batch", "oo")
def _memcpy_batch(process: AclProcess, copies: list[Copy], places: list[Places]) -> None:
    _copy_batch(process, "c.memcpy_batch", copies, places, None)


@entry("c.memcpy_batch_async", "ook")
def _memcpy_batch_async(
    process: AclProcess, copies: list[Copy], places: list[Places], stream: int
) -> None:
    _copy_batch(process, "c.memcpy_batch_async", copies, places, stream)


def _word(pointer: int, value: int) -> bytes:
    if pointer % _WORD_NBYTES:
        raise Refused(Code.RT_PARAM_INVALID, f"the address {pointer:#x} must be a multiple of 4")
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
