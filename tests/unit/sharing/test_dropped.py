# SPDX-License-Identifier: Apache-2.0
"""A dropped object of host memory is released soon, without a further call of this process.

The reaper releases nothing of a GPU: a wait for the device could break the capture of a graph.
"""

import threading
import time
from collections.abc import Callable

import pytest
from in_use import assert_in_use, in_use
from typing_extensions import override

import crossmem
from crossmem.conformance.speed import SLOWNESS
from crossmem.sharing.base.deferred import Record
from crossmem.sharing.base.process import current

SOON_S = 2.0 * SLOWNESS


def allocation() -> object:
    return crossmem.device("host").allocate(4096)


def mapping() -> object:
    with crossmem.device("host").allocate(4096) as memory:
        return crossmem.attach(memory.export())


def timeline() -> object:
    return crossmem.device("host").timeline()


@pytest.mark.parametrize("make", [allocation, mapping, timeline])
def test_what_is_dropped_is_released_without_a_further_call(make: Callable[[], object]) -> None:
    make_and_close = make()
    getattr(make_and_close, getattr(make_and_close, "_ended_by"))()  # noqa: B009
    del make_and_close
    before, deferred = in_use(), current().deferred
    with pytest.warns(ResourceWarning, match="was dropped without"):
        make()
    end = time.monotonic() + SOON_S
    while deferred._is_pending() and time.monotonic() < end:
        time.sleep(0.01)

    assert not deferred._is_pending()
    assert_in_use(before)


def test_what_is_dropped_of_a_gpu_waits_for_the_next_call() -> None:
    device, deferred = crossmem.device("hip:0", runtime="emulated"), current().deferred
    before = in_use()
    with pytest.warns(ResourceWarning, match="was dropped without"):
        device.allocate(4096)
    time.sleep(0.2)
    assert deferred._is_pending()
    crossmem.collect()
    assert_in_use(before)


def test_collect_waits_for_a_release_that_another_thread_has_begun() -> None:
    begun, may_end = threading.Event(), threading.Event()

    class Slow(Record):
        @override
        def give_back(self, *, blocking: bool) -> None:
            del blocking
            begun.set()
            may_end.wait()
            self.is_done = True

    deferred = current().deferred
    deferred.ready[record := Slow()] = None
    deferred.start_reaper()
    assert begun.wait(SOON_S)
    # Without the reaper's release, the call would return at once.
    deferred.ready.pop(record)
    ending = threading.Timer(0.2, may_end.set)
    ending.start()

    crossmem.collect()

    assert record.is_done
    ending.join()
