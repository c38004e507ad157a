# SPDX-License-Identifier: Apache-2.0
"""The drivers on the emulated machine: every edition of the rules, several processes, no violation.

The conformance kit runs there too (`tox -e conformance-hip`); here is what it cannot ask for.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from emulated_sharing import attach, contents, export, free, mapped_by, sharing, unmap
from programs import run_script

import crossmem
from crossmem.conformance.servers import preload
from crossmem.driver import CopyKind
from crossmem.driver.buffers import address_of
from crossmem_emulated.hip import PROFILES, Runtime
from crossmem_emulated.options import Options
from crossmem_hip.driver import GpuDriver
from crossmem_hip.errors import names_of
from crossmem_hip.family import CUDA, HIP

preload("crossmem_emulated.hip", "crossmem_hip.driver")

MIB = 1 << 20
AMD = sorted(name for name, profile in PROFILES.items() if profile.is_hip)
EDITIONS = [*(("hip", name) for name in AMD), ("cuda", "cuda")]
MASK = {"hip": "HIP_VISIBLE_DEVICES", "cuda": "CUDA_VISIBLE_DEVICES"}

Share = Callable[..., list[str]]


@pytest.fixture
def share(variables: dict[str, str]) -> Share:
    """Share in two processes, and return what they said."""

    def do(
        backend: str,
        profile: str,
        mask: str = "",
        *,
        ordinal: int = 0,
        lease: bool = True,
        **environment: str,
    ) -> list[str]:
        environment = {**variables, "CROSSMEM_EMULATED_HIP_PROFILE": profile, **environment}
        masks = {MASK[backend]: mask} if mask else {}
        with sharing(f"{backend}:{ordinal}", environment, importers=masks) as (exporter, importer):
            blob = exporter.call(export, lease=lease)
            try:
                importer.call(attach, f"{backend}:0", blob)
                said = f"read on {importer.call(mapped_by)[0]}"
                importer.call(unmap)
            except crossmem.CrossmemError as error:
                said = type(error).__name__
            return [said, exporter.call(contents), str(exporter.call(free))]

    return do


@pytest.fixture(params=["hip", "cuda"])
def runtime(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    profile = "documented" if request.param == "hip" else "cuda"
    return Runtime(profile, options=Options(state=tmp_path / "host", capacity_nbytes=64 * MIB))


@pytest.fixture
def driver(runtime: Any) -> GpuDriver:
    return GpuDriver(HIP if runtime.is_hip else CUDA, cast("Any", runtime))


@pytest.mark.parametrize(("backend", "profile"), EDITIONS)
def test_memory_is_shared_under_every_edition(backend: str, profile: str, share: Share) -> None:
    assert share(backend, profile) == [f"read on {backend}:0", "HELLO", "[]"]


@pytest.mark.parametrize(("backend", "profile"), [("hip", "documented"), ("cuda", "cuda")])
def test_raw_handles_carry_what_the_vendor_needs(backend: str, profile: str, share: Share) -> None:
    said = share(backend, profile, lease=False)

    assert said == [f"read on {backend}:0", "HELLO", "[]"]


@pytest.mark.ci
@pytest.mark.parametrize("quirk", ["fresh-handles", "leak-on-close", "new-addresses", "slow-open"])
def test_memory_is_shared_whatever_a_release_gets_wrong(quirk: str, share: Share) -> None:
    said = share("hip", "documented", CROSSMEM_EMULATED_HIP_QUIRKS=quirk)

    assert said == ["read on hip:0", "HELLO", "[]"]


@pytest.mark.parametrize(("backend", "profile"), [("hip", "documented"), ("cuda", "cuda")])
def test_work_that_nobody_waits_for_is_never_missed(
    backend: str, profile: str, share: Share
) -> None:
    said = share(backend, profile, CROSSMEM_EMULATED_SLOW_STREAMS="1")

    assert said == [f"read on {backend}:0", "HELLO", "[]"]


@pytest.mark.parametrize("mask", ["1", "1,0"])
@pytest.mark.parametrize(
    ("backend", "profile"), [("hip", "documented"), ("hip", "clr26"), ("cuda", "cuda")]
)
def test_masks_select_the_same_device_or_none(
    backend: str, profile: str, mask: str, share: Share
) -> None:
    said = share(backend, profile, mask, ordinal=1)
    # AMD's driver of that time knows the device by its number in the exporter, and refuses.
    if (profile, mask) == ("clr26", "1"):
        assert said == ["DriverError", "hello", "[]"]
    else:
        assert said == [f"read on {backend}:{mask.split(',').index('1')}", "HELLO", "[]"]


@pytest.mark.parametrize("backend", ["hip", "cuda"])
def test_a_device_that_a_mask_hides_is_missing(backend: str, share: Share) -> None:
    profile = "cuda" if backend == "cuda" else "documented"
    said = share(backend, profile, "0", ordinal=1)

    assert said == ["DeviceNotFoundError", "hello", "[]"]


def allocate_and_export(driver: GpuDriver) -> None:
    block = driver.allocate(0, 1, "legacy")
    try:
        driver.export(block, "legacy", "rw", raw=False)
    finally:
        driver.free(block)


@pytest.mark.parametrize("call", ["malloc", "ipcGetMemHandle"])
def test_what_fails_costs_nothing(call: str, runtime: Any, driver: GpuDriver) -> None:
    driver.free(driver.allocate(0, 1, "legacy"))
    before = runtime.memGetInfo()
    runtime.faults.add(call, 999)
    with pytest.raises(crossmem.DriverError, match="999"):
        allocate_and_export(driver)

    assert runtime.memGetInfo() == before
    assert driver.violations() == []


def test_a_full_device_says_so(driver: GpuDriver) -> None:
    with pytest.raises(crossmem.OutOfMemoryError, match="Malloc"):
        driver.allocate(0, 128 * MIB, "legacy")
    driver.free(driver.allocate(0, 32 * MIB, "legacy"))

    assert driver.violations() == []


def test_no_neighbour_is_reached(runtime: Any, driver: GpuDriver) -> None:
    runtime.malloc(512)
    blocks = [driver.allocate(0, 1, "legacy") for _ in range(3)]
    for block in blocks:
        found = driver.inspect(0, block.pointer, "legacy")

        assert found.obstacle is None
        assert (found.exposed_base, found.exposed_nbytes) == (block.pointer, block.capacity)


def test_own_memory_is_not_opened_by_the_vendor(driver: GpuDriver) -> None:
    block = driver.allocate(0, 1, "legacy")
    exported = driver.export(block, "legacy", "rw", raw=True)
    imported = driver.import_(
        0,
        exported,
        home=0,
        mechanism="legacy",
        nbytes=1,
        capacity=block.capacity,
        access="rw",
    )
    with pytest.raises(crossmem.WrongHostError, match="201"):
        driver.map(imported, remappable=True)


def test_a_capture_of_nvidia_goes_on(tmp_path: Path) -> None:
    runtime: Any = Runtime("cuda", options=Options(state=tmp_path, capacity_nbytes=64 * MIB))
    driver = GpuDriver(CUDA, runtime)
    block = driver.allocate(0, 1, "legacy")
    data = bytearray(b"data")
    stream = runtime.streamCreate()
    runtime.streamBeginCapture(stream, runtime.streamCaptureModeGlobal)
    with address_of(data) as (address, nbytes):
        for work in (
            lambda: driver.synchronize(0),
            lambda: driver.allocate(0, 1, "legacy"),
            lambda: driver.free(block),
            lambda: driver.copy(0, block.pointer, address, nbytes, CopyKind.HOST_TO_DEVICE),
        ):
            with pytest.raises(crossmem.BusyError, match="captured"):
                work()
    runtime.streamEndCapture(stream)
    driver.synchronize(0)
    driver.free(block)

    assert driver.violations() == []


def test_others_memory_that_cannot_be_shared(runtime: Any, driver: GpuDriver) -> None:
    managed, pinned = runtime.mallocManaged(MIB), runtime.hostAlloc(MIB, 0)
    for pointer in (managed, pinned, 12345, 1 << 62):
        assert driver.inspect(0, pointer, "legacy").obstacle, hex(pointer)
    if not runtime.is_hip:
        pooled = runtime.mallocAsync(MIB, runtime.streamCreate())
        assert driver.inspect(0, pooled, "legacy").obstacle
    runtime.setDevice(1)
    elsewhere = runtime.malloc(MIB)
    runtime.setDevice(0)

    assert "device 1" in (driver.inspect(0, elsewhere, "legacy").obstacle or "")
    assert driver.inspect(1, elsewhere, "legacy").obstacle is None
    assert driver.violations() == []


@pytest.mark.parametrize("family", [HIP, CUDA], ids=["hip", "cuda"])
def test_the_table_has_every_code_that_the_emulation_answers(family: Any) -> None:
    from crossmem_emulated.hip.codes import Status

    known = set(names_of(HIP)) | set(names_of(CUDA))

    assert {int(code) for code in Status} - {0} <= known


ADOPTER = """
import sys, crossmem
device = crossmem.device(f"{sys.argv[1]}:0", runtime="emulated")
rt = device.driver._vendor.rt
MIB = 1 << 20
first = rt.malloc(2 * MIB)
adopted = device.adopt(first, 2 * MIB, owner=object())
adopted.export()
rt.free(first)
space = device.driver._vendor.rt.space
reserve = space.reserve
# The address comes again, as it may at any time.
space.reserve = lambda *args, **named: reserve(*args, **{**named, "at": first})
assert rt.malloc(2 * MIB) == first
space.reserve = reserve
try:
    device.adopt(first, 2 * MIB, owner=object())
