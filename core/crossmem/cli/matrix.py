# SPDX-License-Identifier: Apache-2.0
"""Runs the conformance kit for every backend, runtime and mechanism of this machine."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import crossmem
from crossmem.cli.kit import run_kit
from crossmem.cli.problems import reason_and_hint
from crossmem.cli.reports import ConformanceMatrixReport, ConformanceReport, LeftOutReport
from crossmem.errors import CrossmemError
from crossmem.plugin.offers import PLUGIN_FAULTS
from crossmem.sharing.base.process import current

__all__ = ["run_matrix"]

_PASSED: Final = 0
_NOTHING_SELECTED: Final = 5


@dataclass(frozen=True, slots=True)
class _Cell:
    """One run of the kit: device, runtime and mechanism."""

    device: str
    runtime: str | None
    mechanism: str


def run_matrix(
    *,
    select: str | None,
    quiet: bool,
    say: Callable[[str], None],
    show: Callable[[ConformanceReport], None],
) -> ConformanceMatrixReport:
    """Run the kit on device 0 of each backend, with each of the backend's runtimes and mechanisms.

    The runs are sequential, because some tests fill the memory of the device.

    Parameters
    ----------
    select, quiet
        As for :func:`~crossmem.cli.kit.run_kit`.
    say
        Receives the name of each run when the run starts.
    show
        Receives the report of each run.

    Returns
    -------
    ConformanceMatrixReport
        ``exit_code`` is the exit code of the first failed run. If no run failed, and at least one
        run executed tests, ``exit_code`` is 0. If no run executed a test, ``exit_code`` is 5.

    Raises
    ------
    UsageProblem
        A package that the kit needs is not installed.
    """
    start = time.perf_counter()
    cells, left_out = _find_cells()
    runs = []
    for number, cell in enumerate(cells, start=1):
        names = " ".join(filter(None, (cell.device, cell.runtime, cell.mechanism)))
        say(f"run {number} of {len(cells)}: {names}")
        report = run_kit(
            cell.device,
            runtime=cell.runtime,
            mechanism=cell.mechanism,
            select=select,
            quiet=quiet,
        )
        show(report)
        runs.append(report)
    exit_code = _exit_code([one.exit_code for one in runs])
    return ConformanceMatrixReport(
        version=crossmem.__version__,
        ok=exit_code == _PASSED,
        exit_code=exit_code,
        seconds=time.perf_counter() - start,
        runs=tuple(runs),
        left_out=tuple(left_out),
    )


def _find_cells() -> tuple[list[_Cell], list[LeftOutReport]]:
    """Return the runs, and a report for each backend or runtime that cannot be tested."""
    registry = current().registry
    cells: list[_Cell] = []
    left_out: list[LeftOutReport] = []
    for name in registry.names():
        try:
            runtimes: tuple[str | None, ...] = registry.backend(name).runtimes or (None,)
        except CrossmemError as error:
            left_out.append(_left_out(name, None, error))
            continue
        for runtime in runtimes:
            try:
                device = crossmem.device(f"{name}:0", runtime=runtime)
            except PLUGIN_FAULTS as error:
                left_out.append(_left_out(name, runtime, error))
            else:
                mechanisms = device.capabilities.mechanisms
                cells.extend(_Cell(device.name, runtime, one) for one in mechanisms)
    return cells, left_out


def _left_out(backend: str, runtime: str | None, error: BaseException) -> LeftOutReport:
    reason, hint = reason_and_hint(error)
    return LeftOutReport(backend=backend, runtime=runtime, reason=reason, hint=hint)


def _exit_code(codes: list[int]) -> int:
    failed = [code for code in codes if code not in {_PASSED, _NOTHING_SELECTED}]
    if failed:
        return failed[0]
    return _PASSED if _PASSED in codes else _NOTHING_SELECTED
