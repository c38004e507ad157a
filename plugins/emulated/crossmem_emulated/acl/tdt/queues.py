# SPDX-License-Identifier: Apache-2.0
"""Creation and destruction of queues, and the hand-over of buffers.

A queue hands buffers over in one process, or between the processes of a memory group.
"""

import os
import sqlite3

from crossmem.models.identity import process_start_time
from crossmem_emulated.acl.calls import Refused, entry
from crossmem_emulated.acl.codes import Code
from crossmem_emulated.acl.process import AclProcess
from crossmem_emulated.acl.tdt.blocks import open_block
from crossmem_emulated.acl.tdt.buffers import adopt, check_unwritten, find_head, forget
from crossmem_emulated.acl.tdt.elements import Header, first_element, is_full, next_element
from crossmem_emulated.acl.tdt.objects import find_object
from crossmem_emulated.acl.tdt.pools import READ, WRITE, Pool, check_processor, device_of, tables_of
from crossmem_emulated.acl.tdt.router import pump
from crossmem_emulated.acl.tdt.state import Block, Processor, QueueAttr
from crossmem_emulated.acl.tdt.uses import (
    DEQUEUE,
    ENQUEUE,
    EVERY_BIT,
    Queue,
    check_id,
    check_right,
    check_use,
    die_inside,
    find_queue,
    grant,
    record_use,
    until,
)

__all__: list[str] = []

_SMALLEST_DEPTH, _LARGEST_DEPTH = 2, 8192


@entry("tdt.create_queue", "k", 0)
def _create_queue(process: AclProcess, attr_handle: int) -> int:
    attr = find_object(process, attr_handle, QueueAttr) if attr_handle else QueueAttr()
    check_processor(process)
    if not _SMALLEST_DEPTH <= attr.depth <= _LARGEST_DEPTH:
        raise Refused(
            Code.RT_PARAM_INVALID,
            f"the depth must be {_SMALLEST_DEPTH} to {_LARGEST_DEPTH}, not {attr.depth}",
            "ACL-Q1" if attr.depth < _SMALLEST_DEPTH else "ACL-Q2",
        )
    with tables_of(process) as (tables, pool):
        check_right(pool, WRITE)
        qid = _free_id(process, tables, pool)
        made = tables.execute(
            "INSERT INTO acl_queue (pool, id, name, depth) VALUES (?, ?, ?, ?)",
            (pool.number, qid, attr.name.value.decode("latin-1"), attr.depth),
        )
        number, me = int(made.lastrowid or 0), process.machine.me(tables)
        tables.execute("INSERT INTO acl_queue_user (queue, process) VALUES (?, ?)", (number, me))
        grant(tables, number, (os.getpid(), process_start_time("self") or 0), EVERY_BIT)
    process.tdt.next_id = qid + 1
    return qid


def _free_id(process: AclProcess, tables: sqlite3.Connection, pool: Pool) -> int:
    query = "SELECT 1 FROM acl_queue WHERE pool = ? AND id = ?"
    ids, first = process.profile.queues, process.tdt.next_id
    for one in (number % ids for number in range(first, first + ids)):
        if not tables.execute(query, (pool.number, one)).fetchone():
            return one
    raise Refused(Code.RT_OVER_LIMIT, f"this process or its memory group has {ids} queues already")


@entry("tdt.destroy_queue", "I")
def _destroy_queue(process: AclProcess, qid: int) -> None:
    check_processor(process)
    check_id(qid)
    with tables_of(process) as (tables, pool):
        query = (
            "SELECT number FROM acl_route WHERE pool = ? AND ? IN (source_id, target_id) "
            "AND source IS NOT NULL AND target IS NOT NULL"
        )
        # The vendor's library checks for routes only in a process that has bound a route.
        if process.tdt.has_router and tables.execute(query, (pool.number, qid)).fetchone():
            raise Refused(Code.FAILURE, f"routes use the queue {qid}", "ACL-Q7")
        tables.execute("DELETE FROM acl_queue WHERE pool = ? AND id = ?", (pool.number, qid))
    process.queues.changed.notify_all()


@entry("tdt.enqueue", "Iki")
def _enqueue(process: AclProcess, qid: int, handle: int, timeout_ms: int) -> None:
    find_head(process, handle)
    die_inside(process, "tdt.enqueue", qid, ENQUEUE)

    def attempt(tables: sqlite3.Connection, pool: Pool) -> Queue | None:
        check_right(pool, WRITE)
        # While this thread waited, another thread may have freed or enqueued the buffer.
        chain = find_head(process, handle).chain
        queue = find_queue(process, tables, pool, qid)
        check_use(process, queue, ENQUEUE)
        if is_full(tables, queue.number, queue.depth):
            return None
        check_unwritten(process, tables, "tdt.enqueue", chain[0])
        element = next_element(tables, queue.number)
        tables.executemany(
            "UPDATE acl_mbuf SET holder = NULL, queue = ?, element = ?, place = ?, length = ?, "
            "user = ?, is_user_set = ? WHERE number = ?",
            [
                (
                    queue.number,
                    element,
                    place,
                    one.length,
                    bytes(one.user),
                    one.is_user_set,
                    one.number,
                )
                for place, one in enumerate(chain)
            ],
        )
        pump(process, tables, pool.number)
        return queue

    late = Refused(Code.FAILURE, f"the queue {qid} stayed full for {timeout_ms} ms")
    queue = until(process, timeout_ms, attempt, late, device=device_of(process))
    head = find_head(process, handle)
    process.tdt.handed_over.extend(one.handle for one in head.chain)
    forget(process, "tdt.enqueue", head)
    record_use(process, "tdt.enqueue", queue, ENQUEUE)


@entry("tdt.dequeue", "Ii", 0)
def _dequeue(process: AclProcess, qid: int, timeout_ms: int) -> int:
    check_processor(process, lacking=(Processor.HOST,))
    die_inside(process, "tdt.dequeue", qid, DEQUEUE)

    def attempt(
        tables: sqlite3.Connection, pool: Pool
    ) -> tuple[Queue, list[tuple[Header, Block | None]]] | None:
        check_right(pool, READ)
        queue = find_queue(process, tables, pool, qid)
        check_use(process, queue, DEQUEUE)
        headers = [
            (one, open_block(process, tables, one.block))
            for one in first_element(tables, queue.number)
        ]
        if not headers:
            return None
        # If the memory of one buffer is lost, all buffers of the element are freed.
        is_lost = any(block is None for _, block in headers)
        statement = (
            "DELETE FROM acl_mbuf WHERE number = ?"
            if is_lost
            else "UPDATE acl_mbuf SET holder = ?2, queue = NULL WHERE number = ?1"
        )
        me = () if is_lost else (process.machine.me(tables),)
        tables.executemany(statement, [(one.number, *me) for one, _ in headers])
        pump(process, tables, pool.number)
        return queue, headers

    late = Refused(Code.FAILURE, f"the queue {qid} stayed empty for {timeout_ms} ms")
    queue, headers = until(process, timeout_ms, attempt, late, device=device_of(process))
    record_use(process, "tdt.dequeue", queue, DEQUEUE)
    found = [(header, block) for header, block in headers if block is not None]
    if len(found) < len(headers):
        text = "no living process has the memory of the element"
        raise Refused(Code.RT_RESOURCE_ALLOC_FAIL, text)
    return adopt(process, found)
