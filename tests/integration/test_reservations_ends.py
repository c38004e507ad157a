# SPDX-License-Identifier: Apache-2.0
"""Messages under way whose sender, receiver or exporter dies, exits or is slow; and too many."""

import os
import signal
import time
from typing import TYPE_CHECKING

import pytest

import crossmem
from crossmem.conformance import actions, forks
from crossmem.conformance.peers import Peer
from crossmem.conformance.pool import settle

if TYPE_CHECKING:
    from tests.integration import lease_actions, reservation_actions
    from tests.integration.conftest import StartPeer
    from tests.integration.reservation_actions import comes_to, is_all_free, leases_of
else:
    import lease_actions
    import reservation_actions
    from reservation_actions import comes_to, is_all_free, leases_of

NBYTES = 4096

Message = list[tuple[bytes, int]]


def make_chain(exporter: Peer, sender: Peer) -> tuple[Peer, Peer, Message]:
    blob = exporter.call(actions.offer, "memory", NBYTES, b"data")
    sender.call(actions.attach, "mapped", blob)
    message = sender.call(reservation_actions.put, ["mapped"], drop=True)
    exporter.call(actions.free, "memory")
    assert comes_to(exporter, (sender.pid, True))
    return exporter, sender, message


@pytest.fixture
def chain(start_peer: "StartPeer") -> tuple[Peer, Peer, Message]:
    """An exporter that freed its memory, and another process whose message alone reserves it."""
    return make_chain(start_peer(), start_peer())


# Somebody dies ----------------------------------------------------------------------------------


def test_a_hold_ends_with_its_sender(
    chain: tuple[Peer, Peer, Message], start_peer: "StartPeer"
) -> None:
    exporter, sender, message = chain
    receiver = start_peer()
    sender.kill()

    assert comes_to(exporter)
    assert is_all_free(exporter)
    with pytest.raises(crossmem.StaleHandleError):
        receiver.call(reservation_actions.get, ["late"], message)


@pytest.mark.parametrize("with_handlers", [False, True], ids=["c-fork", "os.fork"])
def test_a_forked_child_of_the_sender_holds_nothing(
    start_peer: "StartPeer", *, with_handlers: bool
) -> None:
    exporter, sender, _message = make_chain(start_peer(), start_peer(fresh=True))
    child = sender.call(forks.sleeping_child, with_handlers=with_handlers)
    try:
        sender.kill()

        assert comes_to(exporter)
        assert is_all_free(exporter)
    finally:
        os.kill(child, signal.SIGKILL)


def test_a_forked_child_of_the_exporter_receives_like_anybody(start_peer: "StartPeer") -> None:
    sender = start_peer(fresh=True)
    sender.call(actions.offer, "memory", NBYTES, b"data")
    message = sender.call(reservation_actions.put, ["memory"], drop=True)

    assert sender.call(forks.in_child, reservation_actions.get_and_drop, message) == [b"data"]

    assert comes_to(sender)
    assert is_all_free(sender)


def test_what_is_received_outlives_the_sender(
    chain: tuple[Peer, Peer, Message], start_peer: "StartPeer"
) -> None:
    exporter, sender, message = chain
    receiver = start_peer()
    receiver.call(reservation_actions.get, ["mapped"], message)
    sender.kill()

    assert receiver.call(actions.read, "mapped", 4) == b"data"
    assert comes_to(exporter, (receiver.pid, False))


def test_a_receiver_that_is_killed_in_the_middle_leaves_nothing(
    chain: tuple[Peer, Peer, Message], start_peer: "StartPeer"
) -> None:
    exporter, sender, ((blob, number),) = chain
    receiver = start_peer()
    receiver.call(lease_actions.request_and_wait, blob, number)
    # It holds nothing yet, and has not ended the reservation, which is its own from now on.
    assert comes_to(exporter, (receiver.pid, True))
    sender.kill()
    assert comes_to(exporter, (receiver.pid, True))

    receiver.kill()

    assert comes_to(exporter)
    assert is_all_free(exporter)


