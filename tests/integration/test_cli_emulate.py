# SPDX-License-Identifier: Apache-2.0
"""``crossmem emulate``: programs on an emulated library, started from the command line."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from programs import command

from crossmem.conformance.speed import SLOWNESS
from crossmem_emulated.fixtures import Emulated

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
FAULTS = "a fault is CALL=CODE, CALL=CODE:SKIP or CALL=CODE:SKIP:COUNT"
# Calls the library through ctypes, so that it takes no compiler.
PROGRAM = """
import ctypes, sys
hip = ctypes.CDLL("libamdhip64.so.7")
pointer, count = ctypes.c_void_p(), ctypes.c_int()
print(hip.hipGetDeviceCount(ctypes.byref(count)), count.value)
print([hip.hipMalloc(ctypes.byref(pointer), ctypes.c_size_t(4096)) for _ in range(3)])
if "free" in sys.argv:
    print(hip.hipFree(ctypes.c_void_p(64)))
"""

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="module")
def environ(compiled: Path) -> dict[str, str]:
    own = ("CROSSMEM_", "LD_LIBRARY_PATH", "HIP_", "ROCM_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(own)}
    return {**kept, "XDG_CACHE_HOME": str(compiled / "cache"), "COLUMNS": "100"}


@pytest.fixture
def run(environ: dict[str, str]) -> Run:
    def do(*arguments: object, **variables: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [sys.executable, "-m", "crossmem", "emulate", *map(str, arguments)],
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
            env={**environ, **variables},
        )

    return do


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    return path


def test_an_unmodified_program(run: Run, program: Path) -> None:
    before = abandoned()

    done = run("hip", "--", sys.executable, program)

    assert (done.returncode, done.stdout, done.stderr) == (0, "0 2\n[0, 0, 0]\n", "")
    assert abandoned() <= before


def test_options_reach_the_emulation(run: Run, program: Path) -> None:
    options = ("--devices", 5, "--capacity", "2MiB", "--fault", "hipMalloc=17:1")

    done = run("hip", *options, "--", sys.executable, program)

    assert (done.returncode, done.stdout) == (0, "0 5\n[0, 17, 0]\n")


def test_a_report(run: Run, program: Path) -> None:
    done = run("hip", "--report", "--", sys.executable, program, "free")

    assert "crossmem: 1 API misuse found:\n  HIP-X4" in done.stderr
    assert "free: 0x40 was not allocated" in done.stderr
    assert "crossmem: 5 calls\n" in done.stderr
    assert "       3  hipMalloc\n" in done.stderr

    done = run("hip", "--report", "--", sys.executable, program)
    assert "crossmem: no API misuse found\n" in done.stderr

    done = run("hip", "--lax", "--", sys.executable, program, "free")
    assert done.stderr == ""


def test_the_program_s_status(run: Run) -> None:
    assert run("hip", "--", "sh", "-c", "exit 42").returncode == 42
    assert run("hip", "--", "sh", "-c", "kill -TERM $$").returncode == 128 + signal.SIGTERM

    done = run("hip", "--", "no-such-command")
    assert (done.returncode, done.stderr) == (
        127,
        "crossmem: no-such-command: there is no such command\n",
    )
    assert run("hip", "--", "/dev/null").returncode == 126


def test_the_status_though_the_parent_ignores_children(environ: dict[str, str]) -> None:
    ignore = "import os, signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN)"
    code = f"{ignore}; os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
    command = [sys.executable, "-c", code, "-m", "crossmem", "emulate", "hip"]

    assert (
        subprocess.call([*command, "--", "sh", "-c", "exit 7"], env=environ, timeout=DEADLINE_S)
        == 7
    )


def test_signals_are_passed_on(environ: dict[str, str]) -> None:
    code = "trap 'exit 7' TERM; echo ready; while :; do sleep 0.1; done"
    command = [sys.executable, "-m", "crossmem", "emulate", "hip", "--", "sh", "-c", code]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environ) as started:
        assert started.stdout is not None
        assert started.stdout.readline() == "ready\n"
        started.terminate()

        assert started.wait(DEADLINE_S) == 7


COUNTS_INTERRUPTS = """
import signal, sys
signal.signal(signal.SIGINT, lambda *_: print("interrupted", flush=True))
print("ready", flush=True)
sys.stdin.readline()
"""


def test_an_interrupt_for_the_command_alone(environ: dict[str, str]) -> None:
    # As a CI service does that cancels a job: no terminal sends it to the program as well.
    command = ["emulate", "hip", "--", sys.executable, "-c", COUNTS_INTERRUPTS]
    with subprocess.Popen(
        [sys.executable, "-m", "crossmem", *command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environ,
        start_new_session=True,
    ) as started:
        assert started.stdout is not None
        assert started.stdout.readline() == "ready\n"
        started.send_signal(signal.SIGINT)
        assert started.stdout.readline() == "interrupted\n"
        output, _ = started.communicate("\n", timeout=DEADLINE_S)

    assert (started.returncode, output) == (0, "")


def test_an_interrupt_from_a_terminal_comes_once(environ: dict[str, str]) -> None:
    terminal = "import pty, sys; sys.exit(pty.spawn(sys.argv[1:]))"
    command = ["emulate", "hip", "--", sys.executable, "-c", COUNTS_INTERRUPTS]
    with subprocess.Popen(
        [sys.executable, "-c", terminal, sys.executable, "-m", "crossmem", *command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environ,
        bufsize=0,
    ) as started:
        assert started.stdin is not None
        assert started.stdout is not None
        assert started.stdout.readline() == b"ready\r\n"
        started.stdin.write(b"\x03")
        assert started.stdout.readline() == b"^Cinterrupted\r\n"
        output, _ = started.communicate(b"\n", timeout=DEADLINE_S)

    assert (started.returncode, output) == (0, b"\r\n")


def test_commands_that_share_a_host(run: Run, tmp_path: Path) -> None:
    code = """
