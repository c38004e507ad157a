# SPDX-License-Identifier: Apache-2.0
"""Segments of words in shared memory: sealed memfds that are not mapped in forked children."""

import ctypes
import fcntl
import os
from contextlib import suppress
from pathlib import Path
from typing import Final
from weakref import WeakSet

from crossmem.control.limits import name_limit
from crossmem.driver.recording import call_into
from crossmem.errors import InvalidHandleError, OutOfMemoryError

__all__ = [
    "BLOCKS_AT",
    "CONTROL_NAME",
    "FAULTY_OWNER",
    "HEADER_WORDS",
    "ROW_NAME",
    "SLOTS",
    "WORDS",
    "Segment",
    "create",
    "receive",
]

CONTROL_NAME: Final = "crossmem-control"
ROW_NAME: Final = "crossmem-row"
FAULTY_OWNER: Final = "import from a process that runs the same release of crossmem"
"""The hint of errors about an exporter that breaks the lease protocol."""

_LINKS: Final = tuple(f"/memfd:{name} (deleted)" for name in (CONTROL_NAME, ROW_NAME))
"""The names that ``/proc`` shows for control segments and for rows."""

SLOTS: Final = 1 << 20
"""Number of slots in a segment. Only pages with used words take memory."""
BLOCKS_AT: Final = 2
"""A pool has two slots before the slots of its blocks. The first of the two is the slot of the
arena. In the control segment, the word of the second slot is the distance between two blocks, in
bytes."""
HEADER_WORDS: Final = 8
"""Number of words at the beginning of a segment, before the words of the slots."""
WORDS: Final = HEADER_WORDS + SLOTS

