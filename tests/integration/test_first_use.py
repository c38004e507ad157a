# SPDX-License-Identifier: Apache-2.0
"""The first use of crossmem: in several threads at once, and while the process forks."""

import os
import signal
import subprocess
import sys
from itertools import combinations
from pathlib import Path

import pytest

from crossmem.conformance.speed import SLOWNESS

IN_THREADS = """
import sys, threading, crossmem
barrier, failures = threading.Barrier(len(sys.argv) - 1), []
def use(name):
    barrier.wait()
    try:
        getattr(crossmem, name)
    except BaseException as error:
        failures.append(repr(error))
threads = [threading.Thread(target=use, args=(name,)) for name in sys.argv[1:]]
for one in threads:
    one.start()
for one in threads:
    one.join()
sys.exit(" and ".join(failures) or None)
"""
"""Look up names of crossmem, each in a thread of its own."""

IN_A_FORK = """
import os, sys, threading, time
import numpy, crossmem
def use():
    crossmem.share({"a": numpy.ones(3)}, copy=True).close()
thread = threading.Thread(target=use)
thread.start()
time.sleep(float(sys.argv[1]))
child = os.fork()
if not child:
    use()
    os._exit(0)
thread.join()
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
"""Fork while another thread uses crossmem for the first time, and use crossmem in the child."""

IN_AN_IMPORT = """
import os, sys, threading
from pathlib import Path
import crossmem
from crossmem.arrays.libraries import require
Path(sys.argv[1], "cupy.py").write_text(
    "import __main__, os\\n"
    "__main__.begun.set()\\n"
    "__main__.forking.wait()\\n"
    "child = os.fork()\\n"
    "child or os._exit(0)\\n"
    "os.waitpid(child, 0)\\n"
)
sys.path.insert(0, sys.argv[1])
crossmem.device("host").allocate(1).free()
begun, forking = threading.Event(), threading.Event()
thread = threading.Thread(target=require, args=("cupy",))
thread.start()
begun.wait()
threading.Timer(0.1, forking.set).start()
child = os.fork()
if not child:
    crossmem.device("host").allocate(1).free()
    os._exit(0)
thread.join()
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
"""Fork while another thread imports a library that forks, too."""

IN_A_HOOK = """
import os, sys, threading
import crossmem
from crossmem import forks
crossmem.device("host").allocate(1).free()
def fail():
    raise RuntimeError("a plugin's hook")
forks.register(tuple, fail)
child = os.fork()
if not child:
    used = []
    use = lambda: used.append(crossmem.device("host").allocate(1).free())
    thread = threading.Thread(target=use, daemon=True)
    thread.start()
    thread.join(10)
    os._exit(not used)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
"""Fork with a hook that raises in the child, and use crossmem there in another thread."""

NAMES = ("share", "receive", "Shared", "empty", "device", "exports", "open_queue", "collect")


def run(code: str, *arguments: str) -> None:
    command = [sys.executable, "-c", code, *arguments]
    with subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as started:
        try:
            _, stderr = started.communicate(timeout=30 * SLOWNESS)
        except subprocess.TimeoutExpired:
            # A forked child that hangs has the pipe open.
            os.killpg(started.pid, signal.SIGKILL)
            raise
    assert started.returncode == 0, stderr


@pytest.mark.parametrize(
    "names",
    [
        pytest.param(("share", "receive"), id="two"),
        pytest.param(("share", "Shared", "device", "exports", "open_queue", "collect"), id="six"),
        *(
            pytest.param(pair, marks=pytest.mark.long, id="-".join(pair))
            for pair in combinations(NAMES, 2)
        ),
    ],
)
def test_threads_that_use_crossmem_first_at_once(names: tuple[str, ...]) -> None:
    run(IN_THREADS, *names)


@pytest.mark.parametrize(
    "pause_s",
    [
        *(0.003, 0.03, 0.08),
        *(pytest.param(one / 1000, marks=pytest.mark.long) for one in range(1, 200, 4)),
    ],
)
def test_a_child_that_is_forked_during_the_first_use(pause_s: float) -> None:
    run(IN_A_FORK, str(pause_s))


def test_a_library_that_forks_at_its_import(tmp_path: Path) -> None:
    run(IN_AN_IMPORT, str(tmp_path))


def test_a_hook_that_raises_leaves_no_lock_held_in_the_child() -> None:
    run(IN_A_HOOK)