def test_what_a_receiver_ended_before_it_was_killed_is_ended(start_peer: "StartPeer") -> None:
    exporter, receiver = start_peer(), start_peer()
    blob = exporter.call(actions.offer, "memory", NBYTES, b"data")
    receiver.call(actions.attach, "mapped", blob)
    messages = [exporter.call(reservation_actions.put, ["memory"]) for _ in range(5)]
    exporter.stop()
    # It has the memory open, so it only sends that each reservation ends.
    for message in messages:
        receiver.call(reservation_actions.get, ["again"], message)
    receiver.kill()
    exporter.cont()

    assert comes_to(exporter)


def test_a_message_is_received_late_where_its_receiver_gave_up_waiting(
    chain: tuple[Peer, Peer, Message], start_peer: "StartPeer"
) -> None:
    exporter, _sender, message = chain
    receiver = start_peer()
    blob = exporter.call(actions.offer, "other", NBYTES)
    receiver.call(actions.attach, "other", blob)
    exporter.stop()
    with pytest.raises(crossmem.OwnerUnresponsiveError):
        receiver.call(reservation_actions.get, ["mapped"], message, timeout=0.2)
    exporter.cont()
    assert comes_to(exporter, (receiver.pid, True), (receiver.pid, False))

    assert receiver.call(reservation_actions.get, ["mapped"], message) == [b"data"]

    assert comes_to(exporter, (receiver.pid, False), (receiver.pid, False))


def test_an_exporter_that_does_not_answer_holds_nothing(
    start_peer: "StartPeer",
) -> None:
    exporter, sender = start_peer(), start_peer()
    blob = exporter.call(actions.offer, "memory", NBYTES)
    sender.call(actions.attach, "mapped", blob)
    exporter.stop()
    with pytest.raises(crossmem.OwnerUnresponsiveError):
        sender.call(reservation_actions.put, ["mapped"], timeout=0.2)
    exporter.cont()

    assert comes_to(exporter, (sender.pid, False))
    assert len(sender.call(reservation_actions.put, ["mapped"])) == 1


# An exporter exits ------------------------------------------------------------------------------


def test_a_sender_that_exits_waits_for_its_messages(start_peer: "StartPeer") -> None:
    sender, receiver = start_peer(fresh=True, CROSSMEM_EXIT_WAIT="60"), start_peer()
    message = sender.call(reservation_actions.send_and_forget, NBYTES)
    sender.request_exit()

    def not_refused() -> list[str]:
        # The memory was freed. That it exits is what it says first, once it does.
        with pytest.raises((crossmem.StaleHandleError, crossmem.OwnerGoneError)) as caught:
            receiver.call(actions.attach, "without the reservation", message[0][0])
        return [] if isinstance(caught.value, crossmem.OwnerGoneError) else ["stale"]

    assert settle(not_refused) == []
    assert sender.exitcode is None

    assert receiver.call(reservation_actions.get_and_drop, message) == [b"data"]

    assert sender.wait_exit(within=30) == 0
    assert "exiting while" not in sender.output()


def test_a_sender_does_not_wait_for_ever(start_peer: "StartPeer") -> None:
    sender, receiver = start_peer(fresh=True, CROSSMEM_EXIT_WAIT="0.5"), start_peer()
    message = sender.call(reservation_actions.send_and_forget, NBYTES)
    start = time.monotonic()

    output = sender.exit()

    assert time.monotonic() - start >= 0.5
    assert f"leased by an unreceived message of process {sender.pid}" in output
    assert "Traceback" not in output
    with pytest.raises(crossmem.OwnerGoneError):
        receiver.call(reservation_actions.get, ["late"], message)


# Numbers that are none --------------------------------------------------------------------------


