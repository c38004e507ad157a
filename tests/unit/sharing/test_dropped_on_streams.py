# SPDX-License-Identifier: Apache-2.0
"""Objects of an emulated GPU that are dropped while a stream waits for a timeline.

Memory is released after the work of the device. A stream may wait for a value that the thread which
calls crossmem will signal, so only a call that needs the release waits.
"""

import threading
import warnings
from collections.abc import Callable, Iterator

import pytest
from busy_streams import Streams, is_prompt

import crossmem
from crossmem import Allocation, BusyError, Device, Timeline
from crossmem.conformance.pool import settle
from crossmem.sharing.base.process import current
from crossmem.sharing.exporter.record import Allocations
from crossmem.sharing.queues.place import Place
from crossmem.sharing.timelines.memory import Registrations

NBYTES = 1 << 20


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        yield


@pytest.fixture
def memory(streams: Streams) -> Iterator[Allocation]:
    with streams.device.allocate(NBYTES) as allocation:
        yield allocation


@pytest.fixture
def signalled(streams: Streams, memory: Allocation) -> Iterator[Timeline]:
    """Return a timeline for whose value 1 a stream waits as soon as the test begins the wait."""
    timeline = streams.device.timeline("word")
    yield timeline
    if timeline.value < 1:
        timeline.signal(1)
    timeline.close()


def let_a_stream_wait(streams: Streams, timeline: Timeline) -> None:
    opened = crossmem.open_timeline(timeline.export(), device=streams.device)
    opened.wait(1, stream=streams.new())


def live() -> set[int]:
    """Return the numbers of the allocations of the GPU that this process has not released."""
    return {one.number for one in current().part(Allocations).live if one.device.backend == "hip"}


def queued() -> list[object]:
    """Return what waits for its release."""
    return list(current().deferred.ready)


def a_mapped_block(device: Device) -> object:
    block = device.pool(4096, 1).allocate()
    return block, crossmem.attach(block.export())


DROPPED: dict[str, Callable[[Device, Allocation], object]] = {
    "memory": lambda device, _: device.allocate(4096),
    "a mapping": lambda _, memory: crossmem.attach(memory.export()),
    "an import": lambda _, memory: crossmem.import_handle(memory.export()),
    "a block of a pool": lambda device, _: device.pool(4096, 1).allocate(),
    "a mapping of a block": lambda device, _: a_mapped_block(device),
    "a buffer of a queue": lambda device, _: device.queue(4096, 2).allocate(),
}


@pytest.mark.parametrize("what", DROPPED)
def test_no_call_waits_for_a_stream_because_of_a_drop(
    streams: Streams, memory: Allocation, signalled: Timeline, what: str
) -> None:
    device, before, made = streams.device, live(), list[Allocation]()
    dropped = [DROPPED[what](device, memory)]
    let_a_stream_wait(streams, signalled)

    dropped.clear()

    assert is_prompt(lambda: made.append(device.allocate(4096)))
    assert is_prompt(lambda: device.timeline("word").close())
    if "block" not in what:
        # The report on a pool reclaims its freed blocks first, after the work of the device.
        assert is_prompt(crossmem.exports)
    assert is_prompt(lambda: made[0].export(synchronize=False))
    assert is_prompt(lambda: signalled.signal(1))
    made[0].free()
    assert settle(queued) == []
    assert settle(lambda: sorted(map(str, live() - before))) == []


def test_a_queue_whose_words_a_stream_wrote_ends_when_no_stream_waits_any_more(
    streams: Streams, signalled: Timeline
) -> None:
    pages = current().part(Registrations)._pages
    queue = streams.device.queue(2, 64)
    queue.put(b"1", copy="allow")
    queue.get(timeout=5).release(stream=streams.new())
    mine = {user for page in pages.values() for user in page.users if isinstance(user, Place)}
    assert mine
    let_a_stream_wait(streams, signalled)
    del queue
    streams.device.timeline("word").close()

    signalled.signal(1)
    crossmem.collect()

    assert settle(queued) == []
    assert not [page for page in pages.values() if page.users & mine]


def test_the_reaper_releases_what_no_later_call_does(
    streams: Streams, memory: Allocation, signalled: Timeline
) -> None:
    before = live()
    dropped = [streams.device.allocate(4096)]
    let_a_stream_wait(streams, signalled)
    dropped.clear()
    streams.device.timeline("word").close()
    assert live() > before

    signalled.signal(1)

    assert settle(lambda: sorted(map(str, live() - before))) == []


def test_an_object_can_end_right_after_the_drop_of_its_last_user(
    streams: Streams, memory: Allocation, signalled: Timeline
) -> None:
    imported = crossmem.import_handle(memory.export())
    mapping = [imported.map()]
    let_a_stream_wait(streams, signalled)
    mapping.clear()
    crossmem.exports()
    threading.Timer(0.1, signalled.signal, (1,)).start()

    imported.close()

    assert imported.closed


def test_an_object_with_a_user_is_refused(
    streams: Streams, memory: Allocation, signalled: Timeline
) -> None:
    handle = memory.export()
    dropped = [streams.device.allocate(4096)]
    with crossmem.import_handle(handle) as imported, imported.map():
        let_a_stream_wait(streams, signalled)
        dropped.clear()
        threading.Timer(0.1, signalled.signal, (1,)).start()
        with pytest.raises(BusyError):
            imported.close()


def test_collect_waits_for_the_stream(streams: Streams, signalled: Timeline) -> None:
    before = live()
    dropped = [streams.device.allocate(4096)]
    let_a_stream_wait(streams, signalled)
    dropped.clear()
    threading.Timer(0.1, signalled.signal, (1,)).start()

    crossmem.collect()

    assert live() == before


def test_memory_that_was_dropped_makes_room(streams: Streams, signalled: Timeline) -> None:
    most = streams.rt.memGetInfo()[0] * 6 // 10
    dropped = [streams.device.allocate(most)]
    let_a_stream_wait(streams, signalled)
    dropped.clear()
    crossmem.exports()
    threading.Timer(0.1, signalled.signal, (1,)).start()

    streams.device.allocate(most).free()


def test_a_block_that_was_dropped_can_be_allocated(streams: Streams, signalled: Timeline) -> None:
    with streams.device.pool(4096, 1) as pool:
        dropped = [pool.allocate()]
        let_a_stream_wait(streams, signalled)
        dropped.clear()
        threading.Timer(0.1, signalled.signal, (1,)).start()

        pool.allocate().free()