except crossmem.BusyError as error:
    print(error.message)
adopted.free()
with device.adopt(first, 2 * MIB, owner=object()) as again:
    again.export()
"""


@pytest.mark.parametrize(("backend", "profile"), EDITIONS)
def test_memory_that_was_freed_though_adopted_is_not_taken_for_what_came_after(
    backend: str, profile: str, tmp_path: Path
) -> None:
    variables = {
        "CROSSMEM_EMULATED_STATE": str(tmp_path),
        "CROSSMEM_EMULATED_HIP_PROFILE": profile,
    }
    run = run_script(ADOPTER, backend, environment=variables)

    assert run.returncode == 0, run.stderr
    assert "were freed while they were adopted" in run.stdout


ARRAYS = """
import sys
from types import SimpleNamespace
import crossmem, crossmem.cupy

def fail(*_):
    raise RuntimeError("CuPy found no driver")

backend = sys.argv[1]
runtime = SimpleNamespace(is_hip=backend == "hip", getDevice=fail, CUDARuntimeError=RuntimeError)
cuda = SimpleNamespace(runtime=runtime, UnownedMemory=fail, MemoryPointer=fail)
sys.modules["cupy"] = SimpleNamespace(cuda=cuda)
sys.modules["torch"] = SimpleNamespace(from_dlpack=fail)
device = crossmem.device(backend)
allocation = device.allocate(4096)
for question in (
    lambda: allocation.as_array(8, "float32"),
    lambda: allocation.as_tensor(8, "float32"),
    lambda: crossmem.cupy.allocator(device),
):
    try:
        question()
    except crossmem.UnsupportedError as error:
        print(error.message)
