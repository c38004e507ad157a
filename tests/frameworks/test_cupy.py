# SPDX-License-Identifier: Apache-2.0
"""CuPy in memory of crossmem, within one process.

Where there is no GPU, ``crossmem emulate hip -- python -m pytest`` emulates some.
"""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import crossmem
from crossmem.arrays import cupy_arrays
from crossmem.sharing.base.memory import leave_to_views
from crossmem.sharing.exporter.record import Allocations

cupy = pytest.importorskip("cupy", reason="CuPy cannot be imported", exc_type=ImportError)
np = pytest.importorskip("numpy")
actions = pytest.importorskip("cupy_actions")

NBYTES = 1 << 16
ROCM = 10
CUDA = 2

IN_PYTHON = """
import cupy, crossmem, crossmem.cupy
device = crossmem.device("{}:0")
allocation = device.allocate(4096)
array = cupy.empty(1024, "f4")
for question in (
    lambda: allocation.as_array(1024, "f4"),
    lambda: allocation.as_tensor(1024, "f4"),
    lambda: crossmem.cupy.allocator(device),
    lambda: crossmem.share(array),
):
    try:
        question()
    except crossmem.CrossmemError as error:
        print(type(error).__name__)
allocation.free()
"""

OTHER_RUNTIME = """
import cupy, crossmem
runtime = cupy.cuda.runtime
pointer = runtime.mallocManaged(4096)
memory = cupy.cuda.UnownedMemory(pointer, 4096, None)
array = cupy.ndarray(1024, "f4", cupy.cuda.MemoryPointer(memory, 0))
device = crossmem.device("{}:0", runtime="ctypes")
with crossmem.share(array, copy="allow") as shared:
    print(shared.copied_nbytes, {{one.runtime for one in shared._devices}})
"""


@pytest.fixture
def device(gpu: str) -> crossmem.Device:
    return crossmem.device(f"{gpu}:0")


