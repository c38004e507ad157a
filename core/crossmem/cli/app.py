# SPDX-License-Identifier: Apache-2.0
"""The commands and their options, for typer. What they do is in the modules beside this one."""

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from crossmem import __version__
from crossmem.cli.commands import examples, reflow, reporting
from crossmem.cli.problems import BenchmarkError, ExitCode, UsageProblem, write_text
from crossmem.cli.render import print_json, progress_bar, show_step

__all__ = ["app"]

app = typer.Typer(
    name="crossmem",
    help="Share device memory between processes on one host, without copying it.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

_Function = TypeVar("_Function", bound=Callable[..., Any])

Json = Annotated[
    bool, typer.Option("--json", help="Print one JSON document and nothing else to stdout.")
]


def _command(*shown: tuple[str, str]) -> Callable[[_Function], _Function]:
    """Add a command whose help is its docstring and these examples."""

    def add(function: _Function) -> _Function:
        return app.command(help=reflow(function), epilog=examples(shown))(function)

    return add


def _show_version(*, value: bool) -> None:
    if value:
        print(f"crossmem {__version__}")
        raise typer.Exit


def _root(
    *,
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Share device memory between processes on one host, without copying it.

    Exit codes: 0 done and right, 1 done and wrong, 2 an argument or setting cannot be used, 3
    crossmem refused or failed, 130 interrupted. [cyan]conformance[/cyan] exits as pytest does.
    """


app.callback(
    help=reflow(_root),
    epilog=examples(
        (
            ("crossmem demo", "see three processes share 256 MiB"),
            ("crossmem devices", "see what this machine offers, and what is missing"),
            ("crossmem conformance", "prove that a backend keeps the contract"),
        )
    ),
)(_root)


@_command(
    ("crossmem demo", "generate 256 MiB of weights and share them"),
    ("crossmem demo model.safetensors", "share a file; each tensor gets its own handle"),
    ("crossmem demo big.npz -n 8 --no-copy", "eight consumers, no comparison with a copy"),
    ("crossmem demo --size 4GiB", "attaching takes as long as for 256 MiB"),
    ("crossmem demo data.bin --json | jq .ok", "for scripts"),
)
def demo(
    file: Annotated[
        Path | None,
        typer.Argument(
            metavar="FILE",
            show_default=False,
            help="A .safetensors, .npy or .npz file, or any other bytes. "
            "Without it, weights are generated.",
        ),
    ] = None,
    *,
    consumers: Annotated[
        int, typer.Option("--consumers", "-n", min=1, max=256, help="Processes that attach.")
    ] = 3,
    device: Annotated[
        str, typer.Option(envvar="CROSSMEM_DEVICE", help="Device that holds the memory.")
    ] = "host",
    size: Annotated[
        str | None,
        typer.Option(help="Bytes to generate without FILE, such as 64MiB.  [default: 256MiB]"),
    ] = None,
    copy: Annotated[
        bool, typer.Option("--copy/--no-copy", help="Time a copy through a pipe as well.")
    ] = True,
    timeout: Annotated[
        float,
        typer.Option(min=1, help="Seconds that a step may wait for other processes."),
    ] = 60.0,
    as_json: Json = False,
) -> None:
    """Share a real file with several processes, and show what that took.

    Reads the file into ONE allocation of device memory, exports it, and starts processes that
    attach to it read-only, without copying. Each computes the SHA-256 digests of the whole file
    and of every tensor straight from the shared memory; they must equal the exporter's. Beside
    that stands the time to copy the same bytes to one process through a pipe.

    Exits with 0 only if every digest is equal, with 1 if one is not.
    """
    with reporting("demo", as_json=as_json):
        from crossmem.cli.demo import Demo
        from crossmem.cli.sources import FileSource, GeneratedSource, parse_nbytes
        from crossmem.cli.views import show_demo

        if file is not None and size is not None:
            raise UsageProblem("FILE and --size exclude each other", hint="leave out --size")
        source = FileSource(file) if file else GeneratedSource(parse_nbytes(size or "256MiB"))
        with closing(source):
            report = Demo(source, device, consumers, copy, timeout, progress_bar).run()
        if as_json:
            print_json(report)
        else:
            show_demo(report)
        if not report.ok:
            raise typer.Exit(ExitCode.MISMATCH)


@_command(
    ("crossmem devices", "what can be used, and what is missing for the rest"),
    ("crossmem devices --json | jq '.devices[].device'", "for scripts"),
    ("CROSSMEM_EMULATED_DEVICES=4 crossmem devices", "emulate four devices"),
    ("crossmem devices -v", "also capabilities, what was tried, and how to install the rest"),
)
def devices(
    *,
    as_json: Json = False,
    verbose: Annotated[
        bool,
        typer.Option(
            "--verbose",
            "-v",
            help="Also show capabilities, each path that was tried, how to install a backend, and "
            "which barrier orders the words of leases.",
        ),
    ] = False,
) -> None:
    """List the devices that can be used, and say what keeps each other backend from working.

    Also lists plugins that failed to load. Host memory and emulations are used only if a program
    names them.
    """
    with reporting("devices", as_json=as_json):
        from crossmem.cli.inventory import take_inventory
        from crossmem.cli.views import show_devices

        report = take_inventory(verbose=verbose)
        if as_json:
            print_json(report)
        else:
            show_devices(report, verbose=verbose)


@_command(
    ("crossmem conformance", "the whole kit, about two minutes"),
    ("crossmem conformance -k 'c06 or c11'", "only the tests of these laws"),
    ("crossmem conformance --device emulated:1 --json", "for scripts"),
    ("crossmem conformance --all", "every backend, runtime and mechanism that works here"),
)
def conformance(
    context: typer.Context,
    *,
    device: Annotated[str, typer.Option(envvar="CROSSMEM_DEVICE", help="Device to test.")] = "host",
    runtime: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Vendor binding to test with; default: the backend's own."
        ),
    ] = None,
    mechanism: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="How memory is shared; default: as the device prefers."),
    ] = None,
    select: Annotated[
        str | None,
        typer.Option(
            "-k", metavar="EXPRESSION", help="Run the tests whose names match, as pytest."
        ),
    ] = None,
    everything: Annotated[
        bool,
        typer.Option(
            "--all", help="Test device 0 of each backend, with each runtime and each mechanism."
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    r"""Run the conformance kit on a device, and show what became of each law.

    The kit is what every backend must pass: it starts processes, kills some of them, damages
    handles, and checks that the contract holds. What a device cannot do is skipped, with the
    reason. It needs [cyan]pip install 'crossmem\[conformance]'[/cyan].

    [cyan]--all[/cyan] takes some minutes for each run, emulations of vendors included, and ends
    with what this machine cannot run, and why.

    Exits as pytest does: 0 passed, 1 failed, 5 nothing selected.
    """
    with reporting("conformance", as_json=as_json):
        from crossmem.cli.kit import run_kit
        from crossmem.cli.matrix import run_matrix
        from crossmem.cli.views import show_conformance, show_conformance_matrix

        if everything:
            for name in ("device", "runtime", "mechanism"):
                source = context.get_parameter_source(name)
                if source is not None and source.name == "COMMANDLINE":
                    hint = f"leave out --{name}"
                    raise UsageProblem(f"--all and --{name} exclude each other", hint=hint)
            matrix = run_matrix(
                select=select,
                quiet=as_json,
                say=show_step,
                show=(lambda _: None) if as_json else show_conformance,
            )
            if as_json:
                print_json(matrix)
            else:
                show_conformance_matrix(matrix)
            raise typer.Exit(matrix.exit_code)
        report = run_kit(device, runtime=runtime, mechanism=mechanism, select=select, quiet=as_json)
        if as_json:
            print_json(report)
        else:
            show_conformance(report)
        raise typer.Exit(report.exit_code)


@_command(
    ("crossmem bench", "a quarter of a minute, tables on the terminal"),
    ("crossmem bench --full -o bench.json", "some minutes; keep all numbers"),
    ("crossmem bench --peer crossmem --peer floor", "only these two"),
)
def bench(
    *,
    full: Annotated[
        bool, typer.Option("--full/--quick", help="Minutes, or a quarter of a minute.")
    ] = False,
    smoke: Annotated[
        bool, typer.Option("--smoke", hidden=True, help="Seconds; the numbers mean nothing.")
    ] = False,
    peer: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Measure only this way of sharing; may be repeated."),
    ] = None,
    device: Annotated[
        str, typer.Option(envvar="CROSSMEM_DEVICE", help="Device that crossmem uses.")
    ] = "host",
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Write the JSON document to FILE."),
    ] = None,
    as_json: Json = False,
) -> None:
    r"""Measure crossmem beside other ways to share memory, in one run.

    Each way has two processes on CPUs of their own, and rounds go around the ways in turn. A way
    that is not installed is named and left out; [cyan]pip install 'crossmem\[bench]'[/cyan]
    brings all of them.

    Exits with 1 if a target of crossmem is missed.
    """
    with reporting("bench", as_json=as_json):
        from crossmem import bench as suite

        for name in peer or ():
            if name not in suite.PEERS:
                hint = f"there are {', '.join(suite.PEERS)}"
                raise UsageProblem(f"{name!r} is no way of sharing that is measured", hint=hint)
        mode: suite.Mode = "smoke" if smoke else "full" if full else "quick"
        try:
            report = suite.run(mode, peers=peer, device=device, say=show_step)
        except suite.BenchError as error:
            raise BenchmarkError(str(error)) from error
        if output is not None:
            write_text(output, report.to_json() + "\n")
        if as_json:
            print(report.to_json())
        else:
            suite.render(report)
        missed = mode != "smoke" and any(target.met is False for target in report.targets)
        if missed:
            raise typer.Exit(ExitCode.MISMATCH)


@_command(
    ("crossmem emulate hip -- python train.py", "an unmodified program, on two emulated GPUs"),
    ("crossmem emulate hip --devices 8 --report -- ./test", "and what it called"),
    ("crossmem emulate hip --fault hipMalloc=2:3 -- ./test", "its fourth hipMalloc fails with 2"),
    ('eval "$(crossmem emulate hip --print-env)"', "for all programs of this shell"),
)
def emulate(
    api: Annotated[str, typer.Argument(metavar="API", help="Library to emulate: hip or ascend.")],
    command: Annotated[
        list[str] | None,
        typer.Argument(metavar="-- COMMAND...", help="Program and its arguments."),
    ] = None,
    *,
    profile: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Edition of the vendor's rules.  [default: documented]"),
    ] = None,
    devices: Annotated[
        int | None, typer.Option(min=1, help="Number of devices.  [default: 2]")
    ] = None,
    capacity: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Memory of each device, such as 8GiB.")
    ] = None,
    fault: Annotated[
        list[str] | None,
        typer.Option(
            metavar="CALL=CODE[:SKIP[:COUNT]]",
            help="Let calls of a function fail, after SKIP that do not; may be repeated.",
        ),
    ] = None,
    strict: Annotated[
        bool | None,
        typer.Option(
            "--strict/--lax",
            help="Whether forbidden uses are recorded, and device addresses closed to the host.  "
            "[default: strict]",
        ),
    ] = None,
    slow_streams: Annotated[
        bool | None,
        typer.Option(
            "--slow-streams/--fast-streams",
            help="Whether streams work only when somebody waits for them.  [default: fast]",
        ),
    ] = None,
    state: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Emulated host, for commands that share one.  [default: one of its own]",
        ),
    ] = None,
    report: Annotated[
        bool, typer.Option("--report", help="Say at the end what was called, and how often.")
    ] = False,
    print_env: Annotated[
        bool, typer.Option("--print-env", help="Print the environment for a shell and exit.")
    ] = False,
) -> None:
    """Run a program that was made for a vendor's library on an emulation of it.

    The program is not changed: it finds a library of the vendor's name first, whose functions
    keep the vendor's rules without the vendor's hardware. The library is built at the first use,
    with the C compiler of this machine. Kernels cannot run.

    Exits as the program does, with 128 and the number of the signal that ended it. What the
    program did that the vendor forbids is said on standard error.
    """
    with reporting("emulate", as_json=False):
        from crossmem.cli import emulate as emulation
        from crossmem.plugin import EmulationRequest

        request = EmulationRequest(
            profile=profile,
            devices=devices,
            capacity=capacity,
            faults=tuple(fault or ()),
            strict=strict,
            slow_streams=slow_streams,
            state=state.absolute() if state else None,
            is_lasting=print_env,
        )
        made = emulation.prepare(api, request)
        try:
            if print_env:
                emulation.print_environment(made)
                return
            status = emulation.run(made, command or ())
            emulation.show(made.report(), with_calls=report)
        finally:
            made.close()
        raise typer.Exit(status)
