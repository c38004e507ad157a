# SPDX-License-Identifier: Apache-2.0
"""Memory is not taken away while the device's work cannot be waited for (C9)."""

from pathlib import Path

import pytest
from programs import script

import crossmem

SCRIPT = """
import sys
import crossmem

case, blob = sys.argv[1], bytes.fromhex(sys.argv[2])
device = crossmem.device("emulated:0")
driver, calls, state = device.driver, [], {"captured": True, "broken": False}

def record(name):
    inner = getattr(driver, name)
    def call(*arguments):
        calls.append(name)
        return inner(*arguments)
    setattr(driver, name, call)

def synchronize(ordinal):
    calls.append("synchronize")
    if state["captured"]:
        raise crossmem.BusyError("a graph is being captured")
    if state["broken"]:
        raise crossmem.DriverError("the work has failed")

driver.synchronize = synchronize
for name in ("unmap", "unmap_at", "free"):
    record(name)

if case == "attached":
    end = crossmem.attach(blob).unmap
elif case == "mapped":
    imported = crossmem.import_handle(blob)
    end = imported.map().unmap
elif case == "allocated":
    end = device.allocate(5000).free
else:
    imported = crossmem.import_handle(blob)
    addresses = device.reserve(imported.nbytes)
    end = addresses.map(imported, at=0).unmap
try:
    end()
except crossmem.BusyError as error:
    print(error.message)
print(*calls)
calls.clear()
crossmem.collect()
print(*calls)
calls.clear()
state["captured"] = False
state["broken"] = "broken" in sys.argv
try:
    imported.close() if case == "mapped" else crossmem.collect()
except crossmem.DriverError as error:
    print(error.message)
# After a failure, one call more goes on.
crossmem.collect()
print(*calls)
"""


@pytest.mark.parametrize("fault", ["", "broken"])
@pytest.mark.parametrize(
    ("case", "release"),
    [("attached", "unmap"), ("mapped", "unmap"), ("allocated", "free"), ("piece", "unmap_at")],
)
def test_memory_waits_for_work_that_is_captured(
    tmp_path: Path, case: str, release: str, fault: str
) -> None:
    program = tmp_path / "program.py"
    program.write_text(SCRIPT)
    with crossmem.device("emulated:0").allocate(5000) as allocation:
        done = script(program, case, allocation.export().to_bytes().hex(), fault)
        assert done.returncode == 0, done.stderr
        told, at_first, meanwhile, *_, at_last = done.stdout.splitlines()

    assert told == "a graph is being captured"
    assert set(at_first.split()) == {"synchronize"}
    assert set(meanwhile.split()) == {"synchronize"}
    # Work that has failed is over.
    assert at_last.split() == ["synchronize", release]
