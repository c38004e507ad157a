# SPDX-License-Identifier: Apache-2.0
"""Holds of messages in the lease server's book, without a socket or another process."""

import threading
from typing import Any

import pytest

from crossmem.control.book import LeaseBook
from crossmem.control.leases import Holder, Lease, LeaseTable, name_holders
from crossmem.control.records import Allow, Export, Shared
from crossmem.control.wire import Refusal, Status, Wanted, pack_hold, prove
from crossmem.driver import Exported
from crossmem.models import Event, EventKind, ProcessIdentity, ShareableHandle
from crossmem.plugin import Registry, hookimpl
from crossmem.settings import Settings

CONTEXT = b"this connection, this request"
MAX_HOLDS = 3

Book = tuple[LeaseBook, ShareableHandle, list[str]]


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
def book() -> Book:
    """A book with one export, its handle, and where it is noted that the memory is idle."""
    identity = ProcessIdentity.of_this_process()
    made = LeaseBook(identity, Registry(Settings()), MAX_HOLDS)
    handle = handle_of(identity)
    idle: list[str] = []
    shared = Shared(1, None, lambda: idle.append("idle"))
    made.publish(shared, Export(handle, Allow(), Exported()))
    return made, handle, idle


@pytest.fixture
def peer() -> Holder:
    identity = ProcessIdentity.of_this_process()
    return Holder(identity.pid + 1, identity.uid)


def wanted(handle: ShareableHandle, role: bytes, hold: int = 0) -> Wanted:
    proof = prove(handle.secret, role, CONTEXT, pack_hold(hold), handle.core)
    return Wanted(handle.allocation, handle.export, proof, hold)


def hold_mine(book: LeaseBook, *handles: ShareableHandle) -> list[Lease]:
    answer = book.hold_mine(handles, 0.01)
    assert not isinstance(answer, Refusal)
    return answer


def status_of(answer: object) -> Status:
    assert isinstance(answer, Refusal)
    return answer.status


def test_a_hold_keeps_freed_memory_and_its_number_gives_it(book: Book, peer: Holder) -> None:
    made, handle, idle = book
    (hold,) = hold_mine(made, handle)
    assert not made.retire(1, even_if_leased=True)

    assert status_of(made.admit(peer, CONTEXT, 0, wanted(handle, b"import"))) is Status.STALE
    admitted = made.admit(peer, CONTEXT, 0, wanted(handle, b"import", hold.number))

    assert not isinstance(admitted, Refusal)
    assert [(one.holder.pid, one.in_message) for one in made.leases_of(1)] == [
        (hold.holder.pid, True),
        (peer.pid, False),
    ]
    made.release_mine([hold.number, hold.number])
    assert idle == []
    made.release_mine([admitted[0].number])
    assert idle == ["idle"]


def test_a_hold_is_received_once_and_ends_with_its_receiver(book: Book, peer: Holder) -> None:
    made, handle, idle = book
    (hold,) = hold_mine(made, handle)
    made.retire(1, even_if_leased=True)

    with made.lock:
        assert made.receive(wanted(handle, b"import", hold.number), peer) is hold.holder
        assert made.receive(wanted(handle, b"import", hold.number), peer) is None
        assert made.receive(wanted(handle, b"import", hold.number + 1), peer) is None
    assert (hold.holder.messages, peer.messages) == (0, 1)

    with made.lock:
        made.lose(peer)

    assert (made.leases_of(1), peer.messages, idle) == ((), 0, ["idle"])


def test_the_proof_covers_the_number_and_what_is_wanted(book: Book, peer: Holder) -> None:
    made, handle, _idle = book
    (hold,) = hold_mine(made, handle)
    right = wanted(handle, b"import", hold.number)

    for wrong in (right._replace(hold=0), wanted(handle, b"hold", hold.number)):
        assert status_of(made.admit(peer, CONTEXT, 0, wrong)) is Status.UNKNOWN
    wrong = wanted(handle, b"import")
    assert status_of(made.admit_hold(peer, CONTEXT, wrong)) is Status.UNKNOWN
    assert not isinstance(made.admit_hold(peer, CONTEXT, wanted(handle, b"hold")), Refusal)


def test_own_holds_are_all_or_none(book: Book) -> None:
    made, handle, _idle = book
    never = handle_of(handle.owner, allocation=2)
    changed = handle_of(handle.owner, nbytes=101)
    unknown = handle_of(handle.owner, export=1)

    for bad in (never, changed, unknown):
        assert status_of(made.hold_mine([handle, bad], 0.01)) is Status.UNKNOWN

    assert made.leases_of(1) == ()


