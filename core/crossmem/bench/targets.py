# SPDX-License-Identifier: Apache-2.0
"""The project's targets, computed from the rows of a report."""

from collections.abc import Iterator
from typing import Final

from crossmem.bench.jobs_busy import IDLE, LOADS
from crossmem.bench.report import Report, Target

__all__ = ["SAME", "compute_targets", "size_name"]

SAME: Final = 1.25
"""Two costs count as equal if their ratio is at most this number. Repeated measurements of a few
microseconds differ by up to this ratio."""


_STATES: Final = {"awake": "both processes awake", "asleep": "the other process asleep"}


def size_name(nbytes: int) -> str:
    """Return a size as text, such as ``"2 MiB"``."""
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if nbytes >= size and nbytes % size == 0:
            return f"{nbytes // size} {unit}"
    return f"{nbytes} B"


def _ratio(above: float | None, below: float | None) -> float | None:
    return None if above is None or not below else round(above / below, 3)


def compute_targets(report: Report) -> list[Target]:
    """Return every target with its result in a report.

    If a target's name is "A, against B", the result is the figure of A divided by the figure of B.
    If the name is "A, faster than B by", the result is the time of B divided by the time of A.
    """
    return [
        *_life(report),
        *_pools(report),
        *_repeats(report),
        *_bandwidth(report),
        *_scale(report),
        *_imports(report),
        *_trees(report),
        *_queues(report),
        *_readers(report),
        *_updates(report),
        *_round_trips(report),
        *_hand_overs(report),
    ]


def _life(report: Report) -> Iterator[Target]:
    sizes = sorted({row.nbytes for row in report.rows if row.section == "life" and row.nbytes})
    for rival, title, limit in (
        ("floor", "the floor", 2.5),
        ("mp", "mp.shared_memory", 1.7),
    ):
        for nbytes in sizes:
            measured = _ratio(
                report.value("life", "crossmem", "life", nbytes=nbytes),
                report.value("life", rival, "life", nbytes=nbytes),
            )
            name = f"whole life at {size_name(nbytes)}, against {title}"
            yield Target(name, measured, limit)
    for metric, name in (("detach", "unmap and close"), ("free", "free")):
        measured = _ratio(
            report.value("life", "crossmem", metric, nbytes=sizes[0] if sizes else None),
            report.value("life", "floor", metric, nbytes=sizes[0] if sizes else None),
        )
        yield Target(f"{name}, against the floor", measured, 2.0)
    measured = _ratio(report.value("loop", "crossmem", "each"), report.value("loop", "mp", "each"))
    yield Target("create, export and free in a loop, against mp.shared_memory", measured, 1.0)
    for importers, limit in ((64, 10.0), (1000, 60.0)):
        metric = f"read for one free, {importers} importers"
        measured = report.value("rows", "crossmem", metric)
        yield Target(f"µs to read the rows of {importers} importers", measured, limit)
    if len(sizes) > 1:
        measured = _ratio(
            report.value("life", "crossmem", "life", nbytes=sizes[-1]),
            report.value("life", "crossmem", "life", nbytes=sizes[0]),
        )
        name = f"whole life at {size_name(sizes[-1])}, against {size_name(sizes[0])}"
        yield Target(name, measured, 1.3)


def _pools(report: Report) -> Iterator[Target]:
    """Yield the targets of pools: against other peers, for a busy exporter, for many importers."""
    for section, rival, title, limit in (
        ("life", "umf-disjoint", "UMF disjoint", 1.0),
        ("life", "floor", "the floor", 0.25),
        ("life", "mp", "mp.shared_memory", 0.15),
        ("held", "umf-disjoint", "UMF disjoint", 1.0),
        ("held", "iceoryx2", "iceoryx2", 2.0),
    ):
        nbytes = 4 << 10 if section == "life" else None
        measured = _ratio(
            report.value(section, "pool", "life", nbytes=nbytes),
            report.value(section, rival, "life", nbytes=nbytes),
        )
        how = "turn by turn" if section == "life" else "many at once"
        yield Target(f"whole life of a block, {how}, against {title}", measured, limit)
    idle = report.value("busy", "pool", IDLE)
    for load in LOADS:
        if load != IDLE:
            measured = _ratio(report.value("busy", "pool", load), idle)
            name = f"attach of a block, load {load!r}, against an idle exporter"
            yield Target(name, measured, 1.2)
    many, one = (
        report.value("rows", "pool", f"free, {importers} importers") for importers in (64, 1)
    )
    yield Target("freeing a block, 64 importers, against one importer", _ratio(many, one), 8.0)


