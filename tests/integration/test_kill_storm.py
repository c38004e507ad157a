# SPDX-License-Identifier: Apache-2.0
"""SIGKILL at random points of random activity leaves nothing behind (C11, C12, C20)."""

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from crossmem.conformance.servers import preload

if TYPE_CHECKING:
    from tests.integration.storm_processes import SURVIVORS, Storm
else:
    from storm_processes import SURVIVORS, Storm

pytestmark = [pytest.mark.ci, pytest.mark.usefixtures("unmeasured")]
preload("storm_worker")

KILLED_AT_EVERY_LINE = """
import os, signal, sys, crossmem
from crossmem.control import endpoint

functions = {one.__code__ for one in vars(endpoint).values() if hasattr(one, "__code__")}

def in_child(function):
    child = os.fork()
    if not child:
        function()
        os._exit(0)
    return os.waitpid(child, 0)[1]

def use():
    with crossmem.device("emulated:0").allocate(1) as allocation:
        allocation.export()
        assert len(os.listdir(sys.argv[1])) == 1, os.listdir(sys.argv[1])

def be_killed():
    def trace_line(frame, event, value):
        global left
        left -= event == "line"
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)
        return trace_line

    sys.settrace(lambda frame, event, value: trace_line if frame.f_code in functions else None)
    use()

lines = 0
while True:
    lines += int(sys.argv[2])
    left = lines
    if in_child(be_killed) != signal.SIGKILL:
        break
    assert in_child(use) == 0, lines
print(lines)
"""


@pytest.fixture
def storm(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Storm]:
    # In the long run, interpreters of their own are also killed while they start.
    fresh = request.node.get_closest_marker("long") is not None
    storm = Storm(tmp_path, getattr(request, "param", 1), fresh=fresh)
    yield storm
    for worker in storm.workers:
        worker.kill()


def survive(storm: Storm, kills: int) -> None:
    storm.run(kills)
    counts, left = storm.release_and_free()

    assert storm.problems() == []
    assert left == [{}] * SURVIVORS
    # They met the dead and used what those had left, or nothing was proven.
    total = sum((Counter(one) for one in counts), Counter())
    assert all(total[one] >= 10 for one in ("steps", "alive", "gone", "orphaned")), total
    storm.exit_workers()
    storm.check_nothing_is_left()


@pytest.mark.timeout(400)
def test_a_hundred_kills_leave_nothing(storm: Storm) -> None:
    survive(storm, 100)


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("storm", range(2, 12), indirect=True)
def test_a_thousand_kills_leave_nothing(storm: Storm) -> None:
    survive(storm, 100)


@pytest.mark.long
def test_what_is_left_is_found(storm: Storm) -> None:
    storm.start(doomed=False)
    (worker,) = storm.workers
    worker.ask("release")
    assert worker.ask("leak") == "leaked"
    left = json.loads(worker.ask("free"))

    assert left["held"][:3] == [1, ["/memfd:crossmem (deleted)"], ["anon_inode:[pidfd]"]]
    assert left["blocks"] == 1
    assert left["held"][3].count("leaked") == 1


@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    "step", [pytest.param(3, id="few"), pytest.param(1, marks=pytest.mark.long, id="any")]
)
def test_a_kill_at_any_line_of_beginning_to_listen_leaves_no_file(storm: Storm, step: int) -> None:
    lines = int(storm.run_script(KILLED_AT_EVERY_LINE, str(storm.run_dir), str(step)))

    assert lines > 20
    assert len(storm.left_in_run_dir()) == 1
    storm.use_run_dir()
    assert storm.left_in_run_dir() == []
