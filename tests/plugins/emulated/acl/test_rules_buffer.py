# SPDX-License-Identifier: Apache-2.0
"""ACL-B1 to B16: buffers of one process, and their hand-over to another one."""

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.plugins.emulated.acl.acl_actor import Actor, differs, emulation_only, ok
    from tests.plugins.emulated.acl.conftest import Members, Start
    from tests.plugins.emulated.acl.tdt_actions import (
        contents,
        new_buffer,
        new_queue,
        on_device,
        user_data,
    )
else:
    from acl_actor import Actor, differs, emulation_only, ok
    from tdt_actions import contents, new_buffer, new_queue, on_device, user_data

    Members = Start = Any

pytestmark = emulation_only

NORMAL, DVPP = 0, 1
LONGEST = 128


def new_chain(acl: Actor, length: int) -> tuple[int, list[int]]:
    """Return the head and the members of a chain."""
    buffers = [int(ok(acl.tdt.alloc_buf(8, NORMAL))) for _ in range(length)]
    for one in buffers[1:]:
        ok(acl.tdt.append_buf_chain(buffers[0], one))
    return buffers[0], buffers


# One buffer ---------------------------------------------------------------------------------


@differs({"310b-rc": 107000})
def test_b1_a_buffer_is_not_empty(acl: Actor, code: int) -> None:
    assert acl.tdt.alloc_buf(0, NORMAL) == (0, code)
    acl.check_broken("ACL-B1")


@differs({"310b-rc": 100000, "documented": 100000})
def test_b2_types_of_buffers(acl: Actor, code: int) -> None:
    assert acl.tdt.alloc_buf(8, 2) == (0, code)
    acl.check_broken()


@on_device
@pytest.mark.parametrize("kind", [NORMAL, DVPP])
def test_b2_both_types_can_be_used(acl: Actor, kind: int) -> None:
    """The vendor's sequence, with both calls that its sample leaves out."""
    free = acl.free_nbytes
    buffer = ok(acl.tdt.alloc_buf(1024, kind))
    pointer, _ = ok(acl.tdt.get_buf_data(buffer))
    assert pointer % 128 == 0
    acl.write(pointer, b"x" * 512)
    ok(acl.tdt.set_buf_data_len(buffer, 512))
    ok(acl.tdt.set_buf_user_data(buffer, acl.call("buffer", b"user"), 4, 0))

    assert contents(acl, buffer) == acl.read(pointer, 512) == b"x" * 512
    ok(acl.tdt.free_buf(buffer))
    assert acl.free_nbytes == free
    assert acl.call("memory_held") == 0
    acl.check_broken()


@differs({"310b-rc": 107000})
def test_b3_a_buffer_has_at_most_4_gib(acl: Actor, code: int) -> None:
    assert acl.tdt.alloc_buf((4 << 30) + 1, NORMAL) == (0, code)
    acl.check_broken("ACL-B3")
    made = [acl.tdt.alloc_buf(3 << 30, NORMAL)[1] for _ in range(3)]
    assert made == [0, 0, 207001]


@on_device
def test_a_lack_of_descriptors_is_no_lack_of_memory(acl: Actor) -> None:
    ok(acl.tdt.free_buf(ok(acl.tdt.alloc_buf(64, NORMAL))))
    call = ("tdt.alloc_buf", 64, NORMAL)

    assert acl.call("run", "host_actions", "without_descriptors", *call) == (0, 207005)
    assert "Too many open files" in acl.acl.get_recent_err_msg()


@differs({"310b-rc": 107000})
def test_b5_lengths(acl: Actor, code: int) -> None:
    buffer = ok(acl.tdt.alloc_buf(1000, NORMAL))

    assert ok(acl.tdt.get_buf_data_len(buffer)) == 0
    for length in (0, 1001):
        assert acl.tdt.set_buf_data_len(buffer, length) == code
    acl.check_broken("ACL-B5", "ACL-B5")
    ok(acl.tdt.set_buf_data_len(buffer, 1000))
    assert ok(acl.tdt.get_buf_data_len(buffer)) == 1000


@differs({"310b-rc": 0})
def test_b6_the_data_area_is_the_whole_buffer(acl: Actor, code: int) -> None:
    buffer = ok(acl.tdt.alloc_buf(1000, NORMAL))
    ok(acl.tdt.set_buf_data_len(buffer, 10))
    pointer, nbytes, answer = acl.tdt.get_buf_data(buffer)

    assert (nbytes, answer) == (1000, code)
    # The program runs where the memory is.
    assert acl.util.ptr_to_bytes(pointer, 4) == acl.call("peek", pointer, 4)
    assert ok(acl.rt.pointer_get_attributes(pointer))["location"] == {"id": 0, "type": 1}
    acl.check_broken()


