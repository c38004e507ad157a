# SPDX-License-Identifier: Apache-2.0
"""Law C19: any thread may make any call."""

import contextlib
import itertools
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import TYPE_CHECKING, Any

import pytest

import crossmem
from crossmem.conformance import actions, blocks
from crossmem.conformance.harness import Allocate
from crossmem.conformance.peers import Peer
from crossmem.driver import TracingDriver

if TYPE_CHECKING:
    from _typeshed import TraceFunction

_NBYTES = 4096
_THREADS = 16


@pytest.fixture(autouse=True)
def switching() -> Iterator[None]:
    """Let the interpreter switch threads as often as it can, to provoke races."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def _together(function: Callable[..., Any], *args: Any, count: int = _THREADS) -> list[Any]:
    """Call a function in ``count`` threads at once; return the results.

    If threads raise exceptions, raise the exception of the thread with the lowest number.
    """
    results = actions.in_threads(count, function, *args)
    for result in results:
        if isinstance(result, Exception):
            raise result
    return results


def _racing(function: Callable[..., Any], *args: Any, count: int = 6) -> None:
    """Call a function in ``count`` threads, which release the GIL before each opcode."""

    def give_way(frame: FrameType, event: str, argument: object) -> "TraceFunction":
        frame.f_trace_opcodes = True
        if event == "opcode":
            time.sleep(0)
        return give_way

    def run(number: int) -> None:
        sys.settrace(give_way)
        try:
            function(*args)
        finally:
            sys.settrace(None)

    _together(run, count=count)


def _made(tracer: TracingDriver, before: dict[str, int]) -> dict[str, int]:
    """Count, by name, the driver calls that acquire or release a resource.

    ``before`` is an earlier copy of ``tracer.calls``. Only later calls are counted.
    """
    names = ("import_", "close", "map", "unmap", "allocate", "export", "free")
    return {name: tracer.calls[name] - before.get(name, 0) for name in names}


@pytest.mark.crossmem_not_of_blocks(
    "the vendor opens a pool as a whole, so vendor calls cannot be counted for one block"
)
@pytest.mark.crossmem_core
def test_c19_concurrent_imports_of_one_handle_make_one_vendor_open(
    peer: Peer, tracer: TracingDriver
) -> None:
    blob = peer.call(actions.offer, "memory", _NBYTES, b"data")
    before = dict(tracer.calls)

    imports = _together(lambda _: crossmem.import_handle(blob))

    assert _made(tracer, before)["import_"] == 1
    (info,) = peer.call(actions.exports)
    assert len(info.leases) == 1
    mappings = _together(lambda number: imports[number].map())
    assert _made(tracer, before)["map"] == 1
    assert {mapping.read(4) for mapping in mappings} == {b"data"}
    _together(lambda number: mappings[number].unmap())
    _together(lambda number: imports[number].close())
    assert _made(tracer, before) == {
        **dict.fromkeys(("allocate", "export", "free"), 0),
        **dict.fromkeys(("import_", "close", "map", "unmap"), 1),
    }
    peer.call(actions.free, "memory", busy="raise")


@pytest.mark.crossmem_not_of_blocks(
    "the vendor opens a pool as a whole, so vendor calls cannot be counted for one block"
)
def test_c19_concurrent_attaches_make_one_vendor_open(peer: Peer, tracer: TracingDriver) -> None:
    blob = peer.call(actions.offer, "memory", _NBYTES, b"data")
    parts = [
        crossmem.ShareableHandle.from_bytes(blob).slice(number, 1) for number in range(_THREADS)
    ]
    before = dict(tracer.calls)

    mappings = _together(lambda number: crossmem.attach(parts[number]))

    assert _made(tracer, before)["import_"] == 1
    assert b"".join(mapping.read() for mapping in mappings[:4]) == b"data"
    _together(lambda number: mappings[number].unmap())
    made = _made(tracer, before)
    assert (made["import_"], made["map"], made["unmap"], made["close"]) == (1, 1, 1, 1)


def test_c19_many_batches_in_many_orders(peer: Peer, peer2: Peer, tracer: TracingDriver) -> None:
    blobs = [
        one.call(actions.offer, f"memory{number}", _NBYTES, bytes([number]))
        for number in range(3)
        for one in (peer, peer2)
    ]
    values = [number for number in range(3) for _ in (peer, peer2)]

    def attach_shuffled(seed: int) -> list[tuple[int, int]]:
        order = list(range(len(blobs)))
        random.Random(seed).shuffle(order)
        found = []
        for _ in range(5):
            mappings = crossmem.attach_many([blobs[index] for index in order])
            found += [
                (index, mapping.read(1)[0]) for index, mapping in zip(order, mappings, strict=True)
            ]
            for mapping in mappings:
                mapping.unmap()
        return found

    for found in _together(attach_shuffled, count=8):
        assert all(values[index] == value for index, value in found)
    assert tracer.violations == []


def test_c19_import_and_close_over_and_over(peer: Peer, tracer: TracingDriver) -> None:
    blob = peer.call(actions.offer, "memory", _NBYTES, b"data")
    before = dict(tracer.calls)

    def churn(number: int) -> set[bytes]:
        found = set()
        for turn in range(15):
            if (number + turn) % 2:
                with crossmem.attach(blob) as mapping:
                    found.add(mapping.read(4))
            else:
                with crossmem.import_handle(blob) as imported, imported.map() as mapping:
                    found.add(mapping.read(4))
        return found

    assert _together(churn) == [{b"data"}] * _THREADS
    blocks.close_idle()
    made = _made(tracer, before)
    assert made["import_"] == made["close"]
    assert made["map"] == made["unmap"]
    assert tracer.violations == []
    peer.call(actions.free, "memory", busy="wait", timeout=5)


def test_c19_objects_pass_between_threads(peer: Peer) -> None:
    blob = peer.call(actions.offer, "memory", _NBYTES, b"data")
    box: list[Any] = []

    def run(step: Callable[[], Any]) -> None:
        thread = threading.Thread(target=step)
        thread.start()
        thread.join(10)

    run(lambda: box.append(crossmem.import_handle(blob)))
    run(lambda: box.append(box[0].map()))
    run(lambda: box.append(box[1].read(4)))
    run(box[1].unmap)
    run(box[0].close)

    assert box[2] == b"data"
    assert box[0].closed
    assert box[1].closed


def test_c19_closing_twice_at_once_is_harmless(peer: Peer, tracer: TracingDriver) -> None:
    blob = peer.call(actions.offer, "memory", _NBYTES, b"data")
    for _ in range(5):
        before = dict(tracer.calls)
        kept = crossmem.attach(blob)
        imported, attached = crossmem.import_handle(blob), crossmem.attach(blob)
        mapping = imported.map()

        for end in (mapping.unmap, attached.unmap, imported.close):
            _racing(end)

        # All these objects share one vendor import. The other objects are closed, but ``kept`` is
        # still open, so this import is still open, too.
        made = _made(tracer, before)
        assert (made["import_"], made["map"], made["unmap"], made["close"]) == (1, 1, 0, 0)
        assert kept.read(4) == b"data"
        kept.unmap()
        blocks.close_idle()
        made = _made(tracer, before)
        assert (made["unmap"], made["close"]) == (1, 1)
    assert tracer.violations == []


def test_c19_freeing_twice_at_once_is_harmless(
    device: crossmem.Device, tracer: TracingDriver
) -> None:
    for turn in range(4):
        before, live = dict(tracer.calls), tracer.live["blocks"]
        allocation = device.allocate(_NBYTES)
        if turn % 2:
            allocation.export()

        _racing(allocation.free)

        assert tracer.live["blocks"] == live
        assert blocks.are_used() or _made(tracer, before)["free"] == 1


def test_c19_mappings_of_one_import_are_all_counted(peer: Peer) -> None:
    imported = crossmem.import_handle(peer.call(actions.offer, "memory", _NBYTES))

    def map_and_unmap() -> None:
        for _ in range(4):
            imported.map().unmap()

    _racing(map_and_unmap)
    mapping = imported.map()
    with pytest.raises(crossmem.BusyError):
        imported.close()
    mapping.unmap()
    imported.close()


def test_c19_mapping_and_closing_at_once_leaves_no_mapping_of_what_is_closed(
    peer: Peer, tracer: TracingDriver
) -> None:
    blob = peer.call(actions.offer, "memory", _NBYTES, b"data")
    for _ in range(5):
        imported = crossmem.import_handle(blob)
        mappings: list[crossmem.Mapping] = []
        turns = itertools.count()

        def map_or_close(
            imported: crossmem.Import = imported,
            mappings: list[crossmem.Mapping] = mappings,
            turns: Iterator[int] = turns,
        ) -> None:
            with contextlib.suppress(crossmem.BusyError, crossmem.ClosedError):
                if next(turns) % 2:
                    mappings.append(imported.map())
                else:
                    imported.close()

        _racing(map_or_close)

        # Either the close came first, or a mapping kept the import open.
        assert not (imported.closed and mappings)
        for mapping in mappings:
            assert mapping.read(4) == b"data"
            mapping.unmap()
        imported.close()
    assert tracer.violations == []


def test_c19_exporting_at_once_gives_one_handle(allocate: Allocate, tracer: TracingDriver) -> None:
    allocation = allocate(_NBYTES)
    before = dict(tracer.calls)

    blobs = _together(lambda _: allocation.export().to_bytes())

    assert len(set(blobs)) == 1
    assert blocks.are_used() or _made(tracer, before)["export"] == 1


def test_c19_handles_of_many_threads_differ(device: crossmem.Device, peer: Peer) -> None:
    def make(number: int) -> list[tuple[bytes, crossmem.Allocation]]:
        made = []
        for turn in range(5):
            allocation = device.allocate(_NBYTES)
            allocation.write(bytes([number, turn]))
            made.append((allocation.export().to_bytes(), allocation))
        return made

    made = _together(make, count=8)

    blobs = [blob for some in made for blob, _ in some]
    assert len(set(blobs)) == 40
    names = [f"mapped{index}" for index in range(40)]
    peer.call(actions.attach_many, names, blobs)
    for index, name in enumerate(names):
        assert peer.call(actions.read, name, 2) == bytes([index // 5, index % 5])
    peer.call(actions.unmap, *names)
    _together(lambda number: [allocation.free() for _, allocation in made[number]], count=8)


@pytest.mark.crossmem_core
def test_c19_freeing_while_others_import_is_stale_or_deferred(
    device: crossmem.Device, peer: Peer
) -> None:
    for turn in range(10):
        name = f"mapped{turn}"
        allocation = device.allocate(_NBYTES)
        allocation.write(b"data")
        importing = peer.start(actions.attach, name, allocation.export().to_bytes())
        allocation.free()
        try:
            importing.result()
        except crossmem.StaleHandleError:
            continue
        assert peer.call(actions.read, name, 4) == b"data"
        peer.call(actions.unmap, name)


def test_c19_two_processes_import_from_each_other(allocate: Allocate, peer: Peer) -> None:
    mine = [allocate(_NBYTES, b"mine").export().to_bytes() for _ in range(4)]
    theirs = [peer.call(actions.offer, f"memory{number}", _NBYTES, b"their") for number in range(4)]

    there = peer.start(actions.in_threads, 4, _attach_over_and_over, mine, 25)
    here = actions.in_threads(4, _attach_over_and_over, theirs, 25)

    assert here == [{b"thei"}] * 4
    assert there.result() == [{b"mine"}] * 4


def _attach_over_and_over(number: int, blobs: list[bytes], turns: int) -> set[bytes]:
    found = set()
    for turn in range(turns):
        with crossmem.attach(blobs[(number + turn) % len(blobs)]) as mapping:
            found.add(mapping.read(4))
    return found
