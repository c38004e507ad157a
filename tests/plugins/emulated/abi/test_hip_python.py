# SPDX-License-Identifier: Apache-2.0
"""AMD's own binding for Python, as it is installed, on the emulated library."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from crossmem.conformance.speed import SLOWNESS

DEADLINE_S = 60 * SLOWNESS
PROGRAM = """
import numpy
from hip import hip

assert hip.hipGetDeviceCount() == (0, 2)
error, first = hip.hipMalloc(16)
error, second = hip.hipMalloc(16)
error, handle = hip.hipIpcGetMemHandle(first)
assert error == 0 and len(handle.reserved) == 64
error, pointer = hip.hipIpcOpenMemHandle(handle, hip.hipIpcMemLazyEnablePeerAccess)
assert error == hip.hipError_t.hipErrorInvalidContext
kinds = hip.hipMemcpyKind
source, target = numpy.arange(16, dtype="u1"), numpy.zeros(16, "u1")
assert hip.hipMemcpy(first, source, 16, kinds.hipMemcpyHostToDevice)[0] == 0
assert hip.hipMemcpy(second, first, 16, kinds.hipMemcpyDeviceToDevice)[0] == 0
assert hip.hipMemcpy(target, second, 16, kinds.hipMemcpyDeviceToHost)[0] == 0
assert (source == target).all()
error, properties = hip.hipGetDeviceProperties(0)
assert error == 0 and properties.gcnArchName.startswith("gfx")
assert hip.hipFree(first)[0] == hip.hipFree(second)[0] == 0
assert hip.hipFree(first)[0] == hip.hipError_t.hipErrorInvalidValue
"""


@pytest.mark.skipif(find_spec("rocm") is None, reason="needs the package hip-python")
def test_unmodified(tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, "-m", "crossmem", "emulate", "hip", "--", sys.executable, str(path)],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )

    assert done.returncode == 0, done.stderr
