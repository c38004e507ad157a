# SPDX-License-Identifier: Apache-2.0
"""Where the vendors' libraries are found, and what real ones say where there is no device."""

import ctypes
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from crossmem.conformance.speed import SLOWNESS
from crossmem_hip.family import CUDA, HIP
from crossmem_hip.search import cuda_folders, hip_folders, library_of


def test_folders_of_rocm() -> None:
    assert hip_folders({}) == ("/opt/rocm/lib",)
    assert hip_folders({"ROCM_PATH": "/r", "ROCM_HOME": "", "CUDA_HOME": "/c"}) == (
        "/r/lib",
        "/opt/rocm/lib",
    )


def test_folders_of_cuda(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "nvidia").mkdir()
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, "nvidia", raising=False)
    found = cuda_folders({"CUDA_HOME": "/h", "CUDA_PATH": "/p"})

    assert found == (
        *("/h/lib64", "/h/lib", "/p/lib64", "/p/lib"),
        f"{tmp_path}/nvidia/cu13/lib",
        f"{tmp_path}/nvidia/cuda_runtime/lib",
        "/usr/local/cuda/lib64",
    )
    monkeypatch.setattr(sys, "path", [])
    assert cuda_folders({}) == ("/usr/local/cuda/lib64",)


FIND = """\
import ctypes, sys
from crossmem_hip.family import HIP
from crossmem_hip.library import open_runtime
for path in sys.argv[1:]: ctypes.CDLL(path)
print(open_runtime(HIP).runtimeGetVersion() // 100_000)
"""


@pytest.fixture
def installed(build: Callable[..., Path], tmp_path: Path) -> dict[str, Path]:
    """Three copies of AMD's library, by how they are found."""
    names = {
        "loader": (60_443_484, "libamdhip64.so.6"),
        "folder": (70_126_015, "lib/libamdhip64.so.7"),
        "process": (50_221_153, "libamdhip64.so.5.2"),
    }
    found = {}
    for way, (version, name) in names.items():
        path = tmp_path / way / name
        path.parent.mkdir(parents=True)
        # No link: the memory map of a process has the name of what it leads to.
        shutil.copy(build(HIP=version), path)
        found[way] = path
    return found


def test_the_copy_that_a_module_calls(
    build: Callable[..., Path], compile_library: Callable[..., Path], tmp_path: Path
) -> None:
    linked = shutil.copy(build(HIP=70_126_015), tmp_path / "first.so")
    source = tmp_path / "module.c"
    source.write_text("int hipGetDevice(int *); int get(int *out) { return hipGetDevice(out); }")
    module = SimpleNamespace(__file__=compile_library(source, tmp_path / "module.so", linked))
    other = ctypes.CDLL(str(shutil.copy(build(HIP=60_443_484), tmp_path / "second.so")))
    found = library_of(module)
    version = ctypes.c_int()

    assert found is not None
    assert found.hipRuntimeGetVersion(ctypes.byref(version)) == 0
    assert version.value == 70_126_015
    assert other.hipRuntimeGetVersion(ctypes.byref(version)) == 0
    assert version.value == 60_443_484
    assert library_of(SimpleNamespace()) is None


def find(installed: dict[str, Path], *loaded: Path, loader: bool) -> str:
    environ = {**os.environ, "ROCM_PATH": str(installed["folder"].parents[1])}
    if loader:
        environ["LD_LIBRARY_PATH"] = str(installed["loader"].parent)
    command = [sys.executable, "-c", FIND, *map(str, loaded)]
    ended = subprocess.run(
        command, env=environ, check=True, timeout=60 * SLOWNESS, capture_output=True, text=True
    )
    return ended.stdout.strip()


def test_the_loader_is_asked_before_the_folders(installed: dict[str, Path]) -> None:
    assert find(installed, loader=True) == "604"


def test_the_copy_of_the_process_comes_first(installed: dict[str, Path]) -> None:
    assert find(installed, installed["process"], loader=True) == "502"


def test_the_folders_come_last(installed: dict[str, Path]) -> None:
    if any(has(name) for name in ("libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5")):
        pytest.skip("the loader finds a libamdhip64 on this machine")

    assert find(installed, loader=False) == "701"


def has(name: str) -> bool:
    # In a process of its own: tests of the emulated library leave that loaded in this one.
    code = "import ctypes, sys; ctypes.CDLL(sys.argv[1])"
    done = subprocess.run([sys.executable, "-c", code, name], check=False, capture_output=True)
    return done.returncode == 0


# What is really there -------------------------------------------------------------------------

OPEN = """\
import sys
import crossmem
try:
    crossmem.device(sys.argv[1], runtime="ctypes")
except crossmem.BackendUnavailableError as error:
    print(error.message)
    sys.exit(0 if error.hint else "there is no hint")
except crossmem.CrossmemError as error:
    sys.exit(repr(error))
"""


def open_device(name: str, **environ: str) -> str:
    """Open a device in a new process, and return what makes it unavailable; empty if nothing."""
    ended = subprocess.run(
        [sys.executable, "-c", OPEN, name],
        env={**os.environ, **environ},
        check=False,
        timeout=60 * SLOWNESS,
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.strip()


def test_a_real_libamdhip64_says_that_there_is_no_device(tmp_path: Path) -> None:
    named = os.environ.get("CROSSMEM_TEST_LIBAMDHIP64")
    if not named and not any(has(f"libamdhip64.so.{major}") for major in (7, 6, 5)):
        pytest.skip("there is no libamdhip64 here, and CROSSMEM_TEST_LIBAMDHIP64 names none")
    if any(Path("/dev").glob(HIP.device_files)):
        pytest.skip("this machine has a device of AMD")
    environ = {}
    if named:
        (tmp_path / "libamdhip64.so.7").symlink_to(named)
        # Behind the others: the library's own dependencies may come from there.
        paths = (tmp_path, Path(named).parent, os.environ.get("LD_LIBRARY_PATH", ""))
        environ["LD_LIBRARY_PATH"] = os.pathsep.join(map(str, paths))
    said = open_device("hip:0", **environ)

    assert said in {
        "AMD's runtime finds no device: hipGetDeviceCount failed with hipErrorNoDevice (100)",
        "AMD's runtime finds no device: hipGetDeviceCount failed with hipErrorInvalidDevice (101)",
    }


def test_a_real_libcudart_says_that_there_is_no_driver() -> None:
    if any(Path("/dev").glob(CUDA.device_files)):
        pytest.skip("this machine has a device of NVIDIA")
    said = open_device("cuda:0")
    if said.startswith("none of "):
        pytest.skip("there is no libcudart here: pip install nvidia-cuda-runtime")

    assert "NVIDIA's runtime finds no d" in said
    assert said.endswith(("cudaErrorInsufficientDriver (35)", "cudaErrorNoDevice (100)"))
