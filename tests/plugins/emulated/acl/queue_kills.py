# SPDX-License-Identifier: Apache-2.0
"""A primary hands buffers to secondaries, in Python or in C, which are killed at random."""

import random
import signal
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

import pytest

from crossmem.conformance.speed import SLOWNESS

if TYPE_CHECKING:
    from tests.plugins.emulated.acl.acl_actor import Actor, ok
    from tests.plugins.emulated.acl.tdt_actions import DEQUEUE, new_queue
else:
    from acl_actor import Actor, ok
    from tdt_actions import DEQUEUE, new_queue

WAIT_S = 20 * SLOWNESS
SECONDARIES = 3
KILLS = 100
LONGEST_S = 0.02
MOST_NBYTES = 1024


class Primary(Protocol):
    """A process with a queue."""

    pid: int
    qid: int

    def grant(self, pid: int) -> None:
        """Let a process take buffers."""

    def feed(self, data: bytes) -> None:
        """Enqueue a buffer of equal bytes, with the first one as its user data."""

    def end(self) -> None:
        """Destroy the queue."""


class Secondary(Protocol):
    """A process that takes buffers, checks and frees them."""

    pid: int

    def consume(self, qid: int) -> None:
        """Begin."""

    def kill_after(self, seconds: float) -> None:
        """Kill it, unless it found a failure, which is raised."""


class PythonPrimary:
    """A primary in Python."""

    def __init__(self, acl: Actor) -> None:
        self._acl = acl
        self.pid = acl.pid
        self.qid = new_queue(acl)

    def grant(self, pid: int) -> None:
        ok(self._acl.tdt.grant_queue(self.qid, pid, DEQUEUE, 0))

    def feed(self, data: bytes) -> None:
        self._acl.call("run", "tdt_actions", "feed", self.qid, data)

    def end(self) -> None:
        ok(self._acl.tdt.destroy_queue(self.qid))


class PythonSecondary:
    """A secondary in Python."""

    def __init__(self, acl: Actor) -> None:
        self._acl = acl
        self.pid = acl.pid

    def consume(self, qid: int) -> None:
        self._acl.begin("run", "tdt_actions", "consume", qid)

    def kill_after(self, seconds: float) -> None:
        # One that found a failure says so instead.
        with pytest.raises(EOFError):
            self._acl.result_or_kill(seconds)
        assert self._acl.wait() == -signal.SIGKILL


def soon(is_so: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + WAIT_S
    while not is_so() and time.monotonic() < deadline:
        time.sleep(0.005)
    return is_so()


def storm(
    primary: Primary, new_secondary: Callable[[], Secondary], observer: Actor, seed: int
) -> None:
    """Kill secondaries while the primary feeds them: nobody hangs, and no buffer is left.

    ``observer`` is another process of the host.
    """
    dice, free = random.Random(seed), observer.free_nbytes

    def begin() -> Secondary:
        secondary = new_secondary()
        primary.grant(secondary.pid)
        secondary.consume(primary.qid)
        return secondary

    secondaries = [begin() for _ in range(SECONDARIES)]
    for number in range(KILLS):
        for more in range(4):
            primary.feed(bytes([(4 * number + more) % 256]) * (1 + dice.randrange(MOST_NBYTES)))
        secondaries.pop(dice.randrange(SECONDARIES)).kill_after(dice.random() * LONGEST_S)
        secondaries.append(begin())
    # The secondaries free what dead ones held.
    assert soon(lambda: observer.call("rows")["acl_mbuf"] == 0)
    for one in secondaries:
        one.kill_after(0)

    primary.end()
    assert observer.free_nbytes == free
    assert observer.call("rows")["acl_queue"] == 0
    observer.check_broken()
