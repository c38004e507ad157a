# SPDX-License-Identifier: Apache-2.0
"""The command ``crossmem bench`` and its options, for typer."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, cast

import typer

from crossmem.cli.commands import Json, reporting
from crossmem.cli.problems import BenchmarkError, ExitCode, UsageProblem, write_text
from crossmem.cli.render import show_step
from crossmem.errors import UnsupportedError
from crossmem.guards import clause

if TYPE_CHECKING:
    from crossmem.bench import Report

__all__ = ["BENCH_EXAMPLES", "bench"]

BENCH_EXAMPLES: Final = (
    ("crossmem bench", "one table, in less than a minute"),
    ("crossmem bench --peer crossmem --peer posix_ipc", "compare crossmem with posix_ipc only"),
    ("crossmem bench --full -o bench.json", "every table in a few minutes, and a JSON file"),
    ("crossmem bench --full --check", "exit with 1 if a target is missed"),
)


def bench(
    *,
    full: Annotated[
        bool,
        typer.Option("--full", help="Measure everything in many rounds, and print every table."),
    ] = False,
    check: Annotated[
        bool,
        typer.Option(
            "--check",
            help="Print the project's targets with verdicts; exit with 1 if a target is missed.",
        ),
    ] = False,
    smoke: Annotated[
        bool,
        typer.Option(
            "--smoke",
            hidden=True,
            help="Run everything for some seconds, as a trial; the numbers mean nothing.",
        ),
    ] = False,
    peer: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Measure only this way of sharing: crossmem, pool, mp, floor, posix_ipc, "
            r"umf-proxy, umf-disjoint, iceoryx2 or torch. May be repeated.  \[default: crossmem, "
            "mp and floor; with --full or --check, all]",
        ),
    ] = None,
    device: Annotated[
        str, typer.Option(envvar="CROSSMEM_DEVICE", help="Device that crossmem uses.")
    ] = "host",
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="FILE", help="Also write the JSON document to FILE."
        ),
    ] = None,
    page: Annotated[
        Path | None,
        typer.Option(
            "--page",
            metavar="FOLDER",
            help="Also write tables (Markdown) and charts (SVG) to FOLDER.",
        ),
    ] = None,
    read: Annotated[
        Path | None,
        typer.Option(
            "--read", metavar="FILE", help="Measure nothing; show the run whose JSON is in FILE."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    r"""Compare crossmem with other ways to share host memory, in one run.

    Without options, prints one table: the median of each operation for crossmem, for
    [cyan]multiprocessing.shared_memory[/cyan], and for the floor (a memfd, a socket and mmap,
    without leases and checks). A ratio follows each median of shared_memory and of the floor:
    crossmem's median divided by this median.

    Each way of sharing has two processes, on two CPUs if two are available. The ways take turns,
    round by round. [cyan]--full[/cyan] measures all ways that are installed. [cyan]pip install
    'crossmem\[bench]'[/cyan] installs most of them.

    Exits with 0. With [cyan]--check[/cyan], exits with 1 if a target is missed.
    """
    with reporting("bench", as_json=as_json):
        from crossmem import bench as suite

        for name in peer or ():
            if name not in suite.PEERS:
                hint = f"choose from {', '.join(suite.PEERS)}"
                raise UsageProblem(f"--peer {name!r} is unknown", hint=hint)
        _prepare_files(output, page)
        mode: suite.Mode = "smoke" if smoke else "full" if full else "quick" if check else "brief"
        if mode == "brief" and read is None:
            show_step("measuring, which takes less than half a minute")
        say = (lambda _: None) if mode == "brief" else show_step
        try:
            if read is not None:
                report = _read(read)
                mode = cast("suite.Mode", report.mode)
            else:
                report = suite.run(mode, peers=peer, device=device, say=say)
        except suite.BenchError as error:
            raise BenchmarkError(clause(str(error)), details=str(error)) from error
        except UnsupportedError as error:
            raise UsageProblem(error.message, hint=error.hint) from error
        if as_json:
            print(report.to_json())
        else:
            suite.render(report, [suite.targets_table(report)] if mode == "quick" else None)
    # The report may already be on standard output, so an error from here on prints no JSON
    # document.
    with reporting("bench", as_json=False):
        _write_files(report, output, page)
    if check and mode != "smoke" and any(target.met is False for target in report.targets):
        raise typer.Exit(ExitCode.MISMATCH)


def _read(path: Path) -> "Report":
    from crossmem.bench import Report

    try:
        return Report.from_json(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        msg = f"cannot read {str(path)!r}: {clause(str(error), 80)}"
        raise UsageProblem(msg, hint="name a file that crossmem bench -o has written") from error


def _prepare_files(output: Path | None, page: Path | None) -> None:
    """Make the folder of ``--page``, and raise UsageProblem if a file cannot be written.

    Measurements take minutes, so this check comes before them.
    """
    if output is not None:
        _check_writable(output)
    if page is not None:
        try:
            page.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageProblem(f"cannot write to {str(page)!r}: {error.strerror}") from error
        _check_writable(page / "tables.md")


def _check_writable(path: Path) -> None:
    try:
        # A named pipe is not opened here. Closing the pipe would tell the reader of the pipe that
        # the document has ended.
        if not path.is_fifo():
            is_new = not path.exists()
            path.open("ab").close()
            if is_new:
                path.unlink()
    except OSError as error:
        raise UsageProblem(f"cannot write {str(path)!r}: {error.strerror}") from error


def _write_files(report: "Report", output: Path | None, page: Path | None) -> None:
    from crossmem.bench import write_page

    if output is not None:
        write_text(output, report.to_json() + "\n")
    if page is not None:
        try:
            write_page(report, page)
        except OSError as error:
            raise UsageProblem(f"cannot write to {str(page)!r}: {error.strerror}") from error
