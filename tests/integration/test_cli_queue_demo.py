# SPDX-License-Identifier: Apache-2.0
"""The demo of queues, run as a user runs it: a real file, one primary, several secondaries."""

import hashlib
import os
import pty
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import pytest
from programs import Done, command

from crossmem.cli.reports import ErrorReport, QueueDemoReport
from crossmem.conformance.speed import SLOWNESS

pytestmark = pytest.mark.ci

_DEADLINE_S = 90 * SLOWNESS
_SPOILER = """
import os, time
import crossmem
from crossmem.plugin import hookimpl

put = crossmem.Queue.put

def spoiled(self, item, **options):
    with item.view() as view:
        view[-1] ^= 1
    put(self, item, **options)

crossmem.Queue.put = spoiled
"""


def run(*arguments: str | Path, path: Sequence[Path] = (), **environment: str) -> Done:
    return command("demo", "--queue", *arguments, path=path, **environment)


def report_of(*arguments: str | Path) -> QueueDemoReport:
    return checked(run(*arguments, "--json"))


def checked(done: Done) -> QueueDemoReport:
    assert (done.returncode, done.stderr) == (0, "")
    return QueueDemoReport.model_validate_json(done.stdout)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Return a file that is no multiple of anything."""
    path = tmp_path / "data.bin"
    path.write_bytes(os.urandom(3 * 2**20 + 17))
    return path


def test_a_file_reaches_three_secondaries_by_both_queues(data: Path) -> None:
    report = report_of(data)

    assert report.ok
    assert (report.path, report.nbytes) == (str(data), 3 * 2**20 + 17)
    assert report.sha256 == hashlib.sha256(data.read_bytes()).hexdigest()
    assert len(report.secondaries) == len({one.pid for one in report.secondaries}) == 3
    assert sum(one.nbytes for one in report.secondaries) == report.nbytes
    assert sum(one.chunks for one in report.secondaries) == report.chunks == 25
    # All had come before the first chunk, so each has got some.
    assert all(one.equal == one.chunks > 0 for one in report.secondaries)
    assert report.handle_nbytes <= 1024
    for way in (report.queue, report.multiprocessing_queue):
        assert way is not None
        assert way.equal
        assert 0 < way.latency_s < way.seconds + 1 < _DEADLINE_S


def test_a_byte_is_a_chunk(tmp_path: Path) -> None:
    path = tmp_path / "byte"
    path.write_bytes(b"x")

    report = report_of(path, "--no-copy", "-n", "2")

    assert (report.ok, report.chunks, report.nbytes) == (True, 1, 1)
    assert sorted(one.chunks for one in report.secondaries) == [0, 1]
    assert report.multiprocessing_queue is None


def test_on_an_emulated_gpu(data: Path, tmp_path: Path) -> None:
    report = checked(
        run(
            *(data, "--device", "hip:0", "--no-copy", "-n", "2", "--json"),
            CROSSMEM_RUNTIME="hip=emulated",
            CROSSMEM_EMULATED_STATE=str(tmp_path),
        )
    )

    assert (report.ok, report.device) == (True, "hip:0")


def test_people_see_what_happened(data: Path) -> None:
    done = run(data, "-n", "2", COLUMNS="100")

    assert (done.returncode, done.stderr) == (0, "")
    for text in ("PID", "Chunks", "multiprocessing.Queue", "One chunk", "equal", "OK  17 chunks"):
        assert text in done.stdout
    assert all(len(line) <= 100 for line in done.stdout.splitlines())


def test_a_terminal_shows_the_progress_of_each_stream(data: Path) -> None:
    ours, theirs = pty.openpty()
    try:
        with subprocess.Popen(
            [sys.executable, "-m", "crossmem", "demo", "--queue", "-n", "1", data],
            stdout=subprocess.DEVNULL,
            stderr=theirs,
            env={**os.environ, "TERM": "xterm", "COLUMNS": "100"},
        ) as process:
            os.close(theirs)
            shown = b""
            try:
                while chunk := os.read(ours, 2**16):
                    shown += chunk
            except OSError:
                pass  # the end of the last process with the terminal
            assert process.wait(_DEADLINE_S) == 0
    finally:
        os.close(ours)

    for title in (b"Read data.bin", b"Stream, no copy", b"Copy by Python's queue"):
        assert title in shown
    assert b"3.0/3.0 MiB" in shown


@pytest.mark.parametrize(
    ("name", "arguments", "text"),
    [
        ("missing", (), "there is no file"),
        ("empty", (), "is empty"),
        ("directory", (), "is a directory"),
        ("data", ("--size", "1MiB"), "exclude each other"),
        ("data", ("-n", "65"), "no room for so many consumers"),
        ("data", ("--device", "absent:0"), "no plugin offers"),
    ],
)
def test_what_cannot_be_used_is_a_usage_error(
    name: str, arguments: tuple[str, ...], text: str, tmp_path: Path
) -> None:
    (tmp_path / "empty").touch()
    (tmp_path / "directory").mkdir()
    (tmp_path / "data").write_bytes(b"data")

    done = run(tmp_path / name, *arguments, "--json")

    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    error = ErrorReport.model_validate_json(done.stdout)
    assert (error.exit_code, error.command) == (2, "demo")
    assert text in error.message
    assert error.hint


def test_other_bytes_are_noticed(data: Path, tmp_path: Path) -> None:
    (tmp_path / "spoiler.py").write_text(_SPOILER)
    # The last byte of each buffer differs, and only whole chunks have it.
    done = run(data, "--json", "--no-copy", path=[tmp_path], CROSSMEM_PLUGINS="spoiler")

    assert done.returncode == 1, done.stderr
    report = QueueDemoReport.model_validate_json(done.stdout)
    assert (report.ok, report.queue.equal) == (False, False)
    assert sum(one.equal for one in report.secondaries) == 1


@pytest.fixture
def running() -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "crossmem", "demo", "--queue", "--size", "512MiB", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate(timeout=_DEADLINE_S)


def received_kib(pid: int) -> int:
    """Return how much of crossmem's memory a process has used."""
    try:
        maps = Path(f"/proc/{pid}/smaps").read_text()
    except OSError:
        return 0
    return sum(map(int, re.findall(r"memfd:crossmem.*\n(?:.*\n)*?Rss:\s+(\d+) kB", maps)))


