# SPDX-License-Identifier: Apache-2.0
"""The benchmark suite: crossmem beside its peers, in one run.

For each peer, two processes are started: a producer and a consumer, each kept on a CPU of its
own. Rounds go around the peers; a number is the median of the rounds, and a round's number the
median inside that round. Each operation is timed in the process that performs it, without the
message that hands the token over, which is the same for all peers.
"""

from collections.abc import Callable, Sequence
from typing import Literal

from crossmem.bench import suite_crossmem, suite_frameworks
from crossmem.bench.pair import BenchError
from crossmem.bench.peer import PEERS
from crossmem.bench.plan import PLANS
from crossmem.bench.render import render
from crossmem.bench.report import Report, Row, Target
from crossmem.bench.suite import Suite

__all__ = ["PEERS", "BenchError", "Mode", "Report", "Row", "Target", "render", "run"]

Mode = Literal["smoke", "quick", "full"]
"""How much to measure: a look whether it works, about twenty seconds, or minutes."""


def run(
    mode: Mode = "quick",
    *,
    peers: Sequence[str] | None = None,
    device: str = "host",
    say: Callable[[str], None] | None = None,
) -> Report:
    """Measure crossmem and its peers side by side.

    Parameters
    ----------
    mode
        ``"quick"`` takes about twenty seconds, ``"full"`` some minutes, and ``"smoke"``
        seconds, for numbers that mean nothing.
    peers
        Which of :data:`PEERS` to measure, all by default. One that is not installed is reported
        as such.
    device
        The crossmem device; its memory must be visible to the host.
    say
        Called with a line of text whenever a new part of the run begins.

    Returns
    -------
    Report
        All numbers, with the machine and the promises they are held against. A peer that fails
        is reported in ``notes``; it does not end the run.

    Raises
    ------
    ValueError
        Where ``mode`` or a peer has no meaning.

    Notes
    -----
    Every process that this starts has ended when it returns or raises, by force where needed.
    """
    chosen = list(peers) if peers is not None else list(PEERS)
    unknown = sorted(set(chosen) - set(PEERS))
    if unknown or not chosen:
        msg = f"unknown peers {unknown}; there are {', '.join(PEERS)}"
        raise ValueError(msg)
    if mode not in PLANS:
        msg = f"unknown mode {mode!r}; there are {', '.join(PLANS)}"
        raise ValueError(msg)
    with Suite(
        PLANS[mode], mode=mode, peers=chosen, device=device, say=say or (lambda _: None)
    ) as suite:
        return suite.run([suite_crossmem.run, suite_frameworks.run])
