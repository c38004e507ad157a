# SPDX-License-Identifier: Apache-2.0
"""The identity of a process. A pid alone does not identify a process, because pids are reused."""

import os
import struct
from pathlib import Path
from typing import ClassVar, Final, Literal, NamedTuple

from crossmem.errors import ConfigurationError

__all__ = ["ProcessIdentity", "process_start_time"]


_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_PID_NAMESPACE: Final = Path("/proc/self/ns/pid")


def process_start_time(pid: int | Literal["self"]) -> int | None:
    """Return the start time of a process, in clock ticks after boot.

    Parameters
    ----------
    pid
        Process id in the pid namespace that ``/proc`` shows, or ``"self"``.

    Returns
    -------
    int or None
        Field 22 of proc_pid_stat(5). None if the process does not exist, is a zombie, or is not
        accessible.

    Raises
    ------
    OSError
        ``/proc`` cannot be read, for example because no descriptor is free.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except (FileNotFoundError, PermissionError, ProcessLookupError):
        return None
    # Field 2, the command name in parentheses, may contain spaces and parentheses. So only the text
    # after the last parenthesis is split.
    fields = stat[stat.rindex(b")") + 2 :].split()
    return None if fields[0] in {b"Z", b"X"} else int(fields[19])


class _Fields(NamedTuple):
    pid: int
    uid: int
    start_time: int
    boot_id: bytes
    pid_namespace: int


class ProcessIdentity(_Fields):
    """One process, on one host, in one boot.

    Parameters
    ----------
    pid
        Process id in the process's own pid namespace.
    uid
        Effective user id in the process's own user namespace.
    start_time
        Clock ticks between boot and the start of the process.
    boot_id
        The 16 bytes of the kernel's boot id.
    pid_namespace
        Inode of the pid namespace.
    """

    __slots__ = ()

    LAYOUT: ClassVar[struct.Struct] = struct.Struct("<IIQ16sQ")

    @classmethod
    def of_this_process(cls) -> "ProcessIdentity":
        """Read the identity of the calling process from the kernel.

        Raises
        ------
        ConfigurationError
            ``/proc`` is not mounted, or shows another pid namespace.
        OSError
            ``/proc`` cannot be read, for example because no descriptor is free.
        """
        try:
            return cls(
                pid=os.getpid(),
                uid=os.geteuid(),
                start_time=process_start_time("self") or 0,
                boot_id=bytes.fromhex(_BOOT_ID.read_text("utf-8").strip().replace("-", "")),
                pid_namespace=_PID_NAMESPACE.stat().st_ino,
            )
        except (FileNotFoundError, PermissionError) as error:
            raise ConfigurationError(
                f"this process cannot be identified without {error.filename}: {error.strerror}",
                hint="mount the proc file system of this process's pid namespace at /proc: "
                "mount -t proc proc /proc",
            ) from error

    def to_bytes(self) -> bytes:
        """Return the identity as the 40 bytes that handles contain.

        The name of the process's lease server socket is derived from these bytes.
        """
        return self.LAYOUT.pack(*self)
