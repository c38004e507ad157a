# SPDX-License-Identifier: Apache-2.0
"""Copies and fills of boxes. A box consists of planes, which consist of rows of bytes."""

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from crossmem_emulated.hip.calls import Refused, entry
from crossmem_emulated.hip.codes import Status
from crossmem_emulated.hip.copies import check_kind, do_now, give_back
from crossmem_emulated.hip.planes import Plane, copy_planes, fill_plane
from crossmem_emulated.hip.process import HipProcess
from crossmem_emulated.hip.streams import (
    PER_THREAD,
    Stream,
    current_legacy,
    find_stream,
    submit,
)
from crossmem_emulated.queues import Work

__all__: list[str] = []

_PITCH_LIMIT: Final = (1 << 31) - 1


class _Pos(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_size_t) for name in ("x", "y", "z"))


class _PitchedPtr(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_size_t) for name in ("ptr", "pitch", "xsize", "ysize"))


class _Extent(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_size_t) for name in ("width", "height", "depth"))


class _Parms(ctypes.Structure):
    """The parameters of a copy, in the layout of HIP and CUDA. CuPy passes the struct's address."""

    _fields_ = (
        ("srcArray", ctypes.c_size_t),
        ("srcPos", _Pos),
        ("srcPtr", _PitchedPtr),
        ("dstArray", ctypes.c_size_t),
        ("dstPos", _Pos),
        ("dstPtr", _PitchedPtr),
        ("extent", _Extent),
        ("kind", ctypes.c_int),
    )


@dataclass(frozen=True, slots=True)
class _Space:
    """The memory that contains a box.

    Parameters
    ----------
    pointer
        First address.
    pitch
        Distance in bytes between the starts of consecutive rows. If the pitch is 0, the
        rows have no gaps, and the last byte of the box in a row is the last byte of the row.
    width
        Bytes in a row of the memory.
    height
        Rows in a plane of the memory. If the height is 0, the planes have no gaps, and the last row
        of the box in a plane is the last row of the plane.
    """

    pointer: int
    pitch: int
    width: int
    height: int

    def check(self, x: int, width: int) -> None:
        """Refuse a null address, and a pitch that is too large or too small.

        The box begins at the byte ``x`` of a row, and has ``width`` bytes in each row. A pitch is
        too small if it is less than the memory's width. A pitch other than 0 is also too small if
        it is less than ``x + width``.
        """
        if not self.pointer:
            raise Refused(Status.INVALID_VALUE, "an address is null", "HIP-X4")
        if self.pitch < self.width:
            text = f"rows of {self.width} bytes overlap: they begin every {self.pitch} bytes"
            raise Refused(Status.INVALID_PITCH_VALUE, text, "HIP-X7")
        if self.pitch >= _PITCH_LIMIT:
            text = f"the pitch must be less than {_PITCH_LIMIT} bytes, not {self.pitch}"
            raise Refused(Status.INVALID_VALUE, text, "HIP-X7")
        if self.pitch and x + width > self.pitch:
            text = f"{width} bytes from byte {x} on do not fit a pitch of {self.pitch} bytes"
            raise Refused(Status.INVALID_VALUE, text, "HIP-X7")

    def plane(self, start: tuple[int, int, int], extent: tuple[int, int, int]) -> Plane:
        """Return a box in this memory, for a copy or a fill. Refuse a box that exceeds a plane.

        ``start`` is the box's position in this memory: the byte in the row, the row in the plane,
        and the plane, all counted from 0. ``extent`` is the box's size: the number of bytes in a
        row, the number of rows in a plane, and the number of planes.
        """
        (x, y, z), (width, height, depth) = start, extent
        pitch, rows = self.pitch or x + width, self.height or y + height
        if y + height > rows:
            text = f"{height} rows from row {y} on do not fit a plane of {rows} rows"
            raise Refused(Status.INVALID_VALUE, text, "HIP-X7")
        first = self.pointer + (z * rows + y) * pitch + x
        return Plane(first, pitch, width, height, depth, rows * pitch)


def _copy(process: HipProcess, call: str, stream: Stream, place: int) -> tuple[Work, bool] | None:
    """Check a copy whose parameters, a :class:`_Parms`, lie at the address ``place``.

    Return the copy's work, and whether a synchronous call waits for the work. Return None if there
    is nothing to copy.
    """
    if not place:
        raise Refused(Status.INVALID_VALUE, "the address of the parameters is null", "HIP-X4")
    parms = _Parms.from_address(place)
    if parms.srcArray or parms.dstArray:
        raise Refused(Status.NOT_SUPPORTED, "arrays are not emulated")
    extent = parms.extent.width, parms.extent.height, parms.extent.depth
    sides = (parms.dstPtr, parms.dstPos), (parms.srcPtr, parms.srcPos)
    spaces = [_Space(one.ptr, one.pitch, one.xsize, one.ysize) for one, _ in sides]
    for space, (_, start) in zip(spaces, sides, strict=True):
        space.check(start.x, extent[0])
    check_kind(process, parms.kind)
    if not all(extent):
        return None
    starts = [(start.x, start.y, start.z) for _, start in sides]
    target, source = (
        space.plane(start, extent) for space, start in zip(spaces, starts, strict=True)
    )
    return copy_planes(process, call, stream, target, source, parms.kind)


def _add_copies(name: str, stream: int | None) -> None:
    """Register a function for synchronous copies.

    ``stream`` is the handle of the stream that the copies use. If it is None, the copies use the
    legacy stream of the current device.
    """

    @entry(f"{name}(intptr_t Memcpy3DParmsPtr)", hip_answers=Status.UNKNOWN)
    def _memcpy_3d(process: HipProcess, place: int) -> None:
        where = current_legacy(process) if stream is None else find_stream(process, stream)
        found = _copy(process, name, where, place)
        if found is not None:
            do_now(process, where, found[0], waits=found[1])


_add_copies("memcpy3D", None)
_add_copies("memcpy3D_spt", PER_THREAD)


@entry(
    "memcpy3DAsync(intptr_t Memcpy3DParmsPtr, intptr_t stream)",
    hip_answers=Status.UNKNOWN,
)
def _memcpy_3d_async(process: HipProcess, place: int, stream: int) -> None:
    where = find_stream(process, stream)
    found = _copy(process, "memcpy3DAsync", where, place)
    if found is not None:
        submit(process, where, found[0])
        (target, _), (source, _) = found[0].ranges
        give_back(process, where, found[0], (target, source))


# Fills ----------------------------------------------------------------------------------------


def _add_fill(name: str, stream_of: Callable[..., Stream], more: str = "") -> None:
    @entry(
        f"{name}(intptr_t ptr, size_t pitch, size_t xsize, size_t ysize, int value, "
        f"size_t width, size_t height, size_t depth{more})"
    )
    def _memset_3d(  # noqa: PLR0917
        process: HipProcess,
        pointer: int,
        pitch: int,
        _xsize: int,
        ysize: int,
        value: int,
        width: int,
        height: int,
        depth: int,
        *handle: int,
    ) -> None:
        stream = stream_of(process, *handle)
        if width and height and depth:
            space = _Space(pointer, pitch, 0, ysize)
            plane = space.plane((0, 0, 0), (width, height, depth))
            fill_plane(process, name, stream, plane, value, is_async=bool(more))


_add_fill("memset3D", current_legacy)
_add_fill("memset3DAsync", find_stream, ", intptr_t stream")
_add_fill("memset3D_spt", lambda process: find_stream(process, PER_THREAD))
