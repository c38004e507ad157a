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

pytestmark = pytest.mark.ci

StartGpuPeer = Callable[[], Peer]


# One of each for every run, and all of both in the long one.
@pytest.fixture(
    params=[
        ("hip", "legacy"),
        pytest.param(("cuda", "vmm"), marks=pytest.mark.long),
        pytest.param(("cuda", "legacy"), marks=pytest.mark.long),
        pytest.param(("hip", "vmm"), marks=pytest.mark.long),
    ],
    ids="-".join,
)
def way(request: pytest.FixtureRequest) -> tuple[str, str]:
    """Return backend and mechanism."""
    found: tuple[str, str] = request.param
    return found


@pytest.fixture
def start_gpu_peer(run_dir: Path, tmp_path: Path, way: tuple[str, str]) -> Iterator[StartGpuPeer]:
    """Return a function that starts a process that uses emulated GPUs."""
    started: list[Peer] = []

    def start() -> Peer:
        peer = Peer(
            f"{way[0]}:0",
            runtime="emulated",
            mechanism=way[1],
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


@pytest.mark.timeout(360)
@pytest.mark.parametrize("name", sorted(hip_fault_actions.OPERATIONS))
def test_each_failure_of_each_call(
    start_gpu_peer: StartGpuPeer, way: tuple[str, str], name: str
) -> None:
    partner, subject = start_gpu_peer(), start_gpu_peer()
    for names, capability in (
        (hip_fault_actions.RANGES, "address_ranges"),
        (hip_fault_actions.ADOPTIONS, "foreign_memory"),
        (hip_fault_actions.RAW, "raw_handles"),
    ):
        if name in names and not subject.call(hip_fault_actions.offers, capability):
            pytest.skip(f"{' '.join(way)} has no {capability} here")
    blob = partner.call(actions.offer, "memory", hip_fault_actions.NBYTES, b"data")

    count, wrong = subject.call(hip_fault_actions.fail_everywhere, name, blob, within=300)

    assert not wrong, "\n".join(wrong)
    assert count
