# SPDX-License-Identifier: Apache-2.0
"""The sequences of the vendor's pages on shared buffers and queues, from init to finalize."""

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.plugins.emulated.acl.acl_actor import Actor, emulation_only, ok
    from tests.plugins.emulated.acl.conftest import Members
    from tests.plugins.emulated.acl.tdt_actions import (
        DEQUEUE,
        contents,
        new_buffer,
        new_queue,
        on_device,
        user_data,
    )
else:
    from acl_actor import Actor, emulation_only, ok
    from tdt_actions import DEQUEUE, contents, new_buffer, new_queue, on_device, user_data

    Members = Any

# pyACL lacks these functions.
pytestmark = [emulation_only, on_device]

NORMAL, DVPP = 0, 1
NBYTES, LENGTH, USER_NBYTES = 1024, 512, 96
HOST_TO_DEVICE = 1
SECONDARIES = 3


def close(acl: Actor) -> None:
    ok(acl.rt.reset_device(0))
    ok(acl.acl.finalize())


# Today's edition of the page forbids DVPP. The text demands the two calls that the sample lacks.
@pytest.mark.parametrize("kind", [NORMAL, DVPP], ids=["normal", "dvpp"])
@pytest.mark.parametrize("has_calls", [False, True], ids=["sample", "text"])
def test_one_shared_buffer(acl: Actor, kind: int, has_calls: bool) -> None:
    data, user = bytes(range(256)) * 2, b"user data".ljust(USER_NBYTES, b"\0")
    free = acl.free_nbytes

    buffer = ok(acl.tdt.alloc_buf(NBYTES, kind))
    pointer, nbytes = ok(acl.tdt.get_buf_data(buffer))
    ok(acl.rt.memcpy(pointer, nbytes, acl.call("buffer", data), LENGTH, HOST_TO_DEVICE))
    if has_calls:
        ok(acl.tdt.set_buf_data_len(buffer, LENGTH))
        ok(acl.tdt.set_buf_user_data(buffer, acl.call("buffer", user), USER_NBYTES, 0))

    assert nbytes == NBYTES
    assert contents(acl, buffer) == (data if has_calls else b"")
    assert acl.call("peek", pointer, LENGTH) == data
    if has_calls:
        assert user_data(acl, buffer, USER_NBYTES) == user
    ok(acl.tdt.free_buf(buffer))
    assert acl.free_nbytes == free
    close(acl)
    acl.check_broken()


def test_one_primary_hands_buffers_to_three_secondaries(members: Members) -> None:
    primary, *secondaries = members(1 + SECONDARIES)
    free, qid = primary.free_nbytes, new_queue(primary)
    for secondary in secondaries:
        ok(primary.tdt.grant_queue(qid, secondary.pid, DEQUEUE, 0))
        assert ok(secondary.tdt.attach_queue(qid, 0)) == DEQUEUE

    for number in range(2 * SECONDARIES):
        data, user = bytes([number]) * (number + 1), b"%d" % number
        ok(primary.tdt.enqueue(qid, new_buffer(primary, data, user), 0))
    for number in range(2 * SECONDARIES):
        secondary = secondaries[number % SECONDARIES]
        buffer = ok(secondary.tdt.dequeue(qid, -1))
        assert contents(secondary, buffer) == bytes([number]) * (number + 1)
        assert user_data(secondary, buffer, 1) == b"%d" % number
        ok(secondary.tdt.free_buf(buffer))

    ok(primary.tdt.destroy_queue(qid))
    assert primary.free_nbytes == free
    for one in (*secondaries, primary):
        close(one)
    primary.check_broken()
