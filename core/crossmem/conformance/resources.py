# SPDX-License-Identifier: Apache-2.0
"""The kernel resources of this process."""

import fcntl
import itertools
import os
import resource
import stat
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import crossmem
from crossmem.control.descriptors import is_closing
from crossmem.control.segments import CONTROL_NAME, ROW_NAME
from crossmem.driver import vendor_queues_of

__all__ = [
    "NamedFile",
    "collect_of_vendor",
    "descriptors",
    "lease_words",
    "limit_descriptors",
    "mapped",
    "mappings",
    "named_files",
    "remaining",
    "shared_nbytes",
    "threads",
]

NamedFile = tuple[str, int, int]
"""A file: its path, the number of its file system, and its inode."""


_CLOSED_WITHIN_S: Final = 0.5


def collect_of_vendor(device: crossmem.Device) -> None:
    """Make the vendor release this process's buffers that other processes have freed.

    Some vendors release such buffers only during a call by this process. Without the capability
    ``vendor_queues``, this function does nothing.
    """
    queues = vendor_queues_of(device.driver)
    if device.capabilities.vendor_queues and queues is not None:
        queues.free_buffer(queues.allocate_buffer(device.ordinal, 1, device.mechanism))


def descriptors(ignored: frozenset[int] = frozenset()) -> list[str]:
    """Return the sorted targets of the open descriptors. Skip the descriptors in ``ignored``.

    The target of a socket or pipe is returned without its inode. Some descriptors are closed by
    threads of crossmem. This function first waits for these threads, at most half a second.
    """
    end = time.monotonic() + _CLOSED_WITHIN_S
    while is_closing() and time.monotonic() < end:
        time.sleep(0.001)
    found = []
    for entry in Path("/proc/self/fd").iterdir():
        try:
            target = str(entry.readlink())
        except OSError:
            continue  # the descriptor by which the directory was listed
        if int(entry.name) not in ignored:
            found.append(target.split(":[", 1)[0] if target.startswith(_KINDS) else target)
    return sorted(found)


_KINDS = ("socket:[", "pipe:[")


def threads() -> list[str]:
    """Return the names of the running threads, sorted."""
    return sorted(one.name for one in threading.enumerate())


def lease_words() -> list[str]:
    """Return the lines of ``/proc/self/maps`` for control segments and rows."""
    names = (CONTROL_NAME, ROW_NAME)
    return [line for line in mappings() if any(f"/memfd:{name} " in line for name in names)]


def mappings() -> list[str]:
    """Return the lines of ``/proc/self/maps``."""
    return Path("/proc/self/maps").read_text("utf-8", "surrogateescape").splitlines()


def mapped(addresses: Iterable[int]) -> set[int]:
    """Return the subset of ``addresses`` that this process has mapped or reserved."""
    ranges = [[int(end, 16) for end in line.split(" ", 1)[0].split("-")] for line in mappings()]
    return {one for one in addresses if any(first <= one < last for first, last in ranges)}


def shared_nbytes(*, only_open: bool = False) -> int:
    """Return the total size, in bytes, of the memfds that are open or mapped in this process.

    With ``only_open``, ignore memfds that are only mapped.
    """
    sizes: dict[tuple[int, int], int] = {}
    for folder in ("fd",) if only_open else ("fd", "map_files"):
        for entry in Path("/proc/self", folder).iterdir():
            try:
                if str(entry.readlink()).startswith("/memfd:"):
                    status = entry.stat()
                    sizes[status.st_dev, status.st_ino] = status.st_size
            except OSError:
                continue
    return sum(sizes.values())


def named_files() -> set[NamedFile]:
    """Return the named regular files that are open for writing, or mapped with MAP_SHARED."""
    # A line has the fields address, permissions, offset, device, inode and path. The fourth
    # permission is ``s`` for a shared mapping.
    rows = [line.split(maxsplit=5) for line in mappings()]
    paths = {row[5] for row in rows if len(row) > 5 and row[1].endswith("s")}
    for entry in Path("/proc/self/fd").iterdir():
        try:
            flags = fcntl.fcntl(int(entry.name), fcntl.F_GETFL)
            if flags & os.O_ACCMODE != os.O_RDONLY:
                paths.add(str(entry.readlink()))
        except OSError:
            continue
    return {found for path in paths if (found := _identify(path)) is not None}


def remaining(files: Iterable[NamedFile]) -> list[str]:
    """Return the paths of the files that still exist."""
    return [one[0] for one in sorted(files) if _identify(one[0]) == one]


def _identify(path: str) -> NamedFile | None:
    """Return the identity of a file, or None if the path does not name a regular file."""
    try:
        status = os.lstat(path)
    except (OSError, ValueError):
        return None
    return (path, status.st_dev, status.st_ino) if stat.S_ISREG(status.st_mode) else None


def limit_descriptors(spare: int) -> int:
    """Let this process open only ``spare`` further descriptors; return the old limit.

    A negative ``spare`` raises the limit to the hard limit.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken = {int(entry.name) for entry in Path("/proc/self/fd").iterdir()}
    unused = (number for number in itertools.count() if number not in taken)
    wanted = hard if spare < 0 else next(itertools.islice(unused, spare, None))
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, wanted), hard))
    return soft
