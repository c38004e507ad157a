# SPDX-License-Identifier: Apache-2.0
"""How a library begins: what it imports, from where, and who forks meanwhile."""

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from crossmem_emulated.abi import builder
from crossmem_emulated.abi.builder import build
from crossmem_emulated.abi.library import library_named

if TYPE_CHECKING:
    from tests.plugins.emulated.abi.conftest import Compile, Run
else:
    Compile = Run = Any

# A child is forked by Python's own means while another thread makes the first call. Such a fork
# has the GIL, and so cannot wait: the child has no library then, but it does not hang.
FORKS = """
import ctypes, os, signal, sys, threading, time
library = ctypes.CDLL("libamdhip64.so.7")
for turn in range(0, 12, int(sys.argv[1])):
    child = os.fork()
    if not child:
        signal.alarm(30)
        count = ctypes.c_int()
        thread = threading.Thread(target=library.hipGetDeviceCount, args=(ctypes.byref(count),))
        thread.start()
        time.sleep(turn * 0.02)
        grandchild = os.fork()
        if not grandchild:
            signal.alarm(30)
            os._exit(0 if library.hipGetDeviceCount(ctypes.byref(count)) in {0, 3, 999} else 1)
        thread.join()
        os._exit(os.waitstatus_to_exitcode(os.waitpid(grandchild, 0)[1]) & 0x7F)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), end=" ", flush=True)
"""

IMPORTS = """
import ctypes, sys
library = ctypes.CDLL("libamdhip64.so.7")
count, pointer, handle = ctypes.c_int(), ctypes.c_void_p(), ctypes.create_string_buffer(64)
library.hipGetLastError()
before = set(sys.modules)
assert library.hipGetDeviceCount(ctypes.byref(count)) == 0
assert library.hipMalloc(ctypes.byref(pointer), ctypes.c_size_t(4096)) == 0
assert library.hipIpcGetMemHandle(handle, pointer) == 0
assert library.hipFree(pointer) == 0
assert library.hipFree(pointer) == 1
print(sorted(set(sys.modules) - before))
"""


@pytest.mark.parametrize("step", [4, pytest.param(1, marks=pytest.mark.long)])
def test_python_forks_while_another_thread_makes_the_first_call(run: Run, step: int) -> None:
    done = run(sys.executable, "-c", FORKS, step)

    assert (done.returncode, done.stdout) == (0, "0 " * (12 // step))


def test_what_is_imported_is_imported_by_the_first_call(run: Run) -> None:
    # A child that is forked while another thread imports a module can never import it.
    done = run(sys.executable, "-c", IMPORTS)

    assert (done.returncode, done.stdout) == (0, "[]\n")


def test_packages_do_not_stand_before_the_standard_library(
    compile_program: Compile, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packages = tmp_path / "packages"
    packages.mkdir()
    for name in ("dataclasses", "enum", "pathlib", "typing", "uuid"):
        (packages / f"{name}.py").write_text("raise RuntimeError('not the real one')\n")
    (packages / "ours.py").write_text("")
    monkeypatch.syspath_prepend(packages)
    monkeypatch.setattr(builder, "_PACKAGES", ("ours", *builder._PACKAGES))
    # One name, because each is compiled for itself.
    library = replace(library_named("hip"), sonames=("libamdhip64.so.7",))
    folder = build(library, {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")})

    done = run(compile_program("life", "-Wall"), "threads", LD_LIBRARY_PATH=str(folder))

    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
