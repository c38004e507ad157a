# SPDX-License-Identifier: Apache-2.0
"""The laws are all explained, and the checklist names tests that exist."""

import re
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import kit_runs

import crossmem.conformance
from crossmem.conformance.report import LAWS, POOL_LAWS, QUEUE_LAWS, TIMELINE_LAWS
from crossmem.locks import _DRIVERS_RUN_UNDER, Rank

GetPage = Callable[[str], Any]

TESTS = Path(__file__).parents[1]
DOCS = TESTS.parent / "docs"
CORE = Path(crossmem.__file__).parent
KIT = Path(crossmem.conformance.__file__).parent
STATES = {"covered", "later", "argued away"}


def names_of_tests() -> set[str]:
    files: Iterator[Path] = (path for root in (TESTS, KIT) for path in root.rglob("test_*.py"))
    return {
        name
        for path in files
        for name in re.findall(r"^\s*def (test_\w+)", path.read_text("utf-8"), re.MULTILINE)
    }


def rows_of(checklist: str) -> list[list[str]]:
    lines = re.findall(r"^\| \d+ \|.*$", checklist, re.MULTILINE)
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_the_tables_of_the_kits_runs_are_what_it_runs() -> None:
    _, found, _ = kit_runs.split(kit_runs.PAGE.read_text("utf-8"))

    # `python tests/support/kit_runs.py` writes them.
    assert found.strip() == kit_runs.tables().strip()


def test_every_law_has_a_row_and_a_section(page: GetPage) -> None:
    contract = page("explanation/contract.md")
    rows = re.findall(r"^\| \[(C\d+)\]\(#[\w-]+\) \| ([\w -]+) \|", contract.text, re.MULTILINE)
    sections = [title.split(": ") for title in contract.headings[2] if ": " in title]

    assert [law for law, _ in rows] == list(LAWS)
    assert [tuple(one) for one in sections] == rows


def test_every_law_of_pools_has_a_row(page: GetPage) -> None:
    contract = page("explanation/contract.md")

    assert re.findall(r"^\| (P\d+) \| [A-Z]", contract.text, re.MULTILINE) == list(POOL_LAWS)


def test_every_law_of_timelines_has_a_row(page: GetPage) -> None:
    contract = page("explanation/contract.md")

    assert re.findall(r"^\| (L\d+) \| [A-Z]", contract.text, re.MULTILINE) == list(TIMELINE_LAWS)


def test_every_law_of_queues_has_a_row(page: GetPage) -> None:
    contract = page("explanation/contract.md")

    assert re.findall(r"^\| (Q\d+) \| [A-Z]", contract.text, re.MULTILINE) == list(QUEUE_LAWS)


def test_tests_that_are_named_exist(pages: list[Any]) -> None:
    known = names_of_tests()
    named = {
        name: str(one.path)
        for one in pages
        for name in re.findall(r"`(test_[a-z0-9_]+)`", one.text)
    }

    assert {name: path for name, path in named.items() if name not in known} == {}


def test_the_checklist_is_complete(page: GetPage) -> None:
    rows = rows_of(page("explanation/checklist.md").text)

    assert [int(row[0]) for row in rows] == list(range(1, 51))
    for number, _behaviour, state, where in rows:
        assert state in STATES, number
        assert where, number


def test_what_is_covered_names_a_test(page: GetPage) -> None:
    # The one row without: that tests have time limits is a matter of the kit itself.
    without = [
        row[0]
        for row in rows_of(page("explanation/checklist.md").text)
        if row[2] == "covered" and "`test_" not in row[3]
    ]

    assert without == ["48"]


def test_the_picture_shows_the_packages_that_the_contracts_name(page: GetPage) -> None:
    config = tomllib.loads((DOCS.parent / "pyproject.toml").read_text("utf-8"))
    contracts = {one["name"]: one for one in config["tool"]["importlinter"]["contracts"]}
    layers = [
        name
        for title in ("In core, lower layers never import higher ones", "Sharing goes one way")
        for layer in contracts[title]["layers"]
        for name in layer.split(" | ")
    ]
    picture = (DOCS / "explanation" / "architecture.svg").read_text("utf-8")
    drawn = re.findall(r'font-weight="600">(\w+)<', picture)

    assert sorted(drawn) == sorted(layers)
    assert "](architecture.svg)" in page("explanation/architecture.md").text


def test_the_lock_order_is_the_codes(page: GetPage) -> None:
    text = page("explanation/architecture.md").text
    rows = re.findall(r"^\| `([A-Z]+)` \| .+ \| (yes|no) \|$", text, re.MULTILINE)

    assert rows == [(one.name, "yes" if one in _DRIVERS_RUN_UNDER else "no") for one in Rank]


def test_modules_and_classes_of_the_architecture_exist(page: GetPage) -> None:
    text = page("explanation/architecture.md").text
    sources = {path.relative_to(CORE).as_posix(): path.read_text() for path in CORE.rglob("*.py")}
    classes = {name for text in sources.values() for name in re.findall(r"class (\w+)", text)}
    classes |= {"Condition"}

    for name in re.findall(r"`((?:[a-z_]+/)+[a-z_]+\.py)`", text):
        assert name.removeprefix("crossmem/") in sources or (DOCS.parent / name).exists(), name
    for name in re.findall(r"`([A-Z][a-z]\w+)`", text):
        assert name in classes, name
