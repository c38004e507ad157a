# SPDX-License-Identifier: Apache-2.0
"""The questions to devices, asked of the emulation: each one is answered as its rules say."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from crossmem.conformance.speed import SLOWNESS

SCRIPT = Path(__file__).with_name("questions.py")
PAGE = Path(__file__).parents[2] / "docs/hardware.md"
LIMIT_S = 300
"""For a few seconds of work; the machine may have more to do."""
DEADLINE_S = (LIMIT_S - 10) * SLOWNESS


def answers_of(profile: str) -> dict[str, str]:
    done = subprocess.run(
        [sys.executable, SCRIPT, "--profile", profile],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
        env={name: one for name, one in os.environ.items() if not name.startswith("COVERAGE_")},
    )
    assert done.returncode == 0, done.stderr
    answers: dict[str, str] = json.loads(done.stdout)
    # It depends on rights, and the emulation does not see a namespace.
    del answers["another-namespace"]
    # How long that takes says something of a device; here, only how busy the machine is.
    answers["opening-what-died"] = answers["opening-what-died"].partition(";")[0]
    return answers


@pytest.mark.ci
@pytest.mark.timeout(LIMIT_S)
def test_cuda() -> None:
    answers = answers_of("cuda")

    assert answers == {
        "interior-address": "the base",
        "other-flags": "1, 1, 0",
        "bad-handles": "1, 1, 1",
        "second-open": "the same; closing: 0, 0, 1",
        "own-export": "201",
        "closing-what-is-owned": "1",
        "freeing-an-import": "1",
        "opening-what-was-freed": "0; 1",
        "reading-what-was-freed": "yes",
        "reading-what-died": "yes",
        "opening-what-died": "400",
        "same-address-again": "yes",
        "same-memory-again": "yes",
        "neighbours": "yes",
        "whole-blocks": "no",
        "attributes-of-an-import": "2, 0",
        "managed-memory": "1",
        "pooled-memory": "1",
        "forked-child": "0, 3, 3",
        "another-device": "yes",
        "capture-elsewhere": "900, 900; ending it: 901",
        "virtual-memory": "801; 999",
        "virtual-survival": "yes; yes",
        "virtual-access": "1",
    }


@pytest.mark.long
@pytest.mark.timeout(LIMIT_S)
def test_amd() -> None:
    answers = answers_of("clr26")

    assert answers["other-flags"] == "1, 1, 1"
    assert answers["opening-what-died"] == "17"
    assert answers["pooled-memory"].startswith("HIP does not support")


def test_the_page_has_every_question() -> None:
    names = re.findall(r"^def (\w+)\(start: Start\)", SCRIPT.read_text("utf-8"), re.MULTILINE)
    page = PAGE.read_text("utf-8").partition("| question | what depends on it |")[2]
    listed = re.findall(r"^\| `([a-z-]+)` \|", page, re.MULTILINE)

    assert listed == [name.replace("_", "-") for name in names]
