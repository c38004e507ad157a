# SPDX-License-Identifier: Apache-2.0
"""Shows the reports of commands on a terminal."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import groupby
from typing import Final

from crossmem.cli.render import facts, grid, nbytes_text, output, plain, seconds_text
from crossmem.cli.reports import (
    BackendReport,
    BarrierReport,
    ConformanceMatrixReport,
    ConformanceReport,
    DemoReport,
    DeviceReport,
    DevicesReport,
    PluginReport,
    TensorReport,
)
from crossmem.models import Capabilities

__all__ = ["show_conformance", "show_conformance_matrix", "show_demo", "show_devices"]

_SHOWN_TENSORS: Final = 6
_MUCH: Final = 2
_NAME_LENGTH: Final = 32


def show_demo(report: DemoReport) -> None:
    """Print the results of the demo."""
    console = output()
    file = report.file
    tensors = f", {_count(len(file.tensors), 'tensor')}" if file.tensors else ""
    size, load = nbytes_text(report.capacity_nbytes), seconds_text(report.load_s)
    export = seconds_text(report.export_s)
    rows = [
        ("File", f"{file.path or file.name}: {file.format}, {nbytes_text(file.nbytes)}{tensors}"),
        ("SHA-256", file.sha256),
        ("Memory", f"1 allocation of {size} on {report.device}, loaded in {load}"),
        ("Handle", f"{report.handle_nbytes} bytes ({report.mechanism}), exported in {export}"),
    ]
    if file.note:
        rows.insert(1, ("Note", file.note))
    console.print(facts(rows))
    if file.tensors:
        console.print(_tensor_table(file.tensors))
    console.print(_consumer_table(report))
    console.print(facts(_comparison(report)))
    console.print(_verdict(report))


def _tensor_table(tensors: Sequence[TensorReport]) -> object:
    shown = tensors[:_SHOWN_TENSORS] if len(tensors) > _SHOWN_TENSORS + 1 else tensors
    rows = [
        [
            plain(_short(one.name)) or "[dim](the array)[/dim]",
            plain(one.dtype) + (" [dim]deflated[/dim]" if one.stored == "deflated" else ""),
            "-" if one.shape is None else plain(str(list(one.shape))),
            f"{one.offset:,}",
            nbytes_text(one.nbytes),
        ]
        for one in shown
    ]
    if len(shown) < len(tensors):
        rest = tensors[len(shown) :]
        total = nbytes_text(sum(one.nbytes for one in rest))
        rows.append([f"[dim]and {len(rest)} more[/dim]", "", "", "", f"[dim]{total}[/dim]"])
    return grid(["Tensor", "Type", "Shape", ">Offset", ">Size"], rows)


def _short(name: str) -> str:
    """Return a tensor's name. The middle of a long name is cut out."""
    half = _NAME_LENGTH // 2
    return name if len(name) <= _NAME_LENGTH else f"{name[:half]}...{name[-half:]}"


def _consumer_table(report: DemoReport) -> object:
    parts = sum(one.sha256 is not None for one in report.file.tensors)
    held = {lease.pid: lease.held_s for lease in report.leases}
    columns = ["PID", ">Attach", "Access", "File"]
    if parts:
        columns += [f">+{_count(parts, 'part')}", ">Parts"]
    columns += [">Read", ">Lease"]
    rows = []
    for one in report.consumers:
        row = [
            str(one.pid),
            seconds_text(one.attach_s),
            "read-only" if one.readonly else "read-write",
            "[green]equal[/green]" if one.equal else "[bold red]DIFFERS[/bold red]",
        ]
        if parts:
            right = f"{one.tensors_equal}/{parts}"
            row += [
                seconds_text(one.parts_attach_s),
                f"[green]{right}[/green]"
                if one.tensors_equal == parts
                else f"[bold red]{right}[/bold red]",
            ]
        row += [
            seconds_text(one.check_s),
            seconds_text(held[one.pid]) if one.pid in held else "[red]none[/red]",
        ]
        rows.append(row)
    return grid(columns, rows)


