# SPDX-License-Identifier: Apache-2.0
"""The enqueue and dequeue calls that copy data. Programs on the host can use only these two."""

import sqlite3
from typing import NamedTuple

from crossmem_emulated import memory
from crossmem_emulated.acl.calls import Refused, entry
from crossmem_emulated.acl.codes import Code
from crossmem_emulated.acl.copies import side_of
from crossmem_emulated.acl.process import AclProcess
from crossmem_emulated.acl.tdt.blocks import allocate_block, open_block
from crossmem_emulated.acl.tdt.elements import first_element, is_full, next_element
from crossmem_emulated.acl.tdt.pools import READ, WRITE, Pool, check_processor, device_of
from crossmem_emulated.acl.tdt.programs import read, write
from crossmem_emulated.acl.tdt.router import pump
from crossmem_emulated.acl.tdt.state import USER_NBYTES
from crossmem_emulated.acl.tdt.uses import (
    DEQUEUE,
    ENQUEUE,
    check_id,
    check_right,
    check_use,
    die_inside,
    find_queue,
    record_use,
    until,
)
from crossmem_emulated.queues import Work

__all__: list[str] = []

_DOCUMENTED_USER_NBYTES = 96


class _Area(NamedTuple):
    """Memory of the program."""

    pointer: int
    nbytes: int


def _check(process: AclProcess, data: _Area, user: _Area) -> None:
    if not data.pointer or not data.nbytes:
        raise Refused(Code.INVALID_PARAM, "the address or the size of the data is 0")
    check_processor(process)
    largest = _DOCUMENTED_USER_NBYTES if process.profile.is_documented else USER_NBYTES
    if bool(user.pointer) != bool(user.nbytes) or user.nbytes > largest:
        text = f"user data cannot be {user.nbytes} bytes at {user.pointer:#x} (limit {largest})"
        raise Refused(Code.RT_PARAM_INVALID, text, "ACL-Q18")


@entry("tdt.enqueue_data", "IkkkkiI")
def _enqueue_data(  # noqa: PLR0917 - the vendor's order
    process: AclProcess,
    qid: int,
    data: int,
    nbytes: int,
    user: int,
    user_nbytes: int,
    timeout_ms: int,
    _reserved: int,
) -> None:
    _check(process, _Area(data, nbytes), _Area(user, user_nbytes))
    die_inside(process, "tdt.enqueue_data", qid, ENQUEUE)

    def attempt(tables: sqlite3.Connection, pool: Pool) -> bool | None:
        check_right(pool, WRITE)
        queue = find_queue(process, tables, pool, qid)
        check_use(process, queue, ENQUEUE)
        if is_full(tables, queue.number, queue.depth):
            return None
        side, user_data = side_of(process, data, nbytes), read(process, user, user_nbytes)
        block = allocate_block(process, tables, (pool.number, pool.device), nbytes)

        def copy() -> None:
            done = block.pages.address
            for place, size in side.parts:
                memory.copy(done, place, size)
                done += size

        process.queues.run_now(Work("tdt.enqueue_data", ((data, nbytes),), copy))
        tables.execute(
            "INSERT INTO acl_mbuf (block, queue, element, length, user, is_user_set) "
            "VALUES (?, ?, ?, ?, ?, ?)",
            (
                block.number,
                queue.number,
                next_element(tables, queue.number),
                nbytes,
                user_data,
                bool(user_data),
            ),
        )
        pump(process, tables, pool.number)
        record_use(process, "tdt.enqueue_data", queue, ENQUEUE)
        return True

    late = Refused(Code.RT_QUEUE_FULL, f"the queue {qid} stayed full for {timeout_ms} ms")
    until(process, timeout_ms, attempt, late, device=device_of(process))


@entry("tdt.dequeue_data", "Ikkkki", 0)
def _dequeue_data(  # noqa: PLR0917 - the vendor's order
    process: AclProcess,
    qid: int,
    data: int,
    nbytes: int,
    user: int,
    user_nbytes: int,
    timeout_ms: int,
) -> int:
    _check(process, _Area(data, nbytes), _Area(user, user_nbytes))
    check_id(qid)
    die_inside(process, "tdt.dequeue_data", qid, DEQUEUE)
    device = device_of(process)
    # In the vendor's library, a thread that waits for data holds the queue's mutex, so a second
    # thread waits for the first.
    while qid in process.tdt.dequeuing:
        process.queues.changed.wait()
    process.tdt.dequeuing.add(qid)
    try:
        size, is_lost = until(
            process,
            timeout_ms,
            lambda tables, pool: _take(
                process, (tables, pool), qid, _Area(data, nbytes), _Area(user, user_nbytes)
            ),
            Refused(Code.RT_QUEUE_EMPTY, f"the queue {qid} stayed empty for {timeout_ms} ms"),
            device=device,
        )
    finally:
        process.tdt.dequeuing.discard(qid)
        process.queues.changed.notify_all()
    if is_lost:
        text = "the data of the element is lost: no living process has the data open"
        raise Refused(Code.RT_RESOURCE_ALLOC_FAIL, text, outputs=(size,))
    return size


def _take(
    process: AclProcess,
    place: tuple[sqlite3.Connection, Pool],
    qid: int,
    data: _Area,
    user: _Area,
) -> tuple[int, bool] | None:
    """Copy the first element to the program's memory, and remove it from the queue.

    Return the size of the element's data, and whether the data was lost. Return None if the queue
    is empty.
    """
    tables, pool = place
    check_right(pool, READ)
    queue = find_queue(process, tables, pool, qid)
    check_use(process, queue, DEQUEUE)
    headers = first_element(tables, queue.number)
    if not headers:
        return None
    size = headers[0].length
    if size > data.nbytes:
        text = f"the element has {size} bytes, but the program's memory has room for {data.nbytes}"
        raise Refused(Code.RT_PARAM_INVALID, text, outputs=(size,))
    block = open_block(process, tables, headers[0].block)
    if block is not None:
        source = block.pages.address

        def copy() -> None:
            done = source
            for start, count in side_of(process, data.pointer, size).parts if size else ():
                memory.copy(start, done, count)
                done += count

        process.queues.run_now(Work("tdt.dequeue_data", ((data.pointer, size),), copy))
        write(process, user.pointer, headers[0].user.ljust(USER_NBYTES, b"\0")[: user.nbytes])
    tables.executemany("DELETE FROM acl_mbuf WHERE number = ?", [(one.number,) for one in headers])
    pump(process, tables, pool.number)
    record_use(process, "tdt.dequeue_data", queue, DEQUEUE)
    return size, block is None
