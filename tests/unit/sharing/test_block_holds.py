# SPDX-License-Identifier: Apache-2.0
"""How this process holds blocks of pools, where a signal handler comes in between."""

import pytest

import crossmem
from crossmem.control import words
from crossmem.models import BlockHandle
from crossmem.sharing.base.process import current
from crossmem.sharing.importer.block_holds import BlockHold
from crossmem.sharing.importer.blocks import PoolImports


def test_a_hold_that_was_not_checked_vouches_for_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with crossmem.device("host").pool(4096, 2) as pool, pool.allocate() as kept:
        freed = pool.allocate()
        handle = freed.export()
        assert isinstance(handle, BlockHandle)
        with crossmem.attach(kept.export().to_bytes()):
            (arena,) = current().part(PoolImports).arenas.values()
            freed.free()
            first, second = (BlockHold(arena, handle.index) for _ in range(2))
            taken: list[bool] = []
            observe = words.observe

            def interrupted(segment: memoryview, index: int) -> int:
                """Let a signal handler take the same block between the store and this load."""
                if not taken:
                    taken.append(True)
                    taken[0] = second.take(handle.generation)
                return observe(segment, index)

            monkeypatch.setattr(words, "observe", interrupted)
            with current().state:
                is_taken = first.take(handle.generation)
                ended = [BlockHold.leave_to_others(one) for one in (second, first)]

            assert (is_taken, taken, ended) == (False, [False], [True, True])
            assert pool.stats().waiting == 0


def test_who_maps_a_freed_block_maps_it_again() -> None:
    with crossmem.device("host").pool(4096, 2) as pool:
        block = pool.allocate()
        blob = block.export().to_bytes()
        with crossmem.attach(blob):
            block.free()
            with crossmem.attach(blob) as again:
                assert again.nbytes == 4096
                assert pool.stats().waiting == 1
        with pytest.raises(crossmem.StaleHandleError):
            crossmem.attach(blob)
