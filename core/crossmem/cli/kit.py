# SPDX-License-Identifier: Apache-2.0
"""Runs the conformance kit in a separate pytest process and reads its report."""

import json
import os
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import crossmem
from crossmem import conformance
from crossmem._version import __version__
from crossmem.cli.problems import UsageProblem
from crossmem.cli.reports import ConformanceReport, LawReport
from crossmem.conformance.report import TABLE
from crossmem.errors import UnsupportedError

__all__ = ["run_kit"]

_NEEDED = ("pytest", "hypothesis")
_START = """
import ctypes, os, runpy, signal, sys
signal.signal(signal.SIGTERM, signal.default_int_handler)
ctypes.CDLL(None).prctl(1, signal.SIGTERM, 0, 0, 0)
if os.getppid() == int(sys.argv.pop(1)):
    runpy.run_module("pytest", run_name="__main__", alter_sys=True)
sys.exit(3)
"""
"""A script that starts pytest. When ``crossmem conformance`` ends, even by SIGKILL, the kernel
sends SIGTERM to pytest. Then pytest ends its own processes, as it also does after Ctrl-C. pytest
cannot rewrite the assertions of a package that is imported before pytest starts. So the script is
not a module of crossmem: to run such a module, ``python -m`` would import crossmem first."""


def run_kit(
    device: str, *, runtime: str | None, mechanism: str | None, select: str | None, quiet: bool
) -> ConformanceReport:
    """Run the kit on a device.

    Parameters
    ----------
    device, runtime, mechanism
        The device under test, the vendor binding, and the mechanism that shares the memory. If
        ``runtime`` or ``mechanism`` is None, the default is used.
    select
        pytest's ``-k`` expression; None for all tests.
    quiet
        Whether pytest's own output goes to standard error instead of standard output.

    Returns
    -------
    ConformanceReport
        ``exit_code`` is that of pytest. The report has no laws if pytest did not run any test.

    Raises
    ------
    UsageProblem
        A package that the kit needs is not installed, or the device lacks the mechanism.
    ConfigurationError, BackendNotFoundError, BackendUnavailableError, DeviceNotFoundError
        The device cannot be used.
    KeyboardInterrupt
        The user pressed Ctrl-C. pytest has ended.
    """
    missing = [name for name in _NEEDED if find_spec(name) is None]
    if missing:
        raise UsageProblem(
            f"the conformance kit needs {' and '.join(missing)}",
            hint=f"run: {sys.executable} -m pip install 'crossmem[conformance]'",
        )
    try:
        # Without this check, each test would fail with the same error.
        crossmem.device(device, runtime=runtime, mechanism=mechanism)
    except UnsupportedError as error:
        raise UsageProblem(error.message, hint=error.hint) from error
    kit = str(Path(conformance.__file__).parent)
    # The report goes to memory, so that a killed command leaves no file.
    with os.fdopen(os.memfd_create("crossmem-report"), "rb") as report:
        # pytest must ignore the settings and conftest files of the current folder. So the options
        # name an empty configuration file, and the kit as the root folder. The tests are named by
        # the kit's path. If they were named by a module name, pytest would load the conftest files
        # of the current folder.
        command = [sys.executable, "-c", _START, str(os.getpid()), "-q", "-c", "/dev/null"]
        # pytest prints no table of laws, because ``crossmem conformance`` prints its own table.
        command += ["--rootdir", kit, "-p", "no:cacheprovider", "-p", f"no:{TABLE}", kit]
        command += ["--crossmem-device", device]
        command += ["--crossmem-report", f"/proc/self/fd/{report.fileno()}"]
        command += ["--crossmem-runtime", runtime] if runtime else []
        command += ["--crossmem-mechanism", mechanism] if mechanism else []
        command += ["-k", select] if select else []
        start = time.perf_counter()
        with subprocess.Popen(  # noqa: S603 - this interpreter
            command, stdout=sys.stderr if quiet else None, pass_fds=[report.fileno()]
        ) as pytest:
            try:
                exit_code = pytest.wait()
            except KeyboardInterrupt:
                # Ctrl-C also reaches pytest, which then ends its own processes.
                pytest.wait()
                raise
        seconds = time.perf_counter() - start
        text = report.read()
    # pytest writes no report if it cannot start, or if it runs no test.
    found = json.loads(text)["laws"] if text else {}
    return ConformanceReport(
        version=__version__,
        device=device,
        runtime=runtime,
        mechanism=mechanism,
        ok=exit_code == 0,
        exit_code=exit_code,
        seconds=seconds,
        laws=tuple(
            LawReport(
                law=law,
                passed=outcome["passed"],
                failed=tuple(outcome["failed"]),
                skipped=dict(outcome["skipped"]),
            )
            for law, outcome in found.items()
        ),
    )
