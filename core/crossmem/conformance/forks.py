# SPDX-License-Identifier: Apache-2.0
"""Functions that a test calls in a peer to fork children and to find inherited descriptors."""

import ctypes
import os
import pickle
import select
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from crossmem.conformance import actions, resources
from crossmem.driver import Driver

__all__ = [
    "answer_of",
    "in_child",
    "remember_descriptors",
    "sleeping_child",
    "unexpected_descriptors",
    "waiting_child",
    "wake_vendor",
]

_WITHIN_S: Final = 30.0
_GO: Final = "go"
_ANSWER: Final = "answer"
_SHM: Final = "/dev/shm/"  # noqa: S108 - compared, not opened
_IGNORED: Final = ("pipe", "/dev/")

_descriptors: list[str] = []


def sleeping_child(*, with_handlers: bool) -> int:
    """Fork a child that sleeps until it is killed; return its pid.

    Parameters
    ----------
    with_handlers
        True: ``os.fork``, which runs Python's at-fork handlers. False: the C library's ``fork``, as
        a C extension calls it. Without the handlers, the child keeps every inherited descriptor.
    """
    if with_handlers:
        pid = os.fork()
        if pid == 0:
            while True:
                signal.pause()
        return pid
    # PyDLL keeps the GIL during the call, so the child's only thread holds the GIL. CDLL would
    # release the GIL to another thread, which does not exist in the child.
    libc = ctypes.PyDLL(None)
    pid = int(libc.fork())
    if pid == 0:
        while True:
            libc.pause()
    return pid


def in_child(
    function: Callable[..., Any],
    *args: Any,
    uid: int | None = None,
    stays: bool = False,
    within: float = _WITHIN_S,
    **options: Any,
) -> Any:
    """Call a function in a forked child; return its result, or raise its exception.

    Parameters
    ----------
    uid
        The user that the child becomes before the call. This user may be unable to read module
        files, so the peer must have imported the modules that the call needs.
    stays
        Whether the child lives on after the call, with the objects that the function made, until
        the peer is destroyed.
    within
        How long the function may take, in seconds.
    """
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(reading)
            try:
                if uid is not None:
                    _become(uid)
                answer = (True, function(*args, **options))
            except Exception as error:  # noqa: BLE001 - it is raised again in the parent
                answer = (False, error)
            with os.fdopen(writing, "wb") as stream:
                pickle.dump(answer, stream)
            while stays:
                signal.pause()
        finally:
            os._exit(0)
    os.close(writing)
    try:
        blob = _read_all(reading, within)
    finally:
        os.close(reading)
        if not stays:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    assert blob, f"the child ended without an answer to {function.__name__}"
    is_result, value = pickle.loads(blob)  # noqa: S301 - the child is this program
    if not is_result:
        raise value
    return value


def waiting_child(folder: Path, function: Callable[..., Any], *args: Any) -> None:
    """Fork a child that calls a function at the request of :func:`answer_of`.

    The child waits at most 30 s for this request, and lives on if this process ends.

    Parameters
    ----------
    folder
        An empty folder, through which the child and the requester communicate.
    """
    if os.fork() != 0:
        return
    try:
        _await(folder / _GO)
        answer = repr(function(*args))
    except BaseException as error:  # noqa: BLE001 - the requester reads it
        answer = repr(error)
    finally:
        unfinished = folder / "unfinished"
        unfinished.write_text(answer, "utf-8")
        unfinished.rename(folder / _ANSWER)
        os._exit(0)


def answer_of(folder: Path) -> str:
    """Let a waiting child continue; return the ``repr`` of its function's result or exception."""
    (folder / _GO).touch()
    _await(folder / _ANSWER)
    return (folder / _ANSWER).read_text("utf-8")


def _await(path: Path) -> None:
    end = time.monotonic() + _WITHIN_S
    while not path.exists():
        assert time.monotonic() < end, f"the file {path.name!r} did not appear within {_WITHIN_S} s"
        time.sleep(0.002)


def _become(uid: int) -> None:
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)


def _read_all(descriptor: int, within: float) -> bytes:
    blob = bytearray()
    end = time.monotonic() + within
    while True:
        ready, _, _ = select.select([descriptor], [], [], max(0.0, end - time.monotonic()))
        assert ready, f"the child did not answer within {within} s"
        piece = os.read(descriptor, 65536)
        if not piece:
            return bytes(blob)
        blob += piece


def wake_vendor() -> None:
    """Make the vendor's library start its threads and open its descriptors.

    The library does so at the first use of a device, and keeps the threads and descriptors until
    the process ends. This function calls only the driver, so crossmem itself starts no thread and
    opens no descriptor.
    """
    one = actions.device()
    driver: Driver = one.driver
    block = driver.allocate(one.ordinal, 1, one.mechanism)
    exported = driver.export(block, one.mechanism, "rw", raw=False)
    driver.release_export(block, exported)
    driver.free(block)


def remember_descriptors() -> None:
    """Record the open descriptors, including those of the vendor's library.

    Call this function before the process uses crossmem for anything else.
    """
    wake_vendor()
    _descriptors[:] = resources.descriptors()


def unexpected_descriptors() -> list[str]:
    """Return the targets of descriptors that :func:`remember_descriptors` did not record.

    Pipes are ignored, because a child replies through a pipe. Files in ``/dev`` are ignored,
    because only the vendor's library may close device files. But files in ``/dev/shm`` count,
    because they are not device files.
    """
    found = resources.descriptors()
    for known in _descriptors:
        if known in found:
            found.remove(known)
    return [one for one in found if one.startswith(_SHM) or not one.startswith(_IGNORED)]
