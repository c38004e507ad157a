# SPDX-License-Identifier: Apache-2.0
"""Processes that are killed while they hand buffers over: nobody hangs, and nothing is left."""

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.plugins.emulated.acl.acl_actor import emulation_only, ok
    from tests.plugins.emulated.acl.conftest import Members, Start
    from tests.plugins.emulated.acl.queue_kills import PythonPrimary, PythonSecondary, soon, storm
    from tests.plugins.emulated.acl.tdt_actions import contents, new_buffer, new_queue, on_device
else:
    from acl_actor import emulation_only, ok
    from queue_kills import PythonPrimary, PythonSecondary, soon, storm
    from tdt_actions import contents, new_buffer, new_queue, on_device

    Members = Start = Any

pytestmark = [pytest.mark.ci, emulation_only, on_device]


@pytest.mark.parametrize("step", [150, pytest.param(20, marks=pytest.mark.long)])
def test_processes_die_at_any_line(members: Members, step: int) -> None:
    """A worker passes buffers on and dies: nobody hangs, and nothing of the worker is left."""
    owner = members(1)[0]
    free = owner.free_nbytes
    source, target = new_queue(owner), new_queue(owner)
    for lines in range(150, 3000, step):
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


@pytest.mark.parametrize("slow", [0, pytest.param(1, marks=pytest.mark.long)])
def test_one_primary_and_three_secondaries(members: Members, start: Start, slow: int) -> None:
    """Secondaries read and free what the primary hands over, and are killed at random."""
    variables = {"CROSSMEM_EMULATED_SLOW_STREAMS": slow}
    (owner,) = members(1, **variables)
    primary, observer = PythonPrimary(owner), start()

    storm(primary, lambda: PythonSecondary(members(1, **variables)[0]), observer, seed=1)
    assert soon(lambda: owner.tdt.destroy_queue(0) == 0 and not owner.call("memory_held"))
