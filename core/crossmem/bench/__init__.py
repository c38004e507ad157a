# SPDX-License-Identifier: Apache-2.0
"""The benchmark suite, which measures crossmem side by side with other ways to share memory.

Each way to share memory, crossmem included, is a peer. Each peer has two processes, a producer and
a consumer. Each process is bound to one CPU. A round measures the peers in turn.

In most rows of the report, each round gives one number, and the row shows the median of these
numbers. The number of a round is the median of its repetitions. For some rows, a round times many
allocations together, and its number is the mean over the allocations. The 99th percentiles (p99)
are computed from the samples of all rounds together. Some tables, such as ``Scale``, have only one
round.

In the tables that compare all peers, each operation is timed in the process that performs it. Most
of these times exclude the transfer of the token to the consumer, and the consumer's reply. Only the
column ``round trip`` and the table ``Churn`` include both. For trees, copies, timelines and queues,
the measured interval may begin in one process and end in another.
"""

from collections.abc import Callable, Sequence
from typing import Final, Literal

import crossmem
from crossmem.bench import (
    suite_copies,
    suite_crossmem,
    suite_frameworks,
    suite_queues,
    suite_timelines,
)
from crossmem.bench.pages import write_page
from crossmem.bench.pair import BenchError
from crossmem.bench.peer import PEERS
from crossmem.bench.plan import PLANS
from crossmem.bench.render import render, targets_table
from crossmem.bench.report import Report, Row, Target
from crossmem.bench.suite import Suite
from crossmem.errors import UnsupportedError

__all__ = [
    "PEERS",
    "BenchError",
    "Mode",
    "Report",
    "Row",
    "Target",
    "render",
    "run",
    "targets_table",
    "write_page",
]

Mode = Literal["smoke", "brief", "quick", "full"]
"""How much to measure; see :func:`run`."""

_BRIEF_PEERS: Final = ("crossmem", "mp", "floor")


def run(
    mode: Mode = "brief",
    *,
    peers: Sequence[str] | None = None,
    device: str = "host",
    say: Callable[[str], None] | None = None,
) -> Report:
    """Measure crossmem and its peers side by side.

    Parameters
    ----------
    mode
        ``"brief"`` measures enough for one table, in less than half a minute. ``"quick"`` measures
        everything in a few rounds, which takes a few minutes. ``"full"`` measures everything in
        many rounds. ``"smoke"`` takes seconds, and its numbers have no meaning.
    peers
        The names of the peers to measure, which are keys of :data:`PEERS`. By default, a brief run
        measures ``"crossmem"``, ``"mp"`` and ``"floor"``, and any other run measures all peers. If
        a peer is not installed, the report says so, and the run continues.
    device
        The crossmem device. Its memory must be visible to the host.
    say
        Called with a line of text when a new part of the run begins.

    Returns
    -------
    Report
        All numbers, and the description of the machine. Unless the run is brief, the report also
        has the targets and their results. If a peer fails, the report's ``notes`` say why, and the
        run continues.

    Raises
    ------
    ValueError
        ``mode`` or a peer is invalid.
    ConfigurationError, BackendNotFoundError, BackendUnavailableError, DeviceNotFoundError
        The device cannot be used.
    UnsupportedError
        The device's memory is not visible to the host.
    BenchError
        No peer can be measured.

    Notes
    -----
    When this function returns or raises, all processes that it started have ended.
    """
    if mode not in PLANS:
        msg = f"unknown mode {mode!r}; the modes are {', '.join(PLANS)}"
        raise ValueError(msg)
    chosen = list(peers or (_BRIEF_PEERS if mode == "brief" else PEERS))
    if unknown := sorted(set(chosen) - set(PEERS)):
        msg = f"unknown peers {unknown}; the peers are {', '.join(PEERS)}"
        raise ValueError(msg)
    if "crossmem" in chosen and not crossmem.device(device).capabilities.host_visible:
        msg = f"{device} cannot be compared: its memory is not visible to the host"
        raise UnsupportedError(msg, hint="name a device such as 'host'", device=device)
    with Suite(
        PLANS[mode], mode=mode, peers=chosen, device=device, say=say or (lambda _: None)
    ) as suite:
        parts = (suite_crossmem, suite_frameworks, suite_copies, suite_timelines, suite_queues)
        return suite.run([part.run for part in parts])
