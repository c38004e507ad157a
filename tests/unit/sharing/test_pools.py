# SPDX-License-Identifier: Apache-2.0
"""Pools and their blocks: arguments, counts, waiting, errors, and what is listed of them."""

import gc
import pickle
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

import crossmem
from crossmem import (
    AccessDeniedError,
    Allow,
    Block,
    BusyError,
    ClosedError,
    ConfigurationError,
    CrossmemError,
    InvalidSizeError,
    OutOfMemoryError,
    Pool,
    PoolStats,
    StaleHandleError,
    UnsupportedError,
)
from crossmem.control.segments import SLOTS
from crossmem.models import BlockHandle
from crossmem.sharing.base.process import current

BLOCKS = 8


pytestmark = pytest.mark.usefixtures("nothing_left")


@pytest.fixture
def pool() -> Iterator[Pool]:
    with crossmem.device("host").pool(4096, BLOCKS) as made:
        yield made


def is_right(error: CrossmemError) -> bool:
    """Whether an error is one line with a hint, neither too long."""
    lines = error.message.splitlines()
    return len(lines) == 1 and len(lines[0]) <= 200 and 0 < len(error.hint or "") <= 200


def end(*memories: crossmem.Mapping | Block) -> None:
    for one in memories:
        one.free() if isinstance(one, Block) else one.unmap()


# Arguments --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"block_nbytes": 0}, InvalidSizeError),
        ({"block_nbytes": -1}, InvalidSizeError),
        ({"block_nbytes": 1 << 70}, InvalidSizeError),
        ({"block_nbytes": "64"}, InvalidSizeError),
        ({"block_nbytes": 1.5}, InvalidSizeError),
        ({"blocks": 0}, InvalidSizeError),
        ({"blocks": -3}, InvalidSizeError),
        ({"blocks": SLOTS}, InvalidSizeError),
        ({"blocks": True}, InvalidSizeError),
        ({"blocks": None}, InvalidSizeError),
        ({"access": "w"}, ConfigurationError),
        ({"access": None}, ConfigurationError),
        ({"allow": 7}, ConfigurationError),
        ({"allow": [1]}, ConfigurationError),
    ],
)
def test_arguments_without_a_meaning(arguments: dict[str, Any], error: type[CrossmemError]) -> None:
    with pytest.raises(error) as caught:
        crossmem.device("host").pool(**{"block_nbytes": 64, "blocks": 2, **arguments})

    assert len(caught.value.message) <= 200
    assert "\n" not in caught.value.message


@pytest.mark.parametrize("nbytes", [0, -1, 4097, 1 << 70])
def test_a_block_has_at_least_a_byte_and_at_most_its_capacity(pool: Pool, nbytes: int) -> None:
    with pytest.raises(InvalidSizeError, match=f"nbytes is {nbytes}.*at most 4096 bytes"):
        pool.allocate(nbytes)

    assert pool.stats().live == 0


@pytest.mark.parametrize("nbytes", ["1", 1.0, True, []])
def test_sizes_that_are_no_integers(pool: Pool, nbytes: Any) -> None:
    with pytest.raises(InvalidSizeError, match="must be a number of bytes"):
        pool.allocate(nbytes)


@pytest.mark.parametrize("timeout", [-1, float("nan"), "1", True, False])
def test_a_pool_waits_for_a_number_of_seconds(pool: Pool, timeout: Any) -> None:
    # Also while blocks are free, so that the mistake shows in the first run of a program.
    with pytest.raises(ConfigurationError, match="None or at least 0 seconds"):
        pool.allocate(timeout=timeout)


def test_a_pool_waits_as_long_as_the_settings_say(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool._process, "settings", replace(pool._process.settings, timeout_s=0.05))
    taken = [pool.allocate(timeout=None) for _ in range(BLOCKS)]

    with pytest.raises(OutOfMemoryError):
        pool.allocate(timeout=None)
    for one in taken:
        one.free()


def test_sizes_are_rounded_up_to_64_bytes_on_host_memory() -> None:
    with crossmem.device("host").pool(1, 3) as pool:
        blocks = [pool.allocate() for _ in range(3)]

        assert (pool.block_nbytes, pool.blocks) == (64, 3)
        assert [one.nbytes for one in blocks] == [64] * 3
        assert [one.ptr - blocks[0].ptr for one in blocks] == [0, 64, 128]
        assert blocks[0].ptr % 64 == 0
        for number, one in enumerate(blocks):
            one.write(bytes([number]) * 64)
        for number, one in enumerate(blocks):
            with crossmem.attach(one.export()) as mapping:
                assert mapping.read() == bytes([number]) * 64
            one.free()


