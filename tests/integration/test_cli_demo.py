# SPDX-License-Identifier: Apache-2.0
"""The demo, run as a user runs it: real files, real processes."""

import hashlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from programs import Done, command
from safetensors.numpy import save_file

from crossmem.cli.reports import DemoReport, ErrorReport
from crossmem.conformance.speed import SLOWNESS

_DEADLINE_S = 90 * SLOWNESS


def run(*arguments: str | Path, path: Sequence[Path] = (), **environment: str) -> Done:
    return command("demo", *arguments, path=path, **environment)


def report_of(path: Path, *arguments: str) -> DemoReport:
    done = run(path, "--json", "-n", "2", *arguments)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return DemoReport.model_validate_json(done.stdout)


def error_of(done: Done) -> ErrorReport:
    assert "Traceback" not in done.stderr
    error = ErrorReport.model_validate_json(done.stdout)
    assert error.exit_code == done.returncode
    return error


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@pytest.mark.ci
def test_every_tensor_of_a_safetensors_file_arrives(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    arrays: dict[str, np.ndarray[Any, Any]] = {
        "embedding": rng.standard_normal((1000, 257)).astype(np.float32),
        "scale": rng.integers(0, 9, 3, dtype=np.int64),
        "nothing": np.zeros((0,), dtype=np.float32),
    }
    path = tmp_path / "model.safetensors"
    save_file(arrays, path)

    report = report_of(path)

    assert report.ok
    assert report.file.format == "safetensors"
    assert report.file.sha256 == sha256(path.read_bytes())
    digests = {one.name: one.sha256 for one in report.file.tensors}
    assert digests == {
        name: sha256(array.tobytes()) if array.nbytes else None for name, array in arrays.items()
    }
    assert len(report.consumers) == 2
    for one in report.consumers:
        assert one.equal
        assert one.sha256 == report.file.sha256
        assert one.tensors_equal == 2
        assert one.readonly
        assert 0 < one.attach_s < _DEADLINE_S
    assert {lease.pid for lease in report.leases} == {one.pid for one in report.consumers}
    assert report.leases_after == 0
    assert report.copy_through_pipe.equal
    assert report.handle_nbytes <= 1024


@pytest.mark.ci
def test_memory_is_counted_once(tmp_path: Path) -> None:
    path = tmp_path / "data.bin"
    path.write_bytes(os.urandom(2**22))

    report = report_of(path, "--no-copy")

    assert report.file.format == "bytes"
    assert report.copy_through_pipe.skipped
    assert report.counted_once_nbytes is not None
    assert report.resident_sum_nbytes is not None
    # Three processes have all of it mapped, and it is there once.
    assert report.resident_sum_nbytes >= 3 * 2**22
    assert report.counted_once_nbytes <= report.capacity_nbytes


@pytest.mark.ci
@pytest.mark.parametrize("device", ["host", "hip:0"])
def test_the_memory_of_a_gpu_is_not_said_to_be_zero_bytes(tmp_path: Path, device: str) -> None:
    path = tmp_path / "data.bin"
    path.write_bytes(os.urandom(2**12))

    done = run(path, "--no-copy", "-n", "1", "--device", device, CROSSMEM_RUNTIME="hip=emulated")

    assert done.returncode == 0, done.stderr
    # The kernel counts the pages of host memory only.
    assert ("Memory in use" in done.stdout) == (device == "host")


@pytest.mark.ci
@pytest.mark.parametrize("suffix", ["npy", "npz"])
def test_numpy_files_arrive(tmp_path: Path, suffix: str) -> None:
    array = np.arange(10_000, dtype=np.int32).reshape(100, 100)
    path = tmp_path / f"array.{suffix}"
    if suffix == "npy":
        np.save(path, array)
    else:
        np.savez(path, a=array, b=array.T)

    report = report_of(path, "--no-copy")

    assert report.ok
    assert report.file.format == suffix
    assert {one.shape for one in report.file.tensors} == {(100, 100)}
    assert report.file.tensors[0].sha256 == sha256(array.tobytes())


@pytest.mark.ci
def test_a_damaged_header_makes_plain_bytes_and_a_note(tmp_path: Path) -> None:
    path = tmp_path / "broken.safetensors"
    path.write_bytes(b"\xff" * 100)

    report = report_of(path, "--no-copy")

    assert report.ok
    assert (report.file.format, report.file.tensors) == ("bytes", ())
    assert report.file.note is not None
    assert "not a usable safetensors file" in report.file.note


@pytest.mark.ci
def test_names_cannot_harm_the_terminal_or_the_document(tmp_path: Path) -> None:
    path = tmp_path / os.fsdecode(b"data\xff\x1b[31m.safetensors")
    save_file({"[red]x[/red]\x1b]0;title\x07": np.ones(3)}, path)

    report = report_of(path, "--no-copy")
    assert report.ok
    assert report.file.name == "data\\xff\x1b[31m.safetensors"

    done = run(path, "-n", "1", "--no-copy")
    assert done.returncode == 0, done.stderr
    assert "[red]x[/red]\\x1b]0;title\\x07" in done.stdout
    assert "\x1b" not in done.stdout


def test_people_see_what_happened() -> None:
    script = Path(sys.executable).with_name("crossmem")
    done = subprocess.run(
        [script, "demo", "--size", "8MiB", "-n", "2"],
        capture_output=True,
        text=True,
        timeout=_DEADLINE_S,
        check=False,
        env={**os.environ, "COLUMNS": "100"},
    )

    assert done.returncode == 0, done.stderr
    for text in ("generated weights", "Tensor", "read-only", "equal", "Copy through a pipe", "OK"):
        assert text in done.stdout
    assert all(len(line) <= 100 for line in done.stdout.splitlines())


@pytest.mark.ci
@pytest.mark.parametrize("kind", ["missing", "empty", "directory", "pipe", "unreadable name"])
def test_what_is_no_file_to_share_is_a_usage_error(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "input"
    if kind == "empty":
        path.touch()
    elif kind == "directory":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "unreadable name":
        path = tmp_path / ("x" * 300)

    done = run(path, "--json")

    assert done.returncode == 2
    error = error_of(done)
    expected = {"missing": "no file", "unreadable name": "cannot be opened"}.get(kind, kind)
    assert expected in error.message
    assert done.stderr.startswith("error: ")


@pytest.mark.ci
@pytest.mark.parametrize(
    ("arguments", "environment", "code", "text"),
    [
        (("--size", "many"), {}, 2, "'many' is not a size"),
        (("--size", "10"), {}, 2, "too few"),
        ((__file__, "--size", "1MiB"), {}, 2, "exclude each other"),
        (("--device", "Emulated0"), {}, 2, "expected a device name"),
        (("--device", "emulated:99"), {}, 2, "has no device 99"),
        (("--device", "absent:0"), {}, 2, "no plugin offers"),
        (("--size", "8MiB"), {"CROSSMEM_DEVICE": "absent:0"}, 2, "no plugin offers"),
        (("--size", "8MiB"), {"CROSSMEM_TIMEOUT": "never"}, 2, "CROSSMEM_TIMEOUT"),
        (("--size", "16TiB"), {}, 3, "host:0 has no room for"),
    ],
)
def test_errors_are_one_paragraph_with_a_code(
    arguments: tuple[str, ...], environment: dict[str, Any], code: int, text: str
) -> None:
    done = run(*arguments, "--json", **environment)

    assert done.returncode == code, done.stderr
    assert text in error_of(done).message


@pytest.mark.ci
def test_options_that_do_not_exist_are_usage_errors() -> None:
    done = run("--no-such-option")

    assert done.returncode == 2
    assert done.stdout == ""


@pytest.mark.ci
def test_a_copy_for_which_a_container_has_no_room_is_skipped(tmp_path: Path) -> None:
    (tmp_path / "container.py").write_text(
        "from crossmem.driver.memory import Limit, Limits\n"
        "Limits.tightest = lambda self: Limit('memory.max', 'more', 2**26, 2**24)\n"
    )
    done = run("--json", "--size", "10MiB", path=[tmp_path], CROSSMEM_PLUGINS="container")

    assert done.returncode == 0, done.stderr
    copied = DemoReport.model_validate_json(done.stdout).copy_through_pipe
    assert "more than half of the host memory" in str(copied.skipped)


@pytest.mark.ci
def test_other_bytes_are_noticed(tmp_path: Path) -> None:
    (tmp_path / "spoiler.py").write_text(
        "import gc, crossmem\n"
        "from crossmem.plugin import hookimpl\n"
        "@hookimpl\n"
        "def crossmem_event(event):\n"
        "    if event.kind == 'exported':\n"
        "        for one in gc.get_objects():\n"
        "            if isinstance(one, crossmem.Allocation):\n"
        "                one.write(bytes(64), offset=5000)\n"
    )

    done = run(
        *("--json", "--size", "4MiB", "-n", "2"),
        path=[tmp_path],
        CROSSMEM_PLUGINS="spoiler",
    )

    assert done.returncode == 1, done.stderr
    report = DemoReport.model_validate_json(done.stdout)
    assert not report.ok
    assert not any(one.equal for one in report.consumers)


@pytest.fixture
def running() -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "crossmem", "demo", "--size", "512MiB", "-n", "2", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        for pid in session_of(process.pid):
            # What helps multiprocessing may be about to end by itself.
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.communicate(timeout=_DEADLINE_S)


def session_of(leader: int) -> set[int]:
    """Return the live processes of a session."""
    found = set()
    for entry in Path("/proc").iterdir():
        try:
            state, _parent, _group, session = (
                (entry / "stat").read_text().rpartition(")")[2].split()[:4]
            )
        except OSError:
            continue
        if int(session) == leader and state != "Z":
            found.add(int(entry.name))
    return found


def wait_for_consumers(process: subprocess.Popen[str]) -> list[int]:
    deadline = time.monotonic() + _DEADLINE_S
    while time.monotonic() < deadline:
        assert process.poll() is None, process.communicate()
        consumers = []
        for pid in session_of(process.pid):
            try:
                if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    consumers.append(pid)
            except OSError:
                continue
        if len(consumers) == 2:
            return consumers
        time.sleep(0.01)
    pytest.fail("the consumers did not start")


@pytest.mark.ci
def test_ctrl_c_leaves_no_process(running: subprocess.Popen[str]) -> None:
    wait_for_consumers(running)
    os.killpg(running.pid, signal.SIGINT)
    stdout, stderr = running.communicate(timeout=_DEADLINE_S)

    assert running.returncode == 130
    assert "Traceback" not in stderr
    assert ErrorReport.model_validate_json(stdout).error == "Interrupted"
    deadline = time.monotonic() + 30 * SLOWNESS  # multiprocessing's own helper ends a moment later
    while session_of(running.pid) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not session_of(running.pid)


@pytest.mark.ci
def test_ctrl_c_while_a_consumer_starts_is_not_lost() -> None:
    code = (
        "import os, signal, time\n"
        "from crossmem.cli.children import Children\n"
        "class Slow:\n"
        "    def __reduce__(self):\n"
        "        os.kill(os.getpid(), signal.SIGINT)\n"
        "        return (str, ())\n"
        "with Children() as children:\n"
        "    children.start('consumer', print, Slow())\n"
        "    time.sleep(1)\n"
        "print('it goes on')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=_DEADLINE_S,
        check=False,
    )

    assert "KeyboardInterrupt" in done.stderr
    assert "it goes on" not in done.stdout


@pytest.mark.ci
def test_a_killed_consumer_is_reported(running: subprocess.Popen[str]) -> None:
    victim = wait_for_consumers(running)[0]
    os.kill(victim, signal.SIGKILL)
    stdout, stderr = running.communicate(timeout=_DEADLINE_S)

    assert running.returncode == 3
    assert "Traceback" not in stderr
    error = ErrorReport.model_validate_json(stdout)
    assert f"pid {victim}" in error.message
    assert "killed by signal 9" in error.message
