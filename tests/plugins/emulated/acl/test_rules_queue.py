# SPDX-License-Identifier: Apache-2.0
"""ACL-Q1 to Q17 and Q41: queues of one process, or of one memory group."""

import signal
import time
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.plugins.emulated.acl.acl_actor import Actor, differs, emulation_only, ok
    from tests.plugins.emulated.acl.conftest import Members, Start
    from tests.plugins.emulated.acl.tdt_actions import (
        DEPTH,
        FOR_EVER,
        contents,
        get_data,
        new_buffer,
        new_queue,
        number_at,
        on_device,
        on_host,
        put_data,
    )
else:
    from acl_actor import Actor, differs, emulation_only, ok
    from tdt_actions import (
        DEPTH,
        FOR_EVER,
        contents,
        get_data,
        new_buffer,
        new_queue,
        number_at,
        on_device,
        on_host,
        put_data,
    )

    Members = Start = Any

pytestmark = emulation_only

DEVICES = "310b-rc 310b-rc-driver"
QUEUES = 4096


def attr_of(acl: Actor, depth: int) -> int:
    attr = int(acl.tdt.create_queue_attr())
    ok(acl.tdt.set_queue_attr(attr, DEPTH, 4, number_at(acl, depth)))
    return attr


# Creation -----------------------------------------------------------------------------------


@differs({"documented 310b-rc": 107000})
@pytest.mark.parametrize("depth", [0, 1])
def test_q1_a_queue_is_at_least_two_deep(acl: Actor, depth: int, code: int) -> None:
    assert acl.tdt.create_queue(attr_of(acl, depth)) == (0, code)
    acl.check_broken("ACL-Q1")


@differs({"a2": 107000})
def test_q2_a_queue_is_not_too_deep(acl: Actor, code: int) -> None:
    assert acl.tdt.create_queue(attr_of(acl, 8193)) == (0, code)
    acl.check_broken("ACL-Q2")
    assert acl.tdt.create_queue(attr_of(acl, 8192)) == (0, 0)


@differs({"documented": 207014})
def test_q3_a_queue_holds_one_less_than_its_depth(acl: Actor, code: int) -> None:
    for depth, room in ((2, 1), (0, 7)):
        qid = new_queue(acl, depth)
        assert [put_data(acl, qid, b"data") for _ in range(room + 1)] == [0] * room + [code]
        ok(get_data(acl, qid))
        ok(put_data(acl, qid, b"data"))


@differs({"310b-rc": 500001})
def test_q3_a_full_queue_of_buffers(acl: Actor, code: int) -> None:
    qid = new_queue(acl, 3)
    answers = [acl.tdt.enqueue(qid, new_buffer(acl), 0) for _ in range(3)]

    assert answers == [0, 0, code]


@differs({"310b-rc": 207012})
def test_q4_there_are_so_many_queues(acl: Actor, code: int) -> None:
    made = acl.call("run", "tdt_actions", "create_queues", QUEUES + 1)

    assert made == [(qid, 0) for qid in range(QUEUES)] + [(0, code)]


@differs({"documented": 0, "310b-rc": 0})
def test_q5_names_are_not_unique(acl: Actor, code: int) -> None:
    names = (b"same", b"same", b"", b"")
    made = [new_queue(acl, 2, name) for name in names]

    assert len(set(made)) == len(names) + code


@differs({"310b-rc": 0})
def test_q6_an_id_is_reused_last(acl: Actor, code: int) -> None:
    acl.call("run", "tdt_actions", "create_queues", QUEUES - 1)
    acl.call("run", "tdt_actions", "destroy_queues", QUEUES - 1)

    assert [acl.tdt.create_queue(0) for _ in range(2)] == [(QUEUES - 1, code), (0, code)]


# The end of queues --------------------------------------------------------------------------


@differs({"documented": 0, "a2": 0})
def test_q8_destroying_what_is_not_there(acl: Actor, code: int) -> None:
    qid = new_queue(acl)

    assert [acl.tdt.destroy_queue(one) for one in (qid, qid, 99)] == [code] * 3
    acl.check_broken()


@differs({"310b-rc": 507899})
def test_q9_a_destroyed_queue_frees_its_elements(members: Members, code: int) -> None:
    (first,) = members(1)
    free = first.free_nbytes
    qid = new_queue(first)
    for _ in range(3):
        ok(first.tdt.enqueue(qid, new_buffer(first), 0))
    assert first.free_nbytes < free
    ok(first.tdt.destroy_queue(qid))

    assert first.free_nbytes == free
    assert first.tdt.dequeue(qid, 0) == (0, code)
    assert first.call("memory_held") == 0


