# SPDX-License-Identifier: Apache-2.0
"""Arrays and trees in blocks of pools: made there, copied there, and shared by their handles."""

import faulthandler
import gc
import mmap
import os
import resource
import signal
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest

import crossmem
from crossmem import (
    Allow,
    ConfigurationError,
    ForkedProcessError,
    InvalidSizeError,
    OutOfMemoryError,
    Pool,
    StaleHandleError,
    UnsupportedError,
)
from crossmem.conformance.pool import settle
from crossmem.models import BlockHandle
from crossmem.trees.share import message_of

pytestmark = pytest.mark.usefixtures("nothing_left")

BLOCKS = 4


@pytest.fixture
def pool() -> Iterator[Pool]:
    with crossmem.device("host").pool(4096, BLOCKS) as made:
        yield made
        gc.collect()
        # A thread frees what nobody views any more.
        assert settle(lambda: [] if made.stats().free == BLOCKS else [made.stats()]) == []


def filled(pool: Pool, shape: Any = (10, 10)) -> Any:
    array = crossmem.empty(shape, "float32", pool=pool)
    array[:] = np.arange(array.size).reshape(array.shape)
    return array


def test_an_array_lies_in_a_block_and_is_shared_there(pool: Pool) -> None:
    array = filled(pool)

    assert pool.stats().live == 1
    with crossmem.share({"whole": array, "part": array[2:4, ::-2]}) as shared:
        (handle,) = shared.message.handles
        found = crossmem.receive(shared.to_bytes())
        found["whole"][2, 9] = 7

        assert isinstance(handle, BlockHandle)
        assert (shared.copied_nbytes, handle.nbytes) == (0, 400)
        assert array[2, 9] == found["part"][0, 0] == 7
        assert np.array_equal(found["part"], array[2:4, ::-2])
        assert shared.value["whole"] is array


@pytest.mark.parametrize("make", ["empty", "as_array"])
def test_no_device_is_asked_for_an_array(pool: Pool, make: str) -> None:
    before = [one.handle for one in crossmem.exports()]
    if make == "empty":
        array = crossmem.empty(16, "int8", pool=pool)
        with crossmem.share(array) as shared:
            assert crossmem.receive(shared).shape == (16,)
    else:
        with pool.allocate(16) as block:
            array = block.as_array(16, "int8")
            with crossmem.share(array) as shared:
                assert shared.message.handles == (block.export(),)
            del array
    added = [one.handle for one in crossmem.exports() if one.handle not in before]

    # The version of a tree may have needed memory.
    assert all(not isinstance(one, BlockHandle) for one in added)
    assert len(added) <= 1


def test_the_block_goes_back_with_the_last_array(pool: Pool) -> None:
    array = filled(pool)
    row = array[3]
    del array
    gc.collect()
    assert pool.stats().live == 1
    del row
    gc.collect()
    crossmem.collect()
    assert pool.stats().live == 0


def test_arrays_without_elements_take_no_block(pool: Pool) -> None:
    assert crossmem.empty((0, 5), "f4", pool=pool).shape == (0, 5)
    assert crossmem.empty_like({"a": np.empty(0)}, pool=pool)["a"].shape == (0,)
    with crossmem.share(np.empty(0), copy=True, pool=pool):
        assert pool.stats().live == 0


def test_arrays_like_others_lie_in_one_block(pool: Pool) -> None:
    base = np.arange(100.0)
    tree: dict[str, Any] = {"a": base, "b": [base[10:20], np.zeros((3, 3), "i2")], "c": "text"}
    alike = crossmem.empty_like(tree, pool=pool)
    alike["a"][:] = 1
    alike["b"][0][:] = 2

    assert pool.stats().live == 1
    assert alike["a"][10:20].tolist() == [2] * 10
    assert (alike["b"][1].shape, alike["b"][1].dtype, alike["c"]) == ((3, 3), "i2", "text")
    with crossmem.share(alike) as shared:
        assert (len(shared.message.handles), shared.copied_nbytes) == (1, 0)


def test_copies_lie_in_one_block(pool: Pool) -> None:
    base = np.arange(100, dtype="uint8")
    tree = {"a": base[10:50], "b": base[40:60], "c": np.ones((5, 5)), "gaps": np.ones(20)[::3]}
    with crossmem.share(tree, copy=True, pool=pool) as shared:
        (handle,) = shared.message.handles
        found = crossmem.receive(shared)

        assert isinstance(handle, BlockHandle)
        assert pool.stats().live == 1
        assert shared.copied_nbytes == 50 + 200 + 7 * 8
        assert all(np.array_equal(one, tree[name]) for name, one in found.items())
        found["a"][39] = 200
        assert (found["b"][9], base[49]) == (200, 49)
        del found
    assert settle(lambda: [] if pool.stats().live == 0 else [pool.stats()]) == []


