# SPDX-License-Identifier: Apache-2.0
"""However often memory is shared, neither process grows."""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from crossmem.conformance.speed import SLOWNESS

if TYPE_CHECKING:
    from tests.integration import life_actions
    from tests.integration.conftest import StartPeer
else:
    import life_actions

# By then the cache of decoded handles is full.
EARLY = 6_000
# What the allocators round to. A million lives that lost two bytes each would show.
NOISE_KIB = 2048
# The C library maps memory of its own once in a while.
NOISE_MAPPINGS = 4


@pytest.mark.usefixtures("unmeasured")
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    "lives",
    [
        pytest.param(12_000, marks=pytest.mark.ci),
        pytest.param(1_000_000, marks=pytest.mark.long),
    ],
)
def test_neither_process_grows(start_peer: "StartPeer", tmp_path: Path, lives: int) -> None:
    exporter, importer = start_peer(tracing=False), start_peer(tracing=False)
    path, within = tmp_path / "lives", 60 + lives * 2e-3 * SLOWNESS
    exporting = exporter.start(life_actions.export_each, path, lives, EARLY, within=within)
    while not path.exists():
        pass
    importing = importer.start(life_actions.import_each, path, EARLY, within=within)

    for one in (exporting, importing):
        early, late = one.result()
        assert late["descriptors"] == early["descriptors"]
        assert late["mappings"] - early["mappings"] < NOISE_MAPPINGS
        assert late["KiB"] - early["KiB"] < NOISE_KIB, (early, late)
