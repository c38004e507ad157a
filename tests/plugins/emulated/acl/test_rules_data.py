# SPDX-License-Identifier: Apache-2.0
"""ACL-Q18 to Q24 and Q37 to Q39: queues of data, processors, and attributes."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.plugins.emulated.acl.acl_actor import Actor, differs, emulation_only, ok
    from tests.plugins.emulated.acl.conftest import Members, Start
    from tests.plugins.emulated.acl.tdt_actions import (
        DEPTH,
        NAME,
        contents,
        get_data,
        new_buffer,
        new_queue,
        number,
        on_device,
        on_host,
        put_data,
    )
else:
    from acl_actor import Actor, differs, emulation_only, ok
    from tdt_actions import (
        DEPTH,
        NAME,
        contents,
        get_data,
        new_buffer,
        new_queue,
        number,
        on_device,
        on_host,
        put_data,
    )

    Members = Start = Any

pytestmark = emulation_only

HOSTS, DEVICES = "documented cann8 a2 a3 950", "310b-rc 310b-rc-driver"

# Data ---------------------------------------------------------------------------------------


@differs({"documented": (96, 107000), "310b-rc": (96, 107000), "a2 310b-rc-driver": (256, 107000)})
def test_q18_user_data_of_data(acl: Actor, code: tuple[int, int]) -> None:
    largest, answer = code
    qid, place = new_queue(acl), acl.call("buffer", bytes(512))
    ok(put_data(acl, qid, b"data", 0, bytes(range(largest))))

    assert acl.tdt.enqueue_data(qid, place, 8, place, largest + 1, 0, 0) == answer
    for user, nbytes in ((0, 8), (place, 0)):
        assert acl.tdt.enqueue_data(qid, place, 8, user, nbytes, 0, 0) == answer
        assert acl.tdt.dequeue_data(qid, place, 512, user, nbytes, 0) == (0, answer)
    acl.check_broken(*["ACL-Q18"] * 5)
    assert acl.tdt.dequeue_data(qid, place, 4, place + 8, largest, 0) == (4, 0)
    assert acl.call("peek", place, largest + 8) == b"data\0\0\0\0" + bytes(range(largest))


@differs({"310b-rc": 207013})
def test_q19_a_wait_holds_up_other_threads(acl: Actor, code: int) -> None:
    qid, place = new_queue(acl), acl.call("buffer", bytes(64))

    # The second thread gets the lock after the first one has got the data.
    assert acl.call("run", "tdt_actions", "dequeue_data_twice", qid, place) == [
        (64, 0),
        (0, code),
        0,
    ]


@differs({"documented 310b-rc": 107000})
def test_q20_too_small_a_place_for_data(acl: Actor, code: int) -> None:
    qid, place = new_queue(acl), acl.call("buffer", bytes(64))
    ok(put_data(acl, qid, b"six byt"))

    assert acl.tdt.dequeue_data(qid, place, 6, 0, 0, 0) == (7, code)
    assert get_data(acl, qid) == (b"six byt", 0)
    acl.check_broken()


@on_host
def test_data_comes_from_devices_and_goes_there(acl: Actor) -> None:
    qid, place = new_queue(acl), acl.call("buffer", b"original")
    source, target = (ok(acl.rt.malloc(4096, 0)) for _ in range(2))
    acl.write(source, b"original")

    ok(acl.tdt.enqueue_data(qid, source, 8, 0, 0, 0, 0))
    acl.write(source, b"changed!")
    assert acl.tdt.dequeue_data(qid, target, 4096, 0, 0, 0) == (8, 0)
    assert acl.read(target, 8) == acl.call("peek", place, 8)
    assert acl.tdt.enqueue_data(qid, 0, 8, 0, 0, 0, 0) == 100000
    assert acl.tdt.enqueue_data(qid, place, 0, 0, 0, 0, 0) == 100000
    assert acl.tdt.dequeue_data(qid, 0, 8, 0, 0, 0) == (0, 100000)
    acl.check_broken()


# Devices ------------------------------------------------------------------------------------


@differs({"documented": 107002, "310b-rc": 0})
def test_q21_programs_on_the_host_need_a_device(start: Start, code: int) -> None:
    acl = start(device=None)

    assert acl.tdt.create_queue(0) == (0, code)


@on_host
def test_q21_each_device_has_queues_of_its_own(acl: Actor, two_devices: None) -> None:
    first = new_queue(acl)
    ok(put_data(acl, first, b"data"))
    ok(acl.rt.set_device(1))

    assert get_data(acl, first) == (b"", 507899)


@differs({"old-driver": 207000})
def test_q22_an_old_driver_has_no_queues(acl: Actor, code: int) -> None:
    place, listed = acl.call("buffer", bytes(8)), acl.tdt.create_queue_route_list()

    assert acl.tdt.create_queue(0) == (0, code)
    assert acl.tdt.destroy_queue(0) == code
    assert acl.tdt.enqueue_data(0, place, 8, 0, 0, 0, 0) == code
    assert acl.tdt.dequeue_data(0, place, 8, 0, 0, 0) == (0, code)
    assert acl.tdt.bind_queue_routes(listed) == code
    acl.check_broken()


@differs({"documented": 507899, "310b-rc": 507899})
def test_q24_a_reset_ends_queues(acl: Actor, code: int) -> None:
    qid = new_queue(acl)
    ok(put_data(acl, qid, b"data"))
    ok(acl.rt.reset_device(0))
    ok(acl.rt.set_device(0))

    assert get_data(acl, qid) == (b"", code)
    assert acl.call("rows")["acl_queue_user"] == 0


@differs({"documented": 507899, "310b-rc": 507899})
def test_q24_a_reset_ends_waits(acl: Actor, code: int) -> None:
    qid = new_queue(acl)

    ended = acl.call("run", "tdt_actions", "reset_while_threads_wait", qid)
    assert ended == [(0, code), (0, code)]
    acl.check_broken()


@on_device
def test_q24_buffers_stay(acl: Actor) -> None:
    buffer = new_buffer(acl, b"kept")
    ok(acl.rt.reset_device(0))

    assert contents(acl, buffer) == b"kept"
    ok(acl.tdt.free_buf(buffer))


@differs(dict.fromkeys(HOSTS.split(), 200006))
def test_q37_on_the_host(start: Start, code: int) -> None:
    # The variable has no meaning there.
    acl = start(SHAREGROUP_PRECONFIG=1)
    qid = new_queue(acl)

    assert acl.tdt.alloc_buf(8, 0) == (0, code)
    assert acl.tdt.alloc_buf(8, 2) == (0, 100000)
    assert acl.tdt.enqueue(qid, 64, 0) == code
    assert acl.tdt.dequeue(qid, 0) == (0, code)
    assert acl.tdt.grant_queue(qid, acl.pid, 7, 0) == code
    assert acl.tdt.attach_queue(qid, 0) == (0, code)
    for name, *arguments in (
        ("free_buf", 64),
        ("set_buf_data_len", 64, 8),
        ("set_buf_user_data", 64, 64, 8, 0),
        ("get_buf_user_data", 64, 64, 8, 0),
        ("append_buf_chain", 64, 128),
    ):
        assert acl.call(f"acl.tdt.{name}", *arguments) == code
    assert acl.tdt.get_buf_data(64) == (0, 0, code)
    assert acl.tdt.get_buf_data_len(64) == (0, code)
    assert acl.tdt.copy_buf_ref(64) == (0, code)
    assert acl.tdt.get_buf_chain_num(64) == (0, code)
    assert acl.tdt.get_buf_from_chain(64, 0) == (0, code)
    assert ok(acl.rt.get_run_mode()) == 1
    acl.check_broken()


@differs({HOSTS: (0, 200006), "old-driver": (207000, 200006), DEVICES: (0, 0)})
def test_q38_products(acl: Actor, code: tuple[int, int]) -> None:
    assert (acl.tdt.create_queue(0)[1], acl.tdt.alloc_buf(8, 0)[1]) == code
    assert acl.tdt.dequeue(0, 0)[1] in {200006, 500001}
    acl.check_broken()


@differs(dict.fromkeys(DEVICES.split(), 200006))
def test_q37_on_the_device(start: Start, code: int) -> None:
    alone = start()
    qid = new_queue(alone)
    ok(alone.tdt.enqueue(qid, new_buffer(alone), 0))
    assert alone.tdt.grant_queue(qid, alone.pid, 7, 0) == code
    assert alone.tdt.attach_queue(qid, 0) == (0, code)
    # Programs there see that they are on the device.
    assert ok(alone.rt.get_run_mode()) == 0
    alone.check_broken()


@on_device
def test_q37_the_choice_is_made_once(start: Start) -> None:
    acl = start(SHAREGROUP_PRECONFIG="", CROSSMEM_EMULATED_ACL_GROUP="group")
    qid = new_queue(acl)
    # Too late: the process has a processor.
    acl.call("run", "tdt_actions", "forget_group")

    ok(acl.tdt.grant_queue(qid, acl.pid, 7, 0))


# Attributes ---------------------------------------------------------------------------------


@on_host
def test_q39_attributes(acl: Actor) -> None:
    attr, place = acl.tdt.create_queue_attr(), acl.call("buffer", bytes(8))
    text = acl.call("buffer", b"x" * 127 + b"\0")
    pointer = acl.call("buffer", text.to_bytes(8, "little"))

    assert acl.tdt.get_queue_attr(attr, DEPTH, 4, place) == (4, 0)
    assert number(acl, place) == 8
    assert acl.tdt.get_queue_attr(attr, NAME, 8, place) == (8, 0)
    name = int.from_bytes(acl.call("peek", place, 8), "little")
    assert acl.call("peek", name, 1) == b"\0"
    ok(acl.tdt.set_queue_attr(attr, NAME, 8, pointer))
    ok(acl.tdt.get_queue_attr(attr, NAME, 8, place))
    name = int.from_bytes(acl.call("peek", place, 8), "little")
    assert acl.call("peek", name, 128) == b"x" * 127 + b"\0"
    ok(acl.tdt.destroy_queue_attr(attr))
    acl.check_broken()


@differs({"documented": 100000, "a2": 100000})
def test_q39_attributes_that_cannot_be(acl: Actor, code: int) -> None:
    attr, place = acl.tdt.create_queue_attr(), acl.call("buffer", bytes(8))
    long = acl.call("buffer", b"x" * 128 + b"\0")
    pointer = acl.call("buffer", long.to_bytes(8, "little"))
    refused = [
        (0, DEPTH, 4, place),
        (attr, DEPTH, 5, place),
        (attr, DEPTH, 4, 0),
        (attr, NAME, 9, pointer),
        (attr, NAME, 8, place),
        (attr, NAME, 8, pointer),
        (attr, 2, 4, place),
    ]

    assert [acl.tdt.set_queue_attr(*one) for one in refused] == [code] * len(refused)
    for kind, nbytes, to in ((DEPTH, 3, place), (NAME, 7, place), (2, 8, place), (DEPTH, 4, 0)):
        assert acl.tdt.get_queue_attr(attr, kind, nbytes, to) == (0, code)
    acl.check_broken()
    ok(acl.tdt.destroy_queue_attr(attr))
    assert acl.tdt.destroy_queue_attr(0) == code
    assert acl.tdt.destroy_queue_attr(attr) == code
    assert acl.tdt.create_queue(attr) == (0, code)
    acl.check_broken("ACL-Q39", "ACL-Q39")


@on_host
def test_null_where_there_is_no_memory(acl: Actor) -> None:
    acl.call("fail", "tdt.create_queue_attr", 507899, {})

    assert acl.tdt.create_queue_attr() == 0
