# SPDX-License-Identifier: Apache-2.0
"""Reservations in the lease registry, without a socket or another process."""

import logging
import mmap
import threading
from typing import Any

import pytest

from crossmem.control.admission import Admission, Admitted
from crossmem.control.leases import Holder, Lease, LeaseTable, name_holders, new_number
from crossmem.control.peer_log import PeerLog
from crossmem.control.records import Allow, Export, Unit
from crossmem.control.registry import LeaseRegistry
from crossmem.control.reservations import refuse_more
from crossmem.control.segments import HEADER_WORDS
from crossmem.control.wire import Refusal, Request, Status, Wanted, pack_terms, prove
from crossmem.driver import Exported
from crossmem.models import Event, EventKind, ProcessIdentity, ShareableHandle
from crossmem.plugin import Registry, hookimpl
from crossmem.settings import Settings

LOG = logging.getLogger(__name__)
CONTEXT = b"this connection, this request"
MAX_RESERVATIONS = 3

Made = tuple[LeaseRegistry, ShareableHandle, list[str], Unit]


class Observer:
    def __init__(self) -> None:
        self.events: list[Event] = []

    @hookimpl
    def crossmem_event(self, event: Event) -> None:
        self.events.append(event)


def handle_of(identity: ProcessIdentity, **fields: Any) -> ShareableHandle:
    return ShareableHandle(
        **{
            "backend": "emulated",
            "mechanism": "memfd",
            "device": "host:0",
            "allocation": 1,
            "export": 0,
            "secret": b"sixteen bytes  .",
            "owner": identity,
            "nbytes": 100,
            "capacity": 4096,
            "access": "rw",
            **fields,
        }
    )


@pytest.fixture
def registry() -> Made:
    """A registry with one export: its handle, where it is noted that it is idle, and its unit."""
    identity = ProcessIdentity.of_this_process()
    made = LeaseRegistry(identity, Registry(Settings()), MAX_RESERVATIONS)
    handle = handle_of(identity)
    idle: list[str] = []
    unit = Unit(1, None, lambda: idle.append("idle"))
    made.publish(Export(unit, handle, Allow(), Exported()))
    return made, handle, idle, unit


@pytest.fixture
def peer() -> Holder:
    identity = ProcessIdentity.of_this_process()
    return Holder(identity.pid + 1, identity.uid)


def wanted(handle: ShareableHandle, role: bytes, number: int = 0) -> Wanted:
    proof = prove(handle.secret, role, CONTEXT, pack_terms(number, handle.export, 0), handle.core)
    return Wanted(handle.allocation, handle.export, proof, number)


def reserve_mine(made: LeaseRegistry, *handles: ShareableHandle) -> list[int]:
    numbers = [new_number() for _ in handles]
    assert made.reserve_mine(handles, numbers, 0.01) is None
    return numbers


def refusal_of_mine(made: LeaseRegistry, handles: list[ShareableHandle], timeout_s: float) -> Any:
    return made.reserve_mine(handles, [new_number() for _ in handles], timeout_s)


def admit(made: LeaseRegistry, peer: Holder, wanted: Wanted) -> Admitted | Refusal:
    """Let a peer hold an export, and have it told so."""
    pinned: list[Unit] = []
    request = Request(bytes(16), 0, 0, 1, 1, ())
    admitted = Admission(made, PeerLog(LOG)).admit(peer, CONTEXT, 1, request, wanted, pinned)
    made.unpin(pinned)
    return admitted


def admit_reservation(
    made: LeaseRegistry, peer: Holder, handle: ShareableHandle
) -> Admitted | Refusal:
    """Reserve memory for a message of a peer."""
    asked = wanted(handle, b"reserve", new_number())
    return Admission(made, PeerLog(LOG)).admit_reservation(peer, CONTEXT, asked)


def write_row(peer: Holder, admitted: object, word: int) -> None:
    """Write the word of an export, as the peer would: through a mapping of its own."""
    assert isinstance(admitted, Admitted)
    assert admitted.row is not None
    with mmap.mmap(admitted.row, 0) as row, memoryview(row).cast("Q") as words:
        words[HEADER_WORDS + admitted.slot] = word


