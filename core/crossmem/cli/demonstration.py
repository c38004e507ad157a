# SPDX-License-Identifier: Apache-2.0
"""The command ``crossmem demo`` and its options, for typer."""

from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from crossmem.cli.commands import Json, reporting
from crossmem.cli.problems import ExitCode, UsageProblem
from crossmem.cli.render import print_json, progress_bar

if TYPE_CHECKING:
    from crossmem.cli.reports import DemoReport, QueueDemoReport

__all__ = ["DEMO_EXAMPLES", "demo"]

DEMO_EXAMPLES: Final = (
    ("crossmem demo", "share 256 MiB of generated weights"),
    ("crossmem demo model.safetensors", "share a file; each tensor gets its own handle"),
    ("crossmem demo big.npz -n 8 --no-copy", "share a file with eight processes; skip the copy"),
    ("crossmem demo --size 4GiB", "share 4 GiB; an attach takes as long as for 256 MiB"),
    ("crossmem demo --queue data.bin", "stream a file through a queue to three processes"),
    ("crossmem demo data.bin --json | jq .ok", "print only whether all digests are right"),
)


def demo(
    file: Annotated[
        Path | None,
        typer.Argument(
            metavar="FILE",
            show_default=False,
            help="File to share: .safetensors, .npy, .npz or a file of any other type.  "
            r"\[default: generated weights]",
        ),
    ] = None,
    *,
    queue: Annotated[
        bool,
        typer.Option(
            "--queue", help="Stream the file through a queue, instead of sharing it as a whole."
        ),
    ] = False,
    consumers: Annotated[
        int,
        typer.Option(
            "--consumers",
            "-n",
            min=1,
            max=256,
            help="Number of processes that attach the memory, or receive chunks of the file.",
        ),
    ] = 3,
    device: Annotated[
        str, typer.Option(envvar="CROSSMEM_DEVICE", help="Device that holds the memory.")
    ] = "host",
    size: Annotated[
        str | None,
        typer.Option(help=r"Size of the generated weights, such as 64MiB.  \[default: 256MiB]"),
    ] = None,
    copy: Annotated[
        bool,
        typer.Option(
            "--copy/--no-copy",
            help="Also measure the time of a copy through a pipe, or with --queue through "
            "multiprocessing.Queue.",
        ),
    ] = True,
    timeout: Annotated[
        float,
        typer.Option(
            min=1, max=86400, help="Seconds to wait for the other processes at each step."
        ),
    ] = 60.0,
    as_json: Json = False,
) -> None:
    """Share a file with several processes, and show the time and memory that this takes.

    The demo reads the file into one allocation of device memory. It starts processes that attach
    the allocation without a copy, and read-only if the backend supports that. Each process reads
    the shared memory, and computes the SHA-256 digest of the file and of every tensor. For
    comparison, the demo copies the bytes of the file to one process through a pipe.

    [cyan]--queue[/cyan] streams the file instead. This process, the primary, owns a queue of eight
    buffers. The primary reads the file chunk by chunk into the buffers. Each chunk goes to one
    secondary process, which computes the digest of the chunk in the buffer. For comparison, the
    primary also sends the chunks through multiprocessing.Queue. The table shows the time of each
    stream, and the time until one chunk reaches a sleeping process.

    The exit code is 0 if every digest is right, and 1 if a digest is wrong.
    """
    with reporting("demo", as_json=as_json):
        from crossmem.cli.demo import Demo
        from crossmem.cli.queue_views import show_queue_demo
        from crossmem.cli.sources import FileSource, GeneratedSource, parse_nbytes
        from crossmem.cli.stream import MAX_SECONDARIES, QueueDemo
        from crossmem.cli.views import show_demo

        if file is not None and size is not None:
            raise UsageProblem("FILE and --size exclude each other", hint="leave out --size")

        def open_source() -> FileSource | GeneratedSource:
            return FileSource(file) if file else GeneratedSource(parse_nbytes(size or "256MiB"))

        report: DemoReport | QueueDemoReport
        if queue:
            if consumers > MAX_SECONDARIES:
                hint = f"give -n at most {MAX_SECONDARIES}"
                raise UsageProblem("a queue has no room for so many consumers", hint=hint)
            report = QueueDemo(open_source, device, consumers, copy, timeout, progress_bar).run()
            show = partial(show_queue_demo, report)
        else:
            with closing(open_source()) as source:
                report = Demo(source, device, consumers, copy, timeout, progress_bar).run()
            show = partial(show_demo, report)
        if as_json:
            print_json(report)
        else:
            show()
        if not report.ok:
            raise typer.Exit(ExitCode.MISMATCH)
