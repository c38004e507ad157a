# SPDX-License-Identifier: Apache-2.0
"""C programs, compiled as their authors would, and run on the emulated ``libascendcl.so``."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from compilers import cached

import crossmem_emulated.abi.ascend
from crossmem.conformance.speed import SLOWNESS
from crossmem_emulated.abi.builder import build
from crossmem_emulated.abi.library import library_named

# Members in Python are processes of the tests in the folder acl.
sys.path[:0] = [str(Path(__file__).parents[1] / name) for name in ("", "acl")]

PROGRAMS = Path(__file__).parent / "programs"
OURS = Path(crossmem_emulated.abi.ascend.__file__).parent
VARIABLE = "CROSSMEM_TEST_ACL_INCLUDE"
TIMEOUT_S = 100 * SLOWNESS
MAX_TEXT = 2000

Compile = Callable[..., Path]
Run = Callable[..., str]


def vendor_headers() -> Path | None:
    """Return the folder that has Huawei's ``acl/acl.h``, where there is one."""
    given = os.environ.get(VARIABLE)
    if given:
        return Path(given)
    found = find_spec("torch_npu")
    for place in found.submodule_search_locations or () if found else ():
        folder = Path(place, "include", "third_party", "acl", "inc")
        if (folder / "acl" / "acl.h").exists():
            return folder
    return None


@pytest.fixture(scope="session")
def compiler() -> str:
    found = shutil.which("gcc")
    if found is None:
        pytest.skip("needs gcc")
    return found


@pytest.fixture(scope="session")
def library(compiler: str, compiled: Path) -> Path:
    """Return the folder of the library, built for this session."""
    cache = {"XDG_CACHE_HOME": str(compiled / "cache")}
    return build(library_named("ascend"), {**os.environ, **cache})


@pytest.fixture(scope="session", params=["ours", "vendor"])
def headers(request: pytest.FixtureRequest) -> list[str]:
    """Return the compiler's options for this project's declarations, or for the vendor's."""
    if request.param == "ours":
        return [f"-I{OURS}"]
    folder = vendor_headers()
    if folder is None:
        pytest.skip(f"needs Huawei's headers: install torch_npu, or set {VARIABLE}")
    return ["-DVENDOR_HEADERS", f"-I{folder}", f"-I{OURS}"]


@pytest.fixture(scope="session")
def compile_program(compiler: str, library: Path, headers: list[str], compiled: Path) -> Compile:
    """Return a function that compiles a program, once for each language."""

    def do(name: str, language: str = "c", *options: str) -> Path:
        source = PROGRAMS / f"{name}.c"
        command = [compiler, "-x", language, "-Wall", "-Werror", "-pthread", *headers]
        link = ["-x", "none", f"-L{library}", "-lascendcl"]
        return cached(
            compiled, [*command, *options, source, *link], [source, *PROGRAMS.glob("*.h")]
        )

    return do


def call(*command: str, **environment: str) -> str:
    """Run a command that has to go well; return what it prints."""
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
        env={**os.environ, **environment},
    )
    if done.returncode:
        msg = f"{command[0]} ended with {done.returncode}: {done.stderr[-MAX_TEXT:]}"
        raise RuntimeError(msg)
    return done.stdout


@pytest.fixture
def host() -> Iterator[Path]:
    """Return the folder of an emulated host of the test's own."""
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="crossmem-test-") as folder:
        yield Path(folder)


@pytest.fixture
def run(library: Path, host: Path) -> Run:
    """Return a function that runs a program with the library found first."""

    def do(program: Path, *arguments: object, **environment: str) -> str:
        return call(
            str(program),
            *map(str, arguments),
            LD_LIBRARY_PATH=str(library),
            CROSSMEM_EMULATED_STATE=str(host),
            CROSSMEM_EMULATED_CAPACITY="1GiB",
            **environment,
        )

    return do