def test_forged_numbers_give_nothing(
    chain: tuple[Peer, Peer, Message], start_peer: "StartPeer"
) -> None:
    exporter, sender, ((blob, number),) = chain
    receiver = start_peer()
    other = exporter.call(actions.offer, "other", NBYTES, b"else")
    ((_, of_other),) = exporter.call(reservation_actions.put, ["other"])

    for forged in (0, 1, number ^ 1, 2**64 - 1, of_other):
        with pytest.raises(crossmem.StaleHandleError):
            receiver.call(reservation_actions.get, ["never"], [(blob, forged)])
    for nonsense in (-1, 2**64, 1.5, None, True, b"12345678"):
        with pytest.raises(crossmem.InvalidHandleError, match="a reservation number is"):
            receiver.call(reservation_actions.get, ["never"], [(blob, nonsense)])

    assert leases_of(exporter) == [(sender.pid, True), (exporter.pid, True)]
    assert receiver.call(reservation_actions.get_and_drop, [(other, 7)]) == [b"else"]
    assert comes_to(exporter, (sender.pid, True), (exporter.pid, True))
    assert receiver.call(reservation_actions.get, ["mapped"], [(blob, number)]) == [b"data"]


def test_the_number_of_an_import_is_not_that_of_a_message(start_peer: "StartPeer") -> None:
    exporter, importer, receiver = start_peer(), start_peer(), start_peer()
    blob = exporter.call(actions.offer, "memory", NBYTES, b"data")
    number = importer.call(reservation_actions.attach_and_tell, "mapped", blob)
    exporter.call(actions.free, "memory")

    with pytest.raises(crossmem.StaleHandleError):
        receiver.call(reservation_actions.get, ["never"], [(blob, number)])
    assert leases_of(exporter) == [(importer.pid, False)]


def test_a_number_of_another_export_gives_nothing(start_peer: "StartPeer") -> None:
    exporter, receiver = start_peer(), start_peer()
    for_all = exporter.call(actions.offer, "memory", NBYTES, b"data")
    readonly = exporter.call(actions.export, "memory", access="ro")
    numbers = exporter.call(reservation_actions.put_bytes, readonly)
    exporter.call(actions.free, "memory")

    with pytest.raises(crossmem.StaleHandleError):
        receiver.call(reservation_actions.get, ["never"], [(for_all, numbers[0][1])])
    receiver.call(reservation_actions.get, ["mapped"], numbers)
    assert receiver.call(actions.attribute, "mapped", "readonly")


def test_who_is_not_admitted_receives_nothing(start_peer: "StartPeer") -> None:
    exporter, friend, stranger = start_peer(), start_peer(), start_peer()
    exporter.call(actions.allocate, "memory", NBYTES)
    allow = crossmem.Allow(pids=[friend.pid])
    blob = exporter.call(actions.export, "memory", allow=allow)
    message = exporter.call(reservation_actions.put_bytes, blob)
    with pytest.raises(crossmem.AccessDeniedError):
        stranger.call(reservation_actions.put_bytes, blob)
    exporter.call(actions.free, "memory")

    with pytest.raises(crossmem.AccessDeniedError):
        stranger.call(reservation_actions.get, ["never"], message)
    assert leases_of(exporter) == [(exporter.pid, True)]
    friend.call(reservation_actions.get, ["mapped"], message)


# Too many ---------------------------------------------------------------------------------------


def test_a_sender_waits_for_room_in_its_own_book(start_peer: "StartPeer") -> None:
    sender, receiver = start_peer(CROSSMEM_MAX_RESERVATIONS="3"), start_peer()
    sender.call(actions.offer, "memory", NBYTES, b"data")
    messages = [sender.call(reservation_actions.put, ["memory"]) for _ in range(3)]

    ended, after_s = sender.call(reservation_actions.put_for, "memory", 0.3)

    assert ended.startswith("BusyError: ")
    assert f"messages of process {sender.pid} reserve 3 exports already; at most 3 are" in ended
    assert "CROSSMEM_MAX_RESERVATIONS" in ended
    assert 0.3 <= after_s < 13

    waiting = sender.start(reservation_actions.put_for, "memory", 30)
    time.sleep(0.2)
    assert not waiting.is_done()
    receiver.call(reservation_actions.get_and_drop, messages[0])
    assert waiting.result()[0] == "sent"

    waiting = sender.start(reservation_actions.put_for, "memory", 30)
    receiver.call(reservation_actions.throw_away, messages[1])
    assert waiting.result()[0] == "sent"
    assert leases_of(sender) == [(sender.pid, True)] * 3


