# SPDX-License-Identifier: Apache-2.0
"""The limits on the memory of this process, and the memory that it can still allocate.

The kernel allocates a page when a program first accesses the page. If the kernel then has no free
page, it returns no error but kills a process. So a caller reads the limits before it accesses new
memory.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from os import sysconf
from pathlib import Path
from typing import Final, NamedTuple

__all__ = ["Limit", "Limits"]

_KIB: Final = 1024
_UNLIMITED: Final = "max"
_MEMINFO: Final = ("MemTotal", "MemAvailable", "SwapFree")


@dataclass(frozen=True, slots=True)
class Limit:
    """One limit on the memory of this process.

    Parameters
    ----------
    name
        The file that sets the limit, or ``the machine's memory``.
    remedy
        What the user can do to get more memory.
    total_nbytes
        The limit in bytes.
    free_nbytes
        Bytes that can still be allocated under the limit. They include swap space, and memory that
        the kernel can drop, such as page cache.
    """

    name: str
    remedy: str
    total_nbytes: int
    free_nbytes: int


class _Files(NamedTuple):
    """The names of a cgroup's files, and of lines in them, for one version of cgroups."""

    limit: str
    usage: str
    droppable: frozenset[str]
    """The lines of ``memory.stat`` for memory that the kernel can drop. These lines do not count
    shared memory."""


_V1: Final = _Files(
    "memory.limit_in_bytes",
    "memory.usage_in_bytes",
    frozenset({"total_inactive_file", "total_active_file"}),
)
_V2: Final = _Files(
    "memory.max",
    "memory.current",
    frozenset({"inactive_file", "active_file", "slab_reclaimable"}),
)


class Limits:
    """The limits of this process, read again at each call.

    The tmpfs of memfds has no limit: the kernel mounts it without a size.

    Parameters
    ----------
    proc, cgroups
        The mount points of procfs and of the cgroup file systems.
    """

    def __init__(self, proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> None:
        self._proc = proc
        self._cgroups = cgroups

    def total_nbytes(self) -> int:
        """Return the machine's memory or the smallest limit of a cgroup, whichever is smaller."""
        machine = sysconf("SC_PHYS_PAGES") * sysconf("SC_PAGE_SIZE")
        return min([machine, *(one.total_nbytes for one in self._read())])

    def tightest(self) -> Limit | None:
        """Return the limit with the fewest free bytes, or None if no limit can be read."""
        return min(self._read(), key=lambda one: one.free_nbytes, default=None)

    def _read(self) -> Iterator[Limit]:
        try:
            text = (self._proc / "meminfo").read_text("ascii")
            total_nbytes, free_nbytes, swap_nbytes = (
                int(text.split(f"{name}:", 1)[1].split(maxsplit=1)[0]) * _KIB for name in _MEMINFO
            )
        except (OSError, IndexError):
            # Without /proc, no limit is known. Sharing does not work without /proc either.
            return
        yield Limit(
            "the machine's memory",
            "free some memory on this machine, or ask for less",
            total_nbytes,
            free_nbytes + swap_nbytes,
        )
        for folder, files in self._own_cgroups():
            limit = _read_cgroup(folder, files, total_nbytes, swap_nbytes)
            if limit is not None:
                yield limit

    def _own_cgroups(self) -> Iterator[tuple[Path, _Files]]:
        """Yield the folder of each cgroup that limits this process: its own and all ancestors.

        Some folders may not exist: in a container, ``/proc/self/cgroup`` may name the path that the
        cgroup has on the host, although the container sees its own cgroup as the root.
        """
        try:
            lines = (self._proc / "self/cgroup").read_text("utf-8").splitlines()
        except OSError:
            return
        for line in lines:
            _, controllers, path = line.split(":", 2)
            if controllers and "memory" not in controllers.split(","):
                continue
            root, files = (self._cgroups / "memory", _V1) if controllers else (self._cgroups, _V2)
            # The path of a cgroup outside of this process's cgroup namespace begins with "/..".
            inside = Path(*(part for part in path.split("/") if part not in {"", ".."}))
            for part in (inside, *inside.parents):
                yield root / part, files


def _read_cgroup(
    folder: Path, files: _Files, machine_nbytes: int, swap_nbytes: int
) -> Limit | None:
    """Return a cgroup's limit, or None if it is unreadable or not below the machine's memory."""
    try:
        text = (folder / files.limit).read_text("ascii").strip()
        if text == _UNLIMITED or (total_nbytes := int(text)) >= machine_nbytes:
            return None
        used_nbytes = int((folder / files.usage).read_text("ascii"))
        for line in (folder / "memory.stat").read_text("ascii").splitlines():
            name, _, count = line.partition(" ")
            if name in files.droppable:
                used_nbytes -= int(count)
        free_nbytes = total_nbytes - used_nbytes + _swap_nbytes(folder, swap_nbytes)
    except (OSError, ValueError):
        return None
    return Limit(
        str(folder / files.limit),
        "free some memory in this cgroup, raise its limit, or ask for less",
        total_nbytes,
        max(0, free_nbytes),
    )


def _swap_nbytes(folder: Path, machine_nbytes: int) -> int:
    """Return how many bytes of the machine's free swap space a cgroup may still use."""
    try:
        text = (folder / "memory.swap.max").read_text("ascii").strip()
        if text == _UNLIMITED:
            return machine_nbytes
        left_nbytes = int(text) - int((folder / "memory.swap.current").read_text("ascii"))
    except FileNotFoundError:
        # Version 1 of cgroups has no such file. Version 2 has no such file if the kernel does not
        # count swap space for cgroups.
        return machine_nbytes
    return max(0, min(machine_nbytes, left_nbytes))
