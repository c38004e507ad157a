# SPDX-License-Identifier: Apache-2.0
"""Folders that belong to a process. After its death, another process removes them.

The process locks a file in each of its folders. The kernel releases the locks when the process
ends, even if the process is killed. A folder with a free lock has no owner.
"""

import contextlib
import errno
import fcntl
import os
import shutil
import stat
import tempfile
from pathlib import Path
from typing import Final

__all__ = ["HeldFolder", "remove_abandoned"]

_LOCK: Final = "lock"
_GONE: Final = ".gone"
"""A folder gets this suffix before its removal, so that its old path is free at once."""

_ATTEMPTS: Final = 100
_held: Final[set[int]] = set()


class HeldFolder:
    """A new folder that belongs to this process.

    Raises
    ------
    OSError
        The folder cannot be created.
    """

    def __init__(self, parent: Path, prefix: str) -> None:
        for _ in range(_ATTEMPTS):
            self.path = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
            lock = _locked(self.path, operation=fcntl.LOCK_EX)
            if lock is not None:
                break
            # Before this process locked the folder, another process removed it, because a folder
            # without a lock looks abandoned.
        else:
            raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        self._lock = lock
        _held.add(lock)

    def remove(self) -> None:
        """Remove the folder and its contents. In a forked child, do nothing."""
        if self._lock not in _held:
            return
        _remove(self.path)
        _held.discard(self._lock)
        os.close(self._lock)


def remove_abandoned(parent: Path, prefix: str) -> None:
    """Remove each folder that belongs to a dead process of this user.

    Several processes may call this function at the same time.
    """
    for path in parent.glob(f"{prefix}*"):
        with contextlib.suppress(OSError):
            status = path.lstat()
            if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
                continue
            lock = _locked(path, operation=fcntl.LOCK_EX | fcntl.LOCK_NB)
            if lock is not None:
                try:
                    _remove(path)
                finally:
                    os.close(lock)


def _locked(folder: Path, *, operation: int) -> int | None:
    """Lock a folder. Return the lock's descriptor, or None if the folder was removed.

    If ``operation`` has ``LOCK_NB`` and another process holds the lock, raise BlockingIOError.
    """
    path = folder / _LOCK
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        lock = os.open(path, flags, 0o600)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(lock, operation)
        if os.path.samestat(os.fstat(lock), path.lstat()):
            return lock
    except FileNotFoundError:
        pass
    except BaseException:
        os.close(lock)
        raise
    os.close(lock)
    return None


def _remove(path: Path) -> None:
    if path.suffix != _GONE:
        with contextlib.suppress(OSError):
            path = path.rename(f"{path}{_GONE}")
    shutil.rmtree(path, ignore_errors=True)


def _after_fork_in_child() -> None:
    # A child inherits the descriptors of the locks. If it kept them open, the folders would stay
    # locked until the child ends, even after the death of the parent. The parent keeps its locks
    # when the child closes the descriptors.
    for lock in _held:
        os.close(lock)
    _held.clear()


os.register_at_fork(after_in_child=_after_fork_in_child)
