# SPDX-License-Identifier: Apache-2.0
"""The kit is tested: it fails on crossmems that are broken on purpose, law by law."""

import functools
import importlib.util
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from kit_runs import run_kit

import crossmem.conformance
from crossmem.conformance.report import LAWS as LAWS_OF_ALL
from crossmem.conformance.report import POOL_LAWS, QUEUE_LAWS, TIMELINE_LAWS
from crossmem.conformance.speed import SLOWNESS

HERE = Path(__file__).parent
KIT = Path(crossmem.conformance.__file__).parent
LAWS = [
    f"{law[0].lower()}{int(law[1:]):02}"
    for law in (*LAWS_OF_ALL, *POOL_LAWS, *TIMELINE_LAWS, *QUEUE_LAWS)
]

# Found when a wait of 40 s has ended, so that .ci/run has other mutants of these laws.
LATE = {
    *("l03_a_waiting_host_does_not_look_at_the_owner", "l03_a_closed_timeline_is_waited_for"),
    *("l04_nobody_watches", "l04_the_void_value_is_never_written"),
}

# A mutant that is found takes some seconds; one that hangs the kit is found too, but too late.
LIMIT_S = 300 * SLOWNESS


@functools.cache
def load_mutants() -> Any:
    spec = importlib.util.spec_from_file_location("crossmem_mutants", HERE / "crossmem_mutants.py")
    assert spec is not None
    assert spec.loader is not None
    # The processes that the mutants break find it through PYTHONPATH.
    sys.path.insert(0, str(HERE))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return sys.modules["mutation"]


def names_of_mutants() -> list[str]:
    return list(load_mutants().MUTANTS)


def cases() -> list[Any]:
    """Return the mutants: one of each law for ``.ci/run``, the others for the long run."""
    found = Counter[str]()
    marked = []
    later = LATE | load_mutants().VENDOR
    for name in names_of_mutants():
        found[name[:3]] += name not in later
        is_first = found[name[:3]] == 1 and name not in later
        tier = pytest.mark.ci if is_first else pytest.mark.long
        marked.append(pytest.param(name, marks=tier))
    return marked


def find_tests(law: str) -> dict[Path, list[str]]:
    """Return the names of a law's tests by the module of the kit that they are in."""
    found = {
        path: re.findall(rf"^def (test_{law}_\w+)", path.read_text("utf-8"), re.MULTILINE)
        for path in sorted(KIT.glob("test_*.py"))
    }
    return {path: names for path, names in found.items() if names}


def kit_against(mutant: str, folder: Path, law: str) -> tuple[int, str]:
    """Run a law's tests in a process in which crossmem is broken; return exit code and output."""
    options = ["-rf", "-x"]
    slow = None
    variables: dict[str, Any] = {}
    if mutant in load_mutants().FOREIGN:
        # Its exports are no descriptors, so not every test of the kit is for it.
        options += ["--crossmem-device", "foreign:0", "--crossmem-fork-peers"]
        selected = f"test_{law}_ and foreign"
    elif mutant in load_mutants().TIMELINES:
        options += ["--crossmem-device", "hip:0", "--crossmem-runtime", "emulated"]
        of_streams = "test_timelines or test_hand_over or test_queues"
        selected = f"test_{law}_ and ({of_streams})"
        slow = "1"
    elif mutant in load_mutants().VENDOR:
        options += ["--crossmem-device", "ascend:0", "--crossmem-runtime", "emulated"]
        options += ["--crossmem-mechanism", "acltdt"]
        selected = f"test_{law}_ and test_queues"
        variables = {
            "CROSSMEM_EMULATED_ACL_PROFILE": "310b-rc",
            "CROSSMEM_EMULATED_ACL_GROUP": "mutants",
            "SHAREGROUP_PRECONFIG": "1",
        }
    else:
        # The mutants are of a driver that has two devices.
        options += ["--crossmem-device", "emulated:0"]
        # Tests of adoption come first by name, and would stop the run at what is not their point.
        selected = f"test_{law}_ and not foreign"
    return run_kit(
        [*options, *map(str, find_tests(law)), "-k", selected],
        folder,
        within=LIMIT_S,
        CROSSMEM_PLUGINS="crossmem_mutants,crossmem_foreign",
        CROSSMEM_MUTANT=mutant,
        PYTHONPATH=str(HERE),
        CROSSMEM_EMULATED_SLOW_STREAMS=slow,
        **variables,
    )


def make_mutant(mutant: str) -> None:
    """Check that the mutant can be made at all."""
    made = subprocess.run(
        [sys.executable, "-c", "import crossmem_mutants"],
        check=False,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        env={**os.environ, "CROSSMEM_MUTANT": mutant, "PYTHONPATH": str(HERE)},
    )

    assert made.returncode == 0, made.stderr


@pytest.mark.parametrize("law", LAWS)
def test_every_law_has_tests_and_mutants(law: str) -> None:
    assert find_tests(law)
    assert [name for name in names_of_mutants() if name.startswith(f"{law}_")]


def test_the_kit_passes_where_nothing_is_broken(tmp_path: Path) -> None:
    exit_code, output = kit_against("", tmp_path, "c02")

    assert exit_code == 0, output


@pytest.mark.timeout(320)
@pytest.mark.parametrize("mutant", cases())
def test_the_kit_notices(mutant: str, tmp_path: Path) -> None:
    exit_code, output = kit_against(mutant, tmp_path, mutant[:3])
    if exit_code == 0:
        # Plugins that cannot be loaded break nothing: say so where a mutant's target was renamed.
        make_mutant(mutant)

    # 1: tests failed. It must be a test of that law, and not what all tests need to begin.
    assert exit_code == 1, output[-4000:]
    law = mutant[:3]
    # The emulation's journal can tell more than the test: it is read at the end of the test.
    noticed = rf"^FAILED .*::test_{law}_|^_+ ERROR at teardown of test_{law}_"
    assert re.search(noticed, output, re.MULTILINE)
