# SPDX-License-Identifier: Apache-2.0
"""Programs, compiled as their authors would, and run on the emulated ``libamdhip64``."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from crossmem_emulated.abi.builder import build
from crossmem_emulated.abi.library import library_named

PROGRAMS = Path(__file__).parent / "programs"
TIMEOUT_S = 60
MEASURING = ("COV_CORE_", "COVERAGE_")
OURS = ("CROSSMEM_", "HIP_", "ROCR_", "CUDA_VISIBLE", "LD_LIBRARY_PATH", "ROCM_")

Compile = Callable[..., Path]
Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="session")
def compiler() -> str:
    found = shutil.which("gcc")
    if found is None:
        pytest.skip("needs gcc")
    return found


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder in which built libraries are kept for this session."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="session")
def library(compiler: str, cache: Path) -> Path:
    """Return the folder of the library, built for this session."""
    return build(library_named("hip"), {**os.environ, "XDG_CACHE_HOME": str(cache)})


@pytest.fixture(scope="session")
def compile_program(
    compiler: str, library: Path, tmp_path_factory: pytest.TempPathFactory
) -> Compile:
    """Return a function that compiles a program for one of the library's names."""
    folder = tmp_path_factory.mktemp("programs")

    def do(
        name: str,
        *options: str,
        language: str = "c",
        soname: str = "libamdhip64.so.7",
    ) -> Path:
        target = folder / f"{name}-{language}-{len(options)}-{soname}"
        if not target.exists():
            command = [compiler, "-x", language, "-pthread", *options, str(PROGRAMS / f"{name}.c")]
            link = ["-x", "none", "-o", str(target), f"-L{library}", f"-l:{soname}", "-lstdc++"]
            done = subprocess.run([*command, *link], capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr
        return target

    return do


@pytest.fixture
def host() -> Iterator[Path]:
    """Return the folder of an emulated host of the test's own."""
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="crossmem-test-") as folder:
        yield Path(folder)


@pytest.fixture
def run(library: Path, cache: Path, host: Path) -> Run:
    """Return a function that runs a program with the library found first."""
    base = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith((*MEASURING, *OURS))
    }

    def do(*command: object, **environment: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [str(word) for word in command],
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
            env={
                **base,
                "LD_LIBRARY_PATH": str(library),
                "XDG_CACHE_HOME": str(cache),
                "CROSSMEM_EMULATED_STATE": str(host),
                "CROSSMEM_EMULATED_CAPACITY": "8GiB",
                **environment,
            },
        )

    return do