import ctypes, sys
hip = ctypes.CDLL("libamdhip64.so.7")
handle = ctypes.create_string_buffer(64)
pointer = ctypes.c_void_p()
class Handle(ctypes.Structure):
    _fields_ = [("reserved", ctypes.c_char * 64)]
if len(sys.argv) > 1:
    given = Handle.from_buffer_copy(bytes.fromhex(sys.argv[1]))
    print(hip.hipIpcOpenMemHandle(ctypes.byref(pointer), given, 1))
else:
    hip.hipMalloc(ctypes.byref(pointer), ctypes.c_size_t(4096))
    hip.hipIpcGetMemHandle(handle, pointer)
    print(handle.raw.hex(), flush=True)
    sys.stdin.readline()
"""
    state = tempfile.mkdtemp(prefix="crossmem-test-", dir="/dev/shm")
    path = tmp_path / "both.py"
    path.write_text(code)
    base = ("hip", "--state", state, "--", sys.executable, path)
    variables = run("hip", "--state", state, "--print-env").stdout
    try:
        script = f'{variables} exec "$@"'
        exporter = subprocess.Popen(
            ["sh", "-c", script, "sh", sys.executable, path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert exporter.stdout is not None
        handle = exporter.stdout.readline().strip()
        importer = run(*base, handle)
        exporter.communicate("\n", timeout=DEADLINE_S)
    finally:
        shutil.rmtree(state)

    assert (importer.returncode, importer.stdout) == (0, "0\n")


def test_the_environment_for_a_shell(run: Run) -> None:
    done = run("hip", "--devices", 3, "--print-env", LD_LIBRARY_PATH="/some where")

    lines = done.stdout.splitlines()
    assert "export CROSSMEM_EMULATED_DEVICES=3" in lines
    (path,) = [line for line in lines if "LD_LIBRARY_PATH" in line]
    assert path.endswith(":/some where'")
    assert done.returncode == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("hip",), "there is no command to run"),
        (("hip", "--profile", "clr99", "--", "true"), "hip has no profile 'clr99'"),
        (("hip", "--profile", "cuda", "--", "true"), "hip has no profile 'cuda'"),
        (
            ("hip", "--fault", "hipMalloc", "--", "true"),
            f"{FAULTS}, not 'hipMalloc'\nhint: hipMalloc=2:3 makes",
        ),
        (
            ("ascend", "--fault", "aclrtMalloc=OOM", "--", "true"),
            f"{FAULTS}, not 'aclrtMalloc=OOM'\nhint: aclrtMalloc=207001:3 makes",
        ),
        (
            ("hip", "--fault", "hipMaloc=1", "--", "true"),
            "libamdhip64.so.7 has no function 'hipMaloc'\nhint: did you mean hipMalloc or ",
        ),
        (
            ("ascend", "--fault", "xyzzy=1", "--", "true"),
            "libascendcl.so has no function 'xyzzy'\n",
        ),
        (
            ("ascend", "--fault", "aclmdlExecute=1", "--", "true"),
            "calls of aclmdlExecute cannot be made to fail: the function is not emulated\n",
        ),
        (
            ("hip", "--capacity", "lots", "--", "true"),
            "--capacity must be at least the granularity",
        ),
        (("hip", "--devices", "5000", "--", "true"), "--devices must be a number from 1 to "),
        (
            ("hip", "--state", "/nodir/x", "--", "true"),
            (
                "the parent folder of the emulated host '/nodir/x' does not exist\n"
                "hint: set --state to a folder whose parent exists; `crossmem emulate` removes "
            ),
        ),
    ],
)
def test_what_has_no_meaning(
    environ: dict[str, str], arguments: tuple[str, ...], message: str
) -> None:
    before = abandoned()

    done = command("emulate", *arguments, XDG_CACHE_HOME=environ["XDG_CACHE_HOME"])

    assert done.returncode == 2
    assert f"error: {message}" in done.stderr
    assert "Traceback" not in done.stderr
    assert abandoned() <= before


@pytest.mark.parametrize(
    ("api", "hint"), [("abacus", ""), ("cuda", "hint: only crossmem's own calls can run on an")]
)
def test_what_nobody_emulates(api: str, hint: str) -> None:
    done = command("emulate", api, "--", "true")

    assert done.returncode == 2
    assert f"error: no emulated library for '{api}'; there are: ascend, hip\n" in done.stderr
    assert hint in done.stderr


def test_no_compiler(run: Run, tmp_path: Path) -> None:
    done = run("hip", "--", "true", XDG_CACHE_HOME=str(tmp_path), PATH="/nonsense")

    assert done.returncode == 2
    assert "need a C compiler, and none was found" in done.stderr
    assert "hint: install a compiler" in done.stderr


# In tests of the program's own project ----------------------------------------------------------


@pytest.fixture
def gpu(environ: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Emulated]:
    monkeypatch.setenv("XDG_CACHE_HOME", environ["XDG_CACHE_HOME"])
    made = Emulated("hip", devices=4, faults=("hipMalloc=2",))
    yield made
    made.close()


def test_the_fixture(gpu: Emulated, program: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(program), "free"],
        capture_output=True,
        text=True,
        check=True,
        timeout=DEADLINE_S,
        env=gpu.environ,
    )

    assert done.stdout == "0 4\n[2, 0, 0]\n1\n"
    assert [(one.call, one.rule) for one in gpu.violations] == [("free", "HIP-X4")]


def test_the_fixture_in_a_project(tmp_path: Path, environ: dict[str, str], program: Path) -> None:
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["crossmem_emulated.fixtures"]\n')
    (tmp_path / "test_it.py").write_text(
        "import subprocess, sys\n"
        "def test_it(emulate):\n"
        "    gpu = emulate('hip', devices=1)\n"
        f"    command = [sys.executable, {str(program)!r}]\n"
        "    text = subprocess.run(command, env=gpu.environ, capture_output=True).stdout\n"
        "    assert text.startswith(b'0 1')\n"
        "    assert gpu.violations == ()\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-c", "/dev/null", "--rootdir", str(tmp_path)]
    done = subprocess.run(
        [*command, "-p", "no:cacheprovider", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
        env=environ,
    )

    assert done.returncode == 0, done.stdout


def test_crossmem_finds_the_emulated_npus_by_itself(run: Run) -> None:
    script = "import crossmem; print(crossmem.device('ascend:0').allocate(1).nbytes)"

    assert run("ascend", "--", sys.executable, "-c", script).stdout == "1\n"


@pytest.mark.parametrize(("mode", "is_told"), [("--strict", True), ("--lax", False)])
@pytest.mark.parametrize("end", ["os.kill(os.getpid(), 11)", "sys.exit(139)"])
def test_an_end_by_sigsegv_is_explained(run: Run, mode: str, is_told: bool, end: str) -> None:
    done = run("ascend", mode, "--", sys.executable, "-c", f"import os, sys; {end}")

    assert done.returncode == 128 + signal.SIGSEGV
    assert ("an access of the CPU to a device address ends like this" in done.stderr) == is_told