def _comparison(report: DemoReport) -> list[tuple[str, str]]:
    attach_s = statistics.median(one.attach_s for one in report.consumers)
    median = "median" if len(report.consumers) > 1 else "one process"
    rows = [("Attach, no copy", f"{seconds_text(attach_s)} ({median})")]
    copied = report.copy_through_pipe
    if copied.copy_s is None:
        text = f"not timed: {copied.skipped}"
    else:
        ratio = copied.copy_s / attach_s
        times = (
            f"{ratio:,.0f} times as long" if ratio >= _MUCH else "the file is too small to compare"
        )
        text = f"{seconds_text(copied.copy_s)} to one process: {times}"
    rows.append(("Copy through a pipe", text))
    # The kernel does not count the memory of a GPU as resident pages of a process. So this row is
    # missing for a GPU.
    if report.counted_once_nbytes is not None and report.resident_sum_nbytes:
        once, summed = map(nbytes_text, (report.counted_once_nbytes, report.resident_sum_nbytes))
        processes = len(report.consumers) + 1
        text = f"{once} for {processes} processes; {summed} if each had its own copy"
        rows.append(("Memory in use", text))
    return rows


def _verdict(report: DemoReport) -> str:
    total = f"Total {seconds_text(report.total_s)}."
    if report.ok:
        who = _count(len(report.consumers), "consumer")
        verb = "reads" if len(report.consumers) == 1 else "all read"
        return f"[bold green]OK[/bold green]  {who} {verb} the bytes of the file. {total}"
    return f"[bold red]MISMATCH[/bold red]  At least one digest differs. {total}"


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def show_devices(report: DevicesReport, *, verbose: bool) -> None:
    """Print the usable devices, and the reason for each unusable backend.

    With ``verbose``, also print details.
    """
    console = output()
    # Consecutive devices share a line if they have the same backend, the same memory size and the
    # same capabilities.
    groups = [list(equal) for _, equal in groupby(report.devices, key=_kind_of)]
    if groups:
        console.print(grid(["Device", ">Memory", "Name"], [_device_row(one) for one in groups]))
    else:
        console.print("No device can be used.\n")
    if verbose:
        for group in groups:
            names = ", ".join(f"{one.device} ({one.identity})" for one in group)
            console.print(f"[bold]{plain(names)}[/bold]")
            console.print(facts(_capability_rows(group[0].capabilities)))
    unusable = [
        row for one in report.unusable for row in (_all_of(one) if verbose else _reason_of(one))
    ]
    for title, problems in (
        ("Backends that cannot be used here", unusable),
        ("Plugins that failed", _plugin_problems(report.failed_plugins)),
        ("Plugins that were not loaded", _plugin_problems(report.disabled_plugins)),
    ):
        if problems:
            console.print(f"[bold]{title}[/bold]")
            console.print(facts(problems, is_cut=not verbose))
    if report.barrier is not None:
        console.print("[bold]Memory barrier of leases[/bold]")
        console.print(facts(_barrier_rows(report.barrier)))
    reason = report.default_reason.split("\n", 1)[0]
    console.print(facts([("Default device", f"{report.default or 'none'}: {reason}")]))
    if not verbose:
        console.print(
            "[dim]crossmem devices -v: capabilities, what was tried, how to install[/dim]"
        )


def _kind_of(device: DeviceReport) -> object:
    return device.backend, device.total_nbytes, device.capabilities


def _device_row(group: Sequence[DeviceReport]) -> list[str]:
    first, last = group[0], group[-1]
    names = first.device if first is last else f"{first.device} to {last.ordinal}"
    memory = "unknown" if first.total_nbytes is None else nbytes_text(first.total_nbytes)
    more = "" if first.name == last.name else f", and {len(group) - 1} more"
    return [f"[bold]{names}[/bold]", memory, plain(first.name + more)]


def _reason_of(one: BackendReport) -> list[tuple[str, str]]:
    return [(f"  {one.backend}", one.reason)]


def _all_of(one: BackendReport) -> list[tuple[str, str]]:
    """Return the reason why a backend cannot be used, the hint, and the paths that were tried."""
    rest = [f"to do: {one.hint}"] if one.hint else []
    rest += [f"tried: {line}" for line in one.details.splitlines()]
    return [(f"  {one.backend}", one.reason), *(("", line) for line in rest)]


