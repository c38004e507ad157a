# SPDX-License-Identifier: Apache-2.0
"""The frameworks are imported by those who ask for their objects, and by nobody else."""

import subprocess
import sys

from crossmem.conformance.speed import SLOWNESS

FRAMEWORKS = ("numpy", "torch", "cupy", "ray", "ml_dtypes")


def run(program: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        capture_output=True,
        text=True,
        timeout=60 * SLOWNESS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_importing_crossmem_imports_no_framework() -> None:
    program = f"import crossmem, sys; print([n for n in {FRAMEWORKS} if n in sys.modules])"

    assert run(program) == "[]"


def test_sharing_memory_and_plain_values_imports_no_framework() -> None:
    program = f"""
import sys
for name in {FRAMEWORKS}:
    sys.modules[name] = None
import crossmem

with crossmem.device("emulated:0").allocate(64) as memory:
    memory.view()[0] = 1
    with crossmem.share({{"plain": [1, "text", (2.5, None)]}}) as shared:
        shared.publish()
        print(crossmem.receive(shared.to_bytes()))
    try:
        memory.as_array()
    except crossmem.UnsupportedError as error:
        print(type(error).__name__)
"""
    assert run(program).splitlines() == ["{'plain': [1, 'text', (2.5, None)]}", "UnsupportedError"]