def test_a_block_that_was_used_before_gets_new_copies(pool: Pool) -> None:
    for number in range(3 * BLOCKS):
        # As large as the block is.
        with crossmem.share(np.full(512, float(number)), copy=True, pool=pool) as shared:
            assert set(crossmem.receive(shared).tolist()) == {float(number)}
        gc.collect()
        crossmem.collect()


@pytest.mark.parametrize("access", ["rw", "ro"])
def test_this_process_updates_what_lies_in_a_block(access: Any) -> None:
    with crossmem.device("host").pool(4096, 2, access=access) as pool:
        shared = crossmem.share({"a": np.zeros(10)}, copy=True, pool=pool)
        received = crossmem.receive(shared)
        value = shared.value["a"]
        value[0] = 5
        assert received["a"][0] == 5
        assert received["a"].flags.writeable is (access == "rw")
        assert shared.update({"a": np.ones(10)}) == 1
        assert (received["a"].sum(), shared.version) == (10, 1)
        blob = shared.to_bytes()
        shared.close()
        value[0] = 3
        assert received["a"][0] == 3
        del received
        gc.collect()
        crossmem.collect()
        assert crossmem.receive(blob)["a"][0] == 3
        assert (value[0], pool.stats().live) == (3, 1)
        with crossmem.share(value) as again:
            assert crossmem.receive(again)[0] == 3
        del value
        gc.collect()
        crossmem.collect()
        assert pool.stats().live == 0
        with pytest.raises(StaleHandleError):
            crossmem.receive(blob)


def test_what_was_received_is_passed_on(pool: Pool) -> None:
    array = filled(pool)
    with crossmem.share(array) as shared:
        received = crossmem.receive(shared, readonly=True)
    with crossmem.share(received) as shared:
        assert isinstance(shared.message.handles[0], BlockHandle)
        again = crossmem.receive(shared)
        again[0, 0] = 9

    assert array[0, 0] == 9


def test_an_array_fits_that_is_as_large_as_a_block(pool: Pool) -> None:
    arrays = [np.zeros(4096, "int8"), np.zeros((64, 8)), np.zeros(2048, "float16")]
    for one in arrays:
        assert crossmem.empty_like(one, pool=pool).nbytes == 4096
        assert crossmem.empty(one.shape, one.dtype, pool=pool).nbytes == 4096
        gc.collect()
        crossmem.collect()


def test_errors_say_both_sizes(pool: Pool) -> None:
    cases: list[tuple[Callable[[], object], str]] = [
        (lambda: crossmem.empty(5000, "int8", pool=pool), "5000"),
        (lambda: crossmem.empty_like(np.zeros(5000, "int8"), pool=pool), "50"),
        (lambda: crossmem.share(np.zeros(5000, "int8"), copy=True, pool=pool), "50"),
    ]
    for use, size in cases:
        with pytest.raises(InvalidSizeError, match=f"{size}.* bytes, .*block.* has 4096") as caught:
            use()
        assert "larger blocks" in (caught.value.hint or "")
        assert len(caught.value.message) <= 200


def test_a_device_and_a_pool_exclude_each_other(pool: Pool) -> None:
    uses: list[Callable[..., object]] = [
        lambda **more: crossmem.empty(3, pool=pool, **more),
        lambda **more: crossmem.empty_like(np.zeros(3), pool=pool, **more),
        lambda **more: crossmem.share(np.zeros(3), copy=True, pool=pool, **more),
    ]
    for use in uses:
        for device in ("host", crossmem.device("host")):
            with pytest.raises(ConfigurationError, match="exclude each other"):
                use(device=device)
        use()


@pytest.mark.parametrize("pool", [3, "host", "pool", b""])
def test_what_is_no_pool(pool: Any) -> None:
    for use in (
        lambda: crossmem.empty(3, pool=pool),
        lambda: crossmem.empty_like(np.zeros(3), pool=pool),
        lambda: crossmem.share(np.zeros(3), copy=True, pool=pool),
    ):
        with pytest.raises(ConfigurationError, match=r"must be a crossmem\.Pool or None"):
            use()


def test_a_tree_is_shared_as_the_pool_says(pool: Pool) -> None:
    array = filled(pool)
    wrong: list[dict[str, Any]] = [{"allow": Allow(pids=[1])}, {"access": "ro"}]
    for options in wrong:
        with pytest.raises(UnsupportedError, match="a pool does not offer"):
            crossmem.share(array, **options)
        with pytest.raises(UnsupportedError, match="a pool does not offer"):
            crossmem.share(np.zeros(3), copy=True, pool=pool, **options)
    with crossmem.share(array) as shared:
        received = crossmem.receive(shared)
    for options in wrong:
        with pytest.raises(UnsupportedError, match="a pool does not offer"):
            crossmem.share(received, **options)
    assert pool.stats().live == 1


