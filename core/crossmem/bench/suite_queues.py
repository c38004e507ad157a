# SPDX-License-Identifier: Apache-2.0
"""The part of the benchmark that times hand-overs by crossmem's queues and by other means."""

from typing import Final

from crossmem.bench.cases import run_case
from crossmem.bench.machine import available_nbytes
from crossmem.bench.suite import Suite

__all__ = ["ROOM_NBYTES", "run"]

_LARGE: Final = "queue 1073741824"
ROOM_NBYTES: Final = 5 << 30
"""The measurement with buffers of 1 GiB needs this number of free bytes. Each of the two processes
makes a queue of two such buffers. The processes touch only the first page of each buffer, but some
kernels count all pages as used."""


def run(suite: Suite) -> None:
    """Measure hand-overs of buffers, and add rows to the report. In a brief run, do nothing."""
    plan, cpus = suite.plan, [suite.cpus.producer, suite.cpus.consumer]
    if plan.is_brief:
        return
    if cpus[0] == cpus[1]:
        suite.note("hand-overs were not measured: each of the two processes needs its own CPU")
        return
    suite.say("hand-overs of buffers")
    has_room = available_nbytes() >= ROOM_NBYTES
    if not has_room:
        suite.note("queues with buffers of 1 GiB were not measured: too little memory is free")
    found = run_case(
        suite,
        "hand_overs",
        "trips",
        count=plan.repeats,
        rounds=plan.repeat_rounds,
        cpus=cpus,
        skipped=[] if has_room else [_LARGE],
    )
    for name, seconds in found.items():
        way, _, state = name.partition(", ")
        subject, _, nbytes = way.partition(" ")
        size = int(nbytes) if nbytes else None
        rounds = [one * 1e6 for one in seconds]
        suite.report.add("hand-overs", subject, state, rounds, "us", nbytes=size)
    for case, metric in (("rates", "item of a stream"), ("fans", "put of an item")):
        found = run_case(
            suite, "hand_overs", case, count=plan.repeats, rounds=plan.repeat_rounds, cpus=cpus
        )
        for subject, seconds in found.items():
            suite.report.add("hand-overs", subject, metric, [one * 1e6 for one in seconds], "us")
