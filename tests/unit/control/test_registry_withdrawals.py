# SPDX-License-Identifier: Apache-2.0
"""Withdrawn exports in the lease registry, without a socket or another process."""

import logging
import mmap
import os
from collections.abc import Iterator

import pytest

from crossmem.control import words
from crossmem.control.admission import Admission, Admitted
from crossmem.control.leases import Holder
from crossmem.control.peer_log import PeerLog
from crossmem.control.records import Allow, Export, Unit
from crossmem.control.registry import LeaseRegistry
from crossmem.control.segments import HEADER_WORDS
from crossmem.control.wire import Refusal, Request, Status, Wanted, pack_terms, prove
from crossmem.driver import Exported, Peer
from crossmem.errors import DriverError
from crossmem.models import Event, EventKind, ProcessIdentity, ShareableHandle
from crossmem.plugin import Registry, hookimpl
from crossmem.settings import Settings

CONTEXT = b"this connection, this request"


class Observer:
    def __init__(self) -> None:
        self.kinds: list[EventKind] = []

    @hookimpl
    def crossmem_event(self, event: Event) -> None:
        self.kinds.append(event.kind)


class Scene:
    """A registry with two exports of one memory, and a peer."""

    def __init__(self) -> None:
        self.identity = ProcessIdentity.of_this_process()
        self.observer, plugins = Observer(), Registry(Settings())
        plugins.register(self.observer, name="observer")
        self.registry = LeaseRegistry(self.identity, plugins, 10)
        self.admission = Admission(self.registry, PeerLog(logging.getLogger(__name__)))
        self.peer = Holder(self.identity.pid + 1, self.identity.uid)
        self.unit = Unit(1, None, lambda: None)
        self.exports = [self.publish(number) for number in range(2)]
        self.rows: list[int] = []

    def publish(self, number: int) -> Export:
        handle = ShareableHandle(
            backend="emulated", mechanism="memfd", device="host:0", allocation=1, export=number,
            secret=b"sixteen bytes %2d" % number, owner=self.identity, nbytes=100, capacity=4096,
            access="rw",
        )  # fmt: skip
        export = Export(self.unit, handle, Allow(), Exported())
        self.registry.publish(export)
        return export

    def admit(self, number: int, reservation: int = 0) -> Admitted | Refusal:
        handle = self.exports[number].handle
        shown = pack_terms(reservation, handle.export, 0)
        proof = prove(handle.secret, b"import", CONTEXT, shown, handle.core)
        # The peer has the row that came with its first lease.
        request = Request(bytes(16), 0, 0, 1, len(self.rows), ())
        wanted, pinned = Wanted(1, number, proof, reservation), list[Unit]()
        admitted = self.admission.admit(self.peer, CONTEXT, 1, request, wanted, pinned)
        self.registry.unpin(pinned)
        if isinstance(admitted, Admitted) and admitted.row is not None:
            self.rows.append(admitted.row)
        return admitted

    def write(self, slot: int, word: int) -> None:
        """Write the peer's row."""
        with mmap.mmap(self.rows[-1], 0) as row, memoryview(row).cast("Q") as view:
            view[HEADER_WORDS + slot] = word

    def withdraw(self, number: int) -> Refusal | None:
        return self.registry.withdraw(self.unit, self.exports[number].handle)

    def status(self, number: int) -> Status | None:
        refusal = self.registry.refusal_of(self.exports[number].handle)
        return None if refusal is None else refusal.status


@pytest.fixture
def scene() -> Iterator[Scene]:
    scene = Scene()
    yield scene

    for descriptor in scene.rows:
        os.close(descriptor)
    scene.registry.slots.close()


def test_a_held_export_stays_with_the_next_odd_generation(scene: Scene) -> None:
    admitted = scene.admit(0)
    assert isinstance(admitted, Admitted)
    scene.write(admitted.slot, admitted.generation)
    scene.withdraw(0)

    slot = scene.exports[0].slot
    assert slot is not None
    assert slot.generation == admitted.generation + 2
    assert scene.unit.withdrawn == {scene.exports[0]}
    assert [lease.export for lease in scene.registry.leases_of(scene.unit)] == [0]
    assert not scene.registry.retire(scene.unit, even_if_leased=False)


def test_the_end_of_the_last_hold_frees_the_slot(scene: Scene) -> None:
    admitted = scene.admit(0)
    assert isinstance(admitted, Admitted)
    scene.write(admitted.slot, admitted.generation)
    scene.withdraw(0)
    scene.write(admitted.slot, 0)
    scene.registry.hint([admitted.slot])

    assert not scene.unit.withdrawn
    assert list(scene.unit.exports) == [1]
    assert scene.registry.slots.free == [admitted.slot]
    other = scene.admit(1)
    assert isinstance(other, Admitted)
    assert other.slot == admitted.slot
    # Whoever was granted the withdrawn export finds another generation.
    assert other.generation % 2
    assert other.generation > admitted.generation