@differs({"310b-rc": 507899})
@pytest.mark.parametrize("timeout_ms", [FOR_EVER, 20_000])
def test_q9_waits_end_with_the_queue(members: Members, timeout_ms: int, code: int) -> None:
    first, second = members(2)
    qid = new_queue(first)
    ok(first.tdt.grant_queue(qid, second.pid, 7, 0))
    ok(second.tdt.attach_queue(qid, 0))
    second.begin("acl.tdt.dequeue", qid, timeout_ms)
    time.sleep(0.05)
    ok(first.tdt.destroy_queue(qid))

    assert second.result() == (0, code)


@differs({"310b-rc": 107000})
def test_q10_ids_are_small(members: Members, code: int) -> None:
    (acl,) = members(1)
    place, buffer = acl.call("buffer", bytes(8)), new_buffer(acl)

    assert acl.tdt.destroy_queue(QUEUES) == code
    assert acl.tdt.enqueue(QUEUES, buffer, 0) == code
    assert acl.tdt.dequeue(QUEUES, 0) == (0, code)
    assert acl.tdt.enqueue_data(QUEUES, place, 8, 0, 0, 0, 0) == code
    assert acl.tdt.dequeue_data(QUEUES, place, 8, 0, 0, 0) == (0, code)
    assert acl.tdt.grant_queue(QUEUES, acl.pid, 7, 0) == code
    assert acl.tdt.attach_queue(QUEUES, 0) == (0, code)
    acl.check_broken(*["ACL-Q10"] * 7)


@differs({"documented": 507899, "310b-rc": 507899})
def test_q11_queues_that_are_not_there(acl: Actor, start: Start, code: int) -> None:
    destroyed = new_queue(acl)
    ok(acl.tdt.destroy_queue(destroyed))
    other = start()
    foreign = new_queue(other)

    for qid in (99, destroyed, foreign):
        assert put_data(acl, qid, b"data") == code
        assert get_data(acl, qid) == (b"", code)
    acl.check_broken()


# Timeouts -----------------------------------------------------------------------------------


def took_s(since: float) -> float:
    return time.monotonic() - since


@differs(dict.fromkeys(DEVICES.split(), 500001))
def test_q12_waits_for_buffers(acl: Actor, code: int) -> None:
    qid, buffer = new_queue(acl, 2), new_buffer(acl)
    began = time.monotonic()
    assert acl.tdt.dequeue(qid, 0) == (0, code)
    assert acl.tdt.dequeue(qid, 50) == (0, code)
    assert took_s(began) >= 0.05
    ok(acl.tdt.enqueue(qid, buffer, 0))
    further = new_buffer(acl)
    began = time.monotonic()
    assert acl.tdt.enqueue(qid, further, 50) == code
    assert took_s(began) >= 0.05
    # It is still the caller's.
    ok(acl.tdt.free_buf(further))
    acl.check_broken()


@differs({"310b-rc": 500001})
def test_q12_a_wait_ends_with_an_element(members: Members, code: int) -> None:
    producer, consumer = members(2)
    qid = new_queue(producer, 2)
    ok(producer.tdt.grant_queue(qid, consumer.pid, 7, 0))
    ok(consumer.tdt.attach_queue(qid, 0))
    consumer.begin("acl.tdt.dequeue", qid, FOR_EVER)
    ok(producer.tdt.enqueue(qid, new_buffer(producer, b"first"), 0))
    assert contents(consumer, ok(consumer.result())) == b"first"
    ok(producer.tdt.enqueue(qid, new_buffer(producer, b"second"), 0))
    third = new_buffer(producer, b"third")
    assert producer.tdt.enqueue(qid, third, 0) == code
    producer.begin("acl.tdt.enqueue", qid, third, FOR_EVER)
    taken = [ok(consumer.tdt.dequeue(qid, FOR_EVER)) for _ in range(2)]

    ok(producer.result())
    assert [contents(consumer, one) for one in taken] == [b"second", b"third"]


@differs({"documented 310b-rc": 207014})
def test_q13_a_full_queue_of_data(acl: Actor, code: int) -> None:
    qid = new_queue(acl, 2)
    ok(put_data(acl, qid, b"data"))
    began = time.monotonic()

    assert put_data(acl, qid, b"data", 0) == code
    assert put_data(acl, qid, b"data", 50) == code
    assert took_s(began) >= 0.05


@differs({"a2 310b-rc-driver": 207013})
def test_q13_an_empty_queue_of_data(acl: Actor, code: int) -> None:
    qid = new_queue(acl)
    began = time.monotonic()

    assert get_data(acl, qid, 0) == (b"", code)
    assert get_data(acl, qid, 50) == (b"", code)
    assert took_s(began) >= 0.05