def test_a_read_only_pool_makes_what_is_shared_read_only() -> None:
    with crossmem.device("host").pool(4096, 2, access="ro") as pool:
        array = filled(pool)
        with crossmem.share(array) as shared:
            received = crossmem.receive(shared)
            assert not received.flags.writeable
        found = message_of(array)
        assert found is not None
        assert found[0].handles[0].access == "ro"
        with pytest.raises(UnsupportedError):
            crossmem.share(array, access="rw")
        del array, found, received
        gc.collect()


def test_an_exhausted_pool(pool: Pool) -> None:
    arrays = [filled(pool) for _ in range(BLOCKS)]
    for use in (
        lambda: crossmem.empty(3, pool=pool),
        lambda: crossmem.empty(3, pool=pool, timeout=0.05),
        lambda: crossmem.empty_like(np.zeros(3), pool=pool),
        lambda: crossmem.share(np.zeros(3), copy=True, pool=pool),
    ):
        with pytest.raises(OutOfMemoryError, match="all 4 blocks of the pool are in use"):
            use()
    arrays.pop()
    # The finaliser of the array leaves the block to a thread.
    assert crossmem.empty(3, pool=pool, timeout=20).shape == (3,)


def test_memory_of_another_device_is_not_copied_into_the_pool() -> None:
    with crossmem.device("emulated:0").pool(4096, 2) as pool:
        with crossmem.share(np.arange(3.0), copy=True, pool=pool) as shared:
            assert shared.message.handles[0].backend == "emulated"
            assert crossmem.receive(shared).tolist() == [0, 1, 2]
        gc.collect()
        crossmem.collect()


# Forked children --------------------------------------------------------------------------


def in_child(work: Callable[[], object]) -> int:
    """Return how a forked child ended: 0 if it did what it should, or the signal that ended it."""
    pid = os.fork()
    if not pid:
        code = 1
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        try:
            faulthandler.disable()
            work()
            code = 0
        finally:
            os._exit(code)
    return os.waitpid(pid, 0)[1]


def test_a_forked_child_gets_an_error_for_an_inherited_array(pool: Pool) -> None:
    from multiprocessing.reduction import ForkingPickler

    crossmem.install()
    array = filled(pool)
    with crossmem.share(array) as shared:
        received = crossmem.receive(shared)

    def work() -> None:
        ordinary = crossmem.share(np.zeros((10, 10), "float32"), copy=True)
        uses: list[Callable[[Any], object]] = [
            crossmem.share,
            lambda one: crossmem.share({"a": [one]}, copy=True),
            lambda one: crossmem.receive(ordinary, into=one),
            ordinary.update,
            ForkingPickler.dumps,
        ]
        for one in (array, received):
            for use in uses:
                with pytest.raises(ForkedProcessError, match="a forked child does not have"):
                    use(one)

    assert in_child(work) == 0
    assert array[1, 1] == 11


def test_an_array_in_a_buffer_of_a_queue_is_refused_in_a_forked_child() -> None:
    def work(array: Any) -> None:
        with pytest.raises(ForkedProcessError, match="a buffer of a queue that the parent"):
            crossmem.share(array)

    with crossmem.device("host").queue(2, 4096) as queue, queue.allocate() as buffer:
        assert in_child(partial(work, np.asarray(buffer))) == 0


def test_an_address_range_takes_no_buffer_of_a_queue() -> None:
    device = crossmem.device("host")
    with device.queue(2, 4096) as queue, queue.allocate() as buffer, device.reserve(4096) as where:
        whole: Any = buffer
        with pytest.raises(UnsupportedError, match="not blocks of a pool or buffers of a queue"):
            where.map(whole, at=0)


def test_nothing_comes_in_a_child_where_blocks_were(pool: Pool) -> None:
    array = filled(pool)
    pointer = array.ctypes.data

    def work() -> None:
        mapped = [mmap.mmap(-1, 4096) for _ in range(1000)]
        bases = [np.frombuffer(one, "int8").ctypes.data for one in mapped]
        assert not {pointer - pointer % 4096} & set(bases)
        # Other arrays of the child are its own.
        mine = np.zeros(10)
        with crossmem.share(mine, copy=True) as shared:
            assert crossmem.receive(shared).sum() == 0
        assert in_child(lambda: crossmem.share(array)) == 256

    assert in_child(work) == 0


def test_an_array_in_a_block_ends_a_child_that_reads_it(pool: Pool) -> None:
    array = filled(pool)

    assert in_child(array.sum) == signal.SIGSEGV
    assert in_child(lambda: array.fill(0)) == signal.SIGSEGV
    assert array[1, 1] == 11
