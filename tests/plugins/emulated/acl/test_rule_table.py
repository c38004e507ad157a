# SPDX-License-Identifier: Apache-2.0
"""The page of ACL's rules, the tests and the emulation agree."""

import ast
import re
from pathlib import Path

import crossmem_emulated.acl

HERE = Path(__file__).parent
PAGE = Path(__file__).parents[4] / "docs" / "reference" / "acl-rules.md"
SOURCE = Path(crossmem_emulated.acl.__file__).parent
PLAIN = [f"ACL-E{number}" for number in range(1, 46)]
QUEUES = [f"ACL-Q{number}" for number in range(1, 42)]
BUFFERS = [f"ACL-B{number}" for number in range(1, 22)]
FURTHER = {"ACL-E1": ["ACL-E1b", "ACL-E1c"], "ACL-E14": ["ACL-E14b", "ACL-E14c"]}
OWN = ["ACL-X1", "ACL-X3", "ACL-X4", "ACL-X5", "ACL-X6", "ACL-X7", "ACL-X8"]
RULES = [rule for plain in PLAIN for rule in (plain, *FURTHER.get(plain, []))]
RULES += OWN + QUEUES + BUFFERS
RULE = re.compile(r"ACL-[BEQX]\d+[a-z]?")


def sources_by_name() -> dict[str, str]:
    """Return the source of each test of these folders that a rule gives its name."""
    found: dict[str, str] = {}
    for path in sorted(HERE.glob("test_*.py")):
        text = path.read_text("utf-8")
        for node in ast.parse(text).body:
            if isinstance(node, ast.FunctionDef) and re.match(r"test_[beqx]\d", node.name):
                first = min([node.lineno, *(one.lineno for one in node.decorator_list)])
                found[node.name] = "\n".join(text.splitlines()[first - 1 : node.end_lineno])
    return found


def rule_of(test: str) -> str:
    identifier = test.split("_")[1]
    return f"ACL-{identifier[0].upper()}{identifier[1:]}"


def table(heading: str) -> dict[str, list[str]]:
    """Return the cells of each rule's row in a table of the page."""
    section = PAGE.read_text("utf-8").partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (ACL-\w+) \| (.+) \|$", section, re.MULTILINE)
    return {rule: cells.split(" | ") for rule, cells in rows}


def test_the_page_has_every_rule_in_order() -> None:
    assert list(table("The rules")) == list(table("The tests")) == RULES


def test_every_rule_has_tests_and_the_page_names_them() -> None:
    tests = sorted(sources_by_name())
    named = {
        rule: sorted(re.findall(r"`(\w+)`", cells[0])) for rule, cells in table("The tests").items()
    }

    assert named == {rule: [one for one in tests if rule_of(one) == rule] for rule in RULES}
    assert [rule for rule, names in named.items() if not names] == []


def test_recorded_rules_are_those_that_the_emulation_names() -> None:
    sources = "".join(path.read_text("utf-8") for path in SOURCE.rglob("*.py"))
    recorded = {rule for rule, cells in table("The rules").items() if cells[-1].startswith("yes")}

    assert recorded == set(RULE.findall(sources))


def test_answers_of_the_page_are_tested() -> None:
    """Every code of a row is in a test of the rule; those of several rules are in their own."""
    rules, tests = table("The rules"), sources_by_name()
    untested: dict[str, set[str]] = {}
    for rule in RULES:
        codes = set(re.findall(r"\b\d{6}\b", " ".join(rules[rule][1:-1])))
        sources = [source for name, source in tests.items() if rule_of(name) == rule]
        untested[rule] = codes - set(re.findall(r"\b\d{6}\b", "".join(sources)))

    assert {rule: codes for rule, codes in untested.items() if codes} == {}
