# SPDX-License-Identifier: Apache-2.0
"""The thread that does what waits, where this process can have no more threads."""

import os
import subprocess
import sys

from programs import DEADLINE_S

_NO_THREAD = """
import threading
import crossmem

start = threading.Thread.start

def refuse(thread):
    raise RuntimeError("can't start new thread")

threading.Thread.start = refuse
try:
    crossmem.device("emulated:0")
except crossmem.DriverError as error:
    print(error)
threading.Thread.start = start
crossmem.device("emulated:0").allocate(1).free()
"""


def test_who_can_have_no_reaper_is_told_and_exits_in_peace() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _NO_THREAD],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
        env={**os.environ, "CROSSMEM_REAPER": "1"},
    )

    assert (done.returncode, done.stderr) == (0, "")
    for word in ("EAGAIN", "reaper", "ulimit -u"):
        assert word in done.stdout
