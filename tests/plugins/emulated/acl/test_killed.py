# SPDX-License-Identifier: Apache-2.0
"""Processes that are killed at any moment: nobody hangs, and nothing of theirs is left."""

import random
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.plugins.emulated.acl.acl_actor import Actor, emulation_only, ok
    from tests.plugins.emulated.acl.conftest import Start
else:
    from acl_actor import Actor, emulation_only, ok

    Start = Any

pytestmark = [
    pytest.mark.ci,
    emulation_only,
    pytest.mark.parametrize("profile", ["documented"], indirect=True),
]

WORKERS = 4
LONGEST_S = 0.03
MOST_LINES = 4000


def use(acl: Actor) -> None:
    """Do what any process does, which takes every lock that there is."""
    handle, pointer = acl.physical()
    ok(acl.rt.mem_export_to_shareable_handle(handle, 0, 0))
    acl.write(pointer, b"alive")
    ok(acl.rt.unmap_mem(pointer))
    ok(acl.rt.free_physical(handle))
    ok(acl.rt.release_mem_address(pointer))


@pytest.mark.parametrize("kills", [20, pytest.param(100, marks=pytest.mark.long)])
def test_processes_are_killed_at_any_moment(start: Start, tmp_path: Path, kills: int) -> None:
    dice, board = random.Random(1), tmp_path / "board"
    board.mkdir()
    survivor = start()
    free = survivor.free_nbytes

    def begin() -> Actor:
        worker = start()
        # Half of them die by themselves, where a signal from outside would hardly hit.
        lines = dice.randrange(1, MOST_LINES) if dice.random() < 0.5 else 0
        worker.begin("run", "acl_storm", "churn", str(board), dice.random(), lines)
        return worker

    workers = [begin() for _ in range(WORKERS)]
    for _ in range(kills):
        victim = workers.pop(dice.randrange(WORKERS))
        # One that ran into a failure says so instead.
        with pytest.raises(EOFError):
            victim.result_or_kill(dice.random() * LONGEST_S)
        # Its end of the pipe is closed a bit earlier.
        assert victim.wait() == -signal.SIGKILL
        workers.append(begin())
        use(survivor)
    for worker in workers:
        worker.kill()

    assert survivor.free_nbytes == free
    use(survivor)
    rows = survivor.call("rows")
    assert rows["process"] == 1
    assert {name: rows[name] for name in ("pages", "holding", "acl_share", "acl_key")} == {
        "pages": 0,
        "holding": 0,
        "acl_share": 0,
        "acl_key": 0,
    }
    assert survivor.call("memory_held") == 0
