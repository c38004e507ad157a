# SPDX-License-Identifier: Apache-2.0
"""The addresses of a process's lease server: one path and one abstract address."""

import contextlib
import errno
import hashlib
import os
import socket
import stat
from pathlib import Path
from typing import Final

from crossmem.control.descriptors import refuse
from crossmem.errors import ConfigurationError
from crossmem.guards import clause, shorten
from crossmem.models import ProcessIdentity

__all__ = [
    "abstract_address",
    "is_abstract",
    "is_silent",
    "listen",
    "new_socket",
    "server_paths",
    "socket_path",
]

_SUFFIX: Final = ".sock"
_UNFINISHED: Final = ".new"
_ATTEMPTS: Final = 10
_MOST_PATH_NBYTES: Final = 107
"""The largest number of bytes in the path of a socket to which a process can connect."""
_BACKLOG: Final = 4096
_MODE: Final = 0o700
"""The mode of a run directory."""
_SOCKETS: Final = Path("/proc/net/unix")


def _name(owner: ProcessIdentity) -> str:
    """Return the name of the owner's server: a hash, so that no forged handle can choose a path."""
    return hashlib.blake2b(owner.to_bytes(), digest_size=12).hexdigest()


def socket_path(run_dir: Path, owner: ProcessIdentity) -> Path:
    """Return the path of a process's lease server in the run directory."""
    return run_dir / (_name(owner) + _SUFFIX)


def abstract_address(owner: ProcessIdentity) -> str:
    """Return the abstract address of a process's lease server in its network namespace."""
    return f"\0crossmem/{_name(owner)}"


def is_abstract(listener: socket.socket) -> bool:
    """Whether a socket listens at an abstract address, to which every user can connect."""
    return not isinstance(listener.getsockname(), str)


def server_paths(run_dir: Path) -> list[Path]:
    """Return the paths of all lease servers in a run directory, even of dead processes."""
    return sorted(run_dir.glob(f"*{_SUFFIX}"))


def is_silent(owner: ProcessIdentity) -> bool:
    """Whether this process knows that a living owner has no lease server.

    True if the owner is in this process's network namespace, and the kernel's list of sockets does
    not contain the name of the owner's server. False in all other cases, for example if ``/proc``
    does not show the owner's namespace.
    """
    try:
        mine, its = (Path(f"/proc/{one}/ns/net").stat() for one in ("self", owner.pid))
        return os.path.samestat(mine, its) and _name(owner).encode() not in _SOCKETS.read_bytes()
    except OSError:
        return False


def new_socket() -> socket.socket:
    """Return a close-on-exec, non-blocking socket of the type that the lease protocol uses.

    The socket refuses descriptors from the peer, if the kernel supports that.
    """
    made = socket.socket(
        socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC
    )
    refuse(made)
    return made


def listen(run_dir: Path, owner: ProcessIdentity) -> tuple[list[socket.socket], Path]:
    """Listen at the path and at the abstract address, and remove the sockets of dead processes.

    Returns
    -------
    tuple
        The listening sockets, and the path that the caller unlinks when it closes the sockets. If
        another process holds the abstract address, the list has only the socket at the path.

    Raises
    ------
    ConfigurationError
        The run directory is not safe to use, or the process cannot listen in it.
    OSError
        This process has no free descriptor.
    """
    _prepare(run_dir)
    _sweep(run_dir)
    path = socket_path(run_dir, owner)
    sockets = [_listen_at_path(path)]
    try:
        sockets.append(new_socket())
        try:
            sockets[1].bind(abstract_address(owner))
            sockets[1].listen(_BACKLOG)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            sockets.pop().close()
    except BaseException:
        for one in sockets:
            one.close()
        path.unlink(missing_ok=True)
        raise
    return sockets, path


