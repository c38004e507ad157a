# SPDX-License-Identifier: Apache-2.0
"""Processes that are killed while they hand buffers over: nobody hangs, and nothing is left."""

import random
import signal
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from crossmem.conformance.speed import SLOWNESS

if TYPE_CHECKING:
    from tests.plugins.emulated.acl.acl_actor import Actor, emulation_only, ok
    from tests.plugins.emulated.acl.conftest import Members
    from tests.plugins.emulated.acl.tdt_actions import contents, new_buffer, new_queue, on_device
else:
    from acl_actor import Actor, emulation_only, ok
    from tdt_actions import contents, new_buffer, new_queue, on_device

    Members = Any

pytestmark = [pytest.mark.ci, emulation_only, on_device]

WAIT_S = 20 * SLOWNESS
SECONDARIES = 3
KILLS = 100
LONGEST_S = 0.02


def soon(is_so: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + WAIT_S
    while not is_so() and time.monotonic() < deadline:
        time.sleep(0.005)
    return is_so()


def test_processes_die_at_any_line(members: Members) -> None:
    """A worker passes buffers on and dies: nobody hangs, and nothing of the worker is left."""
    owner = members(1)[0]
    free = owner.free_nbytes
    source, target = new_queue(owner), new_queue(owner)
    for lines in range(150, 3000, 60):
        (worker,) = members(1)
        for qid in (source, target):
            ok(owner.tdt.grant_queue(qid, worker.pid, 7, 0))
        for value in range(4):
            ok(owner.tdt.enqueue(source, new_buffer(owner, bytes([value])), 0))
        worker.begin("run", "tdt_actions", "pass_on", source, target, lines)
        with pytest.raises(EOFError):
            worker.result()
        worker.wait()
        taken = []
        for qid in (target, source):
            while (answer := owner.tdt.dequeue(qid, 0))[1] == 0:
                taken.append(contents(owner, answer[0]))
                ok(owner.tdt.free_buf(answer[0]))
            assert answer == (0, 500001)
        # In order, and at most the one that the worker held is lost.
        values = [one[0] for one in taken]
        assert values == sorted(set(values))
        assert len(values) >= 3
        assert soon(lambda: owner.tdt.dequeue(source, 0)[1] and owner.free_nbytes == free)


def test_one_primary_and_three_secondaries(members: Members) -> None:
    """Secondaries read and free what the primary hands over, and are killed at random."""
    dice, (primary,) = random.Random(1), members(1)
    free, qid = primary.free_nbytes, new_queue(primary)

    def begin() -> Actor:
        (secondary,) = members(1)
        ok(primary.tdt.grant_queue(qid, secondary.pid, 2, 0))
        secondary.begin("run", "tdt_actions", "consume", qid)
        return secondary

    def feed(number: int) -> None:
        data = bytes([number % 256]) * (1 + dice.randrange(1024))
        ok(primary.tdt.enqueue(qid, new_buffer(primary, data, data[:1]), int(1000 * WAIT_S)))

    secondaries = [begin() for _ in range(SECONDARIES)]
    for number in range(KILLS):
        for more in range(4):
            feed(4 * number + more)
        victim = secondaries.pop(dice.randrange(SECONDARIES))
        # One that found a failure says so instead.
        with pytest.raises(EOFError):
            victim.result_or_kill(dice.random() * LONGEST_S)
        assert victim.wait() == -signal.SIGKILL
        secondaries.append(begin())
    assert soon(lambda: primary.call("rows")["acl_mbuf"] == 0)
    for one in secondaries:
        one.kill()

    ok(primary.tdt.destroy_queue(qid))
    assert primary.free_nbytes == free
    assert soon(lambda: primary.tdt.destroy_queue(0) == 0 and not primary.call("memory_held"))
    primary.check_broken()
