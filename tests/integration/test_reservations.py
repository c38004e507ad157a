# SPDX-License-Identifier: Apache-2.0
"""Messages reserve the memory they speak of: who drops it after sending loses nothing."""

from typing import TYPE_CHECKING

import pytest

import crossmem
from crossmem.conformance import actions
from crossmem.conformance.speed import SLOWNESS
from crossmem.models import ProcessIdentity
from crossmem.sharing.importer import messages as reservations

if TYPE_CHECKING:
    from tests.integration import lease_actions, reservation_actions
    from tests.integration.conftest import StartPeer
    from tests.integration.reservation_actions import comes_to, is_all_free, leases_of
else:
    import lease_actions
    import reservation_actions
    from reservation_actions import comes_to, is_all_free, leases_of

NBYTES = 4096


# Sent, dropped, received ------------------------------------------------------------------------


def test_memory_that_is_freed_after_sending_is_received(start_peer: "StartPeer") -> None:
    sender, receiver = start_peer(), start_peer()
    sender.call(actions.offer, "memory", NBYTES, b"data")
    message = sender.call(reservation_actions.put, ["memory"], drop=True)

    (info,) = sender.call(actions.exports)
    assert info.waiting
    assert leases_of(sender) == [(sender.pid, True)]
    with pytest.raises(crossmem.StaleHandleError):
        receiver.call(actions.attach, "without the reservation", message[0][0])

    assert receiver.call(reservation_actions.get, ["mapped"], message) == [b"data"]

    assert comes_to(sender, (receiver.pid, False))
    receiver.call(actions.unmap, "mapped")
    assert is_all_free(sender)
    assert leases_of(sender) == []


def test_the_reservation_ends_when_it_is_received_and_not_with_a_later_call(
    start_peer: "StartPeer",
) -> None:
    sender, receiver = start_peer(), start_peer()
    sender.call(actions.offer, "memory", NBYTES, b"data")
    message = sender.call(reservation_actions.put, ["memory"])
    receiver.call(reservation_actions.get, ["mapped"], message)

    # The receiver does nothing any more.
    assert comes_to(sender, (receiver.pid, False))


def test_a_receiver_that_has_the_memory_open_asks_nobody(start_peer: "StartPeer") -> None:
    sender, receiver = start_peer(), start_peer()
    blob = sender.call(actions.offer, "memory", NBYTES, b"data")
    receiver.call(actions.attach, "mapped", blob)
    message = sender.call(reservation_actions.put, ["memory"], drop=True)
    before = receiver.call(actions.calls)
    sender.stop()

    assert receiver.call(reservation_actions.get, ["again"], message) == [b"data"]

    after = receiver.call(actions.calls)
    assert after.get("import_") == before.get("import_")
    assert after.get("map") == before.get("map")
    sender.cont()
    assert comes_to(sender, (receiver.pid, False))


def test_one_message_for_several_consumers(start_peer: "StartPeer") -> None:
    sender, first, second = start_peer(), start_peer(), start_peer()
    sender.call(actions.offer, "memory", NBYTES, b"data")
    message = sender.call(reservation_actions.put, ["memory"])

    assert first.call(reservation_actions.get, ["mapped"], message) == [b"data"]
    assert comes_to(sender, (first.pid, False))
    assert second.call(reservation_actions.get, ["mapped"], message) == [b"data"]

    assert sorted(leases_of(sender)) == sorted([(first.pid, False), (second.pid, False)])
    sender.call(actions.free, "memory")
    first.call(actions.unmap, "mapped")
    second.call(actions.unmap, "mapped")
    assert is_all_free(sender)


def test_only_the_first_consumer_gets_what_was_freed(start_peer: "StartPeer") -> None:
    sender, first, second = start_peer(), start_peer(), start_peer()
    sender.call(actions.offer, "memory", NBYTES, b"data")
    message = sender.call(reservation_actions.put, ["memory"], drop=True)
    first.call(reservation_actions.get, ["mapped"], message)
    assert comes_to(sender, (first.pid, False))

    with pytest.raises(crossmem.StaleHandleError):
        second.call(reservation_actions.get, ["mapped"], message)


