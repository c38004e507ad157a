# SPDX-License-Identifier: Apache-2.0
"""Objects of an emulated GPU that are dropped while a stream has work.

The work may wait for a step of the thread that calls crossmem. So only a call that has to release
the memory waits for the work.
"""

import threading
import warnings
from collections.abc import Callable, Iterator

import pytest
from busy_streams import LONG_S, Streams, is_prompt

import crossmem
from crossmem import Allocation, BusyError, Device
from crossmem.conformance.pool import settle
from crossmem.sharing.base.process import current
from crossmem.sharing.exporter.record import Allocations

NBYTES = 1 << 20


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        yield


@pytest.fixture
def memory(streams: Streams) -> Iterator[Allocation]:
    allocation = streams.device.allocate(NBYTES)
    yield allocation
    streams.close()
    allocation.free()


def live() -> set[int]:
    """Return the numbers of the allocations of the GPU that this process has not released."""
    return {one.number for one in current().part(Allocations).live if one.device.backend == "hip"}


def queued() -> list[object]:
    """Return what waits for its release."""
    deferred = current().deferred
    return [*deferred.ready, *deferred.working]


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
def test_no_call_waits_for_the_work_before_a_drop(
    streams: Streams, memory: Allocation, what: str
) -> None:
    device, before = streams.device, live()
    dropped = [DROPPED[what](device, memory)]
    handle = memory.export()
    stream, end = streams.busy()
    timeline = device.timeline("word")
    timeline.signal(1, stream=stream)

    dropped.clear()

    made: list[Allocation] = []
    assert is_prompt(lambda: made.append(device.allocate(4096)))
    assert is_prompt(lambda: device.timeline("word").close())
    if "block" not in what:
        # The report on a pool of a device reclaims the freed blocks first, after the work.
        assert is_prompt(crossmem.exports)
    assert is_prompt(lambda: made[0].export(synchronize=False))
    assert is_prompt(lambda: crossmem.open_timeline(timeline.export(), device=device))
    assert memory.export().core == handle.core
    end()
    made[0].free()
    timeline.close()
    assert settle(queued) == []
    assert settle(lambda: sorted(map(str, live() - before))) == []


def test_an_object_can_end_right_after_the_drop_of_its_last_user(
    streams: Streams, memory: Allocation
) -> None:
    imported = crossmem.import_handle(memory.export())
    mapping = [imported.map()]
    _, end = streams.busy()
    mapping.clear()
    # The reaper has the mapping from here on, and waits for the work.
    crossmem.exports()
    threading.Timer(0.1, end).start()

    imported.close()

    assert imported.closed
    assert settle(queued) == []


def test_an_object_that_is_used_is_refused_although_others_were_dropped(
    streams: Streams, memory: Allocation
) -> None:
    handle = memory.export()
    _, end = streams.busy()
    dropped = [streams.device.allocate(4096)]
    dropped.clear()
    with crossmem.import_handle(handle) as imported, imported.map():
        threading.Timer(0.1, end).start()
        with pytest.raises(BusyError):
            imported.close()


def test_collect_releases_what_the_reaper_waits_for(streams: Streams) -> None:
    before = live()
    dropped = [streams.device.allocate(4096)]
    _, end = streams.busy()
    dropped.clear()
    crossmem.exports()
    threading.Timer(0.1, end).start()

    crossmem.collect()

    assert live() == before


def test_memory_that_was_dropped_makes_room(streams: Streams) -> None:
    device = streams.device
    most = streams.rt.memGetInfo()[0] * 6 // 10
    dropped = [device.allocate(most)]
    _, end = streams.busy()
    dropped.clear()
    crossmem.exports()
    threading.Timer(0.1, end).start()

    device.allocate(most).free()


def test_is_prompt_can_fail(streams: Streams) -> None:
    _, end = streams.busy()
    assert not is_prompt(streams.device.synchronize, within=LONG_S / 100)
    end()
