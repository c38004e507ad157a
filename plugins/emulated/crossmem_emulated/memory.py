# SPDX-License-Identifier: Apache-2.0
"""Host memory from the kernel: memfds of a sealed size, and their mappings.

Mappings are made through ctypes, because each of Python's ``mmap`` objects holds a descriptor.
Addresses are integers. If a function returns the address of a new mapping, the caller must unmap
the mapping. A function that raises leaves no new descriptor and no new mapping behind.
"""

import contextlib
import ctypes
import os
from ctypes import c_int, c_int64, c_size_t, c_ssize_t
from errno import EEXIST, EINVAL, ENOMEM
from fcntl import F_ADD_SEALS, F_GET_SEALS, F_SEAL_GROW, F_SEAL_SEAL, F_SEAL_SHRINK, fcntl
from mmap import MAP_ANONYMOUS, MAP_PRIVATE, MAP_SHARED, PROT_READ, PROT_WRITE
from os import SEEK_END, close, ftruncate, lseek, memfd_create
from pathlib import Path
from typing import Final

from crossmem.driver.recording import call_into

__all__ = [
    "PAGE_NBYTES",
    "READ",
    "READ_WRITE",
    "SystemCallError",
    "advise_huge",
    "close_inherited",
    "copy",
    "cover",
    "create",
    "creation_flags",
    "duplicate_at",
    "fill",
    "is_mapped",
    "libc_error",
    "map_shared",
    "munmap",
    "populate",
    "reopen_readonly",
    "reserve",
    "sealed_nbytes",
    "unmap",
    "unmap_inherited",
    "wants_huge_page_advice",
    "write",
]

PAGE_NBYTES: Final = os.sysconf("SC_PAGE_SIZE")
READ: Final[int] = PROT_READ
READ_WRITE: Final[int] = PROT_READ | PROT_WRITE

# Constants of the kernel's headers that Python may lack.
_MFD_CLOEXEC: Final = 0x1
_MFD_ALLOW_SEALING: Final = 0x2
_MFD_NOEXEC_SEAL: Final = 0x8
_MADV_DONTFORK: Final = 10
_MADV_HUGEPAGE: Final = 14
_MADV_POPULATE_WRITE: Final = 23
_MAP_NORESERVE: Final = 0x4000
_MAP_FIXED: Final = 0x10
_MAP_FIXED_NOREPLACE: Final = 0x100000
_MREMAP_MAYMOVE: Final = 1
_MREMAP_FIXED: Final = 2
_NOTHING: Final = MAP_PRIVATE | MAP_ANONYMOUS | _MAP_NORESERVE

_HOST_NAME: Final = "crossmem"
"""Name, in ``/proc``, of memory whose mappings forked children inherit."""
_DEVICE_NAME: Final = "crossmem-device"
"""Name, in ``/proc``, of memory whose mappings forked children do not inherit."""
_DEVICE_LINK: Final = f"/memfd:{_DEVICE_NAME} (deleted)"
_LINKS: Final = frozenset({f"/memfd:{_HOST_NAME} (deleted)", _DEVICE_LINK})
_SIZE_SEALS: Final = F_SEAL_SHRINK | F_SEAL_GROW
# F_SEAL_SEAL forbids further seals. Without F_SEAL_SEAL, an importer could seal the memory so that
# other importers cannot write.
_ALL_SEALS: Final = _SIZE_SEALS | F_SEAL_SEAL
_TMPFS_MAGIC: Final = 0x01021994
_STATFS_WORDS: Final = 32
"""Number of words in a buffer that is larger than a ``struct statfs``. The first word of the struct
is the type of the file system."""
_FAILED: Final = -1
_MOST_NBYTES: Final = (1 << 64) - 1
_HUGE_PAGE_SETTINGS: Final = Path("/sys/kernel/mm/transparent_hugepage")

# CDLL releases the GIL during a call, so other threads run. Some calls take long, for
# example unmapping large memory, or mapping memory while another thread populates memory.
_libc = ctypes.CDLL(None, use_errno=True)

_mmap = _libc.mmap
_mmap.argtypes = (c_size_t, c_size_t, c_int, c_int, c_int, c_int64)
_mmap.restype = c_ssize_t

munmap = _libc.munmap
"""The C function, without a Python wrapper. In the statement directly before the call, the caller
deletes its record of the address. No signal handler runs between this statement and the call, so
the memory is neither lost nor unmapped twice."""
munmap.argtypes = (c_size_t, c_size_t)
munmap.restype = c_int

