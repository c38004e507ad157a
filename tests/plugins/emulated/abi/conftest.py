# SPDX-License-Identifier: Apache-2.0
"""Programs, compiled as their authors would, and run on the emulated ``libamdhip64``."""

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from compilers import cached

from crossmem.conformance.speed import SLOWNESS
from crossmem_emulated.abi.builder import build
from crossmem_emulated.abi.library import library_named

PROGRAMS = Path(__file__).parent / "programs"
HEADERS = "CROSSMEM_TEST_HIP_INCLUDE"
SYSTEM = Path("/usr/include")
TIMEOUT_S = 100 * SLOWNESS
MEASURING = ("COV_CORE_", "COVERAGE_")
OURS = ("CROSSMEM_", "HIP_", "ROCR_", "CUDA_VISIBLE", "LD_LIBRARY_PATH", "ROCM_")

Compile = Callable[..., Path]
Run = Callable[..., "subprocess.CompletedProcess[str]"]


class Release(NamedTuple):
    """A release of AMD's: its headers, the compiler's options for them, and the library's name."""

    headers: Path
    options: tuple[str, ...]
    soname: str


def _headers(release: str) -> Path | None:
    """Return the folder with AMD's headers of a release, None where there are none."""
    places = [SYSTEM, *Path("/opt").glob("rocm*/include")]
    if given := os.environ.get(HEADERS):
        places = [Path(folder) for folder in given.split(os.pathsep)]
    for place in places:
        version = place / "hip" / "hip_version.h"
        if version.exists():
            found = re.search(r"HIP_VERSION_MAJOR +(\d+)", version.read_text("utf-8"))
            if found and found.group(1) == release:
                return place
    return None


@pytest.fixture(scope="session", params=["5", "6", "7"])
def amd(request: pytest.FixtureRequest) -> Release:
    """Return how to compile with AMD's own headers, for each release."""
    folder = _headers(request.param)
    if folder is None:
        # Who says where they are wants them used.
        give_up = pytest.fail if os.environ.get(HEADERS) else pytest.skip
        give_up(f"needs AMD's headers of ROCm {request.param}: run fetch_headers.py, set {HEADERS}")
    # The compiler's own folders must stay in their order.
    where = () if folder == SYSTEM else ("-isystem", str(folder))
    options = ("-DAMD_HEADERS", "-Wno-deprecated-declarations", *where)
    return Release(folder, options, f"libamdhip64.so.{request.param}")


@pytest.fixture(scope="session")
def compiler() -> str:
    found = shutil.which("gcc")
    if found is None:
        pytest.skip("needs gcc")
    return found


@pytest.fixture(scope="session")
def cache(compiled: Path) -> Path:
    """Return a folder in which built libraries are kept for this session, by any process of it."""
    return compiled / "cache"


@pytest.fixture(scope="session")
def library(compiler: str, cache: Path) -> Path:
    """Return the folder of the library, built for this session."""
    return build(library_named("hip"), {**os.environ, "XDG_CACHE_HOME": str(cache)})


@pytest.fixture(scope="session")
def compile_program(compiler: str, library: Path, compiled: Path) -> Compile:
    """Return a function that compiles a program for one of the library's names."""

    def do(
        name: str,
        *options: str,
        language: str = "c",
        soname: str = "libamdhip64.so.7",
    ) -> Path:
        (source,) = PROGRAMS.glob(f"{name}.c*")
        command: list[str | Path] = [compiler, "-x", language, "-pthread", *options, source]
        link = ["-x", "none", f"-L{library}", f"-l:{soname}", "-lstdc++"]
        return cached(compiled, [*command, *link], [source, *PROGRAMS.glob("*.h")])

    return do


@pytest.fixture(scope="session")
def opener(compiler: str, compiled: Path) -> Path:
    """Return a C program that opens, closes and opens a library."""
    source = PROGRAMS / "opener.c"
    return cached(compiled, [compiler, "-w", source, "-ldl"], [source])


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