def status_of(answer: object) -> Status:
    assert isinstance(answer, Refusal)
    return answer.status


def test_a_reservation_keeps_freed_memory_and_its_number_gives_it(
    registry: Made, peer: Holder
) -> None:
    made, handle, idle, unit = registry
    (number,) = reserve_mine(made, handle)
    assert not made.retire(unit, even_if_leased=True)

    assert status_of(admit(made, peer, wanted(handle, b"import"))) is Status.STALE
    admitted = admit(made, peer, wanted(handle, b"import", number))
    write_row(peer, admitted, 1)

    assert [(one.holder.pid, one.in_message) for one in made.leases_of(unit)] == [
        (handle.owner.pid, True),
        (peer.pid, False),
    ]
    made.release_mine([number, number])
    assert idle == []
    write_row(peer, admitted, 0)
    assert isinstance(admitted, Admitted)
    made.hint([admitted.slot, 2**40])
    made.tell()
    assert idle == ["idle"]


def test_a_reservation_is_received_once_and_ends_with_its_receiver(
    registry: Made, peer: Holder
) -> None:
    made, handle, idle, unit = registry
    (number,) = reserve_mine(made, handle)
    made.retire(unit, even_if_leased=True)

    with made.lock:
        export = unit.exports[0]
        sender = made.receive(number, export, peer)
        assert made.receive(number, export, peer) is None
        assert made.receive(number + 1, export, peer) is None
    assert sender is not None
    assert (len(sender.messages), len(peer.messages)) == (0, 1)

    with made.lock:
        made.lose(peer)

    made.tell()
    assert (made.leases_of(unit), peer.messages, idle) == ((), {}, ["idle"])


def test_the_proof_covers_the_number_and_what_is_wanted(registry: Made, peer: Holder) -> None:
    made, handle, _idle, _unit = registry
    (number,) = reserve_mine(made, handle)
    right = wanted(handle, b"import", number)

    for wrong in (right._replace(reservation=0), wanted(handle, b"reserve", number)):
        assert status_of(admit(made, peer, wrong)) is Status.UNKNOWN
    # A number that is taken, and none.
    for wrong in (right, wanted(handle, b"reserve", number), wanted(handle, b"reserve")):
        answer = Admission(made, PeerLog(LOG)).admit_reservation(peer, CONTEXT, wrong)
        assert status_of(answer) is Status.UNKNOWN
    assert not isinstance(admit_reservation(made, peer, handle), Refusal)


def test_own_reservations_are_all_or_none(registry: Made) -> None:
    made, handle, _idle, unit = registry
    never = handle_of(handle.owner, allocation=2)
    changed = handle_of(handle.owner, nbytes=101)
    unknown = handle_of(handle.owner, export=1)

    for bad in (never, changed, unknown):
        assert status_of(refusal_of_mine(made, [handle, bad], 0.01)) is Status.UNKNOWN

    assert made.leases_of(unit) == ()


def test_messages_of_one_process_are_bounded_and_others_have_room(
    registry: Made, peer: Holder
) -> None:
    made, handle, _idle, _unit = registry
    first, *_ = reserve_mine(made, handle, handle)

    assert status_of(refusal_of_mine(made, [handle, handle], 0.01)) is Status.FULL
    assert status_of(refusal_of_mine(made, [handle] * 4, 60)) is Status.TOO_MANY
    assert refuse_more(peer, MAX_RESERVATIONS, made.max_reservations) is None

    made.release_mine([first])

    assert len(reserve_mine(made, handle, handle)) == 2


@pytest.mark.parametrize("how", ["ended", "received"])
def test_who_waits_for_room_is_told(registry: Made, peer: Holder, how: str) -> None:
    made, handle, _idle, unit = registry
    first, *_ = reserve_mine(made, *[handle] * MAX_RESERVATIONS)
    answers: list[object] = []
    waiting = threading.Thread(target=lambda: answers.append(refusal_of_mine(made, [handle], 20)))
    waiting.start()
    waiting.join(0.1)
    assert answers == []

    if how == "ended":
        made.release_mine([first])
    else:
        with made.lock:
            made.receive(first, unit.exports[0], peer)
    waiting.join(10)

    assert answers == [None]


