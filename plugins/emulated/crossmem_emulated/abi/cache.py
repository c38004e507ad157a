# SPDX-License-Identifier: Apache-2.0
"""The cache of built libraries.

A process executes the code of a library that it loads. So the cache refuses files that another user
could have written. If a library's files have changed since the build, the library is built again.
"""

import errno
import hashlib
import json
import os
import platform
import stat
import sysconfig
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from crossmem import __version__
from crossmem.errors import ConfigurationError
from crossmem.guards import shorten
from crossmem_emulated.abi.held import HeldFolder, remove_abandoned

__all__ = ["cache_folder", "kept", "stamp_of"]

_LIST: Final = "contents.json"
"""The file that contains the stamp of its folder, and the names and digests of the folder's other
files. The builder writes this file last."""
_WORK: Final = "build-"
_LINK: Final = "-> "
_OTHERS: Final = 0o022
_ATTEMPTS: Final = 10
_HINT: Final = "set XDG_CACHE_HOME to a folder of this user"


def cache_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the path of this user's cache folder. This function does not make the folder.

    Raises
    ------
    ConfigurationError
        ``XDG_CACHE_HOME`` is not an absolute path, and this user has no home folder.
    """
    given = environ.get("XDG_CACHE_HOME", "")
    if Path(given).is_absolute():
        return Path(given) / "crossmem" / "abi"
    try:
        return Path.home() / ".cache" / "crossmem" / "abi"
    except RuntimeError:
        msg = "this user has no home folder for the built libraries"
        raise ConfigurationError(msg, hint="set XDG_CACHE_HOME to a folder") from None


def kept(
    name: str,
    parts: Iterable[str],
    make: Callable[[Path, Path], None],
    *,
    stamp: str,
    environ: Mapping[str, str],
) -> Path:
    """Return a folder of the cache. If it is missing or damaged, make and fill it.

    Several processes can build the same folder. Each of these processes fills a folder of its own,
    and the first process that finishes gives its folder the final name. Folders of killed processes
    are removed.

    Parameters
    ----------
    name
        The start of the folder's name.
    parts
        All texts on which the folder's contents depend, except crossmem's version and the
        properties of this machine.
    make
        A function that fills a folder. The arguments are the folder to fill, and the path that this
        folder gets at the end.
    stamp
        A text that identifies the version of the contents. :func:`stamp_of` returns this text.
    environ
        Environment variables. ``XDG_CACHE_HOME`` names the cache.

    Raises
    ------
    ConfigurationError
        The cache cannot be used, or another user could have written to it.
    """
    root = cache_folder(environ)
    # Machines and containers that share a home folder can differ in these properties, so the key
    # includes the properties.
    machine = (platform.machine(), str(sysconfig.get_config_var("SOABI")), *platform.libc_ver())
    key = hashlib.blake2b("\0".join([__version__, *machine, *parts]).encode(), digest_size=8)
    folder = root / f"{name}-{__version__}-{key.hexdigest()}"
    try:
        _prepare(root)
        remove_abandoned(root, _WORK)
        if _is_whole(folder):
            return folder
        work = HeldFolder(root, _WORK)
        try:
            made = work.path / "made"
            made.mkdir(mode=0o700)
            make(made, folder)
            _list(made, stamp)
            _publish(made, folder)
        finally:
            work.remove()
    except OSError as error:
        msg = f"built libraries cannot be kept in {shorten(str(root))}: {error.strerror}"
        raise ConfigurationError(msg, hint=_HINT, details=str(root)) from None
    return folder


def stamp_of(folder: Path) -> str:
    """Return the stamp of a built folder; an empty text if the folder or its stamp is missing."""
    found = _listed(folder)
    return str(found.get("stamp", "")) if found else ""


def _prepare(root: Path) -> None:
    home = root.parent.parent
    for one in (root.parent, root):
        one.mkdir(mode=0o700, parents=True, exist_ok=True)
        _check(one, stat.S_IFDIR)
    for one in (home, *home.resolve().parents):
        mode = one.stat().st_mode
        if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
            raise ConfigurationError(
                f"{shorten(str(root), 60)} is not safe to load libraries from: every user can "
                f"replace {shorten(str(one), 50)} (mode {stat.S_IMODE(mode):04o})",
                hint=_HINT,
                details=f"{root}\n{one}",
            )


def _check(path: Path, kind: int) -> None:
    """Raise if another user may have written ``path``, or if the file type is not ``kind``."""
    status = path.lstat()
    mode, me = status.st_mode, os.geteuid()
    # A symbolic link has no permissions of its own.
    is_open = kind != stat.S_IFLNK and mode & _OTHERS
    if stat.S_IFMT(mode) != kind or status.st_uid != me or is_open:
        kinds = {stat.S_IFDIR: "a folder", stat.S_IFREG: "a file", stat.S_IFLNK: "a link"}
        raise ConfigurationError(
            f"{shorten(str(path), 55)} is not safe to load: it must be {kinds[kind]} of user {me} "
            f"and not writable by others; it is {kinds.get(stat.S_IFMT(mode), 'another file')} "
            f"of user {status.st_uid} with mode {stat.S_IMODE(mode):04o}",
            hint=f"check who made it and remove it, or {_HINT}",
            details=str(path),
        )


def _listed(folder: Path) -> dict[str, Any] | None:
    try:
        found = json.loads((folder / _LIST).read_bytes())
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def _names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()} - {_LIST}


def _is_whole(folder: Path) -> bool:
    """Whether a folder exists and has exactly the files of its list, with unchanged contents.

    Raises
    ------
    ConfigurationError
        Another user may have written the folder or a file in it.
    """
    try:
        # Another builder may move the folder away at any moment. Then an access below raises
        # FileNotFoundError.
        _check(folder, stat.S_IFDIR)
        _check(folder / _LIST, stat.S_IFREG)
        files = (_listed(folder) or {}).get("files")
        if not isinstance(files, dict) or _names(folder) != files.keys():
            return False
        for name, contents in files.items():
            is_link = str(contents).startswith(_LINK)
            _check(folder / name, stat.S_IFLNK if is_link else stat.S_IFREG)
            if _contents(folder / name) != contents:
                return False
    except FileNotFoundError:
        return False
    return True


def _contents(path: Path) -> str:
    if path.is_symlink():
        return f"{_LINK}{path.readlink()}"
    with path.open("rb") as file:
        return hashlib.file_digest(file, "blake2b").hexdigest()


def _list(folder: Path, stamp: str) -> None:
    for path in folder.iterdir():
        if not path.is_symlink():
            path.chmod(path.stat().st_mode & ~_OTHERS)
    files = {name: _contents(folder / name) for name in sorted(_names(folder))}
    target = folder / _LIST
    target.write_text(json.dumps({"stamp": stamp, "files": files}, indent=1), "utf-8")
    target.chmod(0o600)


def _publish(made: Path, folder: Path) -> None:
    """Rename ``made`` to ``folder``. Move a damaged ``folder`` away, but keep an undamaged one."""
    for attempt in range(_ATTEMPTS):
        try:
            made.rename(folder)
        except OSError as error:
            if error.errno not in {errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR}:
                raise
        else:
            return
        if _is_whole(folder):
            return
        try:
            folder.rename(made.with_name(f"damaged-{attempt}"))
        except FileNotFoundError:
            # Another builder moved the damaged folder away first.
            continue
    msg = f"other processes keep writing damaged files to {shorten(str(folder))}"
    raise ConfigurationError(msg, hint="remove the folder", details=str(folder))