def test_several_messages_with_the_same_memory(start_peer: "StartPeer") -> None:
    sender, receiver = start_peer(), start_peer()
    sender.call(actions.offer, "memory", NBYTES, b"data")
    messages = [sender.call(reservation_actions.put, ["memory"]) for _ in range(3)]
    sender.call(actions.free, "memory")
    assert leases_of(sender) == [(sender.pid, True)] * 3

    for left in (2, 1, 0):
        assert receiver.call(reservation_actions.get_and_drop, messages.pop()) == [b"data"]
        assert comes_to(sender, *[(sender.pid, True)] * left)
    assert is_all_free(sender)


def test_a_message_with_much_memory_of_two_exporters(start_peer: "StartPeer") -> None:
    one, two, receiver = start_peer(), start_peer(), start_peer()
    names = one.call(reservation_actions.offer_many, 300, NBYTES)
    far = two.call(actions.offer, "far", NBYTES, b"far!")
    one.call(actions.attach, "far", far)
    message = one.call(reservation_actions.put, [*names, "far"], drop=True)
    two.call(actions.free, "far")
    assert leases_of(two) == [(one.pid, True)]

    found = receiver.call(reservation_actions.get, [str(n) for n in range(301)], message)

    assert found == [b"data"] * 300 + [b"far!"]
    assert comes_to(two, (receiver.pid, False))
    assert comes_to(one, *[(receiver.pid, False)] * 300)
    receiver.call(actions.reset)
    assert is_all_free(one)
    assert is_all_free(two)


def test_a_process_receives_its_own_message(start_peer: "StartPeer") -> None:
    sender = start_peer()

    assert sender.call(reservation_actions.send_to_myself, NBYTES) == (
        b"mine",
        b"mine",
        [False, True],
        0,
    )
    assert sender.call(actions.violations) == []


def test_parts_of_memory_are_held_too(start_peer: "StartPeer") -> None:
    sender, receiver = start_peer(), start_peer()
    blob = sender.call(actions.offer, "memory", NBYTES, b"....data")
    ((_, number),) = sender.call(reservation_actions.put, ["memory"], drop=True)
    part = crossmem.ShareableHandle.from_bytes(blob).slice(4, 4).to_bytes()

    found = receiver.call(
        reservation_actions.get, ["a", "b", "c"], [(blob, 0), (part, number), (part, 0)]
    )

    assert found == [b"....", b"data", b"data"]
    assert comes_to(sender, (receiver.pid, False))


def test_parts_of_own_memory_are_received(start_peer: "StartPeer") -> None:
    sender = start_peer()
    blob = sender.call(actions.offer, "memory", NBYTES, b"data")
    ((_, one),) = sender.call(reservation_actions.put, ["memory"])
    ((_, two),) = sender.call(reservation_actions.put, ["memory"], drop=True)
    message = [(blob, 0), (blob, one), (blob, two)]

    assert sender.call(reservation_actions.get, ["a", "b", "c"], message) == [b"data"] * 3

    assert leases_of(sender) == [(sender.pid, False)]
    sender.call(actions.unmap, "a", "b", "c")
    assert is_all_free(sender)


# Sent on ----------------------------------------------------------------------------------------


def test_what_was_received_is_sent_on(start_peer: "StartPeer") -> None:
    exporter, between, receiver = start_peer(), start_peer(), start_peer()
    exporter.call(actions.offer, "memory", NBYTES, b"data")
    message = exporter.call(reservation_actions.put, ["memory"], drop=True)
    between.call(reservation_actions.get, ["mapped"], message)
    sent_on = between.call(reservation_actions.put, ["mapped"])
    assert comes_to(exporter, (between.pid, False), (between.pid, True))
    between.call(actions.unmap, "mapped")
    assert comes_to(exporter, (between.pid, True))

    assert receiver.call(reservation_actions.get, ["mapped"], sent_on) == [b"data"]

    assert comes_to(exporter, (receiver.pid, False))
    receiver.call(actions.unmap, "mapped")
    assert is_all_free(exporter)


def test_what_was_received_is_sent_back_to_its_owner(start_peer: "StartPeer") -> None:
    exporter, between = start_peer(), start_peer()
    exporter.call(actions.offer, "memory", NBYTES, b"data")
    message = exporter.call(reservation_actions.put, ["memory"], drop=True)
    between.call(reservation_actions.get, ["mapped"], message)
    back = between.call(reservation_actions.put, ["mapped"], drop=True)

    assert exporter.call(reservation_actions.get, ["mapped"], back) == [b"data"]

    assert comes_to(exporter, (exporter.pid, False))
    exporter.call(actions.unmap, "mapped")
    assert is_all_free(exporter)


