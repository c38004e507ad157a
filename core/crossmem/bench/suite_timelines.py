# SPDX-License-Identifier: Apache-2.0
"""The part of a benchmark run that measures how fast a signal reaches another process."""

from crossmem.bench.cases import run_case
from crossmem.bench.suite import Suite

__all__ = ["run"]


def run(suite: Suite) -> None:
    """Measure the round trips, and add the times to the report. In a brief run, do nothing."""
    plan, cpus = suite.plan, suite.cpus
    if plan.is_brief:
        return
    if cpus.producer == cpus.consumer:
        suite.note("round trips were not measured: each of the two processes needs its own CPU")
        return
    suite.say("round trips of signals and waits")
    found = run_case(
        suite,
        "round_trips",
        "measure",
        count=plan.repeats,
        rounds=plan.repeat_rounds,
        cpus=[cpus.producer, cpus.consumer],
    )
    for name, seconds in found.items():
        subject, _, state = name.partition(", ")
        suite.report.add("round trips", subject, state, [one * 1e6 for one in seconds], "us")
