# SPDX-License-Identifier: Apache-2.0
"""ACL-B4, B17 to B21, Q23 and Q25 to Q27: groups of processes, permissions, and deaths."""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from crossmem.conformance.speed import SLOWNESS

if TYPE_CHECKING:
    from tests.plugins.emulated.acl.acl_actor import differs, emulation_only, ok
    from tests.plugins.emulated.acl.conftest import Members, Start
    from tests.plugins.emulated.acl.tdt_actions import (
        DEQUEUE,
        ENQUEUE,
        MANAGE,
        RIGHTS,
        contents,
        new_buffer,
        new_queue,
        on_device,
    )
else:
    from acl_actor import differs, emulation_only, ok
    from tdt_actions import (
        DEQUEUE,
        ENQUEUE,
        MANAGE,
        RIGHTS,
        contents,
        new_buffer,
        new_queue,
        on_device,
    )

    Members = Start = Any

pytestmark = emulation_only

DEVICES = "310b-rc 310b-rc-driver"
ADMIN, WRITE, ALLOC = 1, 4, 8
WAIT_S = 20 * SLOWNESS
PERIOD_S = 0.05


def soon(is_so: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + WAIT_S
    while not is_so() and time.monotonic() < deadline:
        time.sleep(0.005)
    return is_so()


# Groups -------------------------------------------------------------------------------------


@differs(dict.fromkeys(DEVICES.split(), 500001))
def test_b4_only_members_allocate(start: Start, code: int) -> None:
    outside, acl = start(), start(SHAREGROUP_PRECONFIG=1)
    assert acl.tdt.alloc_buf(8, 0) == (0, code)
    ok(outside.c.mem_grp_create("group"))
    ok(outside.c.mem_grp_add_proc("group", acl.pid, RIGHTS - ALLOC))
    assert acl.tdt.alloc_buf(8, 0) == (0, code)
    ok(outside.c.mem_grp_add_proc("group", acl.pid, RIGHTS))

    ok(acl.tdt.free_buf(new_buffer(acl)))
    acl.check_broken()


@differs({"310b-rc": 207015})
def test_b18_a_process_creates_one_group(start: Start, code: int) -> None:
    first, second = start(), start()
    ok(first.c.mem_grp_create("group"))

    assert first.c.mem_grp_create("another") == code
    assert second.c.mem_grp_create("group") == code
    assert second.c.mem_grp_create("") == 107000
    assert second.c.mem_grp_create("x" * 32) == 107000
    ok(second.c.mem_grp_create("x" * 31))


@differs({"310b-rc": (107000, 507899, 207006, 207012)})
def test_b18_who_adds_whom(start: Start, code: tuple[int, ...]) -> None:
    creator, admin, member = (start() for _ in range(3))
    ok(creator.c.mem_grp_create("group"))
    no_process, no_group, not_admin, too_many = code

    assert creator.c.mem_grp_add_proc("group", 0, RIGHTS) == no_process
    assert creator.c.mem_grp_add_proc("none", admin.pid, RIGHTS) == no_group
    assert admin.c.mem_grp_add_proc("group", member.pid, RIGHTS) == not_admin
    ok(creator.c.mem_grp_add_proc("group", admin.pid, 1))
    ok(admin.c.mem_grp_add_proc("group", admin.pid, 1))
    admin.call("run", "tdt_actions", "fill_groups", member.pid)
    assert admin.c.mem_grp_add_proc("group", member.pid, RIGHTS) == too_many


@differs({"310b-rc": 500001})
def test_b19_another_process_with_the_pid_is_no_member(start: Start, code: int) -> None:
    outside, acl = start(), start(SHAREGROUP_PRECONFIG=1)
    ok(outside.c.mem_grp_create("group"))
    ok(outside.c.mem_grp_add_proc("group", acl.pid, RIGHTS))
    acl.call("run", "tdt_actions", "make_stranger")

    assert acl.tdt.alloc_buf(8, 0) == (0, code)
    assert acl.tdt.create_queue(0) == (0, code)


@differs({"310b-rc": 207006})
def test_b19_rights_in_a_group(start: Start, code: int) -> None:
    outside, owner, acl = start(), start(SHAREGROUP_PRECONFIG=1), start(SHAREGROUP_PRECONFIG=1)
    ok(outside.c.mem_grp_create("group"))
    ok(outside.c.mem_grp_add_proc("group", owner.pid, RIGHTS))
    ok(outside.c.mem_grp_add_proc("group", acl.pid, ALLOC))
    qid, buffer = new_queue(owner), new_buffer(acl)
    # This right includes the two others.
    ok(acl.tdt.enqueue(new_queue(acl), new_buffer(acl), 0))
    ok(outside.c.mem_grp_add_proc("group", acl.pid, ADMIN))
    ok(owner.tdt.grant_queue(qid, acl.pid, 7, 0))

    assert acl.tdt.create_queue(0) == (0, code)
    assert acl.tdt.attach_queue(qid, 0) == (0, code)
    assert acl.tdt.enqueue(qid, buffer, 0) == code
    assert acl.tdt.dequeue(qid, 0) == (0, code)
    ok(outside.c.mem_grp_add_proc("group", acl.pid, WRITE))
    ok(acl.tdt.attach_queue(qid, 0))
    ok(acl.tdt.enqueue(qid, buffer, 0))


# Permissions --------------------------------------------------------------------------------


@differs({"310b-rc": 107000})
def test_q23_how_long_an_attach_waits(members: Members, code: int) -> None:
    (acl,) = members(1)
    qid = new_queue(acl)

    assert acl.tdt.attach_queue(qid, -2) == (0, code)
    acl.check_broken("ACL-Q23")
    assert acl.tdt.attach_queue(qid, -1) == (7, 0)


@differs({"310b-rc": (107000, 507899)})
def test_q25_who_grants_to_whom(members: Members, code: tuple[int, int]) -> None:
    owner, other = members(2)
    qid = new_queue(owner)

    assert [owner.tdt.grant_queue(qid, pid, 7, 0) for pid in (0, -1)] == [code[0]] * 2
    assert other.tdt.grant_queue(qid, other.pid, 7, 0) == code[1]
    owner.check_broken("ACL-Q25", "ACL-Q25")


@differs({"310b-rc": 207006, "310b-rc-driver": 0})
def test_q26_bits(members: Members, code: int) -> None:
    owner, other = members(2)
    qid = new_queue(owner)
    buffers = [new_buffer(other) for _ in range(2)]
    assert other.tdt.attach_queue(qid, 0) == (0 if code else 7, code)
    other.check_broken("ACL-Q26")
    ok(owner.tdt.grant_queue(qid, other.pid, DEQUEUE, 0))
    assert other.tdt.attach_queue(qid, 0) == (DEQUEUE if code else 7, 0)
    assert other.tdt.enqueue(qid, buffers[0], 0) == code
    assert other.tdt.grant_queue(qid, owner.pid, 7, 0) == code
    other.check_broken(*["ACL-Q26"] * 3)
    ok(owner.tdt.enqueue(qid, new_buffer(owner), 0))
    ok(other.tdt.dequeue(qid, 0))
    ok(owner.tdt.grant_queue(qid, other.pid, ENQUEUE | MANAGE, 0))
    ok(other.tdt.enqueue(qid, buffers[1], 0))

    assert other.tdt.dequeue(qid, 0)[1] == code
    other.check_broken(*["ACL-Q26"] * 4)


@differs({"310b-rc": 207006})
def test_q26_another_process_with_the_pid_was_granted_nothing(members: Members, code: int) -> None:
    owner, other = members(2)
    qid = new_queue(owner)
    ok(owner.tdt.grant_queue(qid, other.pid, 7, 0))
    other.call("run", "tdt_actions", "make_stranger")

    assert other.tdt.attach_queue(qid, 0) == (0, code)


@differs({"310b-rc": 507899})
def test_q27_an_attach_does_not_wait(members: Members, code: int) -> None:
    owner, other = members(2)

    assert other.tdt.attach_queue(5, -1) == (0, code)
    qid = new_queue(owner)
    # Words without a permission, and with an unknown one, are no mistake.
    for bits in (0, 8, 7):
        ok(owner.tdt.grant_queue(qid, other.pid, bits, 1000))
        assert other.tdt.attach_queue(qid, 0) == (bits, 0)
    other.check_broken()


# Deaths -------------------------------------------------------------------------------------


@differs({"310b-rc": 207005})
def test_b17_the_memory_of_an_element_is_gone(members: Members, code: int) -> None:
    owner, producer, consumer = members(3)
    qid = new_queue(owner)
    for one in (producer, consumer):
        ok(owner.tdt.grant_queue(qid, one.pid, 7, 0))
        ok(one.tdt.attach_queue(qid, 0))
    ok(producer.tdt.enqueue(qid, new_buffer(producer), 0))
    ok(owner.tdt.enqueue(qid, new_buffer(owner, b"next"), 0))
    producer.kill()

    assert consumer.tdt.dequeue(qid, 0) == (0, code)
    # The element is consumed.
    assert contents(consumer, ok(consumer.tdt.dequeue(qid, 0))) == b"next"
    consumer.check_broken()


@differs({"310b-rc": 500001})
def test_b20_what_a_dead_consumer_held_is_freed_and_lost(start: Start, code: int) -> None:
    group = {"SHAREGROUP_PRECONFIG": 1, "CROSSMEM_EMULATED_ACL_GROUP": "group"}
    slow = {**group, "CROSSMEM_EMULATED_ACL_RECYCLE": 60}
    owner, waiting = start(**group, CROSSMEM_EMULATED_ACL_RECYCLE=PERIOD_S), start(**slow)
    consumer = start(**group)
    free = owner.free_nbytes
    qid = new_queue(owner)
    ok(owner.tdt.grant_queue(qid, consumer.pid, 7, 0))
    ok(consumer.tdt.attach_queue(qid, 0))
    ok(owner.tdt.enqueue(qid, new_buffer(owner), 0))
    ok(consumer.tdt.dequeue(qid, 0))
    consumer.kill()
    new_queue(waiting)
    assert owner.free_nbytes < free

    # Not delivered again.
    assert soon(lambda: owner.tdt.dequeue(qid, 0) == (0, code) and owner.free_nbytes == free)
    owner.check_broken()


@differs({"310b-rc": 207005})
def test_b21_memory_lives_as_long_as_a_process_maps_it(members: Members, code: int) -> None:
    owner, allocator, holder, late = members(4)
    qid = new_queue(owner)
    for one in (allocator, holder, late):
        ok(owner.tdt.grant_queue(qid, one.pid, 7, 0))
        ok(one.tdt.attach_queue(qid, 0))
    buffer = new_buffer(allocator, b"kept")
    copy = ok(allocator.tdt.copy_buf_ref(buffer))
    for handle in (buffer, copy, new_buffer(allocator, b"lost")):
        ok(allocator.tdt.enqueue(qid, handle, 0))
    first = ok(holder.tdt.dequeue(qid, 0))
    allocator.kill()

    assert contents(holder, first) == b"kept"
    second = ok(late.tdt.dequeue(qid, 0))
    assert contents(late, second) == b"kept"
    assert late.tdt.dequeue(qid, 0) == (0, code)
    ok(holder.tdt.free_buf(first))
    assert contents(late, second) == b"kept"
    ok(late.tdt.free_buf(second))
    rows = late.call("rows")
    assert [rows[name] for name in ("acl_block", "acl_mbuf", "pages")] == [0, 0, 0]


@on_device
def test_b21_a_chain_that_is_partly_gone_is_consumed(members: Members) -> None:
    owner, other = members(2)
    source, target = new_queue(owner), new_queue(owner)
    for qid in (source, target):
        ok(owner.tdt.grant_queue(qid, other.pid, 7, 0))
        ok(other.tdt.attach_queue(qid, 0))
    ok(owner.tdt.enqueue(source, new_buffer(owner), 0))
    head = ok(other.tdt.dequeue(source, 0))
    ok(other.tdt.append_buf_chain(head, new_buffer(other)))
    ok(other.tdt.enqueue(target, head, 0))
    other.kill()

    assert owner.tdt.dequeue(target, 0) == (0, 207005)
    assert owner.tdt.dequeue(target, 0) == (0, 500001)
    rows = owner.call("rows")
    assert (rows["acl_block"], rows["pages"]) == (0, 0)
    assert owner.call("memory_held") == 0
