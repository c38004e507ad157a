# SPDX-License-Identifier: Apache-2.0
"""Blocks and buffers that are released on the streams of an emulated GPU."""

import threading
import time
from collections.abc import Iterator

import pytest
from busy_streams import LONG_S, Streams, is_prompt

import crossmem
from crossmem import BusyError, OutOfMemoryError, Pool, UnsupportedError
from crossmem.models import ReadyHandle

NBYTES = 4096


@pytest.fixture
def pool(streams: Streams) -> Iterator[Pool]:
    with streams.device.pool(NBYTES, 1) as pool:
        yield pool
        # The end of the pool's memory waits for all work.
        streams.close()


def test_a_block_is_reused_after_the_work_of_its_stream(streams: Streams, pool: Pool) -> None:
    stream, end = streams.busy()
    first = pool.allocate()
    first.free(stream=stream)

    with pytest.raises(OutOfMemoryError, match="1 were freed, and work on their streams"):
        pool.allocate()
    assert (pool.stats().live, pool.stats().waiting) == (0, 1)
    end()
    pool.allocate(timeout=LONG_S).free()


def test_a_wait_for_a_block_ends_soon_after_the_work(streams: Streams, pool: Pool) -> None:
    stream, end = streams.busy()
    pool.allocate().free(stream=stream)
    start = time.monotonic()
    threading.Timer(0.1, end).start()
    pool.allocate(timeout=LONG_S).free()

    assert 0.1 <= time.monotonic() - start < LONG_S / 2


def test_a_free_on_a_stream_waits_for_no_other_stream(streams: Streams, pool: Pool) -> None:
    streams.busy()
    idle = streams.new()
    pool.allocate().free(stream=idle)

    assert is_prompt(lambda: pool.allocate(timeout=LONG_S).free(stream=idle))


def test_a_free_without_a_stream_waits_for_all_of_them(streams: Streams, pool: Pool) -> None:
    _, end = streams.busy()
    block = pool.allocate()
    # As a thread that reads the block.
    copies = block._usage.copies
    copies[0] = block
    with pytest.raises(BusyError):
        block.free(stream=streams.new())
    copies.clear()
    # What the refused call said is forgotten.
    assert not is_prompt(block.free, within=0.3)
    end()
    pool.allocate(timeout=LONG_S).free()


def test_a_stream_is_refused_where_there_are_none() -> None:
    with crossmem.device("host").pool(NBYTES, 1) as pool, pool.allocate() as block:
        with pytest.raises(UnsupportedError, match="has no streams"):
            block.free(stream=1)
        with pytest.raises(UnsupportedError, match="has no streams"):
            block.export(stream=1)
        assert not block.closed
        block.export()


def test_a_second_free_on_a_stream_does_nothing(streams: Streams, pool: Pool) -> None:
    block = pool.allocate()
    block.free(stream=0)
    block.free(stream=0)
    pool.allocate(timeout=LONG_S).free()


def test_a_block_is_ready_after_the_work_before_its_export(streams: Streams, pool: Pool) -> None:
    stream, end = streams.busy()
    with pool.allocate() as block:
        handle = block.export(stream=stream)
        assert isinstance(handle, ReadyHandle)
        assert repr(handle).endswith("ready at value 1>")
        mapping = crossmem.attach(handle.to_bytes())
        with pytest.raises(crossmem.WaitTimeoutError):
            mapping.wait(timeout=0)
        end()
        mapping.wait(timeout=LONG_S)
        mapping.unmap()
        # The memory was not waited for, so a plain handle waits.
        assert block.export() == handle.base
        block.withdraw(handle)
        assert block.export() != handle.base


def test_a_plain_export_waits_after_one_on_a_stream(streams: Streams, pool: Pool) -> None:
    stream, end = streams.busy()
    with pool.allocate() as block:
        block.export(stream=stream)

        exporting = threading.Thread(target=block.export)
        exporting.start()
        exporting.join(0.3)
        assert exporting.is_alive()
        end()
        exporting.join(LONG_S)
        assert not exporting.is_alive()


def test_a_pool_is_closed_while_work_of_a_freed_block_runs(streams: Streams) -> None:
    stream, end = streams.busy()
    pool = streams.device.pool(NBYTES, 4)
    pool.allocate().free(stream=stream)
    closing = threading.Thread(target=pool.close)
    closing.start()
    end()
    closing.join(LONG_S)
    assert not closing.is_alive()


def test_blocks_are_reused_turn_by_turn_without_a_wait_for_the_device(streams: Streams) -> None:
    _, end = streams.busy()
    stream = streams.new()
    with streams.device.pool(NBYTES, 100) as pool:

        def turns() -> None:
            for _ in range(300):
                pool.allocate(timeout=LONG_S).free(stream=stream)

        assert is_prompt(turns)
        end()


def test_a_buffer_that_was_not_released_on_a_stream_waits_for_all_streams(
    streams: Streams,
) -> None:
    with streams.device.queue(2, 64) as queue:
        buffer = queue.allocate()
        _, end = streams.busy()
        # As a thread that reads the buffer.
        copies = buffer._usage.copies
        copies[0] = buffer
        with pytest.raises(BusyError):
            buffer.release(stream=streams.new())
        del copies[0]

        assert not is_prompt(buffer.release, within=0.2)
        end()
        crossmem.collect()
