# SPDX-License-Identifier: Apache-2.0
"""The commands and their options, for typer. The other modules of this package do the work."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from crossmem import __version__
from crossmem.cli.benchmark import BENCH_EXAMPLES, bench
from crossmem.cli.commands import Json, examples, reflow, reporting
from crossmem.cli.demonstration import DEMO_EXAMPLES, demo
from crossmem.cli.problems import UsageProblem
from crossmem.cli.render import print_json, show_step

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


def _command(*shown: tuple[str, str]) -> Callable[[_Function], _Function]:
    """Return a decorator that adds a command. The examples ``shown`` are a part of the help."""

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

    Exit codes: 0 the result is right; 1 the result is wrong; 2 an argument, device or setting
    cannot be used; 3 crossmem refused or failed; 130 interrupted. The commands conformance and
    emulate have further codes.
    """


app.callback(
    help=reflow(_root),
    epilog=examples(
        (
            ("crossmem demo", "see three processes share 256 MiB"),
            ("crossmem devices", "list the devices, and why other backends are unusable"),
            ("crossmem bench", "compare crossmem with shared_memory"),
            ("crossmem conformance", "test that a backend keeps the contract"),
            ("crossmem emulate hip -- ./test", "run a program for AMD GPUs, without a GPU"),
        )
    ),
)(_root)


_command(*DEMO_EXAMPLES)(demo)


@_command(
    ("crossmem devices", "one screen: usable devices, unusable backends"),
    ("crossmem devices -v", "also each path that was tried, and how to install backends"),
    ("crossmem devices --json | jq '.devices[].device'", "for scripts"),
    ("CROSSMEM_EMULATED_DEVICES=4 crossmem devices", "with four emulated devices"),
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
            "the memory barrier of leases.",
        ),
    ] = False,
) -> None:
    """List the devices that work here, and why the other backends are unusable.

    Plugins that failed to load are listed, too. The line "Default device" shows the device that a
    program gets if it names no device. Host memory and emulations are used only if a program or
    CROSSMEM_DEVICE names them.
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
    ("crossmem conformance", "the whole kit on host memory, about two minutes"),
    ("crossmem conformance --device cuda:0", "on a GPU"),
    ("crossmem conformance -k 'c06 or c11'", "only the tests of laws C6 and C11"),
    ("crossmem conformance --all", "every backend, runtime and mechanism that works here"),
    ("crossmem conformance --json | jq .ok", "for scripts"),
)
def conformance(
    context: typer.Context,
    *,
    device: Annotated[str, typer.Option(envvar="CROSSMEM_DEVICE", help="Device to test.")] = "host",
    runtime: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help=r"Vendor binding, such as ctypes or emulated.  \[default: the backend's own]",
        ),
    ] = None,
    mechanism: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="The mechanism with which the tests share memory.  "
            r"\[default: the device's first]",
        ),
    ] = None,
    select: Annotated[
        str | None,
        typer.Option(
            "-k", metavar="EXPRESSION", help="Run only tests that match; the syntax is pytest's."
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
    r"""Run the conformance kit on a device, and show which laws of the contract the device keeps.

    The kit starts processes, kills some of them, damages handles, and checks that the contract
    holds. If the device lacks an ability, the tests of that ability are skipped, and the table says
    why. The kit needs [cyan]pip install 'crossmem\[conformance]'[/cyan].

    [cyan]--all[/cyan] runs the kit once for each backend, runtime and mechanism, emulations
    included. Each run takes some minutes. At the end, the command lists the backends and runtimes
    that this machine cannot run.

    Exits with 0 if no test failed, 1 if a test failed, 2 if the device cannot be used, 4 if the
    expression of -k is invalid, 5 if no test was selected.
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


_command(*BENCH_EXAMPLES)(bench)


@_command(
    ("crossmem emulate hip -- python test.py", "an unmodified program, on two emulated GPUs"),
    ("crossmem emulate hip --devices 8 --report -- ./test", "with a list of its calls"),
    ("crossmem emulate hip --fault hipMalloc=2:3 -- ./test", "its fourth hipMalloc returns 2"),
    ('eval "$(crossmem emulate hip --print-env)"', "for all programs of this shell"),
)
def emulate(
    api: Annotated[
        str,
        typer.Argument(metavar="API", help="Library: hip (libamdhip64) or ascend (libascendcl)."),
    ],
    command: Annotated[
        list[str] | None,
        typer.Argument(metavar="-- COMMAND...", help="Program and its arguments."),
    ] = None,
    *,
    profile: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help=r"Edition of the vendor's rules.  \[default: documented]"
        ),
    ] = None,
    devices: Annotated[
        int | None, typer.Option(min=1, help=r"Number of devices.  \[default: 2]")
    ] = None,
    capacity: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help=r"Memory of each device, such as 8GiB.  \[default: half of this machine's memory]",
        ),
    ] = None,
    fault: Annotated[
        list[str] | None,
        typer.Option(
            metavar="CALL=CODE[:SKIP[:COUNT]]",
            help="The first SKIP calls of the function CALL get no fault, and the next COUNT calls "
            "fail with CODE. By default, SKIP is 0 and COUNT is 1. May be repeated.",
        ),
    ] = None,
    strict: Annotated[
        bool | None,
        typer.Option(
            "--strict/--lax",
            help="Strict: report API misuse, and protect device addresses from the CPU. Lax: do "
            r"neither.  \[default: strict]",
        ),
    ] = None,
    slow_streams: Annotated[
        bool | None,
        typer.Option(
            "--slow-streams/--fast-streams",
            help="Slow: do a stream's work only when the program waits for it. Fast: do it at "
            r"once.  \[default: fast]",
        ),
    ] = None,
    state: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Folder of the emulated host. Commands with the same folder share the devices.  "
            r"\[default: a new one]",
        ),
    ] = None,
    report: Annotated[
        bool, typer.Option("--report", help="At the end, list how often each function was called.")
    ] = False,
    print_env: Annotated[
        bool, typer.Option("--print-env", help="Print the environment for a shell and exit.")
    ] = False,
) -> None:
    """Run a program that uses a vendor's library, with an emulation in place of the library.

    The unmodified program finds the emulated library under the vendor's name. The library's
    functions keep the vendor's rules and need no hardware; kernels cannot run. The first use builds
    the library with this machine's C compiler.

    Exits with the program's exit code, or with 128 plus the number of the signal that ended the
    program. API misuse is listed on standard error.
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
