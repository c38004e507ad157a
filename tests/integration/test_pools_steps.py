# SPDX-License-Identifier: Apache-2.0
"""Blocks of pools make no system call and send no message, and many lives of them leave nothing."""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from crossmem.conformance import actions
from crossmem.conformance.speed import SLOWNESS
from crossmem.control.arenas import BATCH

if TYPE_CHECKING:
    from tests.integration import pool_actions, pool_life_actions
    from tests.integration.conftest import StartPeer
else:
    import pool_actions
    import pool_life_actions

NBYTES = 4096
LIVES = 10 * BATCH
# By then the cache of decoded handles is full.
EARLY = 5_000
# What the allocators round to.
NOISE_KIB = 2048
NOISE_MAPPINGS = 4


def test_an_owner_makes_one_barrier_a_batch_and_no_other_call(start_peer: "StartPeer") -> None:
    owner = start_peer(tracing=False)
    owner.call(pool_actions.make, "pool", NBYTES, 2 * BATCH)

    kernel, barriers, calls = owner.call(pool_life_actions.steps_of_owner, "pool", LIVES)

    assert kernel == []
    assert barriers <= LIVES // BATCH + 1
    assert calls > LIVES


def test_an_importer_makes_no_call(start_peer: "StartPeer") -> None:
    owner, importer = start_peer(tracing=False), start_peer(tracing=False)
    owner.call(pool_actions.make, "pool", NBYTES, BATCH)
    blobs = [owner.call(pool_actions.give, f"b{n}", "pool", b"x") for n in range(BATCH)]
    importer.call(pool_actions.stay_untidy)
    importer.call(actions.attach, "first", blobs[0])
    # Whatever the owner does, nobody asks it.
    owner.stop()

    kernel, barriers, calls = importer.call(pool_life_actions.steps_of_importer, blobs)

    owner.cont()
    # A look at the owner is due once in half a second, and this takes less.
    assert len(kernel) <= 2, kernel
    assert barriers == 0
    assert calls > len(blobs)


@pytest.mark.usefixtures("unmeasured")
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    "lives",
    [
        pytest.param(20_000, marks=pytest.mark.ci),
        pytest.param(1_000_000, marks=pytest.mark.long),
    ],
)
def test_neither_process_grows(start_peer: "StartPeer", tmp_path: Path, lives: int) -> None:
    owner, importer = start_peer(tracing=False), start_peer(tracing=False)
    path, within = tmp_path / "lives", 60 + lives * 1e-3 * SLOWNESS
    owning = owner.start(pool_life_actions.own_lives, path, lives, EARLY, within=within)
    while not path.exists():
        pass
    importing = importer.start(pool_life_actions.import_lives, path, EARLY, within=within)

    for one in (owning, importing):
        early, late = one.result()
        assert late["descriptors"] == early["descriptors"]
        # The C library maps memory of its own once in a while.
        assert late["mappings"] - early["mappings"] < NOISE_MAPPINGS
        assert late["KiB"] - early["KiB"] < NOISE_KIB, (early, late)