def _repeats(report: Report) -> Iterator[Target]:
    source = "from bytes, against a handle object"
    part = "a part of an imported allocation, against the whole allocation"
    for name, above, below, limit in (
        ("repeated import, against the first import", "import repeated", "import first", 0.2),
        ("repeated attach, against the first attach", "attach repeated", "attach first", 0.2),
        (f"repeated import {source}", "import repeated, bytes", "import repeated", 2.0),
        (f"repeated attach {source}", "attach repeated, bytes", "attach repeated", 2.0),
        (f"import of {part}", "import part", "import repeated", SAME),
        (f"attach of {part}", "attach part", "attach repeated", SAME),
        ("repeated export, against the first export", "export repeated", "export first", 0.1),
    ):
        measured = _ratio(
            report.value("repeats", "crossmem", above), report.value("repeats", "crossmem", below)
        )
        yield Target(name, measured, limit)
    calls = report.value("repeats", "crossmem", "system calls")
    yield Target("system calls of repeated imports", calls, 0)


def _bandwidth(report: Report) -> Iterator[Target]:
    rows = [row for row in report.rows if row.section == "bandwidth" and row.unit == "ratio"]
    for row in rows:
        name = f"{row.metric} {size_name(row.nbytes or 0)} through NumPy, against a plain mmap"
        yield Target(name, row.value, 0.97, at_least=True)


def _scale(report: Report) -> Iterator[Target]:
    def of(metric: str) -> float | None:
        return report.value("scale", "crossmem", metric)

    live = of("live imports")
    name = f"{live:.0f} live imports" if live is not None else "many live imports"
    yield Target(f"descriptors added by {name}", of("descriptors added"), 0)
    yield Target(f"connections of {name}", of("connections"), 1)
    # The row ``early`` does not include the first nine attaches.
    yield Target(
        f"attach of the last 1 % of {name}, against the first 1 %",
        _ratio(of("late"), of("early")),
        SAME,
    )
    asked, held = of("separate asked"), of("separate held")
    short = asked is not None and held is not None and held < asked
    yield Target(
        "separate allocations alive at once",
        held,
        asked or 10_000,
        at_least=True,
        note="the descriptor limit of this machine allows no more" if short else "",
    )
    yield Target(
        "exhausted descriptors end in an error that names the limit",
        of("typed error"),
        1,
        at_least=True,
    )


def _imports(report: Report) -> Iterator[Target]:
    theirs = report.value("import", "import pydantic, pluggy", "time")
    for name, title, most in (
        ("import crossmem", "import of crossmem", 0.6),
        ("import crossmem, device and attach", "import of crossmem with device and attach", 1.0),
    ):
        measured = _ratio(report.value("import", name, "time"), theirs)
        yield Target(f"{title}, against an import of pydantic and pluggy", measured, most)


def _trees(report: Report) -> Iterator[Target]:
    sizes = sorted({row.nbytes for row in report.rows if row.section == "trees" and row.nbytes})
    if not sizes:
        name = "PyTorch's time to share and receive a tree, against crossmem's time"
        yield Target(name, None, 50, at_least=True)
        return
    small, large = sizes[0], sizes[-1]

    def of(subject: str, metric: str, nbytes: int) -> float | None:
        return report.value("trees", subject, metric, nbytes=nbytes)

    ours, theirs = (of(name, "share and receive", large) for name in ("crossmem", "torch"))
    size = size_name(large)
    name = f"PyTorch's time to share and receive a tree of {size}, against crossmem's time"
    yield Target(name, _ratio(theirs, ours), 50, at_least=True)
    measured = _ratio(ours, of("crossmem", "share and receive", small))
    name = f"time to share and receive a tree of {size}, against {size_name(small)}"
    yield Target(name, measured, SAME)
    measured = _ratio(ours, of("crossmem", "receive again", large))
    name = "time to share and receive a tree, against the time to receive it again"
    yield Target(name, measured, 4, at_least=True)


