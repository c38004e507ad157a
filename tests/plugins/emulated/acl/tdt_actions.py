# SPDX-License-Identifier: Apache-2.0
"""What processes of the tests of queues and buffers do, and what tests tell them to do."""

import ctypes
import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from crossmem.models.identity import process_start_time

if TYPE_CHECKING:
    from tests.plugins.emulated.acl.acl_actor import Actor, ok
    from tests.plugins.emulated.host_processes import DEADLINE_S, die_after
else:
    from acl_actor import Actor, ok
    from host_processes import DEADLINE_S, die_after

MANAGE, DEQUEUE, ENQUEUE = 1, 2, 4
NAME, DEPTH = 0, 1
RIGHTS = 15
FOR_EVER = -1

on_device = pytest.mark.parametrize("profile", ["310b-rc"], indirect=True)
on_host = pytest.mark.parametrize("profile", ["documented"], indirect=True)

# For tests ----------------------------------------------------------------------------------


def number_at(acl: Actor, value: int = 0) -> int:
    """Return the address of a number in the process."""
    return int(acl.call("buffer", value.to_bytes(4, "little")))


def number(acl: Actor, pointer: int) -> int:
    return int.from_bytes(acl.call("peek", pointer, 4), "little", signed=True)


def new_buffer(acl: Actor, data: bytes = b"data", user: bytes = b"") -> int:
    """Return a buffer with contents."""
    handle = int(ok(acl.tdt.alloc_buf(1024, 0)))
    pointer, _ = ok(acl.tdt.get_buf_data(handle))
    acl.call("poke", pointer, data)
    ok(acl.tdt.set_buf_data_len(handle, len(data)))
    if user:
        ok(acl.tdt.set_buf_user_data(handle, acl.call("buffer", user), len(user), 0))
    return handle


def contents(acl: Actor, handle: int) -> bytes:
    """Return the data of a buffer."""
    pointer, _ = ok(acl.tdt.get_buf_data(handle))
    return bytes(acl.call("peek", pointer, ok(acl.tdt.get_buf_data_len(handle))))


def user_data(acl: Actor, handle: int, nbytes: int) -> bytes:
    place = acl.call("buffer", bytes(nbytes))
    ok(acl.tdt.get_buf_user_data(handle, place, nbytes, 0))
    return bytes(acl.call("peek", place, nbytes))


def new_queue(acl: Actor, depth: int = 0, name: bytes = b"") -> int:
    """Return a queue, with the default depth for 0."""
    attr = ok((acl.tdt.create_queue_attr(), 0))
    if depth:
        ok(acl.tdt.set_queue_attr(attr, DEPTH, 4, number_at(acl, depth)))
    if name:
        text = acl.call("buffer", name + b"\0")
        ok(acl.tdt.set_queue_attr(attr, NAME, 8, acl.call("buffer", text.to_bytes(8, "little"))))
    qid = int(ok(acl.tdt.create_queue(attr)))
    ok(acl.tdt.destroy_queue_attr(attr))
    return qid


def put_data(acl: Actor, qid: int, data: bytes, timeout_ms: int = 0, user: bytes = b"") -> int:
    place = acl.call("buffer", data)
    user_place = acl.call("buffer", user) if user else 0
    code: int = acl.tdt.enqueue_data(qid, place, len(data), user_place, len(user), timeout_ms, 0)
    return code


def get_data(acl: Actor, qid: int, timeout_ms: int = 0, room: int = 1024) -> tuple[bytes, int]:
    place = acl.call("buffer", bytes(room))
    size, code = acl.tdt.dequeue_data(qid, place, room, 0, 0, timeout_ms)
    return bytes(acl.call("peek", place, size)) if not code else b"", code


def routes_of(acl: Actor, *ends: tuple[int, int]) -> int:
    """Return a list of routes."""
    listed = acl.tdt.create_queue_route_list()
    for source, target in ends:
        route = acl.tdt.create_queue_route(source, target)
        ok(acl.tdt.add_queue_route(listed, route))
        ok(acl.tdt.destroy_queue_route(route))
    return int(listed)


def statuses(acl: Actor, listed: int) -> list[int]:
    """Return the status of each route of a list."""
    route, place = acl.tdt.create_queue_route(0, 0), number_at(acl)
    found = []
    for index in range(acl.tdt.get_queue_route_num(listed)):
        ok(acl.tdt.get_queue_route(listed, index, route))
        ok(acl.tdt.get_queue_route_param(route, 2, 4, place))
        found.append(number(acl, place))
    return found


def query(acl: Actor, mode: int, source: int = 0, target: int = 0) -> tuple[list[int], int]:
    """Return the statuses of the routes that a query finds, and its code."""
    info = acl.tdt.create_queue_route_query_info()
    for kind, value in enumerate((mode, source, target)):
        ok(acl.tdt.set_queue_route_query_info(info, kind, 4, number_at(acl, value)))
    listed = acl.tdt.create_queue_route_list()
    code = acl.tdt.query_queue_routes(info, listed)
    return statuses(acl, listed), code


# For processes ------------------------------------------------------------------------------


def create_queues(acl: Any, count: int) -> list[tuple[int, int]]:
    with acl.machine.transaction():
        return [acl.tdt.create_queue(0) for _ in range(count)]


def destroy_queues(acl: Any, count: int) -> None:
    with acl.machine.transaction():
        for qid in range(count):
            ok(acl.tdt.destroy_queue(qid))


def forget_group(_acl: Any) -> None:
    """Remove the variable that says that a group was made."""
    del os.environ["SHAREGROUP_PRECONFIG"]


