# SPDX-License-Identifier: Apache-2.0
"""The part of the benchmark that measures crossmem without the other peers."""

import subprocess
from importlib.util import find_spec
from statistics import median
from typing import Any

from crossmem.bench.calls import CallError, time_calls
from crossmem.bench.imports import IMPORTS, bytecode_cached_in, time_import
from crossmem.bench.machine import available_nbytes
from crossmem.bench.plan import KIB
from crossmem.bench.suite import Suite
from crossmem.bench.syscalls import TraceError, count_system_calls
from crossmem.bench.targets import size_name

__all__ = ["run"]

_PEER = "crossmem"
_US = 1e6


def run(suite: Suite) -> None:
    """Measure this part, and add its rows to the report.

    A brief run measures only batches, repeats and the bandwidth.
    """
    _batch(suite)
    _repeats(suite)
    _bandwidth(suite)
    if suite.plan.is_brief:
        return
    _system_calls(suite)
    _scale(suite)
    _rows(suite)
    _imports(suite)
    _calls(suite)


def _collect(rounds: dict[str, list[float]], times: dict[str, Any] | None) -> None:
    """For each name in ``times``, append one number to the list of that name in ``rounds``.

    The number is the time, or the median of several times. ``times`` has seconds, and ``rounds``
    has microseconds.
    """
    for name, value in (times or {}).items():
        each = median(value) if isinstance(value, list) else value
        rounds.setdefault(name, []).append(each * _US)


def _batch(suite: Suite) -> None:
    plan, rounds = suite.plan, dict[str, list[float]]()
    suite.say(f"{plan.batch} imports, in one call of attach_many and one by one")
    for i in range(plan.batch_rounds):
        times = suite.job(_PEER, "batch", nbytes=4 * KIB, count=plan.batch, batch_first=i % 2 == 0)
        _collect(rounds, times)
    for name, values in rounds.items():
        suite.report.add("batch", _PEER, name, values, "us")


def _repeats(suite: Suite) -> None:
    plan, rounds = suite.plan, dict[str, list[float]]()
    suite.say("repeated imports and exports, and imports of parts")
    for _ in range(plan.repeat_rounds):
        _collect(rounds, suite.job(_PEER, "repeats", nbytes=4 * KIB, count=plan.repeats))
    for name, values in rounds.items():
        suite.report.add("repeats", _PEER, name, values, "us")


def _system_calls(suite: Suite) -> None:
    kept = suite.job(_PEER, "kept", nbytes=4 * KIB)
    if kept is None:
        return
    made: list[dict[str, Any] | None] = []

    def repeat() -> None:
        made.append(suite.job(_PEER, "marked", count=suite.plan.traced))

    try:
        calls = count_system_calls(kept["pid"], repeat)
    except TraceError as error:
        suite.note(f"system calls of repeated imports were not counted: {error}")
        if not made:
            repeat()  # the job "marked" frees the memory of the job "kept"
        return
    suite.report.add("repeats", _PEER, "system calls", [len(calls)], "count")
    if calls:
        names = ", ".join(sorted(set(calls)))
        suite.note(f"{2 * suite.plan.traced} repeated imports made system calls: {names}")


def _bandwidth(suite: Suite) -> None:
    if not find_spec("numpy"):
        suite.note("bandwidth was not measured: numpy is not installed")
        return
    plan = suite.plan
    for nbytes in plan.bandwidth_sizes:
        size = size_name(nbytes)
        if available_nbytes() < 4 * nbytes:
            suite.note(f"bandwidth at {size} was not measured: too little memory is free")
            continue
        suite.say(f"bandwidth through NumPy at {size}")
        rates: dict[str, list[float]] = {}
        for i in range(plan.bandwidth_rounds):
            times = suite.job(
                _PEER,
                "bandwidth",
                row=size,
                nbytes=nbytes,
                plain_first=i % 2 == 0,
                repeats=plan.bandwidth_repeats,
            )
            for name, seconds in (times or {}).items():
                rates.setdefault(name, []).append(nbytes / median(seconds) / 1e9)
        for direction in ("read", "write"):
            plain = rates.get(f"plain {direction}", [])
            ours = rates.get(f"crossmem {direction}", [])
            ratios = [a / b for a, b in zip(ours, plain, strict=True)]
            add = suite.report.add
            add("bandwidth", "plain mmap", direction, plain, "GB/s", nbytes=nbytes)
            add("bandwidth", _PEER, direction, ours, "GB/s", nbytes=nbytes)
            add("bandwidth", "crossmem / plain mmap", direction, ratios, "ratio", nbytes=nbytes)


