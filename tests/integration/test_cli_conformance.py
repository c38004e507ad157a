# SPDX-License-Identifier: Apache-2.0
"""``crossmem conformance``: the kit, started from the command line."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from crossmem.cli.reports import ConformanceMatrixReport, ConformanceReport, ErrorReport
from crossmem.conformance.speed import SLOWNESS

pytestmark = pytest.mark.ci

_DEADLINE_S = 100 * SLOWNESS


def run(
    *arguments: str, code: str | None = None, cwd: Path | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    start = ["-c", code] if code is not None else ["-m", "crossmem"]
    return subprocess.run(
        [sys.executable, *start, "conformance", *arguments],
        capture_output=True,
        text=True,
        timeout=_DEADLINE_S,
        check=False,
        cwd=cwd,
        env={**os.environ, "COLUMNS": "100", **environment},
    )


def test_laws_as_json(tmp_path: Path) -> None:
    # Settings and conftest files of the project in whose folder it runs do not count.
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --no-such-option\n")
    for folder in (tmp_path, tmp_path / "tests"):
        folder.mkdir(exist_ok=True)
        (folder / "conftest.py").write_text("raise RuntimeError('this project is broken')\n")

    done = run("--json", "-k", "c01_odd", "--device", "emulated:1", cwd=tmp_path)

    assert done.returncode == 0, done.stderr
    report = ConformanceReport.model_validate_json(done.stdout)
    assert report.ok
    assert report.device == "emulated:1"
    (law,) = report.laws
    assert law.law == "C1"
    assert law.passed >= 1
    assert law.failed == ()
    assert "passed" in done.stderr  # pytest's own words


@pytest.mark.long
def test_laws_for_people() -> None:
    done = run("-k", "c01_odd")

    assert done.returncode == 0, done.stderr
    assert "kept" in done.stdout
    assert "1 law on host in " in done.stdout
    # One table of laws, although pytest prints one by itself.
    assert [line.split()[:2] for line in done.stdout.splitlines() if line.startswith("C1 ")] == [
        ["C1", "kept"]
    ]
    assert "laws of crossmem" not in done.stdout


@pytest.mark.long
def test_a_mechanism_can_be_named() -> None:
    done = run("-k", "c01_odd", "--mechanism", "memfd")

    assert done.returncode == 0, done.stderr
    assert "kept" in done.stdout
    assert "1 law on host with memfd" in done.stdout


@pytest.mark.long
def test_nothing_selected_exits_as_pytest_does() -> None:
    done = run("--json", "-k", "no_test_has_this_name")

    assert done.returncode == 5
    report = ConformanceReport.model_validate_json(done.stdout)
    assert (report.ok, report.exit_code, report.laws) == (False, 5, ())


REFUSED = (
    (["--device", "emulated:99"], "backend 'emulated' has no device 99"),
    (["--device", "pigeon:0"], "no plugin offers the backend 'pigeon'"),
    (["--device", "Pigeon"], "expected a device name such as 'cuda:0', got 'Pigeon'"),
    (["--device", "hip:0", "--runtime", "pigeon"], "backend 'hip' has no runtime 'pigeon'"),
    (["--device", "host", "--mechanism", "pigeon"], "does not offer mechanism 'pigeon'"),
)


@pytest.mark.parametrize(("options", "words"), REFUSED)
def test_what_cannot_be_tested_is_refused_at_once(options: list[str], words: str) -> None:
    done = run("--json", *options)

    assert done.returncode == 2
    error = ErrorReport.model_validate_json(done.stdout)
    assert error.exit_code == 2
    assert words in error.message
    # No test has begun.
    assert len(done.stderr.splitlines()) <= 2


def run_in_pytest(*options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pytest", "--pyargs", "crossmem.conformance", *options],
        capture_output=True,
        text=True,
        timeout=_DEADLINE_S,
        check=False,
    )


def test_a_misspelt_requirement_is_refused() -> None:
    done = run_in_pytest("--crossmem-require", "C6,c6,host_visible,nonsense")

    assert done.returncode == 2
    assert done.stderr == "ERROR: --crossmem-require: neither laws nor capabilities: c6, nonsense\n"


@pytest.mark.parametrize("workers", ["0", "2"])
@pytest.mark.parametrize(("options", "words"), REFUSED)
def test_pytest_refuses_it_at_once_too(options: list[str], words: str, workers: str) -> None:
    named = [f"--crossmem-{one[2:]}" if one.startswith("--") else one for one in options]
    done = run_in_pytest("-n", workers, *named)

    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("ERROR: ")
    assert words in done.stderr
    assert len(done.stderr.splitlines()) <= 2


@pytest.mark.long
def test_all_runs_what_works_and_says_what_does_not(tmp_path: Path) -> None:
    done = run("--all", "--json", "-k", "c01_odd", CROSSMEM_EMULATED_STATE=str(tmp_path / "host"))

    assert done.returncode == 0, done.stderr
    report = ConformanceMatrixReport.model_validate_json(done.stdout)
    assert report.ok
    found = {(one.device, one.runtime, one.mechanism) for one in report.runs}
    assert {
        ("host:0", None, "memfd"),
        ("emulated:0", None, "memfd"),
        ("ascend:0", "emulated", "shareable"),
        ("ascend:0", "emulated", "key"),
        ("hip:0", "emulated", "legacy"),
        ("cuda:0", "emulated", "legacy"),
    } <= found
    assert all(sum(law.passed for law in one.laws) == 1 for one in report.runs)
    # Whatever this machine has: each runtime was run, or it is said why not.
    missing = {(one.backend, one.runtime): one.reason for one in report.left_out}
    for backend, runtime in (("ascend", "pyacl"), ("hip", "cupy"), ("cuda", "cupy")):
        assert missing.get((backend, runtime)) or (f"{backend}:0", runtime) in {
            (device, name) for device, name, _ in found
        }


@pytest.mark.long
def test_all_shows_a_table_and_exits_as_the_first_run_that_failed(tmp_path: Path) -> None:
    only = "ascend,hip"

    done = run("--all", "-k", "c01_odd", CROSSMEM_DISABLE_PLUGINS=only)

    assert done.returncode == 0, done.stderr
    assert "2 of 2 runs passed" in done.stdout
    assert "run 1 of 2: emulated:0 memfd" in done.stderr
    assert "run 2 of 2: host:0 memfd" in done.stderr

    # One unit of memory is too little for these; host memory has no such units.
    small = "2MiB"
    done = run(
        "--all", "-k", "c01", CROSSMEM_DISABLE_PLUGINS=only, CROSSMEM_EMULATED_CAPACITY=small
    )

    assert done.returncode not in {0, 5}
    assert "1 of 2 runs passed" in done.stdout

    done = run("--all", "-k", "no_test_has_this_name", CROSSMEM_DISABLE_PLUGINS=only)

    assert done.returncode == 5


def test_all_chooses_devices_itself() -> None:
    done = run("--all", "--json", "--device", "emulated:1")

    assert done.returncode == 2
    error = ErrorReport.model_validate_json(done.stdout)
    assert error.message == "--all and --device exclude each other"


def test_ctrl_c_ends_all_runs() -> None:
    options = ["conformance", "--all", "--json", "-k", "c01_odd or c18_"]
    with subprocess.Popen(
        [sys.executable, "-m", "crossmem", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as started:
        assert started.stderr is not None
        assert "run 1 of" in started.stderr.readline()
        # pytest has begun when it prints its first line.
        started.stderr.read(1)
        os.killpg(started.pid, signal.SIGINT)
        stdout, stderr = started.communicate(timeout=_DEADLINE_S)

    assert started.returncode == 130
    assert ErrorReport.model_validate_json(stdout).error == "Interrupted"
    assert "run 2 of" not in stderr


@pytest.fixture
def short_path() -> Iterator[Path]:
    """Return an empty folder in whose subfolders addresses of sockets fit."""
    with tempfile.TemporaryDirectory(prefix="kit-") as name:
        yield Path(name)


def processes_of(session: int) -> set[str]:
    """Return the command lines of the processes of a session that have not ended."""
    found = set()
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            state, _, _, leader = (folder / "stat").read_text().rpartition(")")[2].split()[:4]
            if int(leader) == session and state != "Z":
                found.add((folder / "cmdline").read_text().replace("\0", " "))
    return found


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, pytest.param(signal.SIGKILL, marks=pytest.mark.long)]
)
def test_the_kit_ends_with_its_command(number: int, short_path: Path) -> None:
    without = {name: value for name, value in os.environ.items() if name != "CROSSMEM_RUN_DIR"}
    with subprocess.Popen(
        [sys.executable, "-m", "crossmem", "conformance", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**without, "TMPDIR": str(short_path)},
    ) as started:
        try:
            assert started.stderr is not None
            # The first tests have passed.
            started.stderr.read(3)
            started.send_signal(number)
            assert started.wait(_DEADLINE_S) == -number
            # The whole kit takes minutes. The end of a started test may take some seconds.
            deadline = time.monotonic() + 20 * SLOWNESS
            while (left := processes_of(started.pid)) and time.monotonic() < deadline:
                time.sleep(0.1)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(started.pid, signal.SIGKILL)

    assert left == set()
    assert list(short_path.glob("crossmem-*")) == []


def test_without_hypothesis_a_line_says_what_to_install() -> None:
    code = (
        "import importlib.util as util, sys\n"
        "find = util.find_spec\n"
        "util.find_spec = lambda name: None if name == 'hypothesis' else find(name)\n"
        "from crossmem.cli import main\n"
        "main()\n"
    )
    done = run("--json", code=code)

    assert done.returncode == 2
    error = ErrorReport.model_validate_json(done.stdout)
    assert error.message == "the conformance kit needs hypothesis"
    assert error.hint is not None
    assert "pip install 'crossmem[conformance]'" in error.hint