def test_a_sender_waits_for_room_at_another_exporter(start_peer: "StartPeer") -> None:
    exporter, sender, other = start_peer(CROSSMEM_MAX_RESERVATIONS="2"), start_peer(), start_peer()
    blob = exporter.call(actions.offer, "memory", NBYTES, b"data")
    sender.call(actions.attach, "mapped", blob)
    messages = [sender.call(reservation_actions.put, ["mapped"]) for _ in range(2)]

    ended, after_s = sender.call(reservation_actions.put_for, "mapped", 0.3)

    assert ended.startswith(f"BusyError: process {exporter.pid} reserves nothing more")
    assert f"messages of process {sender.pid} reserve 2 exports already; at most 2 are" in ended
    assert 0.2 <= after_s < 13
    # Each sender has room of its own.
    assert len(exporter.call(reservation_actions.put, ["memory"])) == 1

    waiting = sender.start(reservation_actions.put_for, "mapped", 30)
    time.sleep(0.2)
    assert not waiting.is_done()
    other.call(reservation_actions.get_and_drop, messages[0])
    assert waiting.result()[0] == "sent"


def test_threads_that_wait_for_room_all_come_through(start_peer: "StartPeer") -> None:
    # Who is never the first to find room waits until the others are done.
    exporter = start_peer(CROSSMEM_MAX_RESERVATIONS="2", CROSSMEM_TIMEOUT="90")
    other = start_peer(CROSSMEM_TIMEOUT="90")
    blob = exporter.call(actions.offer, "memory", NBYTES, b"data")

    working = [
        one.start(
            actions.in_threads, 6, reservation_actions.send_over_and_over, blob, 60, within=100
        )
        for one in (exporter, other)
    ]

    assert [one.result() for one in working] == [[None] * 6] * 2
    assert comes_to(exporter)
    exporter.call(actions.free, "memory", busy="raise")
    for one in (exporter, other):
        assert one.call(actions.violations) == []


def test_a_message_that_never_fits_is_refused_at_once(start_peer: "StartPeer") -> None:
    exporter, sender = start_peer(CROSSMEM_MAX_RESERVATIONS="2"), start_peer()
    names = exporter.call(reservation_actions.offer_many, 3, NBYTES)
    sender.call(actions.attach_many, names, [exporter.call(actions.export, n) for n in names])
    start = time.monotonic()

    for one in (exporter, sender):
        with pytest.raises(crossmem.BusyError, match="makes 3 reservations; at most 2 are allowed"):
            one.call(reservation_actions.put, names)

    assert time.monotonic() - start < 20
    assert leases_of(exporter) == [(sender.pid, False)] * 3


# Leaks ------------------------------------------------------------------------------------------


def test_no_descriptor_is_left_by_many_messages(start_peer: "StartPeer") -> None:
    exporter, between, receiver = start_peer(), start_peer(), start_peer()
    blob = exporter.call(actions.offer, "memory", NBYTES, b"data")
    between.call(actions.attach, "mapped", blob)

    def send_some() -> None:
        for _ in range(20):
            for sender, name in ((exporter, "memory"), (between, "mapped")):
                message = sender.call(reservation_actions.put, [name])
                assert receiver.call(reservation_actions.get_and_drop, message) == [b"data"]
        between.call(
            reservation_actions.throw_away, between.call(reservation_actions.put, ["mapped"])
        )

    send_some()
    assert comes_to(exporter, (between.pid, False))
    before = [one.call(actions.state) for one in (exporter, between, receiver)]
    send_some()
    assert comes_to(exporter, (between.pid, False))

    assert [one.call(actions.state) for one in (exporter, between, receiver)] == before
