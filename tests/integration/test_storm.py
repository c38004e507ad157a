# SPDX-License-Identifier: Apache-2.0
"""A storm of kills, stops, interrupts, forks and hostile processes leaves survivors all right.

Laws C9 to C12, C18, C20, C26, C27 and C30, for allocations and for blocks of pools, and P1 to P5.
``CROSSMEM_TEST_STORM_S`` is the length of the long one in seconds, ``CROSSMEM_TEST_STORM_SEED``
repeats what was chosen at random.
"""

import json
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from crossmem.conformance.servers import preload
from crossmem.conformance.speed import SLOWNESS

if TYPE_CHECKING:
    from tests.integration.storm_conductor import Weather, outcome
else:
    from storm_conductor import Weather, outcome

pytestmark = pytest.mark.usefixtures("unmeasured")
preload("storm_hostile", "storm_participant")

STORM_S: Final = float(os.environ.get("CROSSMEM_TEST_STORM_S", "300"))
SHORT_S: Final = 5.0
NEEDED: Final = (
    *("operations", "imported", "alive", "kills", "stops", "interrupted", "rogues refused"),
    *("blocks", "blocks attached", "pools closed"),
)
"""What must happen in a storm, or nothing is proven. A storm rages on until it has, ..."""
LATEST_S: Final = 100.0 * SLOWNESS
"""... or until this time."""

Make = Callable[[int, int], Weather]


@pytest.fixture
def make_storm(tmp_path: Path) -> Iterator[Make]:
    made: list[Weather] = []

    def make(workers: int, hostile: int) -> Weather:
        seed = int(os.environ.get("CROSSMEM_TEST_STORM_SEED", random.randrange(1000)))
        print(f"CROSSMEM_TEST_STORM_SEED={seed}")
        made.append(Weather(tmp_path, seed, workers=workers, hostile=hostile))
        return made[-1]

    yield make
    for one in made:
        one.close()


def weather(storm: Weather, seconds: float) -> None:
    """Let a storm rage, and check what it leaves."""
    storm.within_s = 2 * (seconds + LATEST_S + 600) * SLOWNESS
    raged_s = storm.conduct(seconds, NEEDED, LATEST_S)
    found = outcome(storm)
    report = storm.report(raged_s)
    wrong: list[str] = []
    # Stacks are read best as they are.
    for text in (report, *found.pop("problems", []), *([json.dumps(found)] if found else [])):
        wrong.append(text)
        print(text)

    assert wrong == [report], f"{len(wrong) - 1} problems, which are printed"
    storm.exit_workers()
    storm.check_nothing_is_left()
    assert storm.lacking(NEEDED) == [], report
    total = storm.totals()
    assert total["imported"] > 5 * total["unanswered"], report


@pytest.mark.ci
@pytest.mark.timeout(400)
def test_a_short_storm(make_storm: Make) -> None:
    weather(make_storm(12, 4), SHORT_S)


@pytest.mark.long
@pytest.mark.timeout(2 * STORM_S + 900)
def test_a_storm_of_64_processes(make_storm: Make) -> None:
    weather(make_storm(48, 16), STORM_S)


FAULTS: Final = {
    "be_late": "late: _sleep lasts",
    "damage": "memory is damaged",
    "keep_lock": "late: ",
    "hang_in_child": "hung: a forked child",
    "open_descriptor": "/dev/null",
    "lose_memory": "lost",
    "damage_block": "memory is damaged",
    "lose_block": "a pool has lost blocks",
}
"""What is found of each fault."""


@pytest.mark.ci
@pytest.mark.timeout(400)
@pytest.mark.parametrize("fault", FAULTS)
def test_what_is_wrong_is_found(make_storm: Make, fault: str) -> None:
    storm = make_storm(2, 0)
    storm.workers.append(storm.new_worker(3, fresh=False))
    (worker,) = storm.workers
    worker.ask("release")
    worker.ask(fault)

    assert FAULTS[fault] in json.dumps(outcome(storm))
