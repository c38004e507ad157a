# SPDX-License-Identifier: Apache-2.0
"""Shows the results of the demo of queues on a terminal."""

from crossmem.cli.render import facts, grid, nbytes_text, output, plain, seconds_text
from crossmem.cli.reports import QueueDemoReport, StreamReport

__all__ = ["show_queue_demo"]


def show_queue_demo(report: QueueDemoReport) -> None:
    """Print the results of the demo of queues."""
    console = output()
    chunk, chunks = nbytes_text(report.chunk_nbytes), _count(report.chunks, "chunk")
    console.print(
        facts(
            [
                ("File", f"{report.path or report.name}: {nbytes_text(report.nbytes)}, {chunks}"),
                ("SHA-256", report.sha256),
                ("Queue", f"{report.depth} buffers of {chunk} on {report.device}"),
                ("Handle", f"{report.handle_nbytes} bytes"),
            ]
        )
    )
    rows = [
        [
            str(one.pid),
            str(one.chunks),
            nbytes_text(one.nbytes),
            f"[green]{one.equal}/{one.chunks} equal[/green]"
            if one.equal == one.chunks
            else f"[bold red]{one.equal}/{one.chunks} equal[/bold red]",
        ]
        for one in report.secondaries
    ]
    console.print(grid(["PID", ">Chunks", ">Bytes", "Digests"], rows))
    ways = [("crossmem, no copy", report.queue)]
    if report.multiprocessing_queue is not None:
        ways.append(("multiprocessing.Queue", report.multiprocessing_queue))
    rows = [_row(name, way, report) for name, way in ways]
    console.print(grid(["Queue", ">Stream", ">Per second", ">One chunk", "Digests"], rows))
    console.print(_verdict(report))


def _row(name: str, way: StreamReport, report: QueueDemoReport) -> list[str]:
    return [
        plain(name),
        seconds_text(way.seconds),
        nbytes_text(int(report.nbytes / way.seconds)),
        seconds_text(way.latency_s),
        "[green]equal[/green]" if way.equal else "[bold red]DIFFER[/bold red]",
    ]


def _verdict(report: QueueDemoReport) -> str:
    total = f"Total {seconds_text(report.total_s)}."
    if not report.ok:
        return f"[bold red]MISMATCH[/bold red]  Chunks are missing, repeated or changed. {total}"
    who = _count(len(report.secondaries), "secondary process", "secondary processes")
    text = f"{_count(report.chunks, 'chunk')} arrived in {who}, each chunk once. {total}"
    return f"[bold green]OK[/bold green]  {text}"


def _count(number: int, thing: str, things: str = "") -> str:
    return f"{number} {thing if number == 1 else things or thing + 's'}"
