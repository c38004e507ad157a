# SPDX-License-Identifier: Apache-2.0
"""Peers for the tests of leases."""

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import pytest

from crossmem.conformance.peers import Peer
from crossmem.conformance.servers import preload

# Peers get this process's sys.path, and find lease_actions there.
sys.path.insert(0, str(Path(__file__).parent))

# Each peer would import these anew. None of them opens, starts or reads anything at import.
preload(
    "crossmem.driver.cleanup",
    "crossmem.driver.native",
    "crossmem.plugin.discovery",
    "crossmem_ascend.driver",
    "crossmem_ascend.hooks",
    "crossmem_emulated.acl",
    "crossmem_emulated.driver",
    "crossmem_emulated.host",
    "crossmem_emulated.hip",
    "crossmem_emulated.hooks",
    "crossmem_hip.driver",
    "crossmem_hip.hooks",
    "lease_actions",
    "tree_actions",
)


class StartPeer(Protocol):
    """Starts a process on emulated devices, in the run directory of the test."""

    def __call__(
        self, *, tracing: bool = True, fresh: bool = False, **environment: str | None
    ) -> Peer: ...


class StartNpuPeer(Protocol):
    """Starts a process that uses the test's emulated NPUs by one mechanism."""

    def __call__(self, mechanism: str, **environment: str) -> Peer: ...


@pytest.fixture
def run_dir() -> Iterator[Path]:
    """Return a run directory for this test alone; its path is short, as a socket's must be."""
    with tempfile.TemporaryDirectory(prefix="crossmem-") as folder:
        yield Path(folder)


@pytest.fixture
def start_peer(run_dir: Path) -> Iterator[StartPeer]:
    """Return a function that starts peers; none survives the test."""
    started: list[Peer] = []

    def start(*, tracing: bool = True, fresh: bool = False, **environment: str | None) -> Peer:
        base = {"CROSSMEM_RUN_DIR": str(run_dir), "CROSSMEM_EMULATED_GRANULARITY": "page"}
        variables = {**base, **environment}
        peer = Peer("emulated:0", environment=variables, tracing=tracing, fresh=fresh)
        started.append(peer)
        return peer

    yield start
    for peer in started:
        peer.destroy()


@pytest.fixture
def start_npu_peer(run_dir: Path, tmp_path: Path) -> Iterator[StartNpuPeer]:
    """Return a function that starts peers on emulated NPUs; none survives the test."""
    started: list[Peer] = []

    def start(mechanism: str, **environment: str) -> Peer:
        base = {
            "CROSSMEM_RUN_DIR": str(run_dir),
            "CROSSMEM_EMULATED_STATE": str(tmp_path),
            "CROSSMEM_EMULATED_CAPACITY": "64MiB",
        }
        peer = Peer(
            "ascend:0",
            runtime="emulated",
            mechanism=mechanism,
            environment={**base, **environment},
            tracing=False,
        )
        started.append(peer)
        return peer

    yield start
    for peer in started:
        peer.destroy()