def _barrier_rows(report: BarrierReport) -> list[tuple[str, str]]:
    why = f": {report.reason}" if report.reason else ""
    exporters = [
        (
            f"  with process {one.pid}" if one.pid else "  with a hidden process",
            one.mode or "does not answer",
        )
        for one in report.exporters
    ]
    return [("  this process", report.mode + why), *exporters]


_LEASE_ENDS: Final[Mapping[str, str]] = {
    "process": "the importer's process",
    "process-if-visible": "the importer's process if it is visible, else the connection",
    "connection": "the importer's connection",
}


def _capability_rows(capabilities: Capabilities) -> list[tuple[str, str]]:
    flags = {
        name.replace("_", " "): value
        for name, value in asdict(capabilities).items()
        if isinstance(value, bool)
    }
    granule = nbytes_text(capabilities.granularity_nbytes)
    largest = nbytes_text(capabilities.max_allocation_nbytes)
    return [
        ("  mechanisms", ", ".join(capabilities.mechanisms)),
        ("  timelines", ", ".join(capabilities.timeline_levels)),
        ("  sizes", f"multiples of {granule}, at most {largest}"),
        ("  can", ", ".join(name for name, able in flags.items() if able) or "-"),
        ("  cannot", ", ".join(name for name, able in flags.items() if not able) or "-"),
        ("  leases end with", _LEASE_ENDS[capabilities.lease_end]),
    ]


def _plugin_problems(plugins: Sequence[PluginReport]) -> list[tuple[str, str]]:
    return [
        (
            f"  {one.plugin}",
            f"{one.error}" + (f" ({one.distribution} {one.version})" if one.distribution else ""),
        )
        for one in plugins
    ]


def show_conformance(report: ConformanceReport) -> None:
    """Print the outcome of each law."""
    console = output()
    console.print()
    rows = []
    for one in report.laws:
        verdict = "[bold red]FAILED[/bold red]" if one.failed else "[green]kept[/green]"
        if not one.failed and not one.passed:
            verdict = "[yellow]not tested[/yellow]"
        detail = ", ".join(one.failed) or "; ".join(sorted(set(one.skipped.values())))
        rows.append(
            [one.law, verdict, *_counts(one.passed, len(one.failed), len(one.skipped)), detail]
        )
    if rows:
        columns = ["Law", "", ">Passed", ">Failed", ">Skipped", "Failed, or why skipped"]
        console.print(grid(columns, [[*row[:-1], plain(row[-1])] for row in rows]))
    choice = ", ".join(one for one in (report.runtime, report.mechanism) if one)
    where = f"on {report.device}" + (f" with {choice}" if choice else "")
    took = f"in {seconds_text(report.seconds)}"
    if report.ok:
        console.print(f"[bold green]OK[/bold green]  {_count(len(rows), 'law')} {where} {took}.")
    else:
        code = f"pytest exited with {report.exit_code}"
        console.print(f"[bold red]NOT OK[/bold red]  {code}, {where} {took}.")


def show_conformance_matrix(report: ConformanceMatrixReport) -> None:
    """Print the outcome of each run, and the runs that were impossible."""
    console = output()
    rows = [
        [
            one.device,
            plain(one.runtime or "-"),
            plain(one.mechanism or "-"),
            "[green]passed[/green]" if one.ok else "[bold red]NOT OK[/bold red]",
            seconds_text(one.seconds),
        ]
        for one in report.runs
    ]
    console.print()
    if rows:
        console.print(grid(["Device", "Runtime", "Mechanism", "", ">Took"], rows))
    if report.left_out:
        console.print("[bold]What this machine cannot run[/bold]")
        console.print(
            facts(
                [
                    (
                        "  " + " ".join(filter(None, (one.backend, one.runtime))),
                        one.reason + (f"; {one.hint}" if one.hint else ""),
                    )
                    for one in report.left_out
                ]
            )
        )
    passed = f"{sum(one.ok for one in report.runs)} of {_count(len(report.runs), 'run')} passed"
    verdict = "[bold green]OK[/bold green]" if report.ok else "[bold red]NOT OK[/bold red]"
    console.print(f"{verdict}  {passed} in {seconds_text(report.seconds)}.")


def _counts(*numbers: int) -> list[str]:
    return [str(number) if number else "-" for number in numbers]