# What a pool and a block say of themselves ------------------------------------------------


def test_the_repr_of_a_pool(pool: Pool) -> None:
    block = pool.allocate()

    assert repr(pool).startswith("<Pool ")
    assert repr(pool).endswith(" of 8 blocks of 4096 bytes on host:0, 1 live>")
    block.free()
    pool.close()
    assert repr(pool) == "<Pool of 8 blocks of 4096 bytes on host:0, closed>"


def test_the_repr_of_a_block(pool: Pool) -> None:
    block = pool.allocate(100)

    assert repr(block).startswith("<Block 0 of 100 bytes in pool ")
    assert repr(block).endswith(" on host:0>")
    block.free()
    assert repr(block) == "<Block of 100 bytes on host:0, freed>"


def test_attributes(pool: Pool) -> None:
    with pool.allocate(100) as block:
        assert (block.nbytes, block.capacity, block.readonly) == (100, 4096, False)
        assert block.device is pool.device
        assert (pool.allow, pool.access) == (None, "rw")
        assert not block.closed
    assert block.closed
    assert not pool.closed


def test_the_life_of_a_block_in_counts(pool: Pool) -> None:
    assert pool.stats() == PoolStats(BLOCKS, BLOCKS, 0, 0, {})
    one, other = pool.allocate(), pool.allocate()
    assert pool.stats() == PoolStats(BLOCKS, 6, 2, 0, {})
    mapping = crossmem.attach(one.export())
    pid = current().identity.pid
    assert pool.stats() == PoolStats(BLOCKS, 6, 2, 0, {pid: 1})
    one.free()
    assert pool.stats() == PoolStats(BLOCKS, 6, 1, 1, {pid: 1})
    mapping.unmap()
    assert pool.stats() == PoolStats(BLOCKS, 7, 1, 0, {})
    other.free()
    assert pool.stats() == PoolStats(BLOCKS, BLOCKS, 0, 0, {})


def test_a_block_is_written_read_and_viewed_as_an_allocation_is(pool: Pool) -> None:
    with pool.allocate(100) as block:
        block.write(b"hello", offset=3)
        view = block.view()
        assert (block.read(5, offset=3), view.nbytes) == (b"hello", 100)
        view[3] = ord("j")
        with crossmem.attach(block.export()) as mapping:
            assert mapping.read(5, offset=3) == b"jello"
        with pytest.raises(BusyError, match="live views"):
            block.free()
        with pytest.raises(InvalidSizeError):
            block.write(b"x", offset=100)
        del view


def test_both_names_of_a_block_see_its_bytes_and_no_others(pool: Pool) -> None:
    blocks = [pool.allocate() for _ in range(BLOCKS)]
    for number, one in enumerate(blocks):
        one.write(bytes([number]) * 4096)
    mappings = crossmem.attach_many(one.export() for one in blocks)

    assert [one.read() for one in mappings] == [bytes([n]) * 4096 for n in range(BLOCKS)]
    end(*mappings, *blocks)


# Handles ----------------------------------------------------------------------------------


def test_exporting_again_gives_the_same_handle(pool: Pool) -> None:
    with pool.allocate(100) as block:
        handle = block.export()

        assert isinstance(handle, BlockHandle)
        assert block.export() is handle
        assert block.export(allow=None, access="rw", lease=True) is handle
        assert (handle.nbytes, handle.capacity, handle.length) == (100, 4096, 100)
        assert len(handle.to_bytes()) <= 200


@pytest.mark.parametrize(
    "arguments",
    [{"allow": Allow(pids=[1])}, {"access": "ro"}, {"lease": False}],
)
def test_a_block_is_exported_as_its_pool_says(pool: Pool, arguments: dict[str, Any]) -> None:
    with pool.allocate() as block:
        with pytest.raises(UnsupportedError, match="a pool does not offer") as caught:
            block.export(**arguments)
        assert is_right(caught.value)
        assert block.export(allow=Allow()) is block.export()


