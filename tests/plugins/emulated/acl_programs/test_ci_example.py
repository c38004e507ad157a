# SPDX-License-Identifier: Apache-2.0
"""The file for CI that the documentation shows does what it says."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from crossmem.conformance.speed import SLOWNESS

EXAMPLE = Path(__file__).parents[4] / "docs" / "how-to" / "test-without-npu"
DEADLINE_S = 60 * SLOWNESS
INSTALLS = "pip install "
OURS = """
#include <stddef.h>
#include <stdint.h>
#include "types.h"
#include "functions.h"
"""


def steps() -> list[str]:
    """Return the commands of the job, but for those that install."""
    text = (EXAMPLE / "ci.yml").read_text("utf-8")
    commands = re.findall(r"^ +- run: (.+)$", text, re.MULTILINE)
    return [one for one in commands if INSTALLS not in one]


@pytest.mark.usefixtures("library")
def test_the_job_runs(headers: list[str], compiled: Path, tmp_path: Path) -> None:
    include = tmp_path / "vendor" / "torch_npu" / "include" / "third_party" / "acl" / "inc"
    ours = [Path(one.removeprefix("-I")) for one in headers if one.startswith("-I")]
    if len(ours) > 1:
        include.parent.mkdir(parents=True)
        include.symlink_to(ours[0])
    else:
        (include / "acl").mkdir(parents=True)
        (include / "acl" / "acl.h").write_text(OURS)
        for name in ("types.h", "functions.h"):
            shutil.copy(ours[0] / name, include / "acl")
    shutil.copy(EXAMPLE / "sharing.c", tmp_path)
    environ = {name: text for name, text in os.environ.items() if "CROSSMEM" not in name}
    environ["XDG_CACHE_HOME"] = str(compiled / "cache")
    environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    printed = []
    for step in steps():
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

    assert printed == ["", "", "shared\n", "shared\n", "", ""]
