# SPDX-License-Identifier: Apache-2.0
"""Watching other processes through pidfds, which, unlike pids, are never reused."""

import ctypes
import errno
import os
import select
import socket
import struct
from functools import cache
from pathlib import Path
from typing import Final

from crossmem.driver.recording import call_into
from crossmem.models import ProcessIdentity, process_start_time

__all__ = [
    "belongs_to",
    "has_pidfds",
    "is_anybody",
    "is_dead",
    "open_owner",
    "open_peer",
    "own_uid",
    "peer_credentials",
]

# Missing from the socket and os modules of Pythons built on older headers; the numbers are the
# same on every architecture that Linux runs CPython on (asm-generic/socket.h, unistd.h).
_SO_PEERPIDFD: Final = 77
_SYS_PIDFD_OPEN: Final = 434
_UCRED: Final = struct.Struct("iII")

_UID_MAP: Final = Path("/proc/self/uid_map")
_OVERFLOW_UID: Final = Path("/proc/sys/kernel/overflowuid")
_DEFAULT_OVERFLOW_UID: Final = 65534
_ALL_UIDS: Final = 2**32 - 1

_libc = ctypes.CDLL(None, use_errno=True)


def _pidfd_open(pid: int) -> int:
    opened: list[int] = []
    try:
        if call_into(opened, _libc.syscall, _SYS_PIDFD_OPEN, pid, 0) < 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code), f"pidfd_open({pid})")
        return opened[0]
    except BaseException:
        _close_opened(opened)
        raise


def _close_opened(opened: list[int]) -> None:
    for descriptor in opened:
        if descriptor >= 0:
            os.close(descriptor)


@cache
def has_pidfds() -> bool:
    """Whether this kernel can watch another process to its end."""
    try:
        os.close(_pidfd_open(os.getpid()))
    except OSError as error:
        return error.errno not in {errno.ENOSYS, errno.EPERM}
    return True


def peer_credentials(connection: socket.socket) -> tuple[int, int]:
    """Return pid (0 where it is not visible here) and uid of the process at the other end."""
    blob = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    pid, uid, _gid = _UCRED.unpack(blob)
    return pid, uid


def own_uid() -> int | None:
    """Return this process's user; None where others can look like it in its user namespace.

    None of them can be told to be this one then.
    """
    uid = os.geteuid()
    return None if is_anybody(uid) else uid


def is_anybody(uid: int) -> bool:
    """Whether users that have no number in this user namespace are shown with this one.

    One to whom the namespace gives this number cannot be told from them.
    """
    try:
        overflow_uid = int(_OVERFLOW_UID.read_text("utf-8"))
        lines = _UID_MAP.read_text("utf-8").splitlines()
    except OSError:
        # Whoever cannot look admits nobody.
        return uid == _DEFAULT_OVERFLOW_UID
    has_number = sum(int(line.split()[2]) for line in lines)
    return uid == overflow_uid and has_number < _ALL_UIDS


def is_dead(pidfd: int, wait_s: float = 0.0) -> bool:
    """Whether the process behind a pidfd has ended, reaped or not, or ends within a time."""
    poller = select.poll()
    poller.register(pidfd, select.POLLIN)
    return bool(poller.poll(wait_s * 1000))


def open_peer(connection: socket.socket, pid: int, start_time: int) -> int | None:
    """Return a new pidfd of the process at the other end of a connection.

    Parameters
    ----------
    connection
        A connected Unix socket.
    pid
        The peer's pid as its credentials say, 0 where it is not visible.
    start_time
        When the peer says it started; used where the kernel can only open pidfds by pid.

    Returns
    -------
    int or None
        None where this kernel offers no way.

    Raises
    ------
    ProcessLookupError
        Where the peer is dead.
    OSError
        Where no descriptor is left.
    """
    opened: list[int] = []
    try:
        return call_into(opened, connection.getsockopt, socket.SOL_SOCKET, _SO_PEERPIDFD)
    except BaseException as error:
        _close_opened(opened)
        is_full = isinstance(error, OSError) and error.errno in {errno.EMFILE, errno.ENFILE}
        if is_full or not isinstance(error, OSError):
            raise
    if pid <= 0:
        return None
    try:
        pidfd = _pidfd_open(pid)
    except OSError as error:
        if error.errno in {errno.EMFILE, errno.ENFILE, errno.ESRCH}:
            raise
        return None
    try:
        if process_start_time(pid) != start_time:
            raise ProcessLookupError(errno.ESRCH, "the peer is dead and its pid was reused")
    except BaseException:
        os.close(pidfd)
        raise
    return pidfd


def open_owner(owner: ProcessIdentity, this: ProcessIdentity) -> int | None:
    """Return a new pidfd of an exporting process, found by its identity.

    Returns
    -------
    int or None
        None where it cannot be seen from here: another pid namespace, or a kernel without
        pidfds.

    Raises
    ------
    ProcessLookupError
        Where that process is dead.
    """
    if owner.pid_namespace != this.pid_namespace:
        return None
    try:
        pidfd = _pidfd_open(owner.pid)
    except OSError as error:
        if error.errno in {errno.EMFILE, errno.ENFILE, errno.ESRCH}:
            raise
        # A number that cannot be a pid is nobody's pid.
        if error.errno == errno.EINVAL:
            raise ProcessLookupError(errno.ESRCH, "no such process") from error
        return None
    try:
        # Where /proc shows another pid namespace, start times cannot be compared.
        proc_is_ours = process_start_time(this.pid) == this.start_time
        if is_dead(pidfd) or (proc_is_ours and process_start_time(owner.pid) != owner.start_time):
            raise ProcessLookupError(errno.ESRCH, "the process is dead")
    except BaseException:
        os.close(pidfd)
        raise
    return pidfd


def belongs_to(owner: ProcessIdentity) -> bool:
    """Whether the process that has the owner's pid now runs as the owner's user."""
    try:
        return Path(f"/proc/{owner.pid}").stat().st_uid == owner.uid
    except OSError:
        return False
