# SPDX-License-Identifier: Apache-2.0
"""Processes that are killed at any moment: nobody hangs, and nothing of theirs is left."""

import random
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.plugins.emulated.hip.conftest import Start
    from tests.plugins.emulated.hip.hip_actor import Actor, emulation_only
else:
    from hip_actor import Actor, emulation_only

    Start = Any

pytestmark = [
    pytest.mark.ci,
    emulation_only,
    pytest.mark.parametrize("profile", ["documented"], indirect=True),
]

WORKERS = 4
LONGEST_S = 0.03
MOST_LINES = 4000


def use(survivor: Actor, witness: Actor) -> None:
    """Do what any process does, which takes every lock that there is."""
    pointer, handle = survivor.export(b"alive")
    opened = witness.open(handle)
    assert witness.read(opened, 5) == b"alive"
    witness.rt.ipcCloseMemHandle(opened)
    survivor.rt.free(pointer)


@pytest.mark.parametrize("kills", [20, pytest.param(100, marks=pytest.mark.long)])
def test_processes_are_killed_at_any_moment(start: Start, tmp_path: Path, kills: int) -> None:
    dice, board = random.Random(1), tmp_path / "board"
    board.mkdir()
    survivor, witness = start(), start()
    use(survivor, witness)
    free = survivor.free_nbytes

    def begin() -> Actor:
        worker = start()
        # Half of them die by themselves, where a signal from outside would hardly hit.
        lines = dice.randrange(1, MOST_LINES) if dice.random() < 0.5 else 0
        worker.begin("run", "hip_storm", "churn", str(board), dice.random(), lines)
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
        use(survivor, witness)
    for worker in workers:
        worker.kill()

    assert survivor.free_nbytes == free
    use(survivor, witness)
    rows = survivor.call("rows")
    assert rows["process"] == 2
    names = ("pages", "holding", "hip_share", "hip_import")
    assert {name: rows[name] for name in names} == dict.fromkeys(names, 0)
    assert survivor.call("memory_held") == witness.call("memory_held") == 0
