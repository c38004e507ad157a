# SPDX-License-Identifier: Apache-2.0
"""What ``crossmem emulate`` leaves: nothing that stays, however it ended and who survives it."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from crossmem.conformance.speed import SLOWNESS
from crossmem_emulated.abi.builder import build
from crossmem_emulated.abi.held import remove_abandoned
from crossmem_emulated.abi.library import library_named

if TYPE_CHECKING:
    from tests.integration.emulate_hosts import abandoned, alone_with_hosts
else:
    from emulate_hosts import abandoned, alone_with_hosts

pytestmark = [
    pytest.mark.ci,
    pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler"),
]

__all__ = ["alone_with_hosts"]

DEADLINE_S = 60 * SLOWNESS
SHARED = Path("/dev/shm")
# Calls the library whenever it is told to, in this process, in a fork or in a new program.
PROGRAM = """
import ctypes, os, subprocess, sys
hip = ctypes.CDLL("libamdhip64.so.7")
def call():
    pointer, free, total = ctypes.c_void_p(), ctypes.c_size_t(), ctypes.c_size_t()
    first = hip.hipMalloc(ctypes.byref(pointer), ctypes.c_size_t(4 << 20))
    second = hip.hipMemGetInfo(ctypes.byref(free), ctypes.byref(total))
    print(first, second, (total.value - free.value) >> 22, flush=True)
if "again" in sys.argv:
    print("ready", flush=True)
for line in sys.stdin:
    word = line.strip()
    if word == "call":
        call()
    elif word == "fork":
        child = os.fork()
        if not child:
            call()
            os._exit(0)
        os.waitpid(child, 0)
    elif word == "start":
        subprocess.run([sys.executable, sys.argv[0]], input="call\\n", text=True)
    elif word == "exec":
        os.execv(sys.executable, [sys.executable, *sys.argv, "again"])
    elif word == "pid":
        print(os.getpid(), flush=True)
    elif word == "tear":
        # As if it had been killed while it wrote.
        with open(os.environ["CROSSMEM_EMULATED_CALLS"] + "/hip-4711.part", "w") as file:
            file.write('{"hipMal')
"""

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture(scope="module")
def environ(compiled: Path) -> dict[str, str]:
    own = ("CROSSMEM_", "LD_LIBRARY_PATH", "HIP_", "ROCM_", "COV_CORE_", "COVERAGE_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(own)}
    variables = {**kept, "XDG_CACHE_HOME": str(compiled / "cache"), "COLUMNS": "100"}
    # Built once: commands that start together would each build the library.
    build(library_named("hip"), variables)
    return variables


@pytest.fixture
def start(environ: dict[str, str], tmp_path: Path) -> Iterator[Start]:
    """Return a function that starts the program on an emulation; both are killed in the end."""
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    started: list[subprocess.Popen[str]] = []

    def do(*options: object) -> "subprocess.Popen[str]":
        emulate = [sys.executable, "-m", "crossmem", "emulate", "hip", *map(str, options)]
        one = subprocess.Popen(
            [*emulate, "--", sys.executable, str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environ,
            start_new_session=True,
        )
        started.append(one)
        return one

    yield do
    for one in started:
        with suppress(ProcessLookupError):
            os.killpg(one.pid, signal.SIGKILL)
        one.wait(DEADLINE_S)
        for pipe in filter(None, (one.stdin, one.stdout, one.stderr)):
            with suppress(BrokenPipeError):
                pipe.close()
    remove_abandoned(SHARED, "crossmem-emulate-")


def tell(one: "subprocess.Popen[str]", word: str) -> str:
    assert one.stdin is not None
    assert one.stdout is not None
    one.stdin.write(f"{word}\n")
    one.stdin.flush()
    return one.stdout.readline().strip()


def host_of(one: "subprocess.Popen[str]") -> Path:
    """Return the folder that a command made for its program."""
    text = Path("/proc", tell(one, "pid"), "environ").read_text("utf-8")
    (state,) = [line for line in text.split("\0") if line.startswith("CROSSMEM_EMULATED_STATE=")]
    return Path(state.partition("=")[2])


def kill(one: "subprocess.Popen[str]") -> None:
    """Kill the command, and not its program."""
    one.kill()
    assert one.wait(DEADLINE_S) == -signal.SIGKILL


def end(one: "subprocess.Popen[str]") -> tuple[int, str]:
    _, text = one.communicate(timeout=DEADLINE_S)
    return one.returncode, text


def test_what_a_killed_command_left(start: Start) -> None:
    dead, living = start(), start()
    of_dead, of_living = host_of(dead), host_of(living)
    assert tell(dead, "call") == tell(living, "call") == "0 0 1"
    kill(dead)
    assert of_dead.is_dir()

    assert end(start()) == (0, "")

    assert not of_dead.parent.exists()
    assert of_living.is_dir()
    assert tell(living, "call") == "0 0 2"
    assert end(living) == (0, "")
    assert not of_living.parent.exists()


def test_programs_that_survive_their_command(start: Start) -> None:
    before = abandoned()
    survivor, late = start("--report"), start("--report")
    assert tell(survivor, "call") == "0 0 1"
    host_of(late)
    for one in (survivor, late):
        kill(one)
    assert end(start()) == (0, "")
    assert abandoned() <= before

    # Who has begun may go on or not, but with the vendor's answers. Nobody begins anew.
    first = tell(survivor, "call")
    assert first in {"0 0 2", "999 999 0"}
    assert tell(survivor, "fork").split()[0] in {"3", "999"}
    assert tell(survivor, "call") == "999 999 0"
    assert tell(survivor, "start") == "999 999 0"
    assert tell(late, "call") == "999 999 0"
    assert abandoned() <= before
    for one in (survivor, late):
        assert one.stdin is not None
        one.stdin.close()
        assert one.stderr is not None
        said = one.stderr.read()
        assert "Traceback" not in said
        assert "the parent folder of the emulated host" in said
    assert abandoned() <= before


def test_a_program_that_replaces_itself(start: Start) -> None:
    one = start("--report")
    assert tell(one, "call") == "0 0 1"
    assert tell(one, "call") == "0 0 2"

    assert tell(one, "exec") == "ready"
    assert tell(one, "call") == "0 0 1"
    assert end(one)[0] == 0


def test_calls_that_were_torn(start: Start) -> None:
    one = start("--report")
    assert tell(one, "call") == "0 0 1"
    _, text = one.communicate("tear\n", timeout=DEADLINE_S)

    assert "process 4711 was killed while it wrote its counts: its calls are not counted" in text
    assert "       1  hipMalloc\n" in text
    assert "Traceback" not in text


def test_faults_of_a_printed_environment(start: Start) -> None:
    one = start("--print-env", "--fault", "hipMalloc=2")
    status, text = end(one)

    assert status == 2
    assert "faults are not possible with a printed environment" in text
    assert "crossmem emulate hip --fault" in " ".join(text.split())


def test_faults_do_not_outlive_their_command(start: Start) -> None:
    state = tempfile.mkdtemp(prefix="crossmem-test-", dir=SHARED)
    try:
        one = start("--state", state, "--fault", "hipMalloc=2:0:9", "--fault", "hipMalloc=17:5")
        assert tell(one, "call") == "2 0 0"
        assert end(one)[0] == 0

        one = start("--state", state)
        assert [tell(one, "call") for _ in range(3)] == ["0 0 1", "0 0 2", "0 0 3"]
        assert end(one)[0] == 0
    finally:
        shutil.rmtree(state)
