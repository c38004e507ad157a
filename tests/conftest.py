# SPDX-License-Identifier: Apache-2.0
"""What tests in several folders use."""

import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

Compile = Callable[..., Path]

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell starts what runs in its background like this, and children would be deaf to Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def compile_library() -> Compile:
    """Return what compiles C to a shared library: source, target, libraries, macros by name."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("there is no C compiler: neither cc nor gcc")

    def compile_library(source: Path, target: Path, *linked: Path, **macros: object) -> Path:
        defined = [f"-D{name}={value}" for name, value in macros.items()]
        strict = ("-std=gnu11", "-Wall", "-Wextra", "-Werror")
        subprocess.run(
            [compiler, "-shared", "-fPIC", *strict, *defined, "-o", target, source, *linked],
            check=True,
            timeout=60,
        )
        return target

    return compile_library
