# SPDX-License-Identifier: Apache-2.0
"""What a process has of the kernel's: for comparing before and after, and to run short of it."""

import itertools
import resource
import threading
from pathlib import Path

from crossmem.control.segments import CONTROL_NAME, ROW_NAME

__all__ = ["descriptors", "lease_words", "limit_descriptors", "shared_nbytes", "threads"]


def descriptors(ignored: frozenset[int] = frozenset()) -> list[str]:
    """Return what each open descriptor leads to, without the numbers that change, sorted."""
    found = []
    for entry in Path("/proc/self/fd").iterdir():
        try:
            target = str(entry.readlink())
        except OSError:
            continue  # the one that listed the directory
        if int(entry.name) not in ignored:
            found.append(target.split(":[", 1)[0] if target.startswith(_KINDS) else target)
    return sorted(found)


_KINDS = ("socket:[", "pipe:[")


def threads() -> list[str]:
    """Return the names of the threads that run, sorted."""
    return sorted(one.name for one in threading.enumerate())


def lease_words() -> list[str]:
    """Return what is mapped of the words by which crossmem keeps leases."""
    names = (CONTROL_NAME, ROW_NAME)
    lines = Path("/proc/self/maps").read_text("utf-8", "surrogateescape").splitlines()
    return [line for line in lines if any(f"/memfd:{name} " in line for name in names)]


def shared_nbytes(*, only_open: bool = False) -> int:
    """Return the size of all unnamed shared memory files that this process has open or mapped."""
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


def limit_descriptors(spare: int) -> int:
    """Allow only so many descriptors more than are open now; return the old limit.

    A negative number lifts the limit again.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken = {int(entry.name) for entry in Path("/proc/self/fd").iterdir()}
    unused = (number for number in itertools.count() if number not in taken)
    wanted = hard if spare < 0 else next(itertools.islice(unused, spare, None))
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, wanted), hard))
    return soft
