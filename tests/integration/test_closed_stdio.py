# SPDX-License-Identifier: Apache-2.0
"""A program whose standard streams are closed: crossmem uses none of their descriptors."""

import subprocess
import sys
from pathlib import Path

import pytest

from crossmem.conformance.speed import SLOWNESS

PROGRAM = """
import ctypes, os, sys
import crossmem
with crossmem.device("host").allocate(4096) as memory, crossmem.device("host").queue(2, 64):
    memory.write(b"weights")
    memory.export()
    # As a C library does that warns.
    ctypes.CDLL(None).perror(b"libfoo")
    # As a daemon does that closed its streams at first.
    for number in range(3):
        os.dup2(os.open(os.devnull, os.O_RDWR), number)
    with crossmem.attach(memory.export()) as mapping, open(sys.argv[1], "wb") as result:
        result.write(mapping.read(7))
"""


@pytest.mark.parametrize("closed", ["2>&-", "0<&- 1>&- 2>&-"])
def test_closed_streams_are_no_memory(closed: str, tmp_path: Path) -> None:
    result = tmp_path / "result"
    done = subprocess.run(
        ["/bin/sh", "-c", f'exec "$0" -c "$1" "$2" {closed}', sys.executable, PROGRAM, result],
        timeout=60 * SLOWNESS,
        check=False,
    )

    assert done.returncode == 0
    assert result.read_bytes() == b"weights"
