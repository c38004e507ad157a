# SPDX-License-Identifier: Apache-2.0
"""The end of a process whose test does not end, not even when its time is over.

The alarm of pytest-timeout raises once. If it raises in a finaliser, in a callback or before a
clean-up that waits for ever, the test does not end. So the alarm is repeated. A test that outlives
the repeated alarms, too, ends its process, which first prints the stacks of its threads.
"""

import faulthandler
import os
import signal
import threading
import time
from collections.abc import Generator
from contextlib import suppress
from pathlib import Path
from typing import Final

import pytest
from _pytest.faulthandler import fault_handler_stderr_fd_key

from crossmem.conformance.speed import SLOWNESS

AGAIN_S: Final = 10.0 * SLOWNESS
"""Time between two alarms."""
GRACE_S: Final = 60.0 * SLOWNESS
"""Time from a test's timeout to the end of the process."""


class Watch:
    """A thread that ends this process after a deadline.

    The thread is a Python thread: if the timer of :mod:`faulthandler` ran during a fork, the child
    would hang in its next call of that module.
    """

    def __init__(self, stderr: int) -> None:
        self.deadline: float | None = None
        self._stderr = stderr
        threading.Thread(target=self._run, name="stuck tests", daemon=True).start()

    def _run(self) -> None:
        while True:
            time.sleep(1)
            deadline = self.deadline
            if deadline is not None and time.monotonic() > deadline:
                try:
                    faulthandler.dump_traceback(self._stderr)
                    _kill_children()
                finally:
                    os._exit(1)


def _kill_children() -> None:
    """Kill the children, because pytest-xdist sees the end of a process by the end of its pipe."""
    for children in Path("/proc/self/task").glob("*/children"):
        with suppress(OSError):
            for child in children.read_text().split():
                os.kill(int(child), signal.SIGKILL)


_watches: Final[list[Watch]] = []


@pytest.hookimpl(wrapper=True)
def repeat_alarm() -> Generator[None, object, object]:
    """Repeat the alarm that pytest-timeout has set."""
    result = yield
    left_s, _ = signal.getitimer(signal.ITIMER_REAL)
    signal.setitimer(signal.ITIMER_REAL, left_s, AGAIN_S)
    return result


@pytest.hookimpl(wrapper=True)
def watch(item: pytest.Item) -> Generator[None, object, object]:
    """Give a test a deadline for its end. After a failure, pytest-timeout has no alarm any more."""
    if not _watches:
        _watches.append(Watch(item.config.stash[fault_handler_stderr_fd_key]))
    limit = item.get_closest_marker("timeout")
    assert limit is not None
    _watches[0].deadline = time.monotonic() + limit.args[0] + GRACE_S
    try:
        return (yield)
    finally:
        _watches[0].deadline = None


_ended: Final[list[object]] = []


@pytest.hookimpl(optionalhook=True)
def note_end(node: object, error: object) -> None:
    """Record a process of pytest-xdist that ended early."""
    if error is not None:
        _ended.append(node)


def refuse_unfinished(session: pytest.Session) -> None:
    """Let a run whose tests did not all run end with another exit code than failed tests."""
    most = session.config.getoption("maxworkerrestart", None)
    if most is not None and len(_ended) > int(most):
        session.exitstatus = pytest.ExitCode.INTERRUPTED