_madvise = _libc.madvise
_madvise.argtypes = (c_size_t, c_size_t, c_int)
_madvise.restype = c_int

_mremap = _libc.mremap
_mremap.argtypes = (c_size_t, c_size_t, c_size_t, c_int, c_size_t)
_mremap.restype = c_ssize_t


_fstatfs = _libc.fstatfs
_fstatfs.argtypes = (c_int, ctypes.POINTER(ctypes.c_long))
_fstatfs.restype = c_int


class SystemCallError(OSError):
    """A system call, such as ``"mmap"``, failed. ``code`` is the value of ``errno``."""

    def __init__(self, call: str, code: int) -> None:
        super().__init__(code, os.strerror(code))
        self.call = call
        self.code = code


def libc_error(call: str) -> SystemCallError:
    """Return the error for ``call``, a system call of this thread that has just failed."""
    return SystemCallError(call, ctypes.get_errno())


def creation_flags() -> int:
    """Return the flags for :func:`create` that this kernel supports.

    The function first tries ``MFD_NOEXEC_SEAL``, because a system can be set to refuse memfds
    without this flag. Kernels before Linux 6.3 do not know the flag.
    """
    flags = _MFD_CLOEXEC | _MFD_ALLOW_SEALING | _MFD_NOEXEC_SEAL
    try:
        descriptor = memfd_create(_HOST_NAME, flags)
    except OSError as error:
        if error.errno != EINVAL:
            raise SystemCallError("memfd_create", error.errno or 0) from None
        return flags & ~_MFD_NOEXEC_SEAL
    close(descriptor)
    return flags


def create(
    nbytes: int, flags: int, *, is_inherited: bool, unmapped_nbytes: int = 0
) -> tuple[int, int]:
    """Create memory with a sealed size, and map it.

    Parameters
    ----------
    nbytes
        Size in bytes, a multiple of the page size.
    flags
        The result of :func:`creation_flags`.
    is_inherited
        Whether forked children inherit the mapping, as for :func:`map_shared`.
    unmapped_nbytes
        Number of further bytes in the file, after the mapped bytes. They are not mapped.

    Returns
    -------
    tuple of int
        The descriptor, which the caller closes, and the address of the mapping, which the caller
        unmaps.
    """
    call = "memfd_create"
    opened: list[int] = []
    name = _HOST_NAME if is_inherited else _DEVICE_NAME
    try:
        descriptor = call_into(opened, memfd_create, name, flags)
        call = "ftruncate"
        ftruncate(descriptor, nbytes + unmapped_nbytes)
        call = "fcntl(F_ADD_SEALS)"
        fcntl(descriptor, F_ADD_SEALS, _ALL_SEALS)
        return descriptor, map_shared(descriptor, nbytes, READ_WRITE, is_inherited=is_inherited)
    except BaseException as error:
        for one in opened:
            close(one)
        if isinstance(error, OSError) and not isinstance(error, SystemCallError):
            raise SystemCallError(call, error.errno or 0) from None
        raise


def map_shared(
    descriptor: int, nbytes: int, protection: int, *, is_inherited: bool, at: int = 0
) -> int:
    """Map memory and return its address.

    The mapping stays when the descriptor is closed.

    Parameters
    ----------
    descriptor, nbytes
        The memory, and the number of bytes to map from the first byte on.
    protection
        The access of the mapping: ``READ`` or ``READ_WRITE``.
    is_inherited
        Whether forked children inherit the mapping. If so, each child keeps the pages alive.
    at
        The address of the mapping, inside a reservation of :func:`reserve`; 0 for any address.
    """
    # With MAP_FIXED, the new mapping replaces the reservation of its addresses. If the kernel
    # refuses, for example because the process has too many mappings, the reservation is unchanged.
    flags = MAP_SHARED | (_MAP_FIXED if at else 0)
    mapped: list[int] = []
    try:
        pointer = call_into(mapped, _mmap, at, nbytes, protection, flags, descriptor, 0)
        if pointer == _FAILED:
            raise libc_error("mmap")
        if not is_inherited and _madvise(pointer, nbytes, _MADV_DONTFORK):
            raise libc_error("madvise(MADV_DONTFORK)")
        return pointer
    except BaseException:
        for one in mapped:
            if one != _FAILED and at:
                cover(one, nbytes)
            elif one != _FAILED:
                munmap(one, nbytes)
        raise


