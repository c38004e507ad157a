# SPDX-License-Identifier: Apache-2.0
"""What the benchmark promises is computed honestly."""

from typing import Any

import pytest

from crossmem.bench.plan import PLANS
from crossmem.bench.report import Report, Target, percentile
from crossmem.bench.summary import make_summary
from crossmem.bench.syscalls import TraceError, _between_marks
from crossmem.bench.targets import compute_targets, size_name


def _report() -> Report:
    return Report("quick", "2026-01-01", {}, {})


def _target(report: Report, start: str) -> Target:
    (found,) = (one for one in compute_targets(report) if one.name.startswith(start))
    return found


def test_a_row_is_the_median_of_its_rounds() -> None:
    report = _report()
    report.add("life", "floor", "life", [3.0, 1.0, 2.0], "us", nbytes=4096)
    report.add("life", "floor", "none", [], "us", nbytes=4096)
    (row,) = report.rows
    assert (row.value, row.rounds) == (2.0, (3.0, 1.0, 2.0))
    assert report.value("life", "floor", "life") is None


@pytest.mark.parametrize(("ours", "met"), [(24.9, True), (25.1, False)])
def test_life_is_held_against_the_floor(ours: float, met: bool) -> None:
    report = _report()
    report.add("life", "floor", "life", [10.0], "us", nbytes=4096)
    report.add("life", "crossmem", "life", [ours], "us", nbytes=4096)
    assert _target(report, "whole life at 4 KiB, against the floor").met is met


def test_what_was_not_measured_is_neither_met_nor_missed() -> None:
    target = _target(_report(), "repeated export")
    assert target.measured is None
    assert target.met is None


def test_a_rate_must_not_be_lower() -> None:
    report = _report()
    add = report.add
    add("bandwidth", "crossmem / plain mmap", "read", [0.96], "ratio", nbytes=2 << 20)
    assert _target(report, "read 2 MiB").met is False


@pytest.mark.parametrize("excess", [-0.1, 0.1])
def test_updates_are_held_against_numpy(excess: float) -> None:
    report = _report()
    report.add("updates", "crossmem", "update", [100 * (1.3 + excess)], "ms", nbytes=512 << 20)
    report.add("updates", "NumPy", "touched copy", [100.0], "ms", nbytes=512 << 20)
    target = _target(report, "update of 512 MiB")

    assert (target.limit, target.met) == (1.3, excess < 0)


@pytest.mark.parametrize(
    ("start", "ours", "rival", "state", "limit"),
    [
        ("signal and wait, both processes awake", "timeline", "plain word", "awake", 3),
        ("signal and wait, the other process asleep", "timeline", "eventfd", "asleep", 2),
        ("publish and wait", "shared tree", "polling", "awake", 0.5),
    ],
)
def test_timelines_are_held_against_plainer_ways(
    start: str, ours: str, rival: str, state: str, limit: float
) -> None:
    report = _report()
    report.add("round trips", ours, state, [100 * limit + 1], "us")
    report.add("round trips", rival, state, [100.0], "us")
    target = _target(report, start)

    assert (target.limit, target.met) == (limit, False)


@pytest.mark.parametrize(
    ("end", "ours", "rival", "limit"),
    [
        (
            "user data, both processes awake, against iceoryx2",
            ("queue", "awake"),
            ("iceoryx2", "awake"),
            1,
        ),
        (
            "4 KiB, both processes awake, against iceoryx2",
            ("queue", "awake", 4096),
            ("iceoryx2", "awake", 4096),
            1.5,
        ),
        ("awake, against mp.Queue", ("queue", "awake"), ("mp.Queue", "awake"), 0.15),
        ("asleep, against mp.Queue", ("queue", "asleep"), ("mp.Queue", "asleep"), 0.6),
        (
            "user data, the other process asleep, against an eventfd",
            ("queue", "asleep"),
            ("eventfd", "asleep"),
            2,
        ),
        (
            "1 GiB, both processes awake, against 4 KiB",
            ("queue", "awake", 1 << 30),
            ("queue", "awake", 4096),
            1.1,
        ),
        (
            "8 consumers, against one consumer",
            ("8 consumers", "put of an item"),
            ("1 consumers", "put of an item"),
            3,
        ),
    ],
)
def test_queues_are_held_against_plainer_ways(
    end: str, ours: tuple[Any, ...], rival: tuple[Any, ...], limit: float
) -> None:
    report = _report()
    for one, value in ((ours, 100 * limit + 1), (rival, 100.0)):
        subject, metric, *size = one
        nbytes = size[0] if size else None
        report.add("hand-overs", subject, metric, [value], "us", nbytes=nbytes)
    (target,) = (one for one in compute_targets(report) if one.name.endswith(end))

    assert (target.limit, target.met) == (limit, False)


