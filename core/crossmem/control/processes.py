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
from crossmem.models import LeaseEnd, ProcessIdentity, process_start_time

__all__ = [
    "belongs_to",
    "is_anybody",
    "is_dead",
    "is_process",
    "lease_end",
    "open_owner",
    "open_peer",
    "own_uid",
    "peer_credentials",
    "pidfd_number",
]

# A Python that was built with older headers lacks the next two numbers. x86-64 and aarch64 have the
# same numbers (asm-generic/socket.h, unistd.h).
_SO_PEERPIDFD: Final = 77
_SYS_PIDFD_OPEN: Final = 434
_UCRED: Final = struct.Struct("iII")

_UID_MAP: Final = Path("/proc/self/uid_map")
_OVERFLOW_UID: Final = Path("/proc/sys/kernel/overflowuid")
_DEFAULT_OVERFLOW_UID: Final = 65534
_ALL_UIDS: Final = 2**32 - 1

_PIDFS_MAGIC: Final = 0x50494446
_STATFS_WORDS: Final = 32
"""The length, in C longs, of a buffer that is larger than a ``struct statfs``. The first long is
the type of the file system."""

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


def lease_end() -> LeaseEnd:
    """Return the capability ``lease_end``: the processes whose death this kernel reports.

    ``"process"``: all peers, because a socket provides the peer's pidfd (Linux 6.5).
    ``"process-if-visible"``: the peers with a pid in this namespace (Linux 5.3).
    ``"connection"``: no process.
    """
    try:
        return _lease_end()
    except OSError:
        # Without a free descriptor, this process cannot test the kernel. So this function returns
        # the weakest value. The value is not cached, so a later call tests again.
        return "connection"


@cache
def _lease_end() -> LeaseEnd:
    try:
        os.close(_pidfd_open(os.getpid()))
    except OSError as error:
        if _is_full(error):
            raise
        return "connection"
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        pidfd = _peer_pidfd(ours)
    if pidfd is None:
        return "process-if-visible"
    os.close(pidfd)
    return "process"


def _is_full(error: BaseException) -> bool:
    return isinstance(error, OSError) and error.errno in {errno.EMFILE, errno.ENFILE}


def _peer_pidfd(connection: socket.socket) -> int | None:
    """Return a new pidfd of the process at the other end; None if the kernel gives none."""
    opened: list[int] = []
    try:
        return call_into(opened, connection.getsockopt, socket.SOL_SOCKET, _SO_PEERPIDFD)
    except BaseException as error:
        _close_opened(opened)
        if _is_full(error) or not isinstance(error, OSError):
            raise
    return None


def peer_credentials(connection: socket.socket) -> tuple[int, int]:
    """Return pid and uid of the process at the other end. The pid is 0 if not visible here."""
    blob = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    pid, uid, _gid = _UCRED.unpack(blob)
    return pid, uid


def own_uid() -> int | None:
    """Return this process's effective uid; None if other users appear to have the same uid.

    In that case, no peer can be recognised as a process of the same user.
    """
    uid = os.geteuid()
    return None if is_anybody(uid) else uid


def is_anybody(uid: int) -> bool:
    """Whether a uid is the overflow uid of a user namespace that does not map all users.

    The kernel reports this uid for every unmapped user. So an unmapped user cannot be distinguished
    from a mapped user that has the same uid.
    """
    try:
        overflow_uid = int(_OVERFLOW_UID.read_text("utf-8"))
        lines = _UID_MAP.read_text("utf-8").splitlines()
    except OSError:
        # There is no ``/proc``.
        return uid == _DEFAULT_OVERFLOW_UID
    has_number = sum(int(line.split()[2]) for line in lines)
    return uid == overflow_uid and has_number < _ALL_UIDS


def is_dead(pidfd: int, wait_s: float = 0.0) -> bool:
    """Whether the process behind a pidfd has ended, or ends within ``wait_s`` seconds.

    A process that its parent has not reaped yet also counts as ended.
    """
    poller = select.poll()
    poller.register(pidfd, select.POLLIN)
    return bool(poller.poll(wait_s * 1000))