def unmap(pointer: int, nbytes: int) -> None:
    """Unmap ``nbytes`` bytes at an address."""
    if munmap(pointer, nbytes):
        raise libc_error("munmap")


def reserve(nbytes: int, alignment: int, *, at: int = 0) -> int:
    """Reserve consecutive addresses, and return the first address.

    The addresses have no memory, so any access faults. Later, :func:`map_shared` can map memory at
    these addresses. A forked child inherits such a mapping if its ``is_inherited`` was true. The
    child does not inherit the rest of the reservation.

    Parameters
    ----------
    nbytes
        Size in bytes, a multiple of the page size.
    alignment
        A power of two. If ``at`` is 0, the first address is a multiple of it.
    at
        The required address; 0 for any address.
    """
    spare = 0 if at else alignment
    if nbytes + spare > _MOST_NBYTES:
        # The sum does not fit C's size_t, and ctypes would truncate it.
        raise SystemCallError("mmap", ENOMEM)
    flags = _NOTHING | (_MAP_FIXED_NOREPLACE if at else 0)
    mapped: list[int] = []
    start = end = 0
    try:
        first = start = call_into(mapped, _mmap, at, nbytes + spare, 0, flags, -1, 0)
        if first == _FAILED:
            raise libc_error("mmap")
        end = first + nbytes + spare
        if at and first != at:
            # Kernels before Linux 4.17 ignore MAP_FIXED_NOREPLACE and may return another address.
            raise SystemCallError("mmap", EEXIST)
        pointer = (first + alignment - 1) & -alignment if spare else first
        # Another thread may get addresses that were unmapped here, so the handler below must not
        # unmap them again. Therefore ``start`` or ``end`` changes before each unmap.
        if pointer > first:
            start = pointer
            munmap(first, pointer - first)
        if spare:
            rest, end = end - pointer - nbytes, pointer + nbytes
            munmap(end, rest)
        if _madvise(pointer, nbytes, _MADV_DONTFORK):
            raise libc_error("madvise(MADV_DONTFORK)")
        return pointer
    except BaseException:
        if mapped and mapped[0] != _FAILED:
            start = start or mapped[0]
            munmap(start, (end or mapped[0] + nbytes + spare) - start)
        raise


def duplicate_at(source: int, nbytes: int, target: int) -> None:
    """Map the memory at ``source`` a second time, at the reserved address ``target``.

    The second mapping needs no descriptor. A forked child inherits it if the child inherits the
    first mapping.
    """
    # If the old size is 0, mremap() makes a second mapping of shared memory and keeps the first.
    if _mremap(source, 0, nbytes, _MREMAP_MAYMOVE | _MREMAP_FIXED, target) == _FAILED:
        raise libc_error("mremap")


def cover(pointer: int, nbytes: int) -> None:
    """Unmap memory from reserved addresses, which stay reserved."""
    if _mmap(pointer, nbytes, 0, _NOTHING | _MAP_FIXED, -1, 0) == _FAILED:
        raise libc_error("mmap")
    if _madvise(pointer, nbytes, _MADV_DONTFORK):
        raise libc_error("madvise(MADV_DONTFORK)")


def populate(pointer: int, nbytes: int) -> None:
    """Allocate all pages of a writable mapping now. The call needs Linux 5.14."""
    if _madvise(pointer, nbytes, _MADV_POPULATE_WRITE):
        raise libc_error("madvise(MADV_POPULATE_WRITE)")


def advise_huge(pointer: int, nbytes: int) -> None:
    """Request huge pages for a mapping. If the kernel refuses, no error is raised."""
    _madvise(pointer, nbytes, _MADV_HUGEPAGE)


def fill(pointer: int, nbytes: int, value: int) -> None:
    """Set every byte of a range of writable memory to ``value``."""
    ctypes.memset(pointer, value, nbytes)


def copy(target: int, source: int, nbytes: int) -> None:
    """Copy ``nbytes`` bytes from address ``source`` to ``target``. Other threads run meanwhile."""
    ctypes.memmove(target, source, nbytes)


