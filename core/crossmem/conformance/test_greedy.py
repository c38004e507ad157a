# SPDX-License-Identifier: Apache-2.0
"""Law C23: an importer with a modified crossmem gets no more access than the exporter gave."""

import signal
from typing import Any

import pytest

import crossmem
from crossmem.conformance import actions
from crossmem.conformance.harness import Allocate, FreshPeer
from crossmem.conformance.peers import Peer, PeerDiedError

NBYTES = 5000


def import_for_writing() -> None:
    """Make the peer's driver open every later import for writing."""
    driver = actions.tracer()
    inner = driver.import_

    def greedy(*args: Any, **options: Any) -> Any:
        return inner(*args, **{**options, "access": "rw"})

    driver.import_ = greedy  # type: ignore[method-assign]


def write_anyhow(peer: Peer, blob: bytes) -> None:
    """Let a peer attach memory and write one byte. crossmem does not check this write."""
    pointer = peer.call(actions.attach, "m", blob)
    peer.call(actions.poke, pointer, 7)


@pytest.mark.crossmem_requires("readonly_exports", "host_visible")
def test_c23_the_device_or_kernel_keeps_importers_from_writing_a_read_only_export(
    allocate: Allocate, fresh_peer: FreshPeer
) -> None:
    allocation = allocate(NBYTES, b"kept")
    peer = fresh_peer()
    peer.call(import_for_writing)
    # The driver refuses to open or map the memory, or the kernel kills the peer when it writes.
    with pytest.raises((crossmem.CrossmemError, PeerDiedError)) as caught:
        write_anyhow(peer, allocation.export(access="ro").to_bytes())

    if isinstance(caught.value, PeerDiedError):
        assert caught.value.exitcode == -signal.SIGSEGV
    assert allocation.read(4) == b"kept"

    # A write to a writable export succeeds.
    peer = fresh_peer()
    peer.call(import_for_writing)
    write_anyhow(peer, allocation.export().to_bytes())

    assert allocation.read(4) == b"\x07ept"