def test_freed_memory_is_held_by_who_has_it_and_nobody_else(registry: Made, peer: Holder) -> None:
    made, handle, _idle, unit = registry
    write_row(peer, admit(made, peer, wanted(handle, b"import")), 1)
    made.retire(unit, even_if_leased=True)
    other = Holder(peer.pid + 1, peer.uid)

    assert status_of(refusal_of_mine(made, [handle], 0.01)) is Status.STALE
    assert status_of(admit_reservation(made, other, handle)) is Status.STALE
    assert not isinstance(admit_reservation(made, peer, handle), Refusal)


def test_an_exit_ends_own_imports_and_waits_for_messages(registry: Made, peer: Holder) -> None:
    made, handle, _idle, unit = registry
    made.lease_to_myself(handle, 0, {})
    (number,) = reserve_mine(made, handle)

    assert not made.wait_all_idle(0.01)

    assert [one.number for one in made.leases_of(unit)] == [number]
    assert status_of(admit(made, peer, wanted(handle, b"import"))) is Status.EXITING
    admitted = admit(made, peer, wanted(handle, b"import", number))
    write_row(peer, admitted, 1)
    made.release_mine([number])
    assert not made.wait_all_idle(0.01)
    write_row(peer, admitted, 0)
    assert made.wait_all_idle(0.01)


def test_observers_are_told_of_reservations(peer: Holder) -> None:
    identity = ProcessIdentity.of_this_process()
    observer, registry = Observer(), Registry(Settings())
    registry.register(observer, name="observer")
    made = LeaseRegistry(identity, registry, MAX_RESERVATIONS)
    handle = handle_of(identity)
    made.publish(Export(Unit(1, None, lambda: None), handle, Allow(), Exported()))

    (mine,) = reserve_mine(made, handle)
    admit_reservation(made, peer, handle)
    made.release_mine([mine])
    with made.lock:
        made.lose(peer)
    made.tell()

    assert [(one.kind, one.peer_pid) for one in observer.events] == [
        (EventKind.RESERVED, identity.pid),
        (EventKind.RESERVED, peer.pid),
        (EventKind.RESERVATION_ENDED, identity.pid),
        (EventKind.RESERVATION_LOST, peer.pid),
    ]


def test_a_table_finds_reservations_by_everything_that_makes_them(peer: Holder) -> None:
    table = LeaseTable()
    unit = Unit(1, None, lambda: None)
    handle = handle_of(ProcessIdentity.of_this_process())
    export = Export(unit, handle, Allow(), Exported())
    lease = table.give(export, peer)
    reserved = table.give(export, peer, in_message=True)

    assert table.find_reservation(reserved.number, 1, 0) == reserved
    for number, allocation, export_number in (
        (0, 1, 0),
        (lease.number, 1, 0),
        (reserved.number, 2, 0),
        (reserved.number, 1, 1),
    ):
        assert table.find_reservation(number, allocation, export_number) is None
    assert list(peer.messages) == [reserved.number]
    assert list(unit.leases) == [lease.number, reserved.number]


def test_who_holds_is_said_in_words() -> None:
    def lease(pid: int, *, in_message: bool = False) -> Lease:
        return Lease(pid, Unit(1, None, lambda: None), 0, Holder(pid, 0), 0.0, in_message)

    assert name_holders([]) == "a process that waits for a reply"
    assert name_holders([lease(12), lease(3), lease(3)]) == "process 3, 12"
    assert (
        name_holders([lease(4), lease(7, in_message=True)])
        == "process 4 and an unreceived message of process 7"
    )


def test_memory_that_one_thread_tells_of_is_told_by_another_too(registry: Made) -> None:
    made = registry[0]
    is_telling, may_go, told = threading.Event(), threading.Event(), []

    def on_idle() -> None:
        told.append(threading.get_ident())
        if len(told) == 1:
            is_telling.set()
            may_go.wait(10)

    made._idle.append(Unit(1, None, on_idle))
    thread = threading.Thread(target=made.tell)
    thread.start()
    is_telling.wait(10)
    made.tell()
    may_go.set()
    thread.join()

    assert len(set(told)) == 2
    assert not made._idle
