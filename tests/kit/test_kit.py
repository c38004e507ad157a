# SPDX-License-Identifier: Apache-2.0
"""The kit passes on every backend, and every law has tests."""

import json
from pathlib import Path
from typing import Any

import pytest
from kit_runs import KIT, RUNS, KitRun, kit_tests, run_kit

from crossmem.conformance.report import LAWS, POOL_LAWS, QUEUE_LAWS, TIMELINE_LAWS
from crossmem.conformance.speed import SLOWNESS

# Laws whose tests take longest, one for each share, so that all shares take equally long.
_ALL = (*LAWS, *POOL_LAWS, *TIMELINE_LAWS, *QUEUE_LAWS)
_SHARES = 4
_HEAVY = ["C20", "C18", "C10", "C26"]
_LIMIT_S = 800


def shares() -> list[list[str]]:
    """Return the laws in parts that take about as long as each other."""
    ordered = _HEAVY + [law for law in _ALL if law not in _HEAVY]
    return [ordered[number::_SHARES] for number in range(_SHARES)]


def cases() -> list[Any]:
    """Return each run of the kit; what is long is not split, and takes all cores."""
    marked = []
    for run in RUNS:
        name = "-".join(
            part
            for part in (
                *(run.backend, run.mechanism, run.part, run.profile),
                "blocks" if run.on_blocks else "",
                "slow" if run.slow_streams else "",
            )
            if part
        )
        whole_in_parts = (
            run.part in {"whole", "rest"} and run.tier != "long" and run.mechanism != "acltdt"
        )
        for number, laws in enumerate(shares() if whole_in_parts else [list(_ALL)], start=1):
            case = f"{name}-{number}" if whole_in_parts else name
            marks = [pytest.mark.timeout(_LIMIT_S)]
            if run.tier != "default":
                marks.append(getattr(pytest.mark, run.tier))
            marked.append(pytest.param(run, laws, id=case, marks=marks))
    return marked


def outcomes(run: KitRun, laws: list[str], folder: Path) -> dict[str, Any]:
    """Run the kit on an emulated host of its own; return the outcome of each law."""
    report = folder / "report.json"
    selected = " or ".join(f"test_{law[0].lower()}{int(law[1:]):02}_" for law in laws)
    if run.modules:
        selected = f"({selected}) and ({run.modules})"
    exit_code, output = run_kit(
        [
            *("--pyargs", "crossmem.conformance", "-k", selected, *run.options),
            *(
                "--crossmem-report",
                str(report),
            ),
            *(("-n", "2") if run.tier == "long" else ()),
        ],
        folder,
        within=_LIMIT_S * SLOWNESS,
        measured=run.backend == "host" and not run.on_blocks,
        fresh=False,
        CROSSMEM_EMULATED_STATE=str(folder / "host"),
        **run.environment,
    )
    assert exit_code == 0, output[-5000:]
    found: dict[str, Any] = json.loads(report.read_text("utf-8"))["laws"]
    return found


@pytest.mark.parametrize(("run", "laws"), cases())
def test_every_law_holds(run: KitRun, laws: list[str], tmp_path: Path) -> None:
    found = outcomes(run, laws, tmp_path)

    assert set(found) == {one.law for one in kit_tests() if run.has(one)} & set(laws)
    # Some tests ask more than a pool has, of some laws all. Some need a device without streams. The
    # vendor's queues keep some laws of queues, and no others.
    needs_passed = set() if run.on_blocks or run.mechanism == "acltdt" else set(laws)
    if run.part == "streams":
        needs_passed &= set(TIMELINE_LAWS)
    wrong = {
        law: one
        for law, one in found.items()
        if one["failed"] or (law in needs_passed and not one["passed"])
    }
    assert wrong == {}


@pytest.mark.long
@pytest.mark.timeout(_LIMIT_S)
def test_the_core_holds_with_fences(tmp_path: Path) -> None:
    exit_code, output = run_kit(
        ["--pyargs", "crossmem.conformance", "--crossmem-core"],
        tmp_path,
        within=_LIMIT_S * SLOWNESS,
        fresh=True,
        CROSSMEM_BARRIER="fence",
    )

    assert exit_code == 0, output[-5000:]
    assert " passed" in output


def test_every_law_has_tests_in_the_core() -> None:
    assert {one.law for one in kit_tests() if one.is_core} == set(_ALL)
    assert len(kit_tests()) == sum(
        path.read_text("utf-8").count("\ndef test_") for path in KIT.glob("test_*.py")
    )


def test_every_test_of_the_kit_has_a_name_of_its_own() -> None:
    # The report names tests without their modules.
    assert len({one.name for one in kit_tests()}) == len(kit_tests())


def test_every_mechanism_is_tested_before_long() -> None:
    mechanisms = {(run.backend, run.mechanism) for run in RUNS}

    assert {(run.backend, run.mechanism) for run in RUNS if run.tier != "long"} == mechanisms
