# SPDX-License-Identifier: Apache-2.0
"""Allocations, copies and fills of memory that consists of rows, with or without gaps."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from crossmem_emulated.hip.blocks import allocate
from crossmem_emulated.hip.calls import Refused, entry
from crossmem_emulated.hip.codes import LARGEST_NBYTES, Status
from crossmem_emulated.hip.copies import (
    Parts,
    Side,
    check_direction,
    do_now,
    give_back,
    is_waiting,
    move,
    side_of,
    staged,
)
from crossmem_emulated.hip.fills import fill, filled_side, give_fill
from crossmem_emulated.hip.process import HipProcess
from crossmem_emulated.hip.streams import (
    PER_THREAD,
    Stream,
    check_safe,
    current_legacy,
    find_stream,
    submit,
)
from crossmem_emulated.hip.virtual import READ, READ_WRITE
from crossmem_emulated.queues import Work

__all__ = ["Plane", "copy_planes", "fill_plane"]

_PITCH: Final = 256
_MOST_NBYTES: Final = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Plane:
    """Rows of equal width, in one or more planes.

    The distance from one row of a plane to the next is constant. So is the distance from one plane
    to the next.

    Parameters
    ----------
    pointer
        Address of the first row.
    pitch
        Distance between the starts of consecutive rows, in bytes.
    width
        Bytes in a row.
    height
        Number of rows in a plane.
    depth
        Number of planes.
    plane_pitch
        Distance between the starts of consecutive planes, in bytes.
    """

    pointer: int
    pitch: int
    width: int
    height: int
    depth: int = 1
    plane_pitch: int = 0

    @property
    def nbytes(self) -> int:
        """Number of bytes from the first byte to the last, with the gaps."""
        rows = self.pitch * (self.height - 1) + self.width
        return self.plane_pitch * (self.depth - 1) + rows

    @property
    def has_gaps(self) -> bool:
        """Whether some bytes between the first and the last belong to no row."""
        are_rows_apart = self.depth * self.height > 1 and self.pitch != self.width
        are_planes_apart = self.depth > 1 and self.plane_pitch != self.pitch * self.height
        return are_rows_apart or are_planes_apart

    def check(self) -> None:
        """Refuse a null address, and a size of more than ``LARGEST_NBYTES`` bytes."""
        if not self.pointer:
            raise Refused(Status.INVALID_VALUE, "an address is null", "HIP-X4")
        if self.nbytes > LARGEST_NBYTES:
            rows = f"{self.depth} times {self.height} rows"
            text = (
                f"{rows} of {self.pitch} bytes at {self.pointer:#x} exceed {LARGEST_NBYTES} bytes"
            )
            raise Refused(Status.INVALID_VALUE, text, "HIP-X7")

    def rows(self, side: Side, *, is_whole: bool) -> Iterator[Parts]:
        """Yield the parts of each row of ``side``.

        If ``is_whole`` is true, yield only one item, with all parts of ``side``.
        """
        if is_whole:
            yield side.parts
            return
        for plane in range(self.depth):
            for row in range(self.height):
                yield _cut(side.parts, plane * self.plane_pitch + row * self.pitch, self.width)


def _cut(parts: Parts, offset: int, nbytes: int) -> Parts:
    found = []
    for place, size in parts:
        if offset < size and nbytes:
            taken = min(size - offset, nbytes)
            found.append((place + offset, taken))
            nbytes -= taken
        offset = max(0, offset - size)
    return found


@entry("mallocPitch(size_t width, size_t height, size_t depth)")
def _malloc_pitch(
    process: HipProcess, width: int, height: int, depth: int
) -> tuple[int, int | None]:
    """Return the address and the pitch. If the memory would be empty, return 0 and None."""
    check_safe(process)
    if not width or not height or not depth:
        return 0, None
    if width > _MOST_NBYTES - _PITCH:
        raise Refused(Status.INVALID_VALUE, f"rows of {width} bytes are too long", "HIP-X7")
    pitch = -(-width // _PITCH) * _PITCH
    return allocate(process, pitch * height * depth), pitch


# Copies ---------------------------------------------------------------------------------------


def copy_planes(
    process: HipProcess, call: str, stream: Stream, target: Plane, source: Plane, kind: int
) -> tuple[Work, bool]:
    """Check a copy of all rows. Return its work, and whether a synchronous call waits for it."""
    if target.width > min(target.pitch, source.pitch):
        text = (
            f"rows of {target.width} bytes overlap: "
            f"the pitches are {target.pitch} and {source.pitch} bytes"
        )
        raise Refused(Status.INVALID_PITCH_VALUE, text, "HIP-X7")
    target.check()
    source.check()
    to = side_of(process, target.pointer, target.nbytes, stream.device, READ_WRITE)
    start = side_of(process, source.pointer, source.nbytes, stream.device, READ)
    check_direction(process, call, kind, to, start)
    start = staged(process, start, source.nbytes)

    def run() -> None:
        is_whole = not target.has_gaps and not source.has_gaps
        rows = target.rows(to, is_whole=is_whole), source.rows(start, is_whole=is_whole)
        for targets, sources in zip(*rows, strict=True):
            move(targets, sources)

    ranges = ((target.pointer, target.nbytes), (source.pointer, source.nbytes))
    # The work does not write the gaps between the target's rows. So if the target has gaps, its
    # range must not count as written.
    written = () if target.has_gaps else ranges[:1]
    return Work(call, ranges, run, written=written), is_waiting(to, start)


_CUPY_ANSWERS: Final = Status.UNKNOWN
_ENDS: Final = (
    "intptr_t dst, size_t dpitch, intptr_t src, size_t spitch, size_t width, size_t height, "
    "MemoryKind kind"
)


def _add_copies(name: str, stream: int | None) -> None:
    """Register a function for synchronous copies.

    ``stream`` is the handle of the stream that the copies use. If ``stream`` is None, the copies
    use the legacy stream of the current device.
    """

    @entry(f"{name}({_ENDS})", hip_answers=_CUPY_ANSWERS)
    def _memcpy_2d(  # noqa: PLR0917 - CuPy's parameters
        process: HipProcess,
        target: int,
        to_pitch: int,
        source: int,
        from_pitch: int,
        width: int,
        height: int,
        kind: int,
    ) -> None:
        if not width or not height:
            return
        where = current_legacy(process) if stream is None else find_stream(process, stream)
        ends = Plane(target, to_pitch, width, height), Plane(source, from_pitch, width, height)
        work, waits = copy_planes(process, name, where, *ends, kind)
        do_now(process, where, work, waits=waits)


_add_copies("memcpy2D", None)
_add_copies("memcpy2D_spt", PER_THREAD)


@entry(f"memcpy2DAsync({_ENDS}, intptr_t stream)", hip_answers=_CUPY_ANSWERS)
def _memcpy_2d_async(  # noqa: PLR0917 - CuPy's parameters
    process: HipProcess,
    target: int,
    to_pitch: int,
    source: int,
    from_pitch: int,
    width: int,
    height: int,
    kind: int,
    stream: int,
) -> None:
    where = find_stream(process, stream)
    if width and height:
        ends = Plane(target, to_pitch, width, height), Plane(source, from_pitch, width, height)
        work, _ = copy_planes(process, "memcpy2DAsync", where, *ends, kind)
        submit(process, where, work)
        give_back(process, where, work, (target, source))


# Fills ----------------------------------------------------------------------------------------


def fill_plane(
    process: HipProcess, call: str, stream: Stream, plane: Plane, value: int, *, is_async: bool
) -> None:
    """Fill all rows with the lowest byte of ``value``, as work of a stream."""
    if plane.width > plane.pitch:
        text = f"rows of {plane.width} bytes overlap: they begin every {plane.pitch} bytes"
        raise Refused(Status.INVALID_VALUE, text, "HIP-X7")
    plane.check()
    side = filled_side(process, plane.pointer, plane.nbytes, stream.device)
    pattern = bytes([value & 0xFF])

    def run() -> None:
        for parts in plane.rows(side, is_whole=not plane.has_gaps):
            fill(parts, pattern)

    ranges = ((plane.pointer, plane.nbytes),)
    work = Work(call, ranges, run, written=() if plane.has_gaps else ranges)
    give_fill(process, stream, work, side, is_async=is_async)


def _add_fill(name: str, stream_of: Callable[..., Stream], more: str = "") -> None:
    @entry(f"{name}(intptr_t ptr, size_t pitch, int value, size_t width, size_t height{more})")
    def _memset_2d(
        process: HipProcess,
        pointer: int,
        pitch: int,
        value: int,
        width: int,
        height: int,
        *handle: int,
    ) -> None:
        stream = stream_of(process, *handle)
        if not width or not height:
            return
        plane = Plane(pointer, pitch, width, height)
        fill_plane(process, name, stream, plane, value, is_async=bool(more))


_add_fill("memset2D", current_legacy)
_add_fill("memset2DAsync", find_stream, ", intptr_t stream")
_add_fill("memset2D_spt", lambda process: find_stream(process, PER_THREAD))
