# SPDX-License-Identifier: Apache-2.0
"""Rows in the lease registry, without a socket or another process."""

import logging
import mmap
import os
from collections.abc import Iterator

import pytest

from crossmem.control import segments, words
from crossmem.control.admission import Admission, Admitted
from crossmem.control.events import EventQueue
from crossmem.control.leases import Holder
from crossmem.control.peer_log import PeerLog
from crossmem.control.records import Allow, Export, Unit
from crossmem.control.registry import LeaseRegistry
from crossmem.control.segments import HEADER_WORDS
from crossmem.control.wire import Refusal, Request, Wanted, pack_terms, prove
from crossmem.driver import Exported
from crossmem.errors import DriverError
from crossmem.models import Event, EventKind, ProcessIdentity, ShareableHandle
from crossmem.plugin import Registry, hookimpl
from crossmem.settings import Settings

LOG = logging.getLogger(__name__)
CONTEXT = b"this connection, this request"


class Observer:
    def __init__(self) -> None:
        self.kinds: list[EventKind] = []

    @hookimpl
    def crossmem_event(self, event: Event) -> None:
        self.kinds.append(event.kind)


class Scene:
    """A registry with two exports, and a peer."""

    def __init__(self) -> None:
        identity = ProcessIdentity.of_this_process()
        self.observer, plugins = Observer(), Registry(Settings())
        plugins.register(self.observer, name="observer")
        self.registry = LeaseRegistry(identity, plugins, 10)
        self.peer = Holder(identity.pid + 1, identity.uid)
        self.idle: list[int] = []
        self.units = [self.publish(identity, number) for number in (1, 2)]
        self.pinned: list[Unit] = []
        self.rows: list[int] = []
        self.requests = 0

    def publish(self, identity: ProcessIdentity, number: int) -> Unit:
        handle = ShareableHandle(
            backend="emulated", mechanism="memfd", device="host:0", allocation=number, export=0,
            secret=b"sixteen bytes  .", owner=identity, nbytes=100, capacity=4096, access="rw",
        )  # fmt: skip
        unit = Unit(number, None, lambda: self.idle.append(number))
        self.registry.publish(Export(unit, handle, Allow(), Exported()))
        return unit

    def admit(
        self, number: int, *, known: int = 1, pin: bool = False, asked: int = 0
    ) -> Admitted | Refusal:
        self.requests += 1
        handle = self.units[number].exports[0].handle
        proof = prove(
            handle.secret, b"import", CONTEXT, pack_terms(0, handle.export, 0), handle.core
        )
        request, wanted = Request(bytes(16), 0, 0, 1, known, ()), Wanted(number + 1, 0, proof)
        admitted = Admission(self.registry, PeerLog(LOG)).admit(
            self.peer, CONTEXT, asked or self.requests, request, wanted, self.pinned
        )
        if not pin:
            self.registry.unpin(self.pinned)
            self.pinned.clear()
        if isinstance(admitted, Admitted) and admitted.row is not None:
            self.rows.append(admitted.row)
        return admitted

    def write(self, number: int, word: int) -> None:
        """Write the peer's row."""
        slot = self.units[number].exports[0].slot
        assert slot is not None
        with mmap.mmap(self.rows[-1], 0) as row, memoryview(row).cast("Q") as view:
            view[HEADER_WORDS + slot.number] = word

    def retire(self, number: int) -> bool:
        return self.registry.retire(self.units[number], even_if_leased=True)


@pytest.fixture
def scene() -> Iterator[Scene]:
    scene = Scene()
    yield scene

    for descriptor in scene.rows:
        os.close(descriptor)
    scene.registry.slots.close()


@pytest.mark.parametrize(("word", "kind"), [(1, EventKind.LEASE_LOST), (0, EventKind.LEASE_ENDED)])
def test_a_lease_is_lost_with_a_process_that_still_had_it(
    scene: Scene, word: int, kind: EventKind
) -> None:
    scene.admit(0)
    scene.write(0, word)
    scene.registry.lose(scene.peer)
    scene.registry.tell()

    assert scene.observer.kinds == [EventKind.LEASED, kind]
    assert scene.retire(0)


def test_an_interrupted_free_and_the_death_of_an_importer_leave_nothing_unread(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.admit(0)
    with monkeypatch.context() as patch:
        patch.setattr(EventQueue, "note", interrupt)
        with pytest.raises(KeyboardInterrupt):
            scene.retire(0)
    scene.registry.lose(scene.peer)

    assert scene.retire(0)
    assert scene.registry.report()[0][0] is scene.units[1]


def interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def test_a_row_that_could_not_be_replaced_is_not_used_again(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError("no descriptor is left")

    scene.admit(0)
    with monkeypatch.context() as patch:
        patch.setattr(segments, "create", fail)
        assert isinstance(scene.admit(0, known=0), Refusal)

    # Whatever the peer says that it has.
    again = scene.admit(0, known=1)
    assert isinstance(again, Admitted)
    assert again.row is not None
    assert scene.registry.report()
    assert scene.retire(0)


def test_a_barrier_that_the_kernel_takes_away_costs_no_lease(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> None:
        raise DriverError("no", call="membarrier", code=1, name="EPERM", backend="host")

    for number in range(2):
        scene.admit(number, pin=True)
        scene.retire(number)
    with monkeypatch.context() as patch:
        patch.setattr(words, "barrier", refuse)
        scene.registry.unpin(scene.pinned)
        with pytest.raises(DriverError):
            scene.retire(0)
        scene.registry.lose(scene.peer)
        assert not scene.peer.exports
    scene.registry.tell()

    # Who frees is told, and tries again.
    assert set(scene.idle) == {1, 2}
    assert scene.retire(0)
    assert scene.retire(1)


def test_a_free_that_the_kernel_refuses_leaves_live_memory_live(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> None:
        raise DriverError("no", call="membarrier", code=1, name="EPERM", backend="host")

    admitted = scene.admit(0)
    assert isinstance(admitted, Admitted)
    with monkeypatch.context() as patch:
        patch.setattr(words, "barrier", refuse)
        with pytest.raises(DriverError):
            scene.registry.retire(scene.units[0], even_if_leased=False)

    again = scene.admit(0)
    assert isinstance(again, Admitted)
    assert again.generation > admitted.generation
    assert again.generation % 2 == 1


def test_a_process_that_disconnected_is_forgotten_with_what_it_could_hold(scene: Scene) -> None:
    scene.admit(0)
    assert scene.peer.holds_something

    assert scene.retire(0)
    assert not scene.peer.holds_something


def test_a_request_from_before_the_row_forgets_nothing(scene: Scene) -> None:
    # It waited on a connection that the importer has left, and is read after the later one.
    admitted = scene.admit(0, known=0, asked=7)
    assert isinstance(admitted, Admitted)
    scene.write(0, admitted.generation)

    late = scene.admit(1, known=0, asked=3)

    assert isinstance(late, Admitted)
    assert late.row is None
    assert [lease.holder for lease in scene.registry.leases_of(scene.units[0])] == [scene.peer]
    assert not scene.retire(0)