def _scale(suite: Suite) -> None:
    plan, add = suite.plan, suite.report.add
    suite.say(f"{plan.parts_of * plan.parts} live imports, {plan.separate} separate allocations")
    suite.restart(_PEER)  # earlier jobs must not add to the counts below
    found = suite.job(_PEER, "parts", allocations=plan.parts_of, parts=plan.parts)
    if found is not None:
        before, after = found["before"], found["after"]
        add("scale", _PEER, "live imports", [found["live"]], "count")
        add("scale", _PEER, "early", [median(found["early"]) * _US], "us")
        add("scale", _PEER, "late", [median(found["late"]) * _US], "us")
        add("scale", _PEER, "close", [found["close"] * _US], "us")
        add("scale", _PEER, "descriptors before", [before["all"]], "count")
        add("scale", _PEER, "descriptors added", [after["all"] - before["all"]], "count")
        # Two of the sockets are the channels to the parent and to the producer.
        add("scale", _PEER, "connections", [after["sockets"] - 2], "count")
        add("scale", _PEER, "importer's threads", [found["threads"]], "count")
    _, limit = suite.report.machine["descriptor_limit"]
    held = min(plan.separate, limit - 500)
    found = suite.job(_PEER, "separate", nbytes=4 * KIB, count=held)
    if found is not None:
        add("scale", _PEER, "separate asked", [plan.separate], "count")
        add("scale", _PEER, "separate held", [held], "count")
        for name in ("create", "attach", "unmap", "free"):
            add("scale", _PEER, f"separate {name}", [found[name] * _US], "us")
        add("scale", _PEER, "separate descriptors added", [found["descriptors"]], "count")
    # Memory of the last job may still wait to be freed. If it were freed during the next job, its
    # descriptors would become free, and that next job would count too many allocations.
    suite.restart(_PEER)
    found = suite.job(_PEER, "exhaust", nbytes=4 * KIB, room=64)
    if found is not None:
        right = found["typed"] and found["names_limit"]
        add("scale", _PEER, "typed error", [int(right)], "count")
        suite.note(
            f"with 64 descriptors left, the call for allocation number {found['made'] + 1} raised "
            f"{found['error']}{'' if found['names_limit'] else ', which does not name the limit'}"
        )


def _rows(suite: Suite) -> None:
    suite.say("reading the rows of importers")
    for importers in (64, 1000):
        found = suite.job(_PEER, "rows", importers=importers, repeats=suite.plan.repeats)
        if found is not None:
            metric = f"read for one free, {importers} importers"
            suite.report.add("rows", _PEER, metric, [median(found["read"]) * _US], "us")
    for importers in (1, 64):
        found = suite.job(_PEER, "block-rows", importers=importers, batches=suite.plan.repeats)
        if found is not None:
            metric = f"free, {importers} importers"
            suite.report.add("rows", "pool", metric, [median(found["free"]) * _US], "us")


def _imports(suite: Suite) -> None:
    suite.say("import statements in fresh interpreters")
    rounds: dict[str, list[float]] = {}
    environment = bytecode_cached_in(suite.folder, suite.environment)
    for i in range(-1, suite.plan.imports):  # round -1 fills the page cache and is not counted
        for name, statement in IMPORTS.items():
            try:
                seconds = time_import(statement, cpu=suite.cpus.producer, environment=environment)
            except subprocess.SubprocessError as error:
                suite.note(f"{name}: {error}")
                continue
            if i >= 0:
                rounds.setdefault(name, []).append(seconds * 1e3)
    for name, values in rounds.items():
        suite.report.add("import", name, "time", values, "ms")


def _calls(suite: Suite) -> None:
    suite.say("calls from C into an emulated library")
    rounds: dict[str, list[float]] = {}
    for _ in range(suite.plan.imports):
        try:
            found = time_calls(
                suite.plan.repeats, folder=suite.folder, environment=suite.environment
            )
        except CallError as error:
            suite.note(f"calls from C: {error}")
            return
        _collect(rounds, found)
    for name, values in rounds.items():
        suite.report.add("calls", name, "time", values, "us")