def fill_routes(acl: Any) -> None:
    """Let there be as many routes as there can be."""
    with acl.machine.transaction() as tables:
        tables.execute(
            "WITH RECURSIVE series(one) AS (SELECT 1 UNION ALL SELECT one + 1 FROM series "
            "LIMIT 65536) INSERT INTO acl_route (pool, source_id, target_id) "
            "SELECT (SELECT number FROM acl_pool), one, one FROM series"
        )


def fill_groups(acl: Any, pid: int) -> None:
    """Let a process be in as many groups as it can be."""
    with acl.machine.transaction() as tables:
        for number in range(1, 33):
            made = tables.execute(
                "INSERT INTO acl_pool (name, device) VALUES (?, 0)", (f"full{number}",)
            )
            tables.execute(
                "INSERT INTO acl_pool_member VALUES (?, ?, ?, 1)",
                (made.lastrowid, pid, process_start_time(pid)),
            )


def make_stranger(acl: Any) -> None:
    """Let this process be another one with the pid of a member of its group."""
    with acl.machine.transaction() as tables:
        for table in ("acl_pool_member", "acl_queue_grant"):
            tables.execute(
                f"UPDATE {table} SET start_time = start_time - 1 WHERE pid = ?",  # noqa: S608
                (os.getpid(),),
            )


def both(*functions: Callable[[], Any]) -> list[Any]:
    """Return what functions give that threads call, each a moment after the last one."""
    results: list[Any] = [None] * len(functions)

    def call(index: int) -> None:
        results[index] = functions[index]()

    threads = [
        threading.Thread(target=call, args=(index,), daemon=True) for index in range(len(functions))
    ]
    for one in threads:
        one.start()
        one.join(0.05)
    for one in threads:
        one.join(DEADLINE_S)
    return results


def dequeue_data_twice(acl: Any, qid: int, place: int) -> list[Any]:
    """Take data in two threads, of which the second one does not want to wait."""
    return both(
        lambda: acl.tdt.dequeue_data(qid, place, 64, 0, 0, 300),
        lambda: acl.tdt.dequeue_data(qid, place, 64, 0, 0, 0),
        lambda: acl.tdt.enqueue_data(qid, place, 64, 0, 0, 0, 0),
    )


def query_twice(acl: Any, info: int, listed: int) -> list[Any]:
    """Ask for routes in two threads at once: the tables are held until both are in their calls."""
    is_held, may_go = threading.Event(), threading.Event()

    def hold() -> None:
        with acl.machine.transaction():
            is_held.set()
            may_go.wait(DEADLINE_S)

    holder = threading.Thread(target=hold)
    holder.start()
    is_held.wait(DEADLINE_S)
    threading.Timer(0.3, may_go.set).start()
    results = both(*[lambda: acl.tdt.query_queue_routes(info, listed)] * 2)
    holder.join()
    return results


def pass_on(acl: Any, source: int, target: int, lines: int) -> None:
    """Take buffers from a queue and put them into another one, until this process dies."""
    for qid in (source, target):
        ok(acl.tdt.attach_queue(qid, 0))
    die_after(lines)
    while True:
        buffer, code = acl.tdt.dequeue(source, FOR_EVER)
        assert (code, acl.tdt.enqueue(target, buffer, FOR_EVER)) == (0, 0)


def feed(acl: Any, qid: int, data: bytes) -> None:
    """Hand a buffer over, filled by a stream, with the first byte as its user data."""
    buffer = ok(acl.tdt.alloc_buf(len(data), 0))
    pointer, size = ok(acl.tdt.get_buf_data(buffer))
    place, stream = ctypes.create_string_buffer(data, len(data)), ok(acl.rt.create_stream())
    ok(acl.rt.memcpy_async(pointer, size, ctypes.addressof(place), size, 1, stream))
    ok(acl.rt.synchronize_stream(stream))
    ok(acl.rt.destroy_stream(stream))
    ok(acl.tdt.set_buf_data_len(buffer, size))
    ok(acl.tdt.set_buf_user_data(buffer, ctypes.addressof(place), 1, 0))
    ok(acl.tdt.enqueue(qid, buffer, int(1000 * DEADLINE_S)))


def consume(acl: Any, qid: int) -> None:
    """Take buffers and check what a stream copies from them, until this process is killed."""
    ok(acl.tdt.attach_queue(qid, 0))
    user, stream = ctypes.create_string_buffer(1), ok(acl.rt.create_stream())
    while True:
        buffer = ok(acl.tdt.dequeue(qid, FOR_EVER))
        pointer, _ = ok(acl.tdt.get_buf_data(buffer))
        ok(acl.tdt.get_buf_user_data(buffer, ctypes.addressof(user), 1, 0))
        length = ok(acl.tdt.get_buf_data_len(buffer))
        place = ctypes.create_string_buffer(length)
        ok(acl.rt.memcpy_async(ctypes.addressof(place), length, pointer, length, 2, stream))
        ok(acl.rt.synchronize_stream(stream))
        assert place.raw == user.raw * length
        ok(acl.tdt.free_buf(buffer))


def reset_while_threads_wait(acl: Any, qid: int) -> list[tuple[int, int]]:
    """Return how waits for data end when another thread resets the device."""
    found: list[tuple[int, int]] = []

    def wait() -> None:
        acl.rt.set_device(0)
        place = ctypes.create_string_buffer(8)
        found.append(acl.tdt.dequeue_data(qid, ctypes.addressof(place), 8, 0, 0, FOR_EVER))

    # The second thread waits for the first one.
    threads = [threading.Thread(target=wait, daemon=True) for _ in range(2)]
    for one in threads:
        one.start()
        one.join(0.1)
    acl.rt.reset_device_force(0)
    for one in threads:
        one.join(DEADLINE_S)
    return found
