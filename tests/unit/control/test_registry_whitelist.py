# SPDX-License-Identifier: Apache-2.0
"""Whom the lease registry knows to be on a vendor's whitelist."""

import gc
import logging

from crossmem.control.admission import Admission
from crossmem.control.leases import Holder
from crossmem.control.peer_log import PeerLog
from crossmem.control.records import Allow, Export, Unit
from crossmem.control.registry import LeaseRegistry
from crossmem.control.wire import Refusal, Request, Wanted, pack_terms, prove
from crossmem.driver import Exported, Peer
from crossmem.models import ProcessIdentity, ShareableHandle
from crossmem.plugin import Registry
from crossmem.settings import Settings

LOG = logging.getLogger(__name__)
CONTEXT = b"this connection, this request"


def test_a_peer_is_granted_each_export_once_and_forgotten_with_it() -> None:
    identity = ProcessIdentity.of_this_process()
    registry, peer = LeaseRegistry(identity, Registry(Settings()), 1), Holder(1, identity.uid)
    admission = Admission(registry, PeerLog(LOG))
    pinned: list[Unit] = []
    request = Request(bytes(16), 0, 0, 1, 1, ())
    granted: list[int] = []
    units: dict[int, Unit] = {}

    def grant(export: Export, _peer: Peer) -> None:
        granted.append(export.handle.allocation)

    for number in (1, 2, 3):
        handle = ShareableHandle(
            backend="emulated", mechanism="memfd", device="host:0", allocation=number, export=0,
            secret=b"sixteen bytes  .", owner=identity, nbytes=100, capacity=4096, access="rw",
        )  # fmt: skip
        units[number] = Unit(number, grant, lambda: None)
        registry.publish(Export(units[number], handle, Allow(), Exported()))
        proof = prove(
            handle.secret, b"import", CONTEXT, pack_terms(0, handle.export, 0), handle.core
        )
        for _ in range(2):
            answer = admission.admit(peer, CONTEXT, 1, request, Wanted(number, 0, proof), pinned)
            assert not isinstance(answer, Refusal)
            del answer
    assert granted == [1, 2, 3]
    assert len(peer.whitelisted) == 3

    registry.unpin(pinned)
    pinned.clear()
    with registry.lock:
        registry.lose(peer)
        for number in (1, 2):
            assert registry.retire(units.pop(number), even_if_leased=False)
    gc.collect()

    assert len(peer.whitelisted) == 1