@differs({"310b-rc": 100000})
def test_b7_user_data(acl: Actor, code: int) -> None:
    buffer, place = ok(acl.tdt.alloc_buf(8, NORMAL)), acl.call("buffer", bytes(range(100)))

    assert user_data(acl, buffer, 96) == bytes(96)
    acl.check_broken("ACL-B7")
    ok(acl.tdt.set_buf_user_data(buffer, place, 4, 92))
    assert user_data(acl, buffer, 96) == bytes(92) + bytes(range(4))
    acl.check_broken("ACL-B7")
    for size, offset in ((97, 0), (4, 93), (8, (1 << 64) - 4)):
        assert acl.tdt.set_buf_user_data(buffer, place, size, offset) == code
        assert acl.tdt.get_buf_user_data(buffer, place, size, offset) == code
    acl.check_broken(*["ACL-B7"] * 7)


@on_device
def test_nulls(acl: Actor) -> None:
    buffer = ok(acl.tdt.alloc_buf(8, NORMAL))
    answers = [
        acl.tdt.free_buf(0),
        acl.tdt.get_buf_data(0)[-1],
        acl.tdt.set_buf_data_len(0, 8),
        acl.tdt.get_buf_data_len(0)[-1],
        acl.tdt.set_buf_user_data(buffer, 0, 8, 0),
        acl.tdt.get_buf_user_data(0, buffer, 8, 0),
        acl.tdt.copy_buf_ref(0)[-1],
        acl.tdt.append_buf_chain(buffer, 0),
        acl.tdt.get_buf_chain_num(0)[-1],
        acl.tdt.get_buf_from_chain(0, 0)[-1],
        acl.tdt.enqueue(0, 0, 0),
    ]

    assert answers == [100000] * len(answers)
    acl.check_broken()


# References and chains ----------------------------------------------------------------------


@differs({"310b-rc": 0})
def test_b8_references_share_the_data(acl: Actor, code: int) -> None:
    free = acl.free_nbytes
    first, second = new_buffer(acl, b"one", b"user"), new_buffer(acl, b"two")
    ok(acl.tdt.append_buf_chain(first, second))
    copy, answer = acl.tdt.copy_buf_ref(first)
    assert answer == code
    member = ok(acl.tdt.get_buf_from_chain(copy, 1))
    ok(acl.tdt.set_buf_data_len(first, 1))
    ok(acl.tdt.set_buf_user_data(first, acl.call("buffer", b"new!"), 4, 0))

    assert ok(acl.tdt.get_buf_data(copy)) == ok(acl.tdt.get_buf_data(first))
    assert (contents(acl, copy), contents(acl, member)) == (b"one", b"two")
    assert user_data(acl, copy, 4) == b"user"
    ok(acl.tdt.free_buf(first))
    assert contents(acl, member) == b"two"
    ok(acl.tdt.free_buf(copy))
    assert acl.free_nbytes == free
    acl.check_broken()


@differs({"310b-rc": 107000})
def test_b9_freed_once(acl: Actor, code: int) -> None:
    free = acl.free_nbytes
    head, buffers = new_chain(acl, 3)
    ok(acl.tdt.free_buf(head))

    assert acl.free_nbytes == free
    assert [acl.tdt.free_buf(one) for one in (*buffers, 64)] == [code] * 4
    acl.check_broken(*["ACL-B9"] * 4)


@differs({"310b-rc": 507899})
def test_b10_a_chain_is_not_appended_to_itself(acl: Actor, code: int) -> None:
    head, _ = new_chain(acl, 2)

    assert acl.tdt.append_buf_chain(head, head) == code
    acl.check_broken("ACL-B10")


@differs({"310b-rc": 107000})
def test_b11_only_heads_are_joined(acl: Actor, code: int) -> None:
    (head, members), (other, others) = new_chain(acl, 2), new_chain(acl, 2)

    assert acl.tdt.append_buf_chain(members[1], other) == code
    assert acl.tdt.append_buf_chain(head, others[1]) == code
    acl.check_broken("ACL-B11", "ACL-B11")
    ok(acl.tdt.append_buf_chain(head, other))
    assert ok(acl.tdt.get_buf_chain_num(head)) == 4


