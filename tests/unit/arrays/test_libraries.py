# SPDX-License-Identifier: Apache-2.0
"""Libraries that one thread imports while others share arrays of another one."""

import subprocess
import sys
from pathlib import Path

import pytest

from crossmem.conformance.speed import SLOWNESS

pytest.importorskip("numpy")

# A library whose import is under way: it has none of its classes yet, and takes its time.
HALF = """
import threading
begun, go_on = threading.Event(), threading.Event()
begun.set()
assert go_on.wait(60)
class Tensor: pass
class dtype: pass
"""

SCRIPT = """
import sys, threading
import numpy, crossmem
crossmem.install()
def load():
    import torch
thread = threading.Thread(target=load, daemon=True)
thread.start()
while not hasattr(sys.modules.get("torch"), "go_on"):
    pass
with crossmem.share([numpy.arange(3), crossmem.empty(2, "int8")], copy="allow") as shared:
    print(crossmem.receive(shared)[0].tolist(), crossmem.empty(1, numpy.float32).dtype)
try:
    crossmem.share([{1, 2}])
except crossmem.UnsupportedError as error:
    print(error.message)
sys.modules["torch"].go_on.set()
thread.join()
"""


def test_a_library_that_is_being_imported_has_no_arrays_yet(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text(HALF)
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=100 * SLOWNESS,
    )

    assert done.stderr == ""
    assert done.stdout == "[0, 1, 2] float32\nx[0] is a builtins.set, which cannot be shared\n"