@pytest.mark.parametrize("is_granted", [False, True])
def test_what_nobody_holds_is_forgotten_at_once(scene: Scene, *, is_granted: bool) -> None:
    if is_granted:
        scene.admit(0)
    scene.withdraw(0)

    assert list(scene.unit.exports) == [1]
    assert scene.registry.slots.free == [0] * is_granted
    assert scene.exports[0] not in scene.peer.exports
    assert scene.registry.granted == {}


def test_why_it_is_refused(scene: Scene) -> None:
    assert (scene.status(0), scene.status(1)) == (None, None)
    scene.withdraw(0)
    assert (scene.status(0), scene.status(1)) == (Status.WITHDRAWN, None)
    scene.withdraw(1)
    assert (scene.status(0), scene.status(1)) == (Status.WITHDRAWN, Status.WITHDRAWN)
    answer = scene.admit(0)
    assert isinstance(answer, Refusal)
    assert answer.status is Status.WITHDRAWN

    scene.registry.retire(scene.unit, even_if_leased=True)

    assert (scene.status(0), scene.status(1)) == (Status.STALE, Status.STALE)


def test_freed_memory_is_called_freed_though_it_was_withdrawn(scene: Scene) -> None:
    admitted = scene.admit(0)
    assert isinstance(admitted, Admitted)
    scene.write(admitted.slot, admitted.generation)
    scene.withdraw(0)
    scene.registry.retire(scene.unit, even_if_leased=True)

    assert (scene.status(0), scene.status(1)) == (Status.STALE, Status.STALE)
    scene.write(admitted.slot, 0)
    assert scene.registry.retire(scene.unit, even_if_leased=True)
    assert not scene.unit.withdrawn


def test_a_reservation_gives_it_once_more(scene: Scene) -> None:
    handle = scene.exports[0].handle
    with scene.registry.lock:
        scene.registry.reserve(scene.exports[0], scene.peer, 77)
    scene.withdraw(0)
    assert scene.status(0) is Status.WITHDRAWN
    assert scene.registry.reserve_mine([handle], [78], 0.0) is not None
    admitted = scene.admit(0, reservation=77)
    assert isinstance(admitted, Admitted)
    scene.write(admitted.slot, admitted.generation)
    scene.registry.end([77])

    assert isinstance(scene.admit(0, reservation=77), Refusal)
    assert scene.unit.withdrawn == {scene.exports[0]}
    scene.write(admitted.slot, 0)
    scene.registry.report()
    assert not scene.unit.withdrawn


def test_a_withdrawal_while_the_vendor_grants(scene: Scene) -> None:
    # The vendor's whitelist is written with no lock held.
    def grant(_export: Export, _peer: Peer) -> None:
        scene.withdraw(0)

    scene.unit.grant = grant
    answer = scene.admit(0)

    assert isinstance(answer, Refusal)
    assert answer.status is Status.WITHDRAWN


def test_a_withdrawal_without_a_barrier_can_be_repeated(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> None:
        raise DriverError("no barrier")

    scene.admit(0)
    with monkeypatch.context() as patch:
        patch.setattr(words, "barrier", refuse)
        for _ in range(2):
            with pytest.raises(DriverError):
                scene.withdraw(0)
        assert scene.status(0) is Status.WITHDRAWN
        scene.registry.hint([0])
        assert scene.unit.withdrawn == {scene.exports[0]}
    assert scene.withdraw(0) is None

    assert not scene.unit.withdrawn
    assert scene.registry.slots.free == [0]


def test_observers_hear_of_it_once(scene: Scene) -> None:
    admitted = scene.admit(0)
    assert isinstance(admitted, Admitted)
    scene.write(admitted.slot, admitted.generation)
    for _ in range(3):
        scene.withdraw(0)
    scene.write(admitted.slot, 0)
    scene.registry.hint([admitted.slot])
    scene.registry.tell()

    kinds = [EventKind.LEASED, EventKind.WITHDRAWN, EventKind.LEASE_ENDED]
    assert scene.observer.kinds == kinds


def test_only_handles_of_the_memory(scene: Scene) -> None:
    handle = scene.exports[0].handle
    other = Unit(2, None, lambda: None)
    refusal = scene.registry.withdraw(other, handle)

    assert refusal is not None
    assert refusal.status is Status.UNKNOWN
    assert scene.status(0) is None
