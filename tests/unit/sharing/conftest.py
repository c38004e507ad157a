# SPDX-License-Identifier: Apache-2.0
"""What the tests of streams and of queues have in common."""

import gc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from busy_streams import Streams
from in_use import assert_in_use, in_use
from small_queues import make

import crossmem
from crossmem import Queue
from crossmem.conformance.pool import settle
from crossmem.sharing.base.process import current


@pytest.fixture
def streams() -> Iterator[Streams]:
    # The reaper may still have a timeline of an earlier test. The vendor unregisters the timeline's
    # page after all work of the device. A test that keeps a stream busy, and uses a new timeline in
    # the same page, would wait for ever.
    crossmem.collect()
    deferred = current().deferred
    settle(lambda: [*deferred.ready, *deferred.waiting])
    found = Streams()
    yield found
    found.close()


@pytest.fixture
def nothing_left() -> Iterator[None]:
    """Check that the test leaves no memory and no mapping behind."""
    # The words of leases come with the first export, and stay.
    before = in_use()
    yield
    # Errors refer to frames of calls, and so to mapped memory.
    gc.collect()
    assert_in_use(before)


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as found:
        yield found


@pytest.fixture
def no_queue_left() -> Iterator[None]:
    # The words of leases come with the first export, and stay.
    before = in_use()
    yield
    gc.collect()
    crossmem.collect()
    assert_in_use(before)


@pytest.fixture
def queue() -> Iterator[Queue]:
    with make() as made:
        yield made