def _listen_at_path(path: Path) -> socket.socket:
    """Listen at a temporary name, then rename the socket to the final name.

    Until the system call ``listen`` returns, the kernel may refuse a connection as if the process
    of the socket were dead. If the socket already had its final name, an importer might think that
    the server has ended. Importers do not know the temporary name. Another process that removes the
    sockets of dead processes might remove the temporary name. Then the rename fails, and this
    function tries again.
    """
    unfinished = path.with_suffix(_UNFINISHED)
    hint = "set CROSSMEM_RUN_DIR to a short, writable directory of your own"
    if len(os.fsencode(path)) > _MOST_PATH_NBYTES:
        # The kernel would accept the shorter temporary name, but no process could connect at the
        # final name.
        msg = f"cannot listen at {shorten(str(path))}: a socket's path has at most 107 bytes"
        raise ConfigurationError(msg, hint=hint, details=str(path))
    for _ in range(_ATTEMPTS):
        listener = new_socket()
        try:
            unfinished.unlink(missing_ok=True)
            listener.bind(str(unfinished))
            listener.listen(_BACKLOG)
            unfinished.rename(path)
        except FileNotFoundError:
            listener.close()
            continue
        except OSError as error:
            listener.close()
            # On a read-only file system, the unlink also fails.
            with contextlib.suppress(OSError):
                unfinished.unlink()
            msg = (
                f"cannot listen at {shorten(str(path))}: {clause(error.strerror or str(error), 80)}"
            )
            if isinstance(error, IsADirectoryError):
                hint = f"remove that directory and {unfinished.name}, or set CROSSMEM_RUN_DIR"
            raise ConfigurationError(msg, hint=hint, details=str(path)) from error
        return listener
    msg = f"cannot listen at {shorten(str(path))}: another process keeps removing {unfinished.name}"
    raise ConfigurationError(msg, hint=hint, details=str(path))


def _prepare(run_dir: Path) -> None:
    hint = "set CROSSMEM_RUN_DIR to a directory of your own with mode 0700"
    try:
        with contextlib.suppress(FileExistsError):
            run_dir.mkdir(mode=_MODE, parents=True)
            # The umask may have removed permissions of this user.
            run_dir.chmod(_MODE)
        found = run_dir.lstat()
    except OSError as error:
        msg = f"the run directory {shorten(str(run_dir))} cannot be made: {error.strerror}"
        raise ConfigurationError(msg, hint=hint, details=str(run_dir)) from error
    if (
        not stat.S_ISDIR(found.st_mode)
        or found.st_uid != os.geteuid()
        or stat.S_IMODE(found.st_mode) & 0o777 != _MODE
    ):
        msg = (
            f"the run directory {shorten(str(run_dir), 60)} must be a directory of user "
            f"{os.geteuid()} with mode 0700; it has owner {found.st_uid} and mode "
            f"{stat.S_IMODE(found.st_mode):04o}"
        )
        raise ConfigurationError(msg, hint=hint, details=str(run_dir))


def _sweep(run_dir: Path) -> None:
    """Remove the sockets of dead processes. Other processes may sweep at the same time.

    Other files stay, and so do sockets that this process cannot remove.
    """
    for path in (*server_paths(run_dir), *run_dir.glob(f"*{_UNFINISHED}")):
        with contextlib.suppress(OSError):
            if stat.S_ISSOCK(path.lstat().st_mode) and _is_dead(path):
                path.unlink()


def _is_dead(path: Path) -> bool:
    """Whether every process, in every namespace, has closed the socket at a path.

    The first attempt to connect uses a datagram socket, because a living server does not notice
    the attempt: the kernel refuses it with EPROTOTYPE. If no process has the server's socket, the
    kernel refuses the attempt with ECONNREFUSED.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as probe:
        if not _is_refused(probe, path):
            return False
    # The caller removes the path if this function returns true. To be certain, this function
    # also connects with a socket of the server's type. The kernel must refuse this attempt, too.
    with new_socket() as connection:
        return _is_refused(connection, path)


def _is_refused(probe: socket.socket, path: Path) -> bool:
    try:
        probe.connect(str(path))
    except ConnectionRefusedError:
        return True
    except OSError:
        return False
    return False
