# SPDX-License-Identifier: Apache-2.0
"""A run of the benchmark: the choice of the jobs, their order, and the rows of the report."""

import os
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from statistics import median
from time import monotonic
from typing import Any, Self

from crossmem.bench.jobs_busy import HELD, IDLE, LOADS, ONE_THREAD, STOPPED
from crossmem.bench.machine import available_nbytes, choose_cpus, describe_machine, version_of
from crossmem.bench.pair import BenchError, Pair, child_environment
from crossmem.bench.peer import peer_class
from crossmem.bench.plan import KIB, Plan
from crossmem.bench.report import Report, percentile
from crossmem.bench.targets import compute_targets, size_name

__all__ = ["Suite"]

_LIFE = ("create", "export", "attach", "detach", "free")
_US = 1e6
_BUSY_LOAD = 0.5


class Suite:
    """One run of the benchmark. The end of the ``with`` block ends the processes of the run.

    Parameters
    ----------
    plan
        The sizes, counts and rounds of the run.
    mode
        The plan's name, for the report.
    peers
        Names of the peers, in the order of the first round.
    device
        The crossmem device.
    say
        Called with a line of text when a new part of the run begins.
    """

    def __init__(
        self,
        plan: Plan,
        *,
        mode: str,
        peers: Sequence[str],
        device: str,
        say: Callable[[str], None],
    ) -> None:
        self.plan = plan
        self.cpus = choose_cpus()
        self.environment = child_environment()
        self.folder = ""
        self._device = device
        self._say = say
        self._peers: list[str] = []
        self._pairs: dict[str, Pair] = {}
        self._given_up: set[tuple[str, str]] = set()
        self._stack = ExitStack()
        self.report = Report(
            mode=mode,
            date=datetime.now(UTC).isoformat(timespec="seconds"),
            machine=describe_machine(),
            settings={
                "device": device,
                "cpus": self.cpus.note,
                "plan": {name: getattr(plan, name) for name in Plan.__slots__},
                "garbage_collector": "off while timing, for all peers",
            },
        )
        for name in peers:
            chosen = peer_class(name)
            reason = chosen.missing()
            self.report.peers[name] = {
                "title": chosen.title,
                "version": version_of(chosen.distribution) if chosen.distribution else None,
                "state": reason or "measured",
            }
            if reason is None:
                self._peers.append(name)
            elif plan.is_brief:
                # The table of a brief run has no column for a missing peer, so a note names it.
                self.note(f"{name}: {reason}")

    def __enter__(self) -> Self:
        # Other programs of this user may use crossmem. The benchmark has its own run directory, so
        # that they do not disturb the measurements.
        folder = self._stack.enter_context(tempfile.TemporaryDirectory(prefix="cmb"))
        os.chmod(folder, 0o700)  # noqa: PTH101
        self.folder = folder
        self.environment["CROSSMEM_RUN_DIR"] = folder
        # An emulated device gets a capacity of 4 TiB, so that large allocations succeed. Most jobs
        # never touch their memory, so the allocations take no pages.
        self.environment.setdefault("CROSSMEM_EMULATED_CAPACITY", str(1 << 42))
        return self

    def __exit__(self, *_: object) -> None:
        for name in list(self._pairs):
            self._drop(name)
        self._stack.close()

    def _drop(self, peer: str) -> None:
        pair = self._pairs.pop(peer, None)
        if pair is not None:
            pair.close()

    def pair(self, peer: str) -> Pair:
        """Return the pair of processes of a peer, and start it if necessary."""
        if peer not in self._pairs:
            self._pairs[peer] = Pair(
                peer, device=self._device, cpus=self.cpus, environment=self.environment
            )
        return self._pairs[peer]

    def restart(self, peer: str) -> None:
        """End a peer's processes, so that the next job gets fresh processes."""
        self._drop(peer)

    def has(self, peer: str) -> bool:
        """Return whether a peer is measured."""
        return peer in self._peers

    def say(self, text: str) -> None:
        """Tell the user which part of the run begins."""
        self._say(text)

    def note(self, text: str) -> None:
        """Add a sentence to the notes of the report, unless the notes have it already."""
        if text not in self.report.notes:
            self.report.notes.append(text)

    def job(
        self, peer: str, job: str, *, deadline_s: float = 120.0, row: str = "", **arguments: Any
    ) -> dict[str, Any] | None:
        """Run a job and return its results. If the job fails, note the reason and return None.

        Parameters
        ----------
        peer, job
            Names of the peer and of the job.
        deadline_s
            Longest duration of the job in seconds. After that, both processes are ended.
        row
            A label, such as a size. After a failure, calls with the same peer, job and label return
            None at once. Calls with another label still run.
        """
        key = peer, f"{job} {row}".strip()
        if key in self._given_up:
            return None
        try:
            return self.pair(peer).run(job, deadline_s=deadline_s, **arguments)
        except BenchError as error:
            self._given_up.add(key)
            self.note(f"{peer}, {key[1]}: {error}")
            self._drop(peer)
            return None

    def run(self, parts: "Sequence[Callable[[Suite], None]]") -> Report:
        """Measure everything and return the report.

        Parameters
        ----------
        parts
            Functions that measure crossmem and add rows to the report. They run only if crossmem is
            one of the measured peers.

        Raises
        ------
        BenchError
            No peer can be measured.
        """
        start = monotonic()
        load = self.report.machine["load"]
        if load > _BUSY_LOAD:
            self.note(f"other programs were busy when the run began (load {load:g}): expect noise")
        self._check()
        if not self._peers:
            states = [f"{name}: {peer['state']}" for name, peer in self.report.peers.items()]
            raise BenchError(f"no peer can be measured ({', '.join(states)})")
        for nbytes in self.plan.sizes:
            self._life(nbytes)
        self._churn_and_held()
        self._busy()
        if self.has("crossmem"):
            for measure in parts:
                measure(self)
        if not self.plan.is_brief:
            self.report.targets = compute_targets(self.report)
        self.report.seconds = round(monotonic() - start, 1)
        return self.report

    def _turns(self, rounds: int) -> list[list[str]]:
        """Return the peers' order in each round. After a round, the first peer moves to the end."""
        peers = self._peers
        return [peers[i % len(peers) :] + peers[: i % len(peers)] for i in range(rounds)]

    def _check(self) -> None:
        """Start every pair. Drop a peer if its check fails or its processes do not share memory."""
        self.say("starting two processes for each peer")
        for peer in list(self._peers):
            found = self.job(peer, "check", nbytes=4 * KIB)
            if found is None or not (found["seen"] and found["answered"]):
                self.report.peers[peer]["state"] = "failed"
                what = "one process does not see what the other process writes"
                self.note(f"{peer}: not measured, because the check failed or {what}")
                self._peers.remove(peer)

    def _room(self, peer: str, nbytes: int) -> bool:
        if not peer_class(peer).touches_memory or available_nbytes() > 4 * nbytes:
            return True
        self.note(
            f"{peer} at {size_name(nbytes)}: not measured, because this peer fills its memory and "
            "too little memory is free"
        )
        return False

    def _life(self, nbytes: int) -> None:
        """Measure the steps in the life of an allocation, from create to free.

        Each allocation is freed before the next is created.
        """
        plan, size = self.plan, size_name(nbytes)
        self.say(f"allocations of {size}, from create to free")
        peers = [peer for peer in self._peers if self._room(peer, nbytes)]
        rounds: dict[str, dict[str, list[float]]] = {peer: {} for peer in peers}
        for peer in peers:
            self.job(peer, "check", row=size, nbytes=nbytes)
            self.job(peer, "life", row=size, nbytes=nbytes, count=plan.count // 4 + 1, budget_s=0.2)
        for turn in self._turns(plan.rounds):
            for peer in turn:
                if peer not in peers:
                    continue
                times = self.job(
                    peer, "life", row=size, nbytes=nbytes, count=plan.count, budget_s=plan.budget_s
                )
                if times is None:
                    continue
                times["life"] = [sum(each) for each in zip(*map(times.get, _LIFE), strict=True)]
                for metric in (*_LIFE, "life", "total"):
                    rounds[peer].setdefault(metric, []).append(median(times[metric]) * _US)
        for peer in peers:
            for metric, values in rounds[peer].items():
                self.report.add("life", peer, metric, values, "us", nbytes=nbytes)

    def _churn_and_held(self) -> None:
        """Measure many small allocations.

        In the sections ``loop`` and ``churn``, each allocation is freed before the next is created.
        In the section ``loop``, no consumer attaches the allocations. In the section ``held``, all
        allocations are alive at once.
        """
        plan = self.plan
        self.say(f"{plan.batch} allocations of 4 KiB")
        rounds: dict[tuple[str, str, str], list[float]] = {}
        arguments: dict[str, Any] = {"nbytes": 4 * KIB, "count": plan.batch}
        for turn in self._turns(plan.batch_rounds):
            for peer in turn:
                alone = not peer_class(peer).needs_reader
                loop = self.job(peer, "loop", **arguments) if alone else None
                if loop is not None:
                    each = median(loop["each"]) * _US
                    rounds.setdefault(("loop", peer, "each"), []).append(each)
                if plan.is_brief:
                    continue
                churn = self.job(peer, "churn", **arguments)
                if churn is not None:
                    rounds.setdefault(("churn", peer, "each"), []).append(churn["each"] * _US)
                held = self.job(peer, "held", **arguments) or {}
                each = {metric: held[metric] * _US for metric in _LIFE if metric in held}
                for metric, value in each.items():
                    rounds.setdefault(("held", peer, metric), []).append(value)
                if each:
                    rounds.setdefault(("held", peer, "life"), []).append(sum(each.values()))
        for (section, peer, metric), values in rounds.items():
            self.report.add(section, peer, metric, values, "us")

    def _busy(self) -> None:
        """Measure the time of an attach while the exporter is idle, busy or stopped."""
        plan = self.plan
        self.say("attaching while the exporter is busy")
        samples: dict[tuple[str, str], list[list[float]]] = {}
        for load in (IDLE, ONE_THREAD) if plan.is_brief else LOADS:
            for turn in self._turns(plan.holds if load == HELD else max(1, plan.batch_rounds)):
                for peer in turn:
                    asks = peer_class(peer).asks_exporter
                    if asks and load == STOPPED:
                        continue  # the exporter would never answer the attach
                    times = self.job(
                        peer,
                        "beside",
                        row=load,
                        nbytes=4 * KIB,
                        # If the exporter must answer and holds the GIL, the first attach waits
                        # until the exporter releases the GIL. Later attaches would find the GIL
                        # free, so there is only one attach.
                        count=1 if asks and load == HELD else plan.busy,
                        load=load,
                        hold_s=plan.hold_s,
                    )
                    if times is not None:
                        samples.setdefault((peer, load), []).append(times["attach"])
        for (peer, load), rounds in samples.items():
            self.report.add("busy", peer, load, [median(one) * _US for one in rounds], "us")
            pooled = percentile([each for one in rounds for each in one], 99)
            self.report.add("busy", peer, f"{load}, p99", [pooled * _US], "us")
