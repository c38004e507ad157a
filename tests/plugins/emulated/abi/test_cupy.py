# SPDX-License-Identifier: Apache-2.0
"""The wheel of CuPy for ROCm, as it is installed, on the emulated library. For `tox -e abi-hip`."""

import subprocess
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import pytest

from crossmem.conformance.speed import SLOWNESS
from crossmem_emulated.hip import HipBuildRuntimeError

Run = Callable[[str], "subprocess.CompletedProcess[str]"]

DEADLINE_S = 100 * SLOWNESS
CODES = [0, 1, 2, 3, 17, 21, 100, 101, 201, 205, 217, 400, 500, 600, 704, 801, 999, 4711]

HEAD = """
import subprocess, sys
import cupy, numpy
rt = cupy.cuda.runtime

def status(function, *arguments):
    try:
        function(*arguments)
    except rt.CUDARuntimeError as error:
        return error.status
    return 0
"""
SHARING = """
if len(sys.argv) > 1:
    handle = bytes.fromhex(sys.argv[1])
    pointer = rt.ipcOpenMemHandle(handle)
    assert rt.ipcOpenMemHandle(handle) == pointer
    memory = cupy.cuda.UnownedMemory(pointer, 4096, None, device_id=0)
    array = cupy.ndarray((1024,), "f4", memptr=cupy.cuda.MemoryPointer(memory, 0))
    assert (array.get() == numpy.arange(1024)).all()
    assert array.__dlpack_device__() == (10, 0)
    array.set(numpy.full(1024, 7, "f4"))
    rt.ipcCloseMemHandle(pointer)
    rt.ipcCloseMemHandle(pointer)
    assert status(rt.ipcCloseMemHandle, pointer) == 1
    sys.exit(0)
pointer = rt.malloc(4096)
source = numpy.arange(1024, dtype="f4")
rt.memcpy(pointer, source.ctypes.data, 4096, rt.memcpyHostToDevice)
handle = rt.ipcGetMemHandle(pointer)
assert status(rt.ipcOpenMemHandle, handle) == 201
subprocess.run([sys.executable, __file__, handle.hex()], check=True, timeout=60)
rt.memcpy(source.ctypes.data, pointer, 4096, rt.memcpyDeviceToHost)
assert (source == 7).all()
rt.free(pointer)
"""
ARRAYS = """
array = cupy.empty(10, "f4")
array.set(numpy.arange(10, dtype="f4"))
other = cupy.empty_like(array)
other.data.copy_from_device(array.data, array.nbytes)
assert other.get().tolist() == list(range(10))
assert array.__dlpack_device__() == (10, 0)
assert cupy.from_dlpack(array).data.ptr == array.data.ptr
with cupy.cuda.Device(1):
    far = cupy.empty(4, "u1")
assert far.device.id == 1
stream = cupy.cuda.Stream(non_blocking=True)
with stream:
    array.set(numpy.ones(10, "f4"))
called = []
stream.launch_host_func(called.append, 5)
stream.synchronize()
assert called == [5]
start, end = cupy.cuda.Event(), cupy.cuda.Event()
start.record(); end.record(); end.synchronize()
assert cupy.cuda.get_elapsed_time(start, end) >= 0
pinned = cupy.cuda.alloc_pinned_memory(64)
managed = cupy.cuda.malloc_managed(64)
assert rt.getDeviceProperties(0)["gcnArchName"].startswith(b"gfx")
del pinned, managed
free, total = rt.memGetInfo()
assert 0 < free <= total
"""
REST = """
assert rt.is_hip and rt.runtimeGetVersion() == rt.driverGetVersion() > 7_00_00000
assert status(rt.ipcGetEventHandle, 0) == 999
assert status(rt.free, 64) == 1
assert status(rt.setDevice, 99) == 101
import cupy.cuda.cufft, cupy_backends.cuda.libs.cusparse
try:
    array = cupy.zeros(4) + 1
except Exception as error:
    print(type(error).__name__)
else:
    raise AssertionError("a kernel cannot run")
"""
TEXTS = """
for code in {codes}:
    print(code, rt.CUDARuntimeError(code))
"""


@pytest.fixture(scope="module", autouse=True)
def _wheel() -> None:
    names = {one.name for one in metadata.distributions()}
    if not any(name and name.startswith("cupy-rocm-7") for name in names):
        pytest.skip("needs the wheel cupy-rocm-7-0")


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Return a function that runs a program in CuPy under the emulation."""

    def do(code: str) -> "subprocess.CompletedProcess[str]":
        path = tmp_path / "program.py"
        path.write_text(HEAD + code)
        return subprocess.run(
            [sys.executable, "-m", "crossmem", "emulate", "hip", "--", sys.executable, str(path)],
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )

    return do


@pytest.mark.parametrize("code", [SHARING, ARRAYS, REST], ids=["sharing", "arrays", "rest"])
def test_unmodified(run: Run, code: str) -> None:
    done = run(code)

    assert done.returncode == 0, done.stderr


def test_texts_of_errors_are_those_of_the_emulation(run: Run) -> None:
    done = run(TEXTS.format(codes=CODES))

    assert done.stdout.splitlines() == [f"{code} {HipBuildRuntimeError(code)}" for code in CODES]