_PAGE_NBYTES: Final = os.sysconf("SC_PAGESIZE")
_NBYTES: Final = -(-WORDS * 8 // _PAGE_NBYTES) * _PAGE_NBYTES
_PROT_READ: Final = 1
_PROT_READ_WRITE: Final = 3
_MAP_SHARED: Final = 1
_MADV_DONTFORK: Final = 10
_FAILED: Final = ctypes.c_void_p(-1).value
_F_SEAL_FUTURE_WRITE: Final = 0x10
"""This seal of Linux forbids new writable mappings. Existing mappings stay writable. Python's fcntl
module lacks the seal."""
_SEALS: Final = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL

_libc = ctypes.CDLL(None, use_errno=True)
# Python's mmap object would duplicate the descriptor. In a forked child, the object's finaliser
# would also unmap the segment's address, where another mapping may lie.
_mmap = _libc.mmap
_mmap.restype = ctypes.c_void_p
_mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
_munmap = _libc.munmap
_munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_madvise = _libc.madvise
_madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


class Segment:
    """Words at an address of this process. A forked child has no mapping of the words.

    Parameters
    ----------
    descriptor
        A memfd of the size of a segment. The caller closes it.
    is_writable
        Whether this process writes the words.

    Raises
    ------
    OutOfMemoryError
        This process has no room for another mapping.
    """

    def __init__(self, descriptor: int, *, is_writable: bool) -> None:
        self._mapped: list[int | None] = []
        self._pid = os.getpid()
        self.is_private = False
        """Whether MADV_DONTFORK succeeded."""
        self.words = memoryview(b"")
        """A view of the words. :meth:`close` releases it."""
        _segments.add(self)
        protection = _PROT_READ_WRITE if is_writable else _PROT_READ
        try:
            address = call_into(
                self._mapped, _mmap, None, _NBYTES, protection, _MAP_SHARED, descriptor, 0
            )
            if address == _FAILED or address is None:
                self._mapped.clear()
                code = ctypes.get_errno()
                msg = f"no room to map a segment of leases: {os.strerror(code)}"
                raise OutOfMemoryError(msg, hint="see /proc/sys/vm/max_map_count and ulimit -v")
            self.is_private = not _madvise(address, _NBYTES, _MADV_DONTFORK)
            array = (ctypes.c_uint64 * WORDS).from_address(address)
            words = memoryview(array).cast("B").cast("Q")
            self.words = words if is_writable else words.toreadonly()
        except BaseException:
            self.close()
            raise

    @property
    def address(self) -> int:
        """Address of the words in this process."""
        return self._mapped[0] or 0

    def close(self) -> None:
        """Unmap the words. A second call does nothing.

        The caller ensures that no thread uses the words during the call.
        """
        self.words.release()
        mapped, self._mapped = self._mapped, []
        # In a forked child, the segment is not mapped, and other memory may lie at its address.
        if mapped and self._pid == os.getpid():
            _munmap(mapped[0], _NBYTES)

    __del__ = close

    def abandon(self) -> None:
        """Forget the words in a forked child, which has no mapping to unmap."""
        self.words.release()
        self._mapped.clear()


_segments: WeakSet[Segment] = WeakSet()


def _after_fork_in_child() -> None:
    # Another mapping of this child may get the address of a segment, so the child must not keep the
    # views of the segments.
    segments = list(_segments)
    for segment in segments:
        segment.abandon()
    if not all(segment.is_private for segment in segments):
        _unmap_inherited()


def _unmap_inherited() -> None:
    """Unmap segments for which MADV_DONTFORK failed or was not called yet.

    The function finds the segments by name, because the child may not know an address: the fork may
    have happened after a thread mapped a segment and before that thread stored the address.
    """
    with suppress(OSError):
        for line in Path("/proc/self/maps").read_text("utf-8", "surrogateescape").splitlines():
            if line.endswith(_LINKS):
                first, last = (int(part, 16) for part in line.split(" ", 1)[0].split("-"))
                _munmap(first, last - first)


os.register_at_fork(after_in_child=_after_fork_in_child)


def create(name: str, descriptors: list[int], *, is_written_by_maker: bool) -> Segment:
    """Create a segment of zeroes whose size is sealed.

    Parameters
    ----------
    name
        Name of the segment in ``/proc``.
    descriptors
        A list to which this function adds the segment's descriptor. The caller passes the
        descriptor on, and closes it even if this function raises.
    is_written_by_maker
        True: this process writes, and all other processes can only read. False: the receiver
        writes, and this process reads.

    Raises
    ------
    DriverError, OutOfMemoryError, OSError
        No descriptor is free, the mapping has no room, or the kernel lacks memfds.
    """
    with name_limit("memfd_create"):
        flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
        descriptor = call_into(descriptors, os.memfd_create, name, flags)
    with name_limit("ftruncate"):
        os.ftruncate(descriptor, _NBYTES)
    segment = Segment(descriptor, is_writable=is_written_by_maker)
    try:
        if is_written_by_maker:
            # Before Linux 5.1, the kernel lacks this seal, so receivers can write the segment.
            with suppress(OSError):
                fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _F_SEAL_FUTURE_WRITE)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
    except BaseException:
        segment.close()
        raise
    return segment


def receive(descriptor: int, *, is_writable: bool) -> Segment:
    """Map a segment of another process, after a check that its size is sealed.

    Raises
    ------
    InvalidHandleError
        The descriptor is not a segment, or its seals forbid the writes of this process.
    OutOfMemoryError
        This process has no room for another mapping.
    """
    try:
        seals = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
    except OSError:
        seals = 0
    is_refusing = bool(seals & (fcntl.F_SEAL_WRITE | _F_SEAL_FUTURE_WRITE))
    # An access to a hole of a memfd with huge pages could raise SIGBUS. The check of the size
    # refuses every such memfd, because its size is a multiple of a huge page, and _NBYTES is not.
    if (
        seals & _SEALS != _SEALS
        or os.fstat(descriptor).st_size != _NBYTES
        or (is_writable and is_refusing)
    ):
        msg = "the exporter sent a descriptor that is not a segment of leases"
        raise InvalidHandleError(msg, operation="import", hint=FAULTY_OWNER)
    return Segment(descriptor, is_writable=is_writable)
