# SPDX-License-Identifier: Apache-2.0
"""C for the tests, compiled once a session whatever process needs it first."""

import hashlib
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from crossmem.conformance.speed import SLOWNESS

Compile = Callable[..., Path]


@pytest.fixture(scope="session")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of what was compiled, which all processes of the session share."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "compiled"
    folder.mkdir(exist_ok=True)
    return folder


def cached(folder: Path, command: list[str | Path], sources: list[Path], suffix: str = "") -> Path:
    """Run a compiler, unless the same command on the same sources was run before.

    `command` lacks ``-o`` and the target.
    """
    told = repr([str(part) for part in command]).encode()
    digest = hashlib.sha256(b"".join([told, *(source.read_bytes() for source in sources)]))
    target = folder / f"{digest.hexdigest()[:32]}{suffix}"
    if not target.exists():
        begun = target.with_name(f"{target.name}.{os.getpid()}")
        subprocess.run([*command, "-o", begun], check=True, timeout=60 * SLOWNESS)
        begun.rename(target)
    return target


@pytest.fixture(scope="session")
def compile_library(compiled: Path) -> Compile:
    """Return what compiles C to a shared library: source, target, libraries, macros by name."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("there is no C compiler: neither cc nor gcc")

    def compile_library(source: Path, target: Path, *linked: Path, **macros: object) -> Path:
        defined = [f"-D{name}={value}" for name, value in macros.items()]
        strict = ("-std=gnu11", "-Wall", "-Wextra", "-Werror")
        command: list[str | Path] = [
            compiler,
            "-shared",
            "-fPIC",
            *strict,
            *defined,
            source,
            *linked,
        ]
        shutil.copy(cached(compiled, command, [source, *linked], ".so"), target)
        return target

    return compile_library
