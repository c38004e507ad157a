# SPDX-License-Identifier: Apache-2.0
"""What peers do to move to other namespaces, for the tests of leases."""

import ctypes
import faulthandler
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import crossmem
from crossmem.conformance import actions, forks
from crossmem.conformance.speed import SLOWNESS

NEW_NAMESPACE: Final = {"user": 0x10000000, "pid": 0x20000000, "net": 0x40000000, "mount": 0x20000}
_MS_PRIVATE_ALL: Final = 0x4000 | 0x40000
_MS_BIND: Final = 0x1000
_MS_READONLY: Final = 0x1 | 0x20
_MS_READONLY_BIND: Final = _MS_READONLY | _MS_BIND


def leave_namespaces(*names: str) -> None:
    """Move to new namespaces."""
    # The watchdog of a peer's calls is a thread, and only a process without threads may leave.
    faulthandler.cancel_dump_traceback_later()
    end = time.monotonic() + 5
    while len(list(Path("/proc/self/task").iterdir())) > 1 and time.monotonic() < end:
        time.sleep(0.001)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(sum(NEW_NAMESPACE[name] for name in names)):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), "unshare")


def in_pid_namespace(function: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Call a function in the first process of a new pid namespace, which lives on.

    The peer can start no threads after that, so it can take no further call.
    """
    leave_namespaces("pid", *options.pop("also", ()))
    return forks.in_child(function, *args, stays=True, **options)


def mount_proc() -> None:
    """Show the own pid namespace in ``/proc``, in a mount namespace of this process alone."""
    mount_over("/proc", "proc")


def mount_over(target: str, kind: str, options: str = "") -> None:
    """Mount a new file system, in a mount namespace of this process alone."""
    own_mounts()
    mount_here(target, kind, options)


def own_mounts(*others: str) -> None:
    """Move to a new mount namespace, and others, where mounts show in no other one."""
    leave_namespaces("mount", *others)
    _mount(None, "/", None, _MS_PRIVATE_ALL)


def mount_here(target: str, kind: str, options: str = "") -> None:
    """Mount a new file system."""
    _mount(kind, target, kind, 0, options)


def make_readonly(folder: str) -> None:
    """Let nobody write to a folder, in a mount namespace of this process alone."""
    own_mounts()
    make_readonly_here(folder)


def make_readonly_here(folder: str) -> None:
    """Let nobody in the mount namespace of this process write to a folder."""
    _mount(folder, folder, None, _MS_BIND)
    _mount(None, folder, None, _MS_READONLY_BIND)


def unmount(folder: str) -> None:
    """Show again what was there before."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.umount2(folder.encode(), 0):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), "umount2")


def _mount(source: str | None, target: str, kind: str | None, flags: int, data: str = "") -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    texts = (one.encode() if one else None for one in (source, target, kind))
    if libc.mount(*map(ctypes.c_char_p, texts), flags, data.encode()):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), f"mount at {target}")


def map_own_user(uid: int, gid: int, *, inside: int = 0) -> None:
    """Map, in the new user namespace of this process, the ids that it has outside."""
    Path("/proc/self/setgroups").write_text("deny", "ascii")
    Path("/proc/self/uid_map").write_text(f"{inside} {uid} 1", "ascii")
    Path("/proc/self/gid_map").write_text(f"0 {gid} 1", "ascii")


def offer_in_namespace(*, proc: bool) -> tuple[list[bytes], int]:
    """Export twice, as the first process of a new pid namespace; tell the pid outside, too."""
    outside = int(Path("/proc/self").readlink().name)
    if proc:
        mount_proc()
    assert os.getpid() == 1
    return [actions.offer(name, 4096, b"data") for name in "ab"], outside


def offer_to_pids(pids: list[int]) -> bytes:
    """Export for some processes alone, as the first process of a new pid namespace."""
    assert os.getpid() == 1
    return actions.offer("memory", 4096, allow=crossmem.Allow(pids=frozenset(pids)))


def attach_in_namespace(blob: bytes, *, proc: bool) -> tuple[bytes, bool]:
    """Attach, as the first process of a new pid namespace; return data and ``owner_alive``."""
    if proc:
        mount_proc()
    assert os.getpid() == 1
    actions.attach("mapped", blob, timeout=5 * SLOWNESS)
    return actions.read("mapped", 4), bool(actions.attribute("mapped", "owner_alive"))


def why_not(*namespaces: str) -> str | None:
    """Return why namespaces cannot be left here, None where they can."""
    command = ["unshare", *(f"--{name}" for name in namespaces), "--fork", "true"]
    try:
        found = subprocess.run(
            command, capture_output=True, text=True, timeout=20 * SLOWNESS, check=False
        )
    except OSError as error:
        return f"there is no unshare: {error}"
    return found.stderr.strip() if found.returncode else None
