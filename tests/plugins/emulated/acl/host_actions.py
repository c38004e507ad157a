# SPDX-License-Identifier: Apache-2.0
"""What processes of test_trouble.py do, and what becomes of them meanwhile."""

import os
import resource
import sys
import threading
from contextlib import suppress
from operator import attrgetter
from types import FrameType
from typing import Any

import pytest

from crossmem.conformance.speed import SLOWNESS

DEADLINE_S = 30 * SLOWNESS
FORKS = 40

_may_go = threading.Event()


def hold(acl: Any) -> None:
    """Be in a transaction, which keeps all others out, until it is told to go."""
    is_in = threading.Event()
    _may_go.clear()

    def stay() -> None:
        with acl.machine.transaction():
            is_in.set()
            _may_go.wait(DEADLINE_S)

    threading.Thread(target=stay).start()
    assert is_in.wait(DEADLINE_S)


def let_go(_acl: Any) -> None:
    """End that transaction."""
    _may_go.set()


def hurry(acl: Any, seconds: float) -> None:
    """Wait for other processes no longer than this."""
    pytest.MonkeyPatch().setattr("crossmem_emulated.machine._BUSY_TIMEOUT_S", seconds)
    # Connections keep the time that they were opened with.
    acl.machine.close()


class _InterruptError(BaseException):
    """What a handler of a signal may raise, as that of Ctrl-C does."""


def interrupt_call(acl: Any, number: int) -> bool:
    """Allocate, interrupted right after that statement of SQL; return whether there was one."""
    left = number

    def profile(_frame: FrameType, event: str, function: Any) -> None:
        nonlocal left
        if event == "c_return" and function.__name__ == "execute":
            if not left:
                raise _InterruptError
            left -= 1

    sys.setprofile(profile)
    try:
        acl.rt.malloc(2 << 20, 0)
    except _InterruptError:
        return True
    finally:
        sys.setprofile(None)
    return False


def without_descriptors(acl: Any, name: str, *arguments: Any) -> Any:
    """Call a function while this process can open nothing more."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    fillers: list[int] = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, limits[1]))
    try:
        with suppress(OSError):
            while True:
                fillers.append(os.open(os.devnull, os.O_RDONLY))
        return attrgetter(name)(acl)(*arguments)
    finally:
        for descriptor in fillers:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def fork_in_two_threads(acl: Any) -> int:
    """Fork at once in two threads while a third uses the host; return how often that went well."""

    def fork() -> None:
        for _ in range(FORKS):
            child = os.fork()
            if not child:
                os._exit(0)
            os.waitpid(child, 0)

    threads = [threading.Thread(target=fork) for _ in range(2)]
    for one in threads:
        one.start()
    calls = 0
    while any(one.is_alive() for one in threads):
        memory, code = acl.rt.malloc(64, 0)
        assert code == 0, acl.get_recent_err_msg()
        assert acl.rt.free(memory) == 0
        calls += 1
    return calls


def reopen(acl: Any, times: int) -> list[int]:
    """Open the host, use it and close it again; return the codes that were no success."""
    codes = []
    for _ in range(times):
        memory, code = acl.rt.malloc(2 << 20, 0)
        codes += [code, acl.rt.free(memory)]
        acl.machine.close()
    return [code for code in codes if code]


def child_of_a_call(acl: Any) -> list[Any]:
    """Fork while another thread is in a transaction; return what the child's functions answer."""
    hold(acl)
    ours, theirs = os.pipe()
    child = os.fork()
    if not child:
        try:
            other = type(acl)(options=None)
            codes = [acl.rt.set_device(0), other.rt.set_device(0), other.rt.get_mem_info(1)[-1]]
            os.write(theirs, repr(codes).encode())
        finally:
            os._exit(0)
    let_go(acl)
    os.close(theirs)
    try:
        return [int(one) for one in os.read(ours, 100).decode().strip("[]").split(",")]
    finally:
        os.close(ours)
        os.waitpid(child, 0)


def age_faults(acl: Any) -> None:
    """Let the faults be for processes that had their pids earlier."""
    with acl.machine.transaction() as tables:
        tables.execute("UPDATE fault SET start_time = start_time - 1")