@differs({"documented": 507899, "a2": 507899})
def test_q14_a_device_that_does_not_answer(acl: Actor, code: int) -> None:
    qid = new_queue(acl)
    acl.call("fail", "tdt.enqueue_data", code, {})
    acl.call("fail", "tdt.create_queue", code, {})

    assert put_data(acl, qid, b"data", FOR_EVER) == code
    assert acl.tdt.create_queue(0) == (0, code)
    ok(put_data(acl, qid, b"data"))


# Two at once, and deaths --------------------------------------------------------------------


@differs({"310b-rc": 507899})
def test_q15_another_process_is_in_the_queue(acl: Actor, code: int) -> None:
    qid, buffer = new_queue(acl), new_buffer(acl)
    for call in ("tdt.enqueue", "tdt.dequeue"):
        acl.call("fail", call, code, {"count": 2})

    assert [acl.tdt.enqueue(qid, buffer, FOR_EVER) for _ in range(3)] == [code, code, 0]
    assert [acl.tdt.dequeue(qid, FOR_EVER)[1] for _ in range(3)] == [code, code, 0]
    acl.check_broken()


@differs({"310b-rc": 507899})
def test_q16_a_process_dies_in_the_queue(members: Members, code: int) -> None:
    survivor, producer, consumer = members(3)
    qid = new_queue(survivor)
    for one in (producer, consumer):
        ok(survivor.tdt.grant_queue(qid, one.pid, 7, 0))
        ok(one.tdt.attach_queue(qid, 0))
    producer.call("fail", "tdt.enqueue.inside", signal.SIGKILL, {"pid": producer.pid})
    producer.begin("acl.tdt.enqueue", qid, new_buffer(producer), 0)
    assert producer.wait() == -signal.SIGKILL
    buffer = new_buffer(survivor)

    # Only one direction stays busy.
    assert survivor.tdt.enqueue(qid, buffer, FOR_EVER) == code
    assert survivor.tdt.dequeue(qid, 0) == (0, 500001)
    survivor.call("fail", "tdt.dequeue.inside", signal.SIGKILL, {"pid": consumer.pid})
    consumer.begin("acl.tdt.dequeue", qid, 0)
    assert consumer.wait() == -signal.SIGKILL
    assert survivor.tdt.dequeue(qid, FOR_EVER) == (0, code)
    ok(survivor.tdt.destroy_queue(qid))
    ok(survivor.tdt.enqueue(new_queue(survivor), buffer, 0))


@differs({"310b-rc": 0})
def test_q17_each_element_goes_to_one_process_in_order(members: Members, code: int) -> None:
    producer, *consumers = members(3)
    qid = new_queue(producer)
    for one in consumers:
        ok(producer.tdt.grant_queue(qid, one.pid, 7, 0))
        ok(one.tdt.attach_queue(qid, 0))
    for value in range(6):
        assert producer.tdt.enqueue(qid, new_buffer(producer, bytes([value])), 0) == code
    taken = [contents(one, ok(one.tdt.dequeue(qid, 0))) for _ in range(3) for one in consumers]

    assert taken == [bytes([value]) for value in range(6)]


@differs({"310b-rc": 507899})
def test_q41_a_queue_outlives_its_creator(members: Members, code: int) -> None:
    creator, other = members(2)
    qid = new_queue(creator)
    ok(creator.tdt.grant_queue(qid, other.pid, 7, 0))
    ok(other.tdt.attach_queue(qid, 0))
    creator.kill()

    ok(other.tdt.enqueue(qid, new_buffer(other, b"kept"), 0))
    assert contents(other, ok(other.tdt.dequeue(qid, 0))) == b"kept"
    ok(other.tdt.destroy_queue(qid))
    assert other.tdt.dequeue(qid, 0) == (0, code)


@on_device
def test_q41_the_last_process_of_a_group_ends_its_queues(members: Members) -> None:
    first, second = members(2)
    new_queue(first)
    first.kill()
    second.kill()
    (third,) = members(1)

    assert new_queue(third) == 0
    rows = third.call("rows")
    assert (rows["acl_queue"], rows["acl_pool"], rows["acl_pool_member"]) == (1, 1, 1)


@on_host
def test_q41_queues_of_the_host_end_with_their_process(acl: Actor, start: Start) -> None:
    other = start()
    ok(put_data(other, new_queue(other), bytes(4096)))
    assert acl.call("rows")["acl_queue"] == 1
    other.kill()
    rows = acl.call("rows")

    assert [rows[name] for name in ("acl_pool", "acl_queue", "acl_mbuf", "acl_block")] == [0] * 4