assert not hasattr(allocation, "__cuda_array_interface__")
allocation.free()
"""


@pytest.mark.parametrize("backend", ["hip", "cuda"])
def test_an_installed_cupy_has_no_arrays_in_emulated_memory(backend: str, tmp_path: Path) -> None:
    environment = {
        "CROSSMEM_RUNTIME": f"{backend}=emulated",
        "CROSSMEM_EMULATED_STATE": str(tmp_path / "host"),
    }
    done = run_script(ARRAYS, backend, environment=environment)

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        f"neither NumPy nor CuPy can address memory of {backend}:0",
        f"torch cannot address memory of {backend}:0",
        f"CuPy cannot address memory of {backend}:0",
    ]


EXPORTER = """
import subprocess, sys
import crossmem

with crossmem.device("cuda").allocate(4096) as allocation:
    allocation.write(b"hello")
    program = "import crossmem, sys; mapping = crossmem.attach(sys.stdin.buffer.read()); " \
        "print(mapping.read(5), mapping.device.runtime); mapping.unmap()"
    blob = allocation.export().to_bytes()
    subprocess.run([sys.executable, "-c", program], input=blob, check=True)
"""


def test_one_variable_chooses_the_runtime_of_every_process(variables: dict[str, str]) -> None:
    done = run_script(EXPORTER, environment={**variables, "CROSSMEM_RUNTIME": "cuda=emulated"})

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "b'hello' emulated\n"


CAPTURED = """
import crossmem

device = crossmem.device("cuda")
vendor = device.driver._vendor.rt
stream = vendor.streamCreateWithFlags(1)
for level in ("word", "event", "host"):
    made = device.timeline(level)
    reader = crossmem.open_timeline(made.export(), device=device)
    made.signal(1, stream=stream)
    reader.done(0, stream=stream)
    vendor.streamBeginCapture(stream, vendor.streamCaptureModeRelaxed)
    refused = 0
    for step, value in ((made.signal, 2), (made.signal, 2), (reader.done, 1)):
        try:
            step(value, stream=stream)
        except crossmem.BusyError:
            refused += 1
    # The refused steps have left nothing that the host would have to wait for.
    made.signal(2)
    reader.done(2)
    vendor.streamEndCapture(stream)
    print(level, refused, made.value, made.wait_for_readers(2, readers=1, timeout=0))
"""


def test_steps_that_a_captured_stream_refuses_have_no_effect(variables: dict[str, str]) -> None:
    done = run_script(CAPTURED, environment={**variables, "CROSSMEM_RUNTIME": "cuda=emulated"})

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "word 3 2 1\nevent 3 2 1\nhost 3 2 1\n"
