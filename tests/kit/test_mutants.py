# SPDX-License-Identifier: Apache-2.0
"""The kit is tested: it fails on crossmems that are broken on purpose, law by law."""

import functools
import importlib.util
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import crossmem.conformance

HERE = Path(__file__).parent
KIT = Path(crossmem.conformance.__file__).parent
LAWS = [f"c{number:02}" for number in range(1, 27)]

ALWAYS = 1

# A mutant that is found takes some seconds; one that hangs the kit is found too, but too late.
LIMIT_S = 300
LAST_S = 1000


@functools.cache
def load_mutants() -> Any:
    spec = importlib.util.spec_from_file_location("crossmem_mutants", HERE / "crossmem_mutants.py")
    assert spec is not None
    assert spec.loader is not None
    # The processes that the mutants break find it through PYTHONPATH.
    sys.path.insert(0, str(HERE))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.mutants_foreign


def names_of_mutants() -> list[str]:
    return list(load_mutants().MUTANTS)


def cases() -> list[Any]:
    """Return the mutants: some of each law for every run, and all of them for the long one."""
    found = Counter[str]()
    marked = []
    for name in names_of_mutants():
        found[name[:3]] += 1
        marks = [pytest.mark.long] if found[name[:3]] > ALWAYS else []
        marked.append(pytest.param(name, marks=marks))
    return marked


def find_tests(law: str) -> dict[Path, list[str]]:
    """Return the names of a law's tests by the module of the kit that they are in."""
    found = {
        path: re.findall(rf"^def (test_{law}_\w+)", path.read_text("utf-8"), re.MULTILINE)
        for path in sorted(KIT.glob("test_*.py"))
    }
    return {path: names for path, names in found.items() if names}


def run_kit(
    law: str, mutant: str, folder: Path, variables: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    """Run a law's tests in an environment in which crossmem is broken."""
    environ = {
        **variables,
        "CROSSMEM_PLUGINS": "crossmem_mutants,crossmem_foreign",
        "CROSSMEM_MUTANT": mutant,
        "PYTHONPATH": str(HERE),
    }
    # A run directory of its own; and what a broken crossmem runs through is not worth measuring.
    for variable in ("CROSSMEM_RUN_DIR", "COVERAGE_PROCESS_START", "COVERAGE_PROCESS_CONFIG"):
        environ.pop(variable, None)
    options = [
        "-c",
        os.devnull,
        "--rootdir",
        str(folder),
        "-p",
        "no:cacheprovider",
        "-q",
        "-rf",
        "-x",
    ]
    if mutant in load_mutants().FOREIGN:
        # Its exports are no descriptors, so not every test of the kit is for it.
        options += ["--crossmem-device", "foreign:0"]
        selected = f"test_{law}_ and foreign"
    else:
        # Tests of adoption come first by name, and would stop the run at what is not their point.
        selected = f"test_{law}_ and not foreign"
    return subprocess.run(
        [sys.executable, "-m", "pytest", *options, *find_tests(law), "-k", selected],
        check=False,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        cwd=folder,
        env=environ,
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


Outcomes = Callable[[str], subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session")
def outcomes(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Outcomes]:
    """Run the kit against the mutants that were selected, two at a time, and give what came out."""
    items: list[Any] = [one for one in request.session.items if one.path == Path(__file__)]
    wanted: list[str] = [
        item.callspec.params["mutant"]
        for item in items
        if "mutant" in getattr(item, "fixturenames", ())
    ]
    # Taken now: while the threads start processes, other tests change the environment.
    variables, folder_of = dict(os.environ), tmp_path_factory.mktemp
    with ThreadPoolExecutor(max_workers=2) as executor:
        futures: dict[str, Future[subprocess.CompletedProcess[str]]] = {
            name: executor.submit(run_kit, name[:3], name, folder_of("kit"), variables)
            for name in wanted
        }
        yield lambda name: futures[name].result()
        for future in futures.values():
            future.cancel()


@pytest.mark.parametrize("law", LAWS)
def test_every_law_has_tests_and_mutants(law: str) -> None:
    assert find_tests(law)
    assert [name for name in names_of_mutants() if name.startswith(f"{law}_")]


# Among the first tests, which conftest.py sees to: the mutants run from here on.
@pytest.mark.timeout(LIMIT_S + 20)
@pytest.mark.usefixtures("outcomes")
def test_the_kit_passes_where_nothing_is_broken(tmp_path: Path) -> None:
    done = run_kit("c02", "", tmp_path, os.environ)

    assert done.returncode == 0, done.stdout + done.stderr


# Among the last.
@pytest.mark.timeout(LAST_S)
@pytest.mark.parametrize("mutant", cases())
def test_the_kit_notices(mutant: str, outcomes: Outcomes) -> None:
    done = outcomes(mutant)
    if done.returncode == 0:
        # Plugins that cannot be loaded break nothing: say so where a mutant's target was renamed.
        make_mutant(mutant)

    # 1: tests failed. It must be a test of that law, and not what all tests need to begin.
    assert done.returncode == 1, done.stdout[-4000:] + done.stderr[-4000:]
    assert re.search(rf"^FAILED .*::test_{mutant[:3]}_", done.stdout, re.MULTILINE)
