# SPDX-License-Identifier: Apache-2.0
"""The benchmark suite runs, in its smallest mode; its numbers mean nothing here."""

import io
import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from crossmem.bench import Report, render, run, suite_queues, suite_timelines, targets_table
from crossmem.bench.jobs_busy import LOADS
from crossmem.bench.machine import Cpus, available_nbytes, choose_cpus
from crossmem.bench.pair import BenchError, Pair, child_environment
from crossmem.bench.peer_posix_ipc import PosixIpcPeer
from crossmem.bench.plan import PLANS
from crossmem.bench.render import make_tables
from crossmem.bench.suite import Suite
from crossmem.bench.suite_copies import WAYS

# Ten seconds where nothing else runs; it took 78 beside other work.
pytestmark = [
    pytest.mark.ci,
    pytest.mark.timeout(600),
    pytest.mark.usefixtures("unmeasured"),
]


def _children() -> list[str]:
    """Return the processes of benchmarks; the conformance kit may run beside these tests."""
    text = Path(f"/proc/self/task/{os.getpid()}/children").read_text()
    return [pid for pid in text.split() if b"crossmem.bench" in _command(pid)]


def _command(pid: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""


@pytest.fixture(scope="module")
def report() -> Report:
    before = _children()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PosixIpcPeer, "missing", lambda: "not installed")
        made = run("smoke", peers=["floor", "crossmem", "mp", "posix_ipc"])
    assert _children() == before
    return made


@pytest.mark.parametrize("peer", ["floor", "crossmem", "mp"])
def test_every_operation_of_every_peer_is_timed(report: Report, peer: str) -> None:
    for nbytes in (4 << 10, 2 << 20, 1 << 30):
        metrics = ("create", "export", "attach", "detach", "free", "life", "total")
        for metric in metrics:
            value = report.value("life", peer, metric, nbytes=nbytes)
            assert value is not None
            assert value > 0
    assert report.value("churn", peer, "each") is not None
    held = [report.value("held", peer, metric) for metric in metrics[:6]]
    assert None not in held
    assert held[5] == pytest.approx(sum(one or 0.0 for one in held[:5]), rel=0.01)


@pytest.mark.parametrize("peer", ["floor", "crossmem", "mp"])
def test_attaching_is_timed_beside_each_busy_exporter(report: Report, peer: str) -> None:
    for load in LOADS:
        typical = report.value("busy", peer, load)
        slow = report.value("busy", peer, f"{load}, p99")
        if load == "stopped" and peer != "mp":
            assert (typical, slow) == (None, None)  # its exporter must answer
        else:
            assert typical is not None
            assert slow is not None
            assert 0 < typical <= slow


def test_an_exporter_with_the_lock_answers_afterwards(report: Report) -> None:
    held_us = PLANS["smoke"].hold_s * 1e6
    for peer in ("floor", "crossmem"):
        waited = report.value("busy", peer, "GIL held")
        assert waited is not None
        assert waited > held_us / 2


@pytest.mark.parametrize("way", ["crossmem", "mp"])
def test_a_dict_of_arrays_is_copied_cold_and_warm(report: Report, way: str) -> None:
    pytest.importorskip("numpy")
    plan = PLANS["smoke"]
    for row in (row for row in report.rows if row.subject == WAYS[way]):
        cold = plan.copied_pairs
        assert len(row.rounds) == (cold if row.metric == "cold" else cold * plan.copied_rounds)
    for nbytes in plan.copied_sizes:
        for metric in ("cold", "warm"):
            assert report.value("copies", WAYS[way], metric, nbytes=nbytes)


def test_a_way_that_is_not_installed_is_a_line_of_its_table(report: Report) -> None:
    pytest.importorskip("numpy")
    (table,) = (one for one in make_tables(report) if one.title.startswith("Share a dict"))
    lines = {row[0]: row[1] for row in table.rows}

    assert set(lines) == set(WAYS.values())
    for way in ("ray", "torch"):
        assert (lines[WAYS[way]] == "not installed") is (find_spec(way) is None)


