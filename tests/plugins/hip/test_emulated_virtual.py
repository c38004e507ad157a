# SPDX-License-Identifier: Apache-2.0
"""Mechanism ``vmm`` on the emulated machine: every edition, and what frameworks do with it.

The conformance kit runs there too (`tox -e conformance-hip`); here is what it cannot ask for.
"""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

import crossmem
from crossmem_emulated.hip import Runtime
from crossmem_emulated.options import Options
from crossmem_hip.driver import GpuDriver
from crossmem_hip.family import CUDA, HIP

MIB = 1 << 20
CHUNK = 2 * MIB
DEADLINE_S = 60
EDITIONS = [("hip", "documented"), ("hip", "clr24"), ("hip", "clr26"), ("cuda", "cuda")]

EXPORTER = """
import subprocess, sys, crossmem
backend, script = sys.argv[1:]
device = crossmem.device(f"{backend}:0", runtime="emulated", mechanism="vmm")
allocation = device.allocate(5000)
allocation.write(b"hello")
importer = subprocess.Popen(
    [sys.executable, "-c", script, backend, allocation.export().to_bytes().hex()],
    stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
print(importer.stdout.readline().strip())
print(bytes(allocation.read(5)).decode())
print(importer.communicate()[0].strip())
print(device.driver.violations())
allocation.free()
"""
# No mechanism is named: the handle has it.
IMPORTER = """
import sys, crossmem
device = crossmem.device(f"{sys.argv[1]}:0", runtime="emulated")
with crossmem.attach(bytes.fromhex(sys.argv[2])) as mapping:
    assert mapping.read(5) == b"hello", mapping.read(5)
    mapping.write(b"HELLO")
    print("read by", mapping.device.mechanism, flush=True)
    sys.stdin.read()
print(device.driver.violations())
"""

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

Run = Callable[..., list[str]]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Run a program in a fresh process, and return what it said."""

    def do(script: str, *arguments: str, profile: str) -> list[str]:
        finished = subprocess.run(
            [sys.executable, "-c", script, *arguments],
            check=False,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            env={
                **os.environ,
                "CROSSMEM_RUN_DIR": str(tmp_path / "run"),
                "CROSSMEM_EMULATED_STATE": str(tmp_path / "host"),
                "CROSSMEM_EMULATED_HIP_PROFILE": profile,
            },
        )
        assert finished.returncode == 0, finished.stderr
        return finished.stdout.splitlines()

    return do


@pytest.mark.parametrize(("backend", "profile"), EDITIONS)
def test_memory_is_shared_under_every_edition(backend: str, profile: str, run: Run) -> None:
    assert run(EXPORTER, backend, IMPORTER, profile=profile) == [
        *("read by vmm", "HELLO", "[]", "[]"),
    ]


def test_chunks_of_a_growing_segment_are_adopted(run: Run) -> None:
    assert run(FRAMEWORK, CONSUMER, profile="cuda") == [
        *("vmm", "first other 4096", "opened: 1", "True", "[]"),
    ]


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
    assert "not made to be exported" in words[1]
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