def open_peer(connection: socket.socket, pid: int, start_time: int) -> int | None:
    """Return a new pidfd of the process at the other end of a connection.

    Parameters
    ----------
    pid
        The pid in the peer's credentials; 0 if the pid is not visible to this process.
    start_time
        The start time that the peer reports, in clock ticks after boot. This function uses
        the start time if the kernel can only open pidfds by pid.

    Returns
    -------
    int or None
        None if no descriptor can report the peer's death. Linux before 5.3 has no such descriptor
        for any peer. Linux before 6.5 has none for a peer in an invisible pid namespace, and none
        for a peer that ``/proc`` does not show.

    Raises
    ------
    ProcessLookupError
        The peer is dead.
    OSError
        This process has no free descriptor.
    """
    found = _peer_pidfd(connection)
    if found is not None or pid <= 0:
        return found
    try:
        pidfd = _pidfd_open(pid)
    except OSError as error:
        if error.errno in {errno.EMFILE, errno.ENFILE, errno.ESRCH}:
            raise
        return None
    is_it = False
    try:
        is_it = is_process(pidfd, pid, start_time)
    finally:
        if not is_it:
            os.close(pidfd)
    return pidfd if is_it else None


def pidfd_number(pidfd: int | None) -> int:
    """Return a number that is unique to the process behind a pidfd during this boot.

    Return 0 if there is no pidfd, or if all pidfds have the same inode number (before Linux 6.9).
    """
    if pidfd is None:
        return 0
    status = (ctypes.c_long * _STATFS_WORDS)()
    is_numbered = not _libc.fstatfs(pidfd, status) and status[0] == _PIDFS_MAGIC
    return os.fstat(pidfd).st_ino if is_numbered else 0


def is_process(pidfd: int, pid: int, start_time: int, dying_s: float = 0.0) -> bool:
    """Whether a pidfd certainly belongs to the process that started at ``start_time``.

    Parameters
    ----------
    pidfd, pid
        The process's pidfd, and its pid in the pid namespace of this process.
    start_time
        Start time of the expected process, in clock ticks after boot.
    dying_s
        If ``/proc`` does not show the process, or shows a zombie, this function waits up to this
        number of seconds for the death of the process. If the first thread of a killed process ends
        before its other threads, ``/proc`` shows a zombie, but the pidfd does not report the death
        yet.

    Returns
    -------
    bool
        Also False if ``/proc`` belongs to another pid namespace, or hides the process
        (``hidepid``).

    Raises
    ------
    ProcessLookupError
        The expected process is dead.
    """
    # If ``/proc`` belongs to another pid namespace, ``pid`` may name another process there.
    if process_start_time(os.getpid()) == process_start_time("self"):
        found = process_start_time(pid)
        if found == start_time:
            return True
        if found is not None:
            raise ProcessLookupError(errno.ESRCH, "the process is dead and its pid was reused")
    # ``/proc`` shows no start time of the process. The process may have just ended.
    if is_dead(pidfd, dying_s):
        raise ProcessLookupError(errno.ESRCH, "the process is dead")
    return False


def open_owner(owner: ProcessIdentity, this: ProcessIdentity, dying_s: float = 0.0) -> int | None:
    """Return a new pidfd of an exporting process. For ``dying_s``, see :func:`is_process`.

    Returns
    -------
    int or None
        None if this process cannot identify the owner: the owner is in another pid namespace, the
        kernel has no pidfds, or ``/proc`` does not show the owner.

    Raises
    ------
    ProcessLookupError
        The exporting process is dead.
    OSError
        This process has no free descriptor.
    """
    if owner.pid_namespace != this.pid_namespace:
        return None
    try:
        pidfd = _pidfd_open(owner.pid)
    except OSError as error:
        if error.errno in {errno.EMFILE, errno.ENFILE, errno.ESRCH}:
            raise
        # EINVAL: the number cannot be a pid. ENOENT: the number is a thread's (from Linux 6.16 on).
        if error.errno in {errno.EINVAL, errno.ENOENT}:
            raise ProcessLookupError(errno.ESRCH, "no such process") from error
        return None
    is_it = False
    try:
        if is_dead(pidfd):
            raise ProcessLookupError(errno.ESRCH, "the process is dead")
        is_it = is_process(pidfd, owner.pid, owner.start_time, dying_s)
    finally:
        if not is_it:
            os.close(pidfd)
    return pidfd if is_it else None


def belongs_to(owner: ProcessIdentity) -> bool:
    """Whether the process that now has the owner's pid runs as the owner's user."""
    try:
        return Path(f"/proc/{owner.pid}").stat().st_uid == owner.uid
    except OSError:
        return False
