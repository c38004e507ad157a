# SPDX-License-Identifier: Apache-2.0
"""Measures how long crossmem and frameworks take to send trees and arrays."""

from importlib.util import find_spec
from statistics import median
from typing import Final

from crossmem.bench.cases import run_case
from crossmem.bench.machine import available_nbytes
from crossmem.bench.plan import MIB
from crossmem.bench.suite import Suite
from crossmem.bench.targets import size_name

__all__ = ["run"]

_ALIGNMENT_NBYTES: Final = 64
_SMALL_NBYTES: Final = 4096


def run(suite: Suite) -> None:
    """Measure this part, and add its rows to the report. In a brief run, do nothing."""
    if suite.plan.is_brief:
        return
    _trees(suite)
    _queues(suite)
    _readers(suite)


def _trees(suite: Suite) -> None:
    plan = suite.plan
    if not find_spec("torch"):
        suite.note("trees of tensors were not measured: torch is not installed")
        return
    # The tensors lie one after another. All of them are aligned, as in a framework, because the
    # size of each is a multiple of the alignment.
    each = plan.tree_nbytes // plan.tensors // _ALIGNMENT_NBYTES * _ALIGNMENT_NBYTES
    for kind, nbytes in (("crossmem", each), ("crossmem", _SMALL_NBYTES), ("torch", each)):
        size = plan.tensors * nbytes
        suite.say(f"{plan.tensors} tensors, {size_name(size)} in all, {kind}")
        # PyTorch briefly has two copies of the tensors, so free memory for one copy is not enough.
        if available_nbytes() < 3 * size:
            suite.note(
                f"trees with {kind} were not measured: too little memory for {size_name(size)}"
            )
            continue
        found = run_case(
            suite,
            "frameworks",
            "tree",
            kind=kind,
            tensors=plan.tensors,
            nbytes=nbytes,
            rounds=plan.tree_rounds if kind == "crossmem" else 1,
        )
        for metric, seconds in found.items():
            rounds = [one * 1e3 for one in seconds]
            suite.report.add("trees", kind, metric, rounds, "ms", nbytes=size)


def _queues(suite: Suite) -> None:
    nbytes = suite.plan.array_nbytes
    for kind in ("crossmem", "numpy", "ray"):
        missing = [name for name in ("numpy", kind) if name != "crossmem" and not find_spec(name)]
        if missing:
            suite.note(f"queues with {kind} were not measured: {missing[0]} is not installed")
            continue
        suite.say(f"an array of {size_name(nbytes)} through a queue, {kind}")
        found = run_case(
            suite, "frameworks", "queue", kind=kind, nbytes=nbytes, rounds=suite.plan.tree_rounds
        )
        for metric, seconds in found.items():
            rounds = [one * 1e3 for one in seconds]
            suite.report.add("queues", kind, metric, rounds, "ms", nbytes=nbytes)


def _readers(suite: Suite) -> None:
    if not find_spec("numpy"):
        return
    count, nbytes = suite.plan.readers, max(suite.plan.array_nbytes, 4 * MIB)
    suite.say(f"{count} readers of {size_name(nbytes)}")
    found = run_case(suite, "frameworks", "readers", count=count, nbytes=nbytes)
    if not found:
        return
    attach, add = found["attach"], suite.report.add
    half = len(attach) // 2
    add("readers", "crossmem", "attach, first half", [median(attach[:half]) * 1e6], "us")
    add("readers", "crossmem", "attach, second half", [median(attach[half:]) * 1e6], "us")
    add("readers", "crossmem", "memory counted", found["counted"], "ratio", nbytes=nbytes)
