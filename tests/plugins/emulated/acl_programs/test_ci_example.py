# SPDX-License-Identifier: Apache-2.0
"""The files for CI that the documentation shows do what they say."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from crossmem.conformance.speed import SLOWNESS

EXAMPLES = Path(__file__).parents[4] / "docs" / "how-to"
DEADLINE_S = 60 * SLOWNESS
INSTALLS = "pip install "
HEADERS = ("acl.h", "acl_tdt_queue.h")
OURS = """
#pragma once
#include <stddef.h>
#include <stdint.h>
#include "types.h"
#include "functions.h"
"""


def steps(text: str) -> list[str]:
    """Return the commands of the job, but for those that install."""
    commands = re.findall(r"^ +- run: (.+)$", text, re.MULTILINE)
    return [one for one in commands if INSTALLS not in one]


def variables(text: str) -> dict[str, str]:
    """Return the environment that the job sets."""
    return dict(re.findall(r"^ +([A-Z_]+): (\S+)$", text, re.MULTILINE))


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize(
    ("page", "program", "result"),
    [
        ("test-without-npu", "sharing.c", "shared\n"),
        ("test-queues-without-npu", "queues.c", "handed over\n"),
    ],
)
def test_the_job_runs(
    headers: list[str], compiled: Path, tmp_path: Path, page: str, program: str, result: str
) -> None:
    text = (EXAMPLES / page / "ci.yml").read_text("utf-8")
    include = tmp_path / "vendor" / "torch_npu" / "include" / "third_party" / "acl" / "inc"
    ours = [Path(one.removeprefix("-I")) for one in headers if one.startswith("-I")]
    if len(ours) > 1:
        include.parent.mkdir(parents=True)
        include.symlink_to(ours[0])
    else:
        (include / "acl").mkdir(parents=True)
        for name in HEADERS:
            (include / "acl" / name).write_text('#include "ours.h"')
        (include / "acl" / "ours.h").write_text(OURS)
        for name in ("types.h", "functions.h"):
            shutil.copy(ours[0] / name, include / "acl")
    shutil.copy(EXAMPLES / page / program, tmp_path)
    environ = {name: one for name, one in os.environ.items() if "CROSSMEM" not in name}
    environ["XDG_CACHE_HOME"] = str(compiled / "cache")
    environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environ |= variables(text)
    printed = []
    for step in steps(text):
        done = subprocess.run(
            ["sh", "-e", "-c", step],
            cwd=tmp_path,
            env=environ,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )
        assert not done.returncode, (step, done.stderr)
        printed.append(done.stdout)

    assert printed == ["", "", result, result, "", ""]