def test_the_copy_itself_is_timed_beside_numpy(report: Report) -> None:
    pytest.importorskip("numpy")
    for subject, metric in (
        ("crossmem", "first share"),
        ("crossmem", "update"),
        ("NumPy", "faulting copy"),
        ("NumPy", "touched copy"),
    ):
        nbytes = PLANS["smoke"].updated_nbytes
        assert report.value("updates", subject, metric, nbytes=nbytes)


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="two processes spin")
def test_round_trips_are_timed(report: Report) -> None:
    pytest.importorskip("numpy")
    found = {(row.subject, row.metric): row for row in report.rows if row.section == "round trips"}

    awake = {(name, "awake") for name in ("timeline", "plain word", "shared tree", "polling")}
    assert set(found) == awake | {("timeline", "asleep"), ("eventfd", "asleep")}
    for row in found.values():
        assert len(row.rounds) == PLANS["smoke"].repeat_rounds
        assert row.value > 0
    assert "Round trips between two processes, µs" in [one.title for one in make_tables(report)]


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="two processes spin")
def test_hand_overs_are_timed(report: Report) -> None:
    small, large, stream = 4 << 10, 1 << 30, "item of a stream"
    found = {
        (row.subject, row.metric, row.nbytes): row
        for row in report.rows
        if row.section == "hand-overs"
    }
    peers = {("iceoryx2", "awake", size) for size in (None, small) if find_spec("iceoryx2")}
    is_roomy = available_nbytes() > suite_queues.ROOM_NBYTES
    large_ones = {("queue", "awake", large)} if is_roomy else set()

    assert set(found) - large_ones == peers | {
        ("queue", "awake", None),
        ("queue", "asleep", None),
        ("queue", "awake", small),
        ("queue", "asleep", small),
        ("mp.Queue", "awake", None),
        ("mp.Queue", "asleep", None),
        ("eventfd", "asleep", None),
        ("queue", stream, None),
        ("mp.Queue", stream, None),
        ("mp.Queue, both ways", stream, None),
        ("1 consumers", "put of an item", None),
        ("8 consumers", "put of an item", None),
    }
    for row in found.values():
        assert len(row.rounds) == PLANS["smoke"].repeat_rounds
        assert row.value > 0
    assert "Hand-overs in queues, µs" in [one.title for one in make_tables(report)]


@pytest.mark.parametrize(
    ("part", "said"), [(suite_timelines, "round trips"), (suite_queues, "hand-overs")]
)
def test_one_processor_does_not_spin_against_itself(
    part: Any, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(part, "run_case", None)
    with Suite(PLANS["smoke"], mode="smoke", peers=[], device="host", say=print) as suite:
        suite.cpus = Cpus(0, 0)
        part.run(suite)

        assert f"{said} were not measured" in suite.report.notes[0]


def test_large_buffers_need_free_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    skipped: list[object] = []

    def run_case(*_: object, **arguments: object) -> dict[str, list[float]]:
        skipped.append(arguments.get("skipped"))
        return {}

    monkeypatch.setattr(suite_queues, "run_case", run_case)
    monkeypatch.setattr(suite_queues, "available_nbytes", lambda: suite_queues.ROOM_NBYTES - 1)
    with Suite(PLANS["smoke"], mode="smoke", peers=[], device="host", say=print) as suite:
        suite.cpus = Cpus(0, 1)
        suite_queues.run(suite)

        assert skipped[0] == [f"queue {1 << 30}"]
        assert "1 GiB" in suite.report.notes[0]


def test_a_missing_peer_is_named_and_not_measured(report: Report) -> None:
    assert report.peers["posix_ipc"]["state"] == "not installed"
    assert not [row for row in report.rows if row.subject == "posix_ipc"]


def test_a_run_in_which_every_peer_is_missing_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PosixIpcPeer, "missing", lambda: "not installed")

    with pytest.raises(BenchError, match=r"no peer can be measured \(posix_ipc: not installed\)"):
        run("brief", peers=["posix_ipc"])


def test_rows_of_crossmem_alone_are_there(report: Report) -> None:
    sections = {row.section for row in report.rows if row.subject == "crossmem"}
    assert {"batch", "repeats", "scale", "life"} <= sections
    assert report.value("scale", "crossmem", "descriptors added") == 0
    assert report.value("scale", "crossmem", "connections") == 1
    assert report.value("scale", "crossmem", "typed error") == 1


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_calls_from_c_are_timed(report: Report) -> None:
    found = {row.subject: row.value for row in report.rows if row.section == "calls"}

    assert list(found) == [
        "first call",
        "hipGetLastError",
        "hipGetDevice",
        "hipMalloc and hipFree",
    ]
    assert 0 < found["hipGetLastError"] < found["first call"]


