# SPDX-License-Identifier: Apache-2.0
"""Exceptions that signal handlers raise leave nothing behind, at whatever place (law C30)."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import measuring
import pytest

from crossmem.conformance.speed import SLOWNESS

SUPPORT: Final = Path(__file__).parents[1] / "support"
MECHANISMS: Final = [
    ("host", "memfd"),
    ("emulated", "memfd"),
    ("hip", "legacy"),
    ("hip", "vmm"),
    ("ascend", "shareable"),
    ("ascend", "key"),
    ("ascend", "acltdt"),
]
STRIDE: Final = 120
WITHIN_S: Final = 110.0 * SLOWNESS
WHOLE_WITHIN_S: Final = 30 * 60.0 * SLOWNESS
# The locks that assert their order are Python, where signal handlers run too.
CHANGES: Final = {**measuring.UNMEASURED, "CROSSMEM_TEST_LOCK_ORDER": None}


def run(program: str, *arguments: str, within_s: float) -> str:
    """Run a program to its end; return what it printed."""
    done = subprocess.run(
        [sys.executable, str(SUPPORT / program), *arguments],
        env={name: value for name, value in os.environ.items() if name not in CHANGES},
        timeout=within_s,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.ci
@pytest.mark.parametrize(("backend", "mechanism"), MECHANISMS)
def test_some_places_of_every_operation(backend: str, mechanism: str) -> None:
    printed = run("interrupted.py", backend, mechanism, str(STRIDE), within_s=WITHIN_S)

    assert printed.endswith(" interrupts, 0 left something behind\n")


@pytest.mark.long
@pytest.mark.timeout(WHOLE_WITHIN_S)
@pytest.mark.parametrize(("backend", "mechanism"), MECHANISMS)
def test_every_place_of_every_operation(backend: str, mechanism: str) -> None:
    printed = run("interrupted.py", backend, mechanism, within_s=WHOLE_WITHIN_S)

    assert printed.endswith(" interrupts, 0 left something behind\n")


@pytest.mark.parametrize(
    "count",
    [pytest.param(3000, marks=pytest.mark.ci), pytest.param(10000, marks=pytest.mark.long)],
)
def test_alarms_at_random_moments(count: int) -> None:
    printed = run("alarms.py", str(count), within_s=WITHIN_S)

    assert f"{count} alarms raised, 0 times something was left behind" in printed


@pytest.mark.parametrize("count", [1000, pytest.param(100_000, marks=pytest.mark.long)])
def test_alarms_in_a_queue_lose_no_item(count: int) -> None:
    printed = run("queue_alarms.py", str(count), within_s=WITHIN_S)

    assert f" alarms raised, 0 of {count} items are wrong" in printed
