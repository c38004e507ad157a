# SPDX-License-Identifier: Apache-2.0
"""What the command does if its output cannot be written, or has another encoding."""

import errno
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from programs import command

from crossmem.cli.commands import reporting
from crossmem.cli.render import seconds_text
from crossmem.cli.reports import ErrorReport
from crossmem.conformance.speed import SLOWNESS
from crossmem.errors import DriverError

_DEADLINE_S = 110 * SLOWNESS


@pytest.mark.parametrize("command", ["devices", "devices --json", "demo --size 1MiB -n 1 --json"])
def test_a_full_disk_is_no_wrong_result(command: str) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "crossmem", *command.split()],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=_DEADLINE_S,
            check=False,
        )

    assert done.returncode == 3
    assert done.stderr == "error: the output cannot be written: No space left on device\n"


def test_a_reader_that_has_read_enough_is_no_error() -> None:
    done = shell("((crossmem devices --json); echo $? >&2) | true")

    assert done.stderr == "3\n"


def interpreter(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        timeout=_DEADLINE_S,
        check=False,
    )


def shell(line: str) -> "subprocess.CompletedProcess[str]":
    """Run a line of a shell in which ``crossmem`` is the command."""
    return subprocess.run(
        ["sh", "-c", f'crossmem() {{ exec "$0" -m crossmem "$@"; }}\n{line}', sys.executable],
        capture_output=True,
        text=True,
        timeout=_DEADLINE_S,
        check=False,
        # A measurement of coverage writes files, and prints a traceback if it cannot.
        env={name: value for name, value in os.environ.items() if "COVERAGE" not in name},
    )


@pytest.mark.ci
@pytest.mark.parametrize(
    "line",
    [
        "ulimit -n 20; crossmem demo --size 1MiB",
        "ulimit -f 100; crossmem demo --size 64MiB",
        "ulimit -f 100; crossmem demo --queue --size 64MiB",
        "mkdir $$.gone && cd $$.gone && rmdir ../$$.gone; crossmem demo --size 1MiB",
    ],
)
def test_what_the_system_refuses_is_one_line_and_no_wrong_result(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = shell(line)

    assert done.returncode in {0, 3}, done.stderr
    assert "Traceback" not in done.stderr
    assert (done.returncode == 3) == ("error: " in done.stderr)


@pytest.mark.ci
def test_a_full_shm_is_not_the_output(tmp_path: Path) -> None:
    (tmp_path / "full.py").write_text(
        "import errno, _multiprocessing\n"
        "import multiprocessing.synchronize as it\n"
        "class Full:\n"
        "    SEM_VALUE_MAX = 1000\n"
        "    class SemLock(_multiprocessing.SemLock):\n"
        "        def __new__(*arguments):\n"
        "            raise OSError(errno.ENOSPC, 'No space left on device')\n"
        "it._multiprocessing = Full\n"
    )
    options: tuple[str, ...] = ("demo", "--queue", "--size", "1MiB")
    done = command(*options, path=[tmp_path], CROSSMEM_PLUGINS="full")
    without = command(*options, "--no-copy", path=[tmp_path], CROSSMEM_PLUGINS="full")

    assert (done.returncode, without.returncode) == (3, 0), without.stderr
    assert done.stderr.splitlines() == [
        "error: multiprocessing.Queue cannot be made: No space left on device",
        f"sem_open failed with ENOSPC ({errno.ENOSPC})",
        "hint: make room in /dev/shm, or pass --no-copy to leave out the comparison",
    ]


@pytest.mark.ci
def test_children_end_though_the_parent_ignores_them() -> None:
    ignore = "import os, signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN)"
    code = f"{ignore}; os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
    command = [sys.executable, "-c", code, "-m", "crossmem", "demo", "--size", "1MiB"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_DEADLINE_S, check=False)

    assert (done.returncode, done.stderr) == (0, "")


def test_a_failed_call_has_its_own_line(capsys: pytest.CaptureFixture[str]) -> None:
    error = DriverError(
        "no memory", call="hipMalloc", code=2, name="hipErrorOutOfMemory", hint="free some"
    )
    with pytest.raises(typer.Exit), reporting("demo", as_json=True):
        raise error
    stdout, stderr = capsys.readouterr()

    report = ErrorReport.model_validate_json(stdout)
    call = "hipMalloc failed with hipErrorOutOfMemory (2)"
    assert (report.message, report.call, report.hint) == ("no memory", call, "free some")
    assert stderr.splitlines() == ["error: no memory", call, "hint: free some"]


@pytest.mark.parametrize("seconds", ["inf", "1e10", "nan", "0"])
def test_a_time_limit_has_a_range(seconds: str) -> None:
    done = command("demo", "--timeout", seconds)

    assert (done.returncode, done.stdout) == (2, "")
    assert "Invalid value for '--timeout'" in done.stderr


_UNWRITABLE = """
import sys
import crossmem.bench as bench
from crossmem.cli import main

bench.run = lambda *_, **__: sys.exit("measured")
main()
"""


@pytest.mark.ci
@pytest.mark.parametrize(
    "options", [("-o", "/proc/bench.json"), ("-o", "/"), ("--page", "/proc/bench")]
)
def test_bench_measures_nothing_that_it_could_not_write(options: tuple[str, ...]) -> None:
    done = interpreter("-c", _UNWRITABLE, "bench", *options)

    assert done.returncode == 2, done.stderr
    assert "cannot write" in done.stderr


@pytest.mark.ci
def test_bench_shows_what_it_could_not_write_in_the_end(tmp_path: Path) -> None:
    path = tmp_path / "bench.json"
    assert command("bench", "--smoke", "--peer", "floor", "-o", str(path)).returncode == 0
    (tmp_path / "full.py").write_text(
        "from pathlib import Path\n"
        "def refuse(*_, **__):\n"
        "    raise OSError(28, 'No space left on device')\n"
        "Path.write_text = refuse\n"
    )
    options = ("--read", str(path), "--json", "-o", str(tmp_path / "copy.json"))
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import full, crossmem.cli as cli"
    done = interpreter("-c", f"{code}; cli.main()", "bench", *options)

    assert done.returncode == 2, done.stderr
    assert "No space left on device" in done.stderr
    assert json.loads(done.stdout) == json.loads(path.read_text("utf-8"))


def test_durations_are_written_in_the_encoding_of_the_output(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shown = []
    for encoding in ("utf-8", "ascii"):
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding))
            shown.append(seconds_text(4e-6))

    assert shown == ["4 µs", "4 us"]