def filled(device: crossmem.Device) -> crossmem.Allocation:
    allocation = device.allocate(NBYTES)
    allocation.write(bytes(range(256)) * (NBYTES // 256))
    return allocation


@pytest.fixture
def memory(device: crossmem.Device) -> Iterator[crossmem.Allocation]:
    allocation = filled(device)
    yield allocation
    allocation.free()


def test_the_device_needs_no_runtime_by_name(gpu: str) -> None:
    assert f"{gpu}:0" in [one.name for one in crossmem.devices()]


def test_an_array_shows_the_memory(memory: crossmem.Allocation) -> None:
    array = memory.as_array((4, 8), "float16", strides=(32, -2), offset=78)

    assert (array.shape, array.strides, array.dtype) == ((4, 8), (32, -2), np.float16)
    assert array.data.ptr == memory.ptr + 78
    expected = np.ndarray((4, 8), "f2", memory.read(), 78, (32, -2))
    assert actions.look(array).tobytes() == expected.tobytes()

    whole = memory.as_array()
    actions.numbers(whole)
    assert memory.read(3, offset=254) == b"\xfe\xff\x00"


def test_what_is_out_of_bounds_is_refused(memory: crossmem.Allocation) -> None:
    for layout in ({"offset": NBYTES - 3}, {"strides": (-4,)}):
        with pytest.raises(crossmem.InvalidSizeError):
            memory.as_array((2,), "float32", **layout)


def test_no_array_of_the_other_vendors(
    memory: crossmem.Allocation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cupy_arrays, "backend", lambda: "other")
    with pytest.raises(crossmem.UnsupportedError, match="cupy cannot address memory of"):
        memory.as_array()


@pytest.mark.parametrize(
    "make",
    [lambda memory: memory.as_array()[5:], cupy.asarray, cupy.from_dlpack],
    ids=["as_array", "interface", "dlpack"],
)
def test_arrays_keep_the_memory(make: Callable[[Any], Any], device: crossmem.Device) -> None:
    crossmem.collect()
    before = len(device._process.part(Allocations).live)
    memory = filled(device)
    leave_to_views(memory)
    array = make(memory)
    with pytest.raises(crossmem.BusyError, match=r"live views|was exposed by"):
        memory.free()
    del memory
    crossmem.collect()

    assert bytes(actions.look(array)[-1:]) == b"\xff"
    assert len(device._process.part(Allocations).live) == before + 1

    del array
    crossmem.collect()
    assert len(device._process.part(Allocations).live) == before


def test_the_interface_can_be_dropped_but_not_freed(device: crossmem.Device) -> None:
    crossmem.collect()
    before = len(device._process.part(Allocations).live)
    memory = filled(device)
    array = cupy.asarray(memory)

    assert array.data.ptr == memory.ptr
    assert memory.__cuda_array_interface__["data"] == (memory.ptr, False)
    del array
    with pytest.raises(crossmem.BusyError, match="exposed by its __cuda_array_interface__"):
        memory.free()
    del memory
    crossmem.collect()
    assert len(device._process.part(Allocations).live) == before


def test_dlpack_names_the_device(gpu: str, two_gpus: str) -> None:
    kind = ROCM if gpu == "hip" else CUDA
    for ordinal in range(2):
        with crossmem.device(f"{gpu}:{ordinal}").allocate(4096) as memory:
            assert memory.__dlpack_device__() == (kind, ordinal)
            array = cupy.from_dlpack(memory)

            assert (array.device.id, array.data.ptr) == (ordinal, memory.ptr)
            assert (array.shape, array.dtype) == ((4096,), np.uint8)
            del array


def test_dlpack_waits_for_the_device_unless_told_not_to(
    memory: crossmem.Allocation, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited = []
    monkeypatch.setattr(
        type(memory.device.driver), "synchronize", lambda _, ordinal: waited.append(ordinal)
    )
    stream = cupy.cuda.Stream(non_blocking=True)
    for one in (None, stream.ptr, -1):
        memory.__dlpack__(stream=one, max_version=(1, 0))
    assert waited == [0, 0]

    with stream:
        array = cupy.from_dlpack(memory)
    assert waited == [0, 0, 0]
    with pytest.raises(BufferError):
        memory.__dlpack__(dl_device=(1, 0))
    with pytest.raises(BufferError):
        memory.__dlpack__(copy=True)
    monkeypatch.undo()
    del array


def test_a_stream_of_cupy_s_is_current(memory: crossmem.Allocation) -> None:
    # Before it does anything that waits, crossmem asks whether the current stream is captured.
    with cupy.cuda.Stream(non_blocking=True):
        memory.device.synchronize()
        memory.write(b"x")
        assert memory.read(1) == b"x"


@pytest.mark.parametrize("shape", [(0,), (3, 0, 2)])
def test_arrays_without_elements(gpu: str, shape: tuple[int, ...]) -> None:
    array = crossmem.empty(shape, "int16", device=f"{gpu}:0")

    assert (type(array), array.shape, array.dtype) == (cupy.ndarray, shape, np.int16)
    with crossmem.share([array]) as shared:
        (back,) = crossmem.receive(shared)
        assert (shared.message.handles, back.shape, back.dtype) == ((), shape, np.int16)


def test_an_array_frees_its_memory(device: crossmem.Device) -> None:
    crossmem.collect()
    before = len(device._process.part(Allocations).live)
    array = crossmem.empty((100, 100), "float64", device=device)
    part = array[3:5, ::-1]
    del array
    crossmem.collect()
    assert len(device._process.part(Allocations).live) == before + 1

    del part
    crossmem.collect()
    assert len(device._process.part(Allocations).live) == before


def test_copies_are_made_in_the_runtime_that_is_in_use(gpu: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", OTHER_RUNTIME.format(gpu)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert (done.stderr, done.stdout) == ("", "4096 {'ctypes'}\n")


def test_arrays_cannot_lie_in_memory_of_an_emulated_runtime(gpu: str, tmp_path: Path) -> None:
    """CuPy calls the vendor's library, even if that is emulated too; it knows no such addresses."""
    environ = {
        **os.environ,
        "CROSSMEM_RUNTIME": f"{gpu}=emulated",
        "CROSSMEM_EMULATED_STATE": str(tmp_path / "host"),
    }
    program = IN_PYTHON.format(gpu)
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=environ, check=False
    )

    assert (done.stderr, done.returncode) == ("", 0)
    assert done.stdout.split() == ["UnsupportedError"] * 4
