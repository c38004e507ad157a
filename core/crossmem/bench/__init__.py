# SPDX-License-Identifier: Apache-2.0
"""The benchmark suite: crossmem beside its peers, in one run.

Each peer has two processes: a producer and a consumer, each bound to its own CPU. Each round
visits every peer. A reported number is the median over the rounds of the median inside each round.
Each operation is timed in the process that performs it. The message that hands the token over is
the same for all peers and is not included.
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
"""How much to measure: whether the suite works, one table, everything once, or everything often."""

_BRIEF_PEERS: Final = ("crossmem", "mp", "floor")
"""The peers in the one table."""


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
        ``"brief"`` measures the one table, in less than half a minute. ``"quick"`` measures
        everything once, in a few minutes, and ``"full"`` repeats it for longer. ``"smoke"`` takes
        seconds, and its numbers have no meaning.
    peers
        The peers to measure, of :data:`PEERS`. By default all, and in a brief run crossmem,
        ``"mp"`` and ``"floor"``. A missing peer is reported as not installed.
    device
        The crossmem device. Its memory must be visible to the host.
    say
        Called with a line of text when a new part of the run begins.

    Returns
    -------
    Report
        All numbers, and the machine. Unless the run is brief, also the targets and their results. A
        failure of a peer is reported in ``notes`` and does not end the run.

    Raises
    ------
    ValueError
        ``mode`` or a peer is invalid.
    ConfigurationError, BackendNotFoundError, BackendUnavailableError, DeviceNotFoundError
        The device cannot be used.
    UnsupportedError
        The device's memory is not visible to the host.

    Notes
    -----
    Every process that this starts has ended when it returns or raises; if necessary, it is killed.
    """
    if mode not in PLANS:
        msg = f"unknown mode {mode!r}; there are {', '.join(PLANS)}"
        raise ValueError(msg)
    chosen = list(peers or (_BRIEF_PEERS if mode == "brief" else PEERS))
    if unknown := sorted(set(chosen) - set(PEERS)):
        msg = f"unknown peers {unknown}; there are {', '.join(PEERS)}"
        raise ValueError(msg)
    if "crossmem" in chosen and not crossmem.device(device).capabilities.host_visible:
        msg = f"{device} cannot be compared: its memory is not visible to the host"
        raise UnsupportedError(msg, hint="name a device such as 'host'", device=device)
    with Suite(
        PLANS[mode], mode=mode, peers=chosen, device=device, say=say or (lambda _: None)
    ) as suite:
        parts = (suite_crossmem, suite_frameworks, suite_copies, suite_timelines, suite_queues)
        return suite.run([part.run for part in parts])