def test_who_does_not_hold_freed_memory_cannot_send_it(start_peer: "StartPeer") -> None:
    exporter, holder, other = start_peer(), start_peer(), start_peer()
    blob = exporter.call(actions.offer, "memory", NBYTES, b"data")
    holder.call(actions.attach, "mapped", blob)
    exporter.call(actions.free, "memory")

    with pytest.raises(crossmem.StaleHandleError):
        other.call(reservation_actions.put_bytes, blob)
    with pytest.raises(crossmem.StaleHandleError):
        exporter.call(reservation_actions.put_bytes, blob)
    assert leases_of(exporter) == [(holder.pid, False)]


def test_a_raw_handle_cannot_be_held() -> None:
    raw = crossmem.ShareableHandle(
        backend="emulated",
        mechanism="memfd",
        device="host:0",
        allocation=1,
        export=0,
        secret=bytes(16),
        owner=ProcessIdentity.of_this_process(),
        nbytes=NBYTES,
        capacity=NBYTES,
        access="rw",
        raw=b"vendor",
    )

    with pytest.raises(crossmem.UnsupportedError, match="no leases"):
        reservations.reserve([raw])


# Not received -----------------------------------------------------------------------------------


@pytest.mark.parametrize("who", ["sender", "stranger", "receiver"])
def test_a_message_is_discarded(start_peer: "StartPeer", who: str) -> None:
    exporter, between = start_peer(), start_peer()
    by = {"sender": between, "stranger": start_peer(), "receiver": exporter}[who]
    blob = exporter.call(actions.offer, "memory", NBYTES, b"data")
    between.call(actions.attach, "mapped", blob)
    message = between.call(reservation_actions.put, ["mapped"], drop=True)
    exporter.call(actions.free, "memory")
    assert comes_to(exporter, (between.pid, True))

    by.call(reservation_actions.throw_away, message)
    by.call(reservation_actions.throw_away, message)

    assert comes_to(exporter)
    assert is_all_free(exporter)
    with pytest.raises(crossmem.StaleHandleError):
        by.call(reservation_actions.get, ["late"], message)


def test_a_message_is_discarded_over_a_new_connection(start_peer: "StartPeer") -> None:
    exporter, sender = start_peer(), start_peer()
    blob = exporter.call(actions.offer, "memory", NBYTES)
    sender.call(actions.attach, "mapped", blob)
    message = sender.call(reservation_actions.put, ["mapped"])
    assert sender.call(lease_actions.break_connections) == 1

    sender.call(reservation_actions.throw_away, message)

    assert comes_to(exporter, (sender.pid, False))


def test_a_message_of_a_dead_exporter_is_discarded_without_complaint(
    start_peer: "StartPeer",
) -> None:
    exporter, other = start_peer(), start_peer()
    exporter.call(actions.offer, "memory", NBYTES)
    message = exporter.call(reservation_actions.put, ["memory"])
    exporter.kill()

    other.call(reservation_actions.throw_away, message)
    with pytest.raises(crossmem.OwnerGoneError):
        other.call(reservation_actions.get, ["late"], message)


def test_memory_is_not_freed_under_a_message(start_peer: "StartPeer") -> None:
    sender, receiver = start_peer(), start_peer()
    sender.call(actions.offer, "memory", NBYTES, b"data")
    message = sender.call(reservation_actions.put, ["memory"])

    with pytest.raises(crossmem.BusyError, match=f"an unreceived message of process {sender.pid}"):
        sender.call(actions.free, "memory", busy="raise")

    receiver.call(reservation_actions.get_and_drop, message)
    sender.call(actions.free, "memory", busy="wait", timeout=2 * SLOWNESS)


def test_a_batch_that_cannot_be_received_keeps_its_reservations(start_peer: "StartPeer") -> None:
    sender, receiver = start_peer(), start_peer()
    names = sender.call(reservation_actions.offer_many, 3, NBYTES)
    message = sender.call(reservation_actions.put, names, drop=True)
    spoiled = [*message[:2], (message[2][0], 12345)]

    with pytest.raises(crossmem.StaleHandleError):
        receiver.call(reservation_actions.get, names, spoiled)

    assert sum(in_message for _pid, in_message in leases_of(sender)) == 3
    assert receiver.call(reservation_actions.get, names, message) == [b"data"] * 3