def secondaries_of(process: subprocess.Popen[str]) -> list[int]:
    """Return the secondaries of a demo, when each of them has received chunks."""
    deadline = time.monotonic() + _DEADLINE_S
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    while time.monotonic() < deadline:
        assert process.poll() is None, process.communicate()
        found = [pid for pid in map(int, children.read_text().split()) if received_kib(pid) > 1024]
        if len(found) == 3:
            return found
        time.sleep(0.01)
    pytest.fail("the secondaries did not start")


def test_killed_secondaries_are_reported(running: subprocess.Popen[str]) -> None:
    victims = secondaries_of(running)
    for pid in victims:
        os.kill(pid, signal.SIGKILL)
    # Nobody makes room in the queue any more, and the primary does not wait for that.
    stdout, stderr = running.communicate(timeout=30 * SLOWNESS)

    assert running.returncode == 3
    assert "Traceback" not in stderr
    error = ErrorReport.model_validate_json(stdout)
    assert any(f"pid {pid}" in error.message for pid in victims)
    assert "killed by signal 9" in error.message


def test_ctrl_c_ends_the_stream_and_its_secondaries(running: subprocess.Popen[str]) -> None:
    secondaries = secondaries_of(running)
    os.kill(running.pid, signal.SIGINT)
    stdout, stderr = running.communicate(timeout=_DEADLINE_S)

    assert running.returncode == 130
    assert "Traceback" not in stderr
    assert ErrorReport.model_validate_json(stdout).error == "Interrupted"
    # The primary has waited for them.
    assert not any(Path(f"/proc/{pid}").exists() for pid in secondaries)


_KILLED_IN_A_COPY = """
import os, signal, struct
from crossmem.cli import main
from crossmem.cli.channels import Copying

def put(self, number, nbytes, fill, check):
    # A secondary now waits for the rest of this message.
    os.write(self._other._writer.fileno(), struct.pack("!i", 1000))
    os.kill(os.getpid(), signal.SIGKILL)

Copying.put = put
main()
"""


def test_secondaries_end_with_a_primary_that_was_killed_in_a_copy(data: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _KILLED_IN_A_COPY, "demo", "--queue", str(data), "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    ) as started:
        try:
            # The pipes close with the last of their processes.
            stdout, _ = started.communicate(timeout=20 * SLOWNESS)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(started.pid, signal.SIGKILL)

    assert (started.returncode, stdout) == (-signal.SIGKILL, b"")