def write(descriptor: int, offset: int, source: int, nbytes: int) -> None:
    """Write bytes to memory through its descriptor. Other threads run meanwhile.

    ``source`` is the address of the bytes in this process, and ``offset`` is their offset in
    the memory.
    """
    data = memoryview((ctypes.c_ubyte * nbytes).from_address(source))
    done = 0
    try:
        # One call writes at most 2 GiB, so the call is repeated.
        while True:
            if done >= nbytes:
                break
            done += os.pwrite(descriptor, data[done:], offset + done)
    except OSError as error:
        raise SystemCallError("pwrite", error.errno or 0) from None


def is_mapped(start: int, nbytes: int) -> bool:
    """Whether the first and the last byte of a range are mapped in this process."""
    pages = {start // PAGE_NBYTES, (start + nbytes - 1) // PAGE_NBYTES}
    found = ctypes.c_ubyte()
    return not any(
        _libc.mincore(c_size_t(one * PAGE_NBYTES), c_size_t(1), ctypes.byref(found))
        for one in pages
    )


def sealed_nbytes(descriptor: int) -> int | None:
    """Return the size in bytes if the file is memory with a sealed size; None otherwise.

    The seals are read before the size, because the size can change until it is sealed. The file
    must be on tmpfs. A file on hugetlbfs can have the same seals, but an access to a hole that was
    punched into such a file can raise SIGBUS.
    """
    try:
        if fcntl(descriptor, F_GET_SEALS) & _SIZE_SEALS != _SIZE_SEALS:
            return None
        status = (ctypes.c_long * _STATFS_WORDS)()
        if _fstatfs(descriptor, status) or status[0] != _TMPFS_MAGIC:
            return None
        # lseek() is cheaper than fstat(). lseek() moves the file position, which no process uses.
        return lseek(descriptor, 0, SEEK_END)
    except OSError:
        return None


def reopen_readonly(descriptor: int) -> int:
    """Return a new, read-only descriptor of the same memory.

    First, the mode of the file becomes read-only. Without this step, a process with the new
    descriptor could open the file for writing through ``/proc``. Only the owner of the file or root
    can change the mode back. Descriptors that are open for writing stay writable.
    """
    call = "fchmod"
    opened: list[int] = []
    try:
        os.fchmod(descriptor, 0o400)
        call = "open"
        path = f"/proc/self/fd/{descriptor}"
        return call_into(opened, os.open, path, os.O_RDONLY | os.O_CLOEXEC)
    except BaseException as error:
        for one in opened:
            close(one)
        if isinstance(error, OSError):
            raise SystemCallError(call, error.errno or 0) from None
        raise


def wants_huge_page_advice(settings: Path = _HUGE_PAGE_SETTINGS) -> bool:
    """Return whether this kernel uses huge pages for shared memory only on request."""
    for pattern in ("shmem_enabled", "hugepages-*/shmem_enabled"):
        for path in settings.glob(pattern):
            with contextlib.suppress(OSError):
                if "[advise]" in path.read_text("utf-8"):
                    return True
    return False


def close_inherited() -> None:
    """Close the descriptors of memory that this forked child has from its parent.

    Inheritable descriptors stay open. The function finds the descriptors by the name of their file.
    So it does not close a descriptor whose number now belongs to another file.
    """
    try:
        # For thousands of descriptors, pathlib would be slow.
        names = os.listdir("/proc/self/fd")  # noqa: PTH208
    except OSError:
        # Without /proc, the parent has shared no memory: to share memory, a process must read its
        # own identity from /proc.
        return
    for name in names:
        # os.listdir() itself used a descriptor, whose number is one of the names. The descriptor is
        # closed already, so readlink() fails for this name.
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/self/fd/{name}") not in _LINKS:  # noqa: PTH115
                continue
            # crossmem's descriptors are not inheritable. If the application has made a descriptor
            # inheritable, a program that the application executes needs the descriptor.
            if not os.get_inheritable(int(name)):
                close(int(name))


def unmap_inherited() -> None:
    """Unmap the memory that this forked child should not have inherited.

    A child inherits such a mapping only if the fork came between two steps of another thread: the
    creation of the mapping, and its protection against inheritance.
    """
    try:
        lines = Path("/proc/self/maps").read_text("utf-8", "surrogateescape").splitlines()
    except OSError:
        return
    for line in lines:
        if line.endswith(_DEVICE_LINK):
            first, last = (int(part, 16) for part in line.split(" ", 1)[0].split("-"))
            munmap(first, last - first)