def test_targets_are_computed(report: Report) -> None:
    names = [target.name for target in report.targets]
    assert len(names) == len(set(names))
    measured = [target for target in report.targets if target.measured is not None]
    assert len(measured) >= 15


def test_json_holds_everything(report: Report) -> None:
    data = json.loads(report.to_json())
    assert data["schema"] == 1
    assert len(data["rows"]) == len(report.rows)
    assert data["machine"]["kernel"]
    assert all("met" in target for target in data["targets"])


@pytest.mark.parametrize("rich", [False, True])
def test_tables_show_peers_and_targets(report: Report, rich: bool) -> None:
    if rich:
        pytest.importorskip("rich")
    out = io.StringIO()
    render(report, file=out, rich=rich)
    text = out.getvalue()
    for word in ("floor", "not installed", "Targets", "whole life", "Bandwidth", "SIGSTOP"):
        assert word in text


@pytest.mark.parametrize("rich", [False, True])
def test_a_brief_run_is_one_table_that_fits_a_screen(
    rich: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if rich:
        pytest.importorskip("rich")
    small = replace(PLANS["smoke"], is_brief=True, bandwidth_sizes=(256 << 20,))
    monkeypatch.setattr("crossmem.bench.PLANS", {"brief": small})
    monkeypatch.setenv("COLUMNS", "80")
    made = run()
    out = io.StringIO()
    render(made, file=out, rich=rich)
    lines = out.getvalue().splitlines()

    assert list(made.peers) == ["crossmem", "mp", "floor"]
    assert len(lines) - len(made.notes) <= 22
    assert max(map(len, lines[:-1])) <= 80
    assert made.targets == []
    for row in ("create 4 KiB", "whole life of 1 GiB", "attach again", "read 256 MiB with NumPy"):
        assert any(line.startswith(row) for line in lines)
    assert not {"yes", "NO", "Targets"} & set(out.getvalue().split())


def test_targets_alone(report: Report) -> None:
    out = io.StringIO()
    render(report, [targets_table(report)], file=out, rich=False)

    assert "whole life at 4 KiB, against the floor" in out.getvalue()
    assert "Bandwidth" not in out.getvalue()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"mode": "fast"}, "fast"),
        ({"peers": ["soap"]}, "soap"),
        ({"device": "Host"}, "expected a device name"),
    ],
)
def test_words_without_meaning_are_refused(arguments: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        run(**arguments)  # type: ignore[arg-type]


@pytest.fixture
def pair() -> Iterator[Pair]:
    with Pair("floor", device="-", cpus=choose_cpus(), environment=child_environment()) as made:
        yield made


def test_a_pair_that_misses_its_deadline_is_killed(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    # How long the pair may take to go before it is killed; this one never goes.
    monkeypatch.setattr("crossmem.bench.pair._EXIT_DEADLINE_S", 0.5)
    assert len(_children()) >= 2
    with pytest.raises(BenchError, match="no answer within"):
        pair.run("life", deadline_s=0.3, nbytes=4096, count=1 << 40, budget_s=1e9)
    pair.close()
    assert not _children()


def test_a_failing_half_is_reported(pair: Pair) -> None:
    with pytest.raises(BenchError, match=r"producer: .*Error"):
        pair.run("life", deadline_s=60, nbytes=-1, count=1, budget_s=1)


def test_a_half_that_died_between_two_jobs_is_reported(pair: Pair) -> None:
    victim = pair._processes["producer"]
    victim.kill()
    victim.wait()
    with pytest.raises(BenchError, match="producer: died"):
        pair.run("life", deadline_s=60, nbytes=4096, count=1, budget_s=1)


def test_a_pair_that_cannot_start_leaves_nothing() -> None:
    with pytest.raises(BenchError, match="KeyError"):
        Pair("soap", device="-", cpus=choose_cpus(), environment=child_environment())
    assert not _children()