def test_messages_of_one_process_are_bounded_and_others_have_room(book: Book, peer: Holder) -> None:
    made, handle, _idle = book
    first, *_ = hold_mine(made, handle, handle)

    assert status_of(made.hold_mine([handle, handle], 0.01)) is Status.FULL
    assert status_of(made.hold_mine([handle] * 4, 60)) is Status.TOO_MANY
    assert made.refuse_more(peer, MAX_HOLDS) is None

    made.release_mine([first.number])

    assert len(hold_mine(made, handle, handle)) == 2


@pytest.mark.parametrize("how", ["ended", "received"])
def test_who_waits_for_room_is_told(book: Book, peer: Holder, how: str) -> None:
    made, handle, _idle = book
    first, *_ = hold_mine(made, *[handle] * MAX_HOLDS)
    answers: list[object] = []
    waiting = threading.Thread(target=lambda: answers.append(made.hold_mine([handle], 20)))
    waiting.start()
    waiting.join(0.1)
    assert answers == []

    if how == "ended":
        made.release_mine([first.number])
    else:
        with made.lock:
            made.receive(wanted(handle, b"import", first.number), peer)
    waiting.join(10)

    assert len(answers) == 1
    assert not isinstance(answers[0], Refusal)


def test_freed_memory_is_held_by_who_has_it_and_nobody_else(book: Book, peer: Holder) -> None:
    made, handle, _idle = book
    admitted = made.admit(peer, CONTEXT, 0, wanted(handle, b"import"))
    assert not isinstance(admitted, Refusal)
    made.retire(1, even_if_leased=True)
    other = Holder(peer.pid + 1, peer.uid)

    assert status_of(made.hold_mine([handle], 0.01)) is Status.STALE
    assert status_of(made.admit_hold(other, CONTEXT, wanted(handle, b"hold"))) is Status.STALE
    assert not isinstance(made.admit_hold(peer, CONTEXT, wanted(handle, b"hold")), Refusal)


def test_an_exit_ends_own_imports_and_waits_for_messages(book: Book, peer: Holder) -> None:
    made, handle, _idle = book
    made.lease_to_myself(handle, 0)
    (hold,) = hold_mine(made, handle)

    assert not made.wait_all_idle(0.01)

    assert made.leases_of(1) == (hold,)
    assert status_of(made.admit(peer, CONTEXT, 0, wanted(handle, b"import"))) is Status.EXITING
    admitted = made.admit(peer, CONTEXT, 0, wanted(handle, b"import", hold.number))
    assert not isinstance(admitted, Refusal)
    made.release_mine([hold.number, admitted[0].number])
    assert made.wait_all_idle(0.01)


def test_observers_are_told_of_holds(peer: Holder) -> None:
    identity = ProcessIdentity.of_this_process()
    observer, registry = Observer(), Registry(Settings())
    registry.register(observer, name="observer")
    made = LeaseBook(identity, registry, MAX_HOLDS)
    handle = handle_of(identity)
    made.publish(Shared(1, None, lambda: None), Export(handle, Allow(), Exported()))

    (mine,) = hold_mine(made, handle)
    made.admit_hold(peer, CONTEXT, wanted(handle, b"hold"))
    made.release_mine([mine.number])
    with made.lock:
        made.lose(peer)
    made.emit_events()

    assert [(one.kind, one.peer_pid) for one in observer.events] == [
        (EventKind.HELD, identity.pid),
        (EventKind.HELD, peer.pid),
        (EventKind.HOLD_ENDED, identity.pid),
        (EventKind.HOLD_LOST, peer.pid),
    ]


def test_a_table_finds_holds_by_everything_that_makes_them(peer: Holder) -> None:
    table = LeaseTable()
    lease = table.give(1, 0, peer)
    hold = table.give(1, 0, peer, in_message=True)

    assert table.find_hold(hold.number, 1, 0) == hold
    for number, allocation, export in (
        (0, 1, 0),
        (lease.number, 1, 0),
        (hold.number, 2, 0),
        (hold.number, 1, 1),
    ):
        assert table.find_hold(number, allocation, export) is None
    assert peer.messages == 1
    assert table.is_held_by(peer, 1)
    assert not table.is_held_by(peer, 2)


def test_who_holds_is_said_in_words() -> None:
    def lease(pid: int, *, in_message: bool = False) -> Lease:
        return Lease(pid, 1, 0, Holder(pid, 0), 0.0, in_message)

    assert name_holders([lease(12), lease(3), lease(3)]) == "process 3, 12"
    assert (
        name_holders([lease(4), lease(7, in_message=True)])
        == "process 4 and a message of process 7 that nobody received"
    )