@differs({"310b-rc": 207012})
def test_b12_a_chain_has_an_end(acl: Actor, code: int) -> None:
    head, _ = new_chain(acl, LONGEST // 2)
    other, _ = new_chain(acl, LONGEST // 2)
    ok(acl.tdt.append_buf_chain(head, other))

    assert ok(acl.tdt.get_buf_chain_num(head)) == LONGEST
    assert acl.tdt.append_buf_chain(head, new_buffer(acl)) == code
    acl.check_broken()


@differs({"310b-rc": (507899, 107000)})
def test_b13_members_by_index(acl: Actor, code: tuple[int, int]) -> None:
    head, members = new_chain(acl, 3)

    assert [ok(acl.tdt.get_buf_from_chain(head, index)) for index in range(3)] == members
    answers = tuple(acl.tdt.get_buf_from_chain(head, index)[1] for index in (3, LONGEST))
    assert answers == code
    acl.check_broken("ACL-B13", "ACL-B13")


@differs({"310b-rc": 107000})
def test_b14_members_belong_to_the_chain(acl: Actor, code: int) -> None:
    head, members = new_chain(acl, 2)

    assert acl.tdt.free_buf(members[1]) == code
    assert acl.tdt.enqueue(new_queue(acl), members[1], 0) == code
    assert acl.tdt.copy_buf_ref(members[1]) == (0, code)
    acl.check_broken(*["ACL-B14"] * 3)
    ok(acl.tdt.set_buf_data_len(members[1], 8))
    ok(acl.tdt.free_buf(head))


# Hand-over ----------------------------------------------------------------------------------


@differs({"310b-rc": 107000, "310b-rc-driver": 107000})
def test_b15_a_buffer_is_gone_once_it_is_handed_over(acl: Actor, code: int) -> None:
    qid = new_queue(acl, 2)
    first, (head, members) = new_buffer(acl), new_chain(acl, 2)
    ok(acl.tdt.enqueue(qid, first, 0))
    assert acl.tdt.enqueue(qid, head, 0) == 500001
    # It stays the caller's.
    assert ok(acl.tdt.get_buf_chain_num(head)) == 2
    ok(acl.tdt.free_buf(ok(acl.tdt.dequeue(qid, 0))))
    ok(acl.tdt.enqueue(qid, head, 0))

    assert acl.tdt.enqueue(qid, first, 0) == code
    assert acl.tdt.free_buf(head) == code
    assert acl.tdt.get_buf_data(members[1]) == (0, 0, code)
    acl.check_broken(*["ACL-B15"] * 3)


@on_device
def test_b15_its_memory_is_gone_too(acl: Actor) -> None:
    buffer = new_buffer(acl)
    pointer, _ = ok(acl.tdt.get_buf_data(buffer))
    ok(acl.tdt.enqueue(new_queue(acl), buffer, 0))

    assert acl.call("read", pointer, 4) == (b"", 107000)
    acl.begin("peek", pointer, 4)
    with pytest.raises(EOFError):
        acl.result()


@on_device
def test_b15_a_lax_emulation_keeps_the_memory(start: Start) -> None:
    acl = start(CROSSMEM_EMULATED_STRICT=0)
    buffer, qid = new_buffer(acl, b"data"), new_queue(acl)
    pointer, _ = ok(acl.tdt.get_buf_data(buffer))
    ok(acl.tdt.enqueue(qid, buffer, 0))

    assert acl.call("peek", pointer, 4) == b"data"
    ok(acl.tdt.free_buf(ok(acl.tdt.dequeue(qid, 0))))
    assert acl.call("memory_held") == 0


@differs({"310b-rc": 0})
def test_b16_the_receiver_has_a_buffer_of_its_own(members: Members, code: int) -> None:
    sender, receiver = members(2)
    free = sender.free_nbytes
    qid = new_queue(sender)
    ok(sender.tdt.grant_queue(qid, receiver.pid, 2, 0))
    assert ok(receiver.tdt.attach_queue(qid, 0)) == 2
    head, second = new_buffer(sender, b"one", b"user"), new_buffer(sender, b"two")
    ok(sender.tdt.append_buf_chain(head, second))
    places = [ok(sender.tdt.get_buf_data(one)) for one in (head, second)]
    ok(sender.tdt.enqueue(qid, head, 0))
    received, answer = receiver.tdt.dequeue(qid, 0)
    chain = [ok(receiver.tdt.get_buf_from_chain(received, index)) for index in range(2)]

    assert answer == code
    assert [ok(receiver.tdt.get_buf_data(one)) for one in chain] == places
    assert [contents(receiver, one) for one in chain] == [b"one", b"two"]
    assert user_data(receiver, received, 4) == b"user"
    ok(receiver.tdt.free_buf(received))
    assert sender.free_nbytes == free
    assert receiver.call("memory_held") == 0
    # The sender releases its descriptors at its next call of a buffer or queue.
    assert sender.tdt.dequeue(qid, 0) == (0, 500001)
    assert sender.call("memory_held") == 0
    sender.check_broken()