def test_a_pool_with_another_access() -> None:
    allow = Allow(pids=[current().identity.pid])
    with (
        crossmem.device("host").pool(64, 2, allow=allow, access="ro") as pool,
        pool.allocate() as block,
    ):
        assert block.export(allow=allow, access="ro").access == "ro"
        with crossmem.attach(block.export()) as mapping:
            assert mapping.readonly
            with pytest.raises(AccessDeniedError):
                mapping.write(b"x")
        wrongs: list[dict[str, Any]] = [{"access": "rw"}, {"allow": Allow()}]
        for wrong in wrongs:
            with pytest.raises(UnsupportedError):
                block.export(**wrong)


def test_parts_and_bytes_and_imports(pool: Pool) -> None:
    with pool.allocate(100) as block:
        block.write(bytes(range(100)))
        part = block.export().slice(10, 20)
        with crossmem.import_handle(part.to_bytes()) as imported, imported.map() as mapping:
            assert mapping.read() == bytes(range(10, 30))
            assert mapping.handle == part
            assert mapping.owner_alive
        with crossmem.attach(memoryview(part.to_bytes()), readonly="advisory") as mapping:
            assert (mapping.read(), mapping.readonly) == (bytes(range(10, 30)), True)


def test_a_freed_block_is_stale_however_often_it_was_reused() -> None:
    with crossmem.device("host").pool(64, 1) as pool:
        handles = []
        for _ in range(5):
            with pool.allocate() as block:
                handles.append(block.export())
                crossmem.attach(handles[-1]).unmap()
        assert len(set(handles)) == 5
        with pool.allocate() as block:
            block.export()
            for one in handles:
                with pytest.raises(StaleHandleError):
                    crossmem.attach(one)


def test_what_is_pickled_attaches(pool: Pool) -> None:
    with pool.allocate(100) as block:
        block.write(b"abc")
        with pickle.loads(pickle.dumps(block)) as mapping:  # noqa: S301
            assert (mapping.read(3), mapping.handle) == (b"abc", block.export())
            with pickle.loads(pickle.dumps(mapping)) as other:  # noqa: S301
                other.write(b"z")
        with (
            crossmem.attach(block.export(), readonly=True) as mapping,
            pickle.loads(pickle.dumps(mapping)) as other,  # noqa: S301
        ):
            assert (other.readonly, other.read(3)) == (True, b"zbc")
    with pytest.raises(UnsupportedError, match="handles of its blocks"):
        pickle.dumps(pool)


def test_an_address_range_refuses_blocks(pool: Pool) -> None:
    with (
        pool.allocate() as block,
        crossmem.device("host").reserve(1 << 20) as addresses,
        crossmem.import_handle(block.export()) as imported,
    ):
        for memory in (block, imported):
            with pytest.raises(UnsupportedError, match="blocks of a pool") as caught:
                addresses.map(memory, at=0)  # type: ignore[arg-type]
            assert is_right(caught.value)


# The end of a pool ------------------------------------------------------------------------


def test_a_closed_pool_gives_out_no_blocks_and_keeps_live_ones(pool: Pool) -> None:
    block = pool.allocate()
    block.write(b"abc")
    pool.close()
    pool.close()

    for use in (pool.allocate, pool.stats, pool.exports, pool.__enter__):
        with pytest.raises(ClosedError, match="closed> cannot be used any more"):
            use()
    with crossmem.attach(block.export()) as mapping:
        assert mapping.read(3) == b"abc"
    block.free()


def test_a_mapping_outlives_the_pool(pool: Pool) -> None:
    block = pool.allocate()
    block.write(b"abc")
    mapping = crossmem.attach(block.export())
    block.free()
    pool.close()

    assert mapping.read(3) == b"abc"
    mapping.unmap()


def test_a_pool_that_is_dropped_warns() -> None:
    with pytest.warns(ResourceWarning, match="dropped without close"):
        crossmem.device("host").pool(64, 1)


def test_words_of_a_closed_pool_are_used_again() -> None:
    slots = current().start_server().leases.slots
    with crossmem.device("host").pool(64, 1000):
        pass
    gc.collect()
    crossmem.collect()
    before = slots._count
    for _ in range(20):
        with crossmem.device("host").pool(64, 1000) as pool, pool.allocate() as block:
            crossmem.attach(block.export()).unmap()
        # The thread that looks after imports lets the arena go.
        current().tend()
        crossmem.collect()

    assert slots._count <= before + 1001