@pytest.mark.parametrize(("ours", "met"), [(1.0, True), (1.01, False)])
def test_a_stream_of_items_must_not_be_slower(ours: float, met: bool) -> None:
    report = _report()
    report.add("hand-overs", "mp.Queue", "item of a stream", [10.0], "us")
    report.add("hand-overs", "queue", "item of a stream", [ours], "us")

    assert _target(report, "items in a stream").met is met


@pytest.mark.parametrize(("count", "slowest"), [(1, 1), (20, 20), (100, 99), (200, 198)])
def test_one_percent_is_slower_than_p99(count: int, slowest: int) -> None:
    assert percentile(list(range(count, 0, -1)), 99) == slowest


def test_the_descriptor_limit_excuses_nothing_silently() -> None:
    report = _report()
    report.add("scale", "crossmem", "separate asked", [10_000], "count")
    report.add("scale", "crossmem", "separate held", [500], "count")
    target = _target(report, "separate allocations")
    assert target.met is False
    assert "limit" in target.note


def test_sizes_in_words() -> None:
    assert [size_name(n) for n in (4096, 2 << 20, 1 << 30, 100)] == [
        "4 KiB",
        "2 MiB",
        "1 GiB",
        "100 B",
    ]


def test_calls_between_the_marks_are_counted() -> None:
    log = """\
7  futex(0x1) = 0
7  getpgid(0) = 7
7  munmap(0x1, 2) = 0
8  read(3) = 1
7  <... munmap resumed>) = 0
7  getpgid(0) = 7
7  close(3) = 0
"""
    assert _between_marks(log, 7) == ["munmap"]
    with pytest.raises(TraceError, match="saw 0 calls of getpgid"):
        _between_marks(log, 9)


def test_modes_differ_in_size() -> None:
    assert set(PLANS) == {"smoke", "brief", "quick", "full"}
    assert PLANS["smoke"].count < PLANS["quick"].count < PLANS["full"].count
    assert [name for name, plan in PLANS.items() if plan.is_brief] == ["brief"]


def _brief() -> Report:
    report = Report("brief", "2026-01-01", {}, {})
    for name, title in (("crossmem", "crossmem"), ("mp", "mp.shared_memory"), ("floor", "floor")):
        report.peers[name] = {"title": title, "state": "measured"}
    for name, value in (("crossmem", 300.0), ("mp", 200.0), ("floor", 100.0)):
        report.add("life", name, "life", [value], "us", nbytes=4096)
    report.add("repeats", "crossmem", "attach repeated", [2.5], "us")
    report.add("bandwidth", "crossmem", "read", [10.0], "GB/s", nbytes=256 << 20)
    report.add("bandwidth", "plain mmap", "read", [20.0], "GB/s", nbytes=256 << 20)
    return report


def test_the_summary_has_medians_and_ratios() -> None:
    table = make_summary(_brief())

    assert table.heads == ("", "crossmem", "mp.shared_memory", "ratio", "floor", "ratio")
    assert table.rows == (
        ("whole life of 4 KiB", "300", "200", "1.5", "100", "3"),
        ("attach again", "2.5", "-", "-", "-", "-"),
        # A rate twice as high is half the time.
        ("read 256 MiB with NumPy", "26844", "-", "-", "13422", "2"),
    )


def test_the_summary_shows_what_was_measured() -> None:
    report = _brief()
    report.peers["mp"]["state"] = "failed"
    assert make_summary(report).heads == ("", "crossmem", "floor", "ratio")
    report.peers["crossmem"]["state"] = "failed"
    assert make_summary(report).heads == ("", "floor")
