# SPDX-License-Identifier: Apache-2.0
"""The page of HIP's rules, the tests and the emulation agree."""

import ast
import re
from pathlib import Path
from typing import get_args, get_type_hints

import crossmem_emulated.hip
from crossmem_emulated.hip import PROFILES, Quirk
from crossmem_emulated.options import Options

HERE = Path(__file__).parent
PAGE = Path(__file__).parents[4] / "docs" / "reference" / "hip-rules.md"
SOURCE = Path(crossmem_emulated.hip.__file__).parent
KINDS = {"E": 26, "V": 13, "X": 13}
RULES = [f"HIP-{kind}{number + 1}" for kind, count in KINDS.items() for number in range(count)]
CASES = [f"T{number}" for number in range(1, 17)]
RECORDED = re.compile(r'"(HIP-[EVX]\d+)"')


def sources_by_name() -> dict[str, str]:
    """Return the source of each test of this folder that a rule or case gives its name."""
    found: dict[str, str] = {}
    for path in sorted(HERE.glob("test_*.py")):
        text = path.read_text("utf-8")
        for node in ast.parse(text).body:
            if isinstance(node, ast.FunctionDef) and re.match(r"test_[etvx]\d", node.name):
                first = min([node.lineno, *(one.lineno for one in node.decorator_list)])
                found[node.name] = "\n".join(text.splitlines()[first - 1 : node.end_lineno])
    return found


def rule_of(test: str) -> str:
    identifier = test.split("_")[1].upper()
    return identifier if identifier.startswith("T") else f"HIP-{identifier}"


def table(heading: str) -> dict[str, list[str]]:
    """Return the cells of each row in a table of the page, by the first of them."""
    section = PAGE.read_text("utf-8").partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (HIP-\w+|T\d+|`[\w-]+`) \| (.+) \|$", section, re.MULTILINE)
    return {name.strip("`"): cells.split(" | ") for name, cells in rows}


def test_the_page_has_every_rule_and_case_in_order() -> None:
    assert list(table("The rules")) == list(table("The tests")) == RULES
    assert list(table("AMD's own cases")) == CASES


def test_every_rule_and_case_has_tests_and_the_page_names_them() -> None:
    tests = list(sources_by_name())
    tables = {**table("The tests"), **table("AMD's own cases")}
    named = {rule: re.findall(r"`(\w+)`", cells[-1]) for rule, cells in tables.items()}

    assert named == {rule: [one for one in tests if rule_of(one) == rule] for rule in RULES + CASES}
    assert [rule for rule, names in named.items() if not names] == []


def test_recorded_rules_are_those_that_the_emulation_names() -> None:
    sources = "".join(path.read_text("utf-8") for path in SOURCE.glob("*.py"))
    # How a rule is written is shown in a docstring, too.
    recorded = {rule for rule, cells in table("The rules").items() if cells[-1] == "yes"}

    assert recorded == set(RECORDED.findall(sources))


def test_the_page_names_every_profile_and_quirk() -> None:
    text = PAGE.read_text("utf-8")
    (kind, *_) = get_args(get_type_hints(Options)["hip_quirks"])
    quirks = {value for name, value in vars(Quirk).items() if name.isupper()}

    assert set(table("What releases get wrong")) == quirks == set(get_args(kind))
    assert [name for name in PROFILES if f"`{name}`" not in text] == []


def test_answers_of_the_page_are_tested() -> None:
    """Every code of a row that is not 0 or 1 is in a test of the rule."""
    rules, tests = table("The rules"), sources_by_name()
    untested: dict[str, set[str]] = {}
    for rule in RULES:
        cells = re.sub(r"ROCm \d+", "", " ".join(rules[rule][1:-1]))
        codes = set(re.findall(r"(?<![\w.-])\d{2,3}\b", cells))
        sources = [source for name, source in tests.items() if rule_of(name) == rule]
        untested[rule] = codes - set(re.findall(r"\b\d{2,3}\b", "".join(sources)))

    assert {rule: codes for rule, codes in untested.items() if codes} == {}
