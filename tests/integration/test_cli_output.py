# SPDX-License-Identifier: Apache-2.0
"""What the command does if its output cannot be written, or has another encoding."""

import io
import subprocess
import sys
from pathlib import Path

import pytest

from crossmem.cli.render import seconds_text
from crossmem.conformance.speed import SLOWNESS

_DEADLINE_S = 110 * SLOWNESS


@pytest.mark.parametrize("command", ["devices", "devices --json"])
def test_a_full_disk_is_no_wrong_result(command: str) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "crossmem", *command.split()],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=_DEADLINE_S,
            check=False,
        )

    assert done.returncode == 3
    assert done.stderr == "error: the output cannot be written: No space left on device\n"


def test_durations_are_written_in_the_encoding_of_the_output(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shown = []
    for encoding in ("utf-8", "ascii"):
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding))
            shown.append(seconds_text(4e-6))

    assert shown == ["4 µs", "4 us"]
