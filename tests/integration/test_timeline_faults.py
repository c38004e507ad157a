# SPDX-License-Identifier: Apache-2.0
"""The vendor's calls of timelines on HIP and CUDA: how many there are, and each of them refused.

Each refusal ends in a typed error that names the call and the code; nothing of it is left, and the
same call works afterwards.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from crossmem.conformance import actions
from crossmem.conformance import streams_of_tests as streams
from crossmem.conformance.peers import Peer
from crossmem.models import TimelineLevel

if TYPE_CHECKING:
    from tests.integration import timeline_fault_actions
else:
    import timeline_fault_actions

StartGpuPeer = Callable[[], Peer]

LEVELS: tuple[TimelineLevel, ...] = ("word", "event", "host")


@pytest.fixture(params=["hip", pytest.param("cuda", marks=pytest.mark.ci)])
def backend(request: pytest.FixtureRequest) -> str:
    """Return the vendor."""
    return str(request.param)


@pytest.fixture
def start_gpu_peer(run_dir: Path, tmp_path: Path, backend: str) -> Iterator[StartGpuPeer]:
    """Return a function that starts a process that uses emulated GPUs."""
    started: list[Peer] = []

    def start() -> Peer:
        peer = Peer(
            f"{backend}:0",
            runtime="emulated",
            environment={
                "CROSSMEM_RUN_DIR": str(run_dir),
                "CROSSMEM_EMULATED_STATE": str(tmp_path),
                "CROSSMEM_EMULATED_CAPACITY": "256MiB",
            },
        )
        started.append(peer)
        return peer

    yield start
    for peer in started:
        peer.destroy()


def subject_of(start_gpu_peer: StartGpuPeer, level: TimelineLevel) -> Peer:
    """Start a process that tests timelines of a level, and a partner that signalled one."""
    partner, subject = start_gpu_peer(), start_gpu_peer()
    blob = partner.call(streams.make, "timeline", level)
    partner.call(streams.new_stream, "stream")
    partner.call(streams.signal, "timeline", 1, "stream")
    memory = partner.call(actions.offer, "memory", timeline_fault_actions.NBYTES)
    subject.call(timeline_fault_actions.begin, level, blob, memory)
    return subject


@pytest.mark.timeout(240)
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", sorted(timeline_fault_actions.OPERATIONS))
def test_each_failure_of_each_call(
    start_gpu_peer: StartGpuPeer, level: TimelineLevel, name: str
) -> None:
    if name == "signal on another stream" and level == "host":
        pytest.skip("at level 'host' no value is pending")
    if name == "wait for a pending value" and level != "word":
        pytest.skip("the host waits until the value was signalled")
    if name.endswith("on a stream") and level != "word":
        pytest.skip("memory is handed over at the strongest level")
    subject = subject_of(start_gpu_peer, level)

    _, wrong = subject.call(timeline_fault_actions.fail_everywhere, name, within=200)

    assert not wrong, "\n".join(wrong)


FIRST = ["hostRegister", "hostGetDevicePointer"]
CALLS: dict[tuple[str, TimelineLevel, bool], list[str]] = {
    ("signal", "word", False): [*FIRST, "streamWriteValue64"],
    ("signal", "word", True): ["streamWriteValue64"],
    ("wait", "word", True): [],
    ("wait for a pending value", "word", False): [*FIRST, "streamWaitValue64"],
    ("wait for a pending value", "word", True): ["streamWaitValue64"],
    ("signal on another stream", "word", False): ["streamWaitValue64", "streamWriteValue64"],
    ("signal", "host", True): ["streamSynchronize"],
    ("wait", "host", True): [],
    ("wait", "event", True): ["streamWaitEvent"],
}


@pytest.mark.parametrize(("name", "level", "again"), CALLS)
def test_the_vendors_calls(
    start_gpu_peer: StartGpuPeer, name: str, level: TimelineLevel, again: bool
) -> None:
    subject = subject_of(start_gpu_peer, level)

    calls = subject.call(timeline_fault_actions.calls_of, name, again=again)

    assert calls == CALLS[name, level, again]
