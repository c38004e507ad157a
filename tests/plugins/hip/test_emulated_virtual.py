# SPDX-License-Identifier: Apache-2.0
"""Mechanism ``vmm`` on the emulated machine: every edition, and what frameworks do with it.

The conformance kit runs there too (`tox -e conformance-hip`); here is what it cannot ask for.
"""

from pathlib import Path
from typing import Any, cast

import pytest
from emulated_sharing import attach, contents, export, free, mapped_by, sharing, unmap, violations
from programs import run_script

import crossmem
from crossmem.conformance.servers import preload
from crossmem_emulated.hip import Runtime
from crossmem_emulated.options import Options
from crossmem_hip.driver import GpuDriver
from crossmem_hip.family import CUDA, HIP

preload("crossmem_emulated.hip", "crossmem_hip.driver")

MIB = 1 << 20
CHUNK = 2 * MIB
EDITIONS = [("hip", "documented"), ("hip", "clr24"), ("hip", "clr26"), ("cuda", "cuda")]

FRAMEWORK = """
import subprocess, sys, crossmem
script = sys.argv[1]
device = crossmem.device("cuda:0", runtime="emulated", mechanism="vmm")
runtime, chunk = device.driver._vendor.rt, 2 << 20
# A segment that grew: chunks of their own handles, which are released as soon as they are mapped.
segment = runtime.memAddressReserve(8 * chunk, 0, 0, 0)
for number in range(3):
    handle = runtime.memCreate(chunk, 1, 1, 1, 0, 0)
    runtime.memMap(segment + number * chunk, chunk, 0, handle, 0)
    runtime.memRelease(handle)
runtime.memSetAccess(segment, 3 * chunk, [(1, 0, 3)])
print(*crossmem.how_can_share(segment + chunk + 5, device).mechanisms, flush=True)
parts = [
    device.adopt(segment + chunk + at, 100, owner=object(), neighbours="expose")
    for at in (0, 4096)
]
for part, text in zip(parts, (b"first", b"other")):
    part.write(text)
blobs = [part.export().to_bytes().hex() for part in parts]
subprocess.run([sys.executable, "-c", script, *blobs], check=True)
for part in parts:
    part.free()
# Nothing of crossmem's keeps the framework from giving its memory back.
before = runtime.memGetInfo()[0]
runtime.memUnmap(segment + chunk, chunk)
print(runtime.memGetInfo()[0] - before == chunk)
print(device.driver.violations())
"""
CONSUMER = """
import sys, crossmem
device = crossmem.device("cuda:0", runtime="emulated", mechanism="vmm")
first, other = (crossmem.import_handle(bytes.fromhex(one)) for one in sys.argv[1:])
with first.map() as one, other.map() as two:
    print(bytes(one.read(5)).decode(), bytes(two.read(5)).decode(), two.ptr - one.ptr)
    print("opened:", len(device.driver._vendor.rt._process.physical))
first.close()
other.close()
"""


@pytest.mark.parametrize(("backend", "profile"), EDITIONS)
def test_memory_is_shared_under_every_edition(
    backend: str, profile: str, variables: dict[str, str]
) -> None:
    environment = {**variables, "CROSSMEM_EMULATED_HIP_PROFILE": profile}
    with sharing(f"{backend}:0", environment, mechanism="vmm") as (exporter, importer):
        # The importer names no mechanism: the handle has it.
        importer.call(attach, f"{backend}:0", exporter.call(export))

        assert importer.call(mapped_by)[1] == "vmm"
        assert exporter.call(contents) == "HELLO"
        importer.call(unmap)
        assert importer.call(violations) == exporter.call(free) == []


def test_chunks_of_a_growing_segment_are_adopted(variables: dict[str, str]) -> None:
    environment = {**variables, "CROSSMEM_EMULATED_HIP_PROFILE": "cuda"}
    ended = run_script(FRAMEWORK, CONSUMER, environment=environment)

    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines() == ["vmm", "first other 4096", "opened: 1", "True", "[]"]


@pytest.fixture(params=["hip", "cuda"])
def runtime(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    profile = "documented" if request.param == "hip" else "cuda"
    return Runtime(profile, options=Options(state=tmp_path / "host", capacity_nbytes=64 * MIB))


@pytest.fixture
def driver(runtime: Any) -> GpuDriver:
    return GpuDriver(HIP if runtime.is_hip else CUDA, cast("Any", runtime))


def test_a_release_without_it(tmp_path: Path) -> None:
    runtime: Any = Runtime("rocm5", options=Options(state=tmp_path))
    driver = GpuDriver(HIP, runtime)

    assert driver.capabilities(0, None).mechanisms == ("legacy",)
    assert driver.violations() == []


def test_what_was_made_otherwise_is_not_adopted(runtime: Any, driver: GpuDriver) -> None:
    plain = runtime.malloc(MIB)
    private = runtime.memCreate(CHUNK, 1, 0, 1, 0, 0)
    mapped = runtime.memAddressReserve(CHUNK, 0, 0, 0)
    runtime.memMap(mapped, CHUNK, 0, private, 0)

    found = driver.inspect(0, mapped, "legacy")
    if runtime.is_hip:
        # This edition cannot be asked, so that adopting tries it.
        with pytest.raises(crossmem.UnsupportedError, match="virtual"):
            driver.adopt(0, found, "legacy")
        return
    assert found.obstacle
    words = [driver.inspect(0, one, "vmm").obstacle or "" for one in (plain, mapped, 12345)]
    assert "not mapped" in words[0]
    assert "not created for export" in words[1]
    assert "is not memory" in words[2]
    assert driver.violations() == []


def test_a_full_device_says_so(driver: GpuDriver, runtime: Any) -> None:
    with pytest.raises(crossmem.OutOfMemoryError, match="MemCreate"):
        driver.allocate(0, 128 * MIB, "vmm")
    before = runtime.memGetInfo()
    block = driver.allocate(0, 32 * MIB, "vmm")
    assert runtime.memGetInfo()[0] == before[0] - 32 * MIB
    driver.free(block)

    assert runtime.memGetInfo() == before
    assert driver.violations() == []


@pytest.mark.parametrize(
    "call", ["memCreate", "memAddressReserve", "memMap", "memSetAccess", "setDevice"]
)
def test_what_fails_costs_nothing(call: str, runtime: Any, driver: GpuDriver) -> None:
    runtime.setDevice(1)
    before = runtime.memGetInfo(), len(runtime.space.regions)
    # Of the device, it is the second call that puts the thread's own one back.
    runtime.faults.add(call, 999, skip=int(call == "setDevice"))
    with pytest.raises(crossmem.DriverError, match="999"):
        driver.allocate(0, 1, "vmm")
    driver.synchronize(0)

    assert (runtime.memGetInfo(), len(runtime.space.regions)) == before
    assert runtime.getDevice() == 1
    assert driver.violations() == []