def _queues(report: Report) -> Iterator[Target]:
    """Yield the targets of an array that is sent through a queue of ``multiprocessing``."""
    sizes = {row.nbytes for row in report.rows if row.section == "queues"}
    for rival, title in (("numpy", "a pickled array"), ("ray", "Ray")):
        measured = None
        for nbytes in sizes:
            measured = _ratio(
                report.value("queues", rival, "send", nbytes=nbytes),
                report.value("queues", "crossmem", "send", nbytes=nbytes),
            )
        name = f"an array through a queue, faster than {title} by"
        note = "" if measured is not None else f"{rival} is not installed, or failed"
        yield Target(name, measured, 20, at_least=True, note=note)


def _readers(report: Report) -> Iterator[Target]:
    counted = [row.value for row in report.rows if row.metric == "memory counted"]
    name = "memory of a shared array in all processes together, against the array's size"
    yield Target(name, round(counted[0], 3) if counted else None, 1.01)
    measured = _ratio(
        report.value("readers", "crossmem", "attach, second half"),
        report.value("readers", "crossmem", "attach, first half"),
    )
    yield Target("attach of the later readers, against the earlier readers", measured, SAME)


def _updates(report: Report) -> Iterator[Target]:
    sizes = [row.nbytes for row in report.rows if row.section == "updates"]
    nbytes = sizes[0] if sizes else None
    size = size_name(nbytes) if nbytes else "a tree"
    measured = _ratio(
        report.value("updates", "crossmem", "update", nbytes=nbytes),
        report.value("updates", "NumPy", "touched copy", nbytes=nbytes),
    )
    yield Target(f"update of {size}, against a NumPy copy into touched memory", measured, 1.3)


def _round_trips(report: Report) -> Iterator[Target]:
    for what, title, subject, rival, state, limit in (
        ("signal and wait", "a spin on a word", "timeline", "plain word", "awake", 3),
        ("signal and wait", "an eventfd", "timeline", "eventfd", "asleep", 2),
        ("publish and wait", "a reader that polls", "shared tree", "polling", "awake", 0.5),
    ):
        measured = _ratio(
            report.value("round trips", subject, state), report.value("round trips", rival, state)
        )
        yield Target(f"{what}, {_STATES[state]}, against {title}", measured, limit)


def _hand_overs(report: Report) -> Iterator[Target]:
    """Yield the targets of hand-overs through crossmem's own queues."""

    def of(subject: str, metric: str, nbytes: int | None = None) -> float | None:
        return report.value("hand-overs", subject, metric, nbytes=nbytes)

    small, large = 4 << 10, 1 << 30
    awake, asleep = of("queue", "awake"), of("queue", "asleep")
    buffers = of("queue", "awake", small)
    for what, state, title, measured, limit in (
        ("user data", "awake", "iceoryx2", _ratio(awake, of("iceoryx2", "awake")), 1.0),
        ("4 KiB", "awake", "iceoryx2", _ratio(buffers, of("iceoryx2", "awake", small)), 1.5),
        ("user data", "awake", "mp.Queue", _ratio(awake, of("mp.Queue", "awake")), 0.15),
        ("user data", "asleep", "mp.Queue", _ratio(asleep, of("mp.Queue", "asleep")), 0.6),
        ("user data", "asleep", "an eventfd", _ratio(asleep, of("eventfd", "asleep")), 2.0),
        ("1 GiB", "awake", "4 KiB", _ratio(of("queue", "awake", large), buffers), 1.1),
    ):
        yield Target(f"hand-over of {what}, {_STATES[state]}, against {title}", measured, limit)
    stream = "item of a stream"
    measured = _ratio(of("mp.Queue", stream), of("queue", stream))
    yield Target("items in a stream, faster than mp.Queue by", measured, 10, at_least=True)
    one, eight = (of(f"{count} consumers", "put of an item") for count in (1, 8))
    yield Target("put of an item for 8 consumers, against one consumer", _ratio(eight, one), 3)
