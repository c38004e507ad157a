# SPDX-License-Identifier: Apache-2.0
"""Each failure that HIP and CUDA document, once at each call of each operation, in two processes.

Each ends in a typed error that names the call and the code; nothing of it is left, and the next
call works.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from crossmem.conformance import actions
from crossmem.conformance.peers import Peer

if TYPE_CHECKING:
    from tests.integration import hip_fault_actions
else:
    import hip_fault_actions

StartGpuPeer = Callable[[], Peer]


WAYS = [
    ("hip", "legacy"),
    ("cuda", "legacy"),
    ("cuda", "vmm"),
    # The same code, with AMD's names, and without memory that is adopted.
    pytest.param(("hip", "vmm"), marks=pytest.mark.long),
]


@pytest.fixture(params=WAYS, ids="-".join)
def way(request: pytest.FixtureRequest) -> tuple[str, str]:
    """Return backend and mechanism."""
    found: tuple[str, str] = request.param
    return found


@pytest.fixture
def start_gpu_peer(run_dir: Path, tmp_path: Path, way: tuple[str, str]) -> Iterator[StartGpuPeer]:
    """Return a function that starts a process that uses emulated GPUs."""
    backend, mechanism = way
    started: list[Peer] = []

    def start() -> Peer:
        peer = Peer(
            f"{backend}:0",
            runtime="emulated",
            mechanism=mechanism,
            environment={
                "CROSSMEM_RUN_DIR": str(run_dir),
                "CROSSMEM_EMULATED_STATE": str(tmp_path),
                "CROSSMEM_EMULATED_CAPACITY": "64MiB",
            },
            tracing=False,
        )
        started.append(peer)
        return peer

    yield start
    for peer in started:
        peer.destroy()


@pytest.mark.parametrize("name", sorted(hip_fault_actions.OPERATIONS))
def test_each_failure_of_each_call(start_gpu_peer: StartGpuPeer, name: str) -> None:
    partner, subject = start_gpu_peer(), start_gpu_peer()
    for names, capability in (
        (hip_fault_actions.RANGES, "address_ranges"),
        (hip_fault_actions.ADOPTIONS, "foreign_memory"),
    ):
        if name in names and not subject.call(hip_fault_actions.offers, capability):
            pytest.skip(f"there is no {capability} here")
    blob = partner.call(actions.offer, "memory", hip_fault_actions.NBYTES, b"data")

    count, wrong = subject.call(hip_fault_actions.fail_everywhere, name, blob, within=60)

    assert not wrong, "\n".join(wrong)
    assert count
