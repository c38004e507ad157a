# SPDX-License-Identifier: Apache-2.0
"""The router: it moves elements along routes, from source queues to target queues.

The router takes an element from a source, and gives each target a reference to the same data. While
a target is full, the router keeps the element, and takes no other element from the source.
"""

import sqlite3

from crossmem_emulated.acl.process import AclProcess
from crossmem_emulated.acl.tdt.blocks import open_block
from crossmem_emulated.acl.tdt.buffers import digest_of
from crossmem_emulated.acl.tdt.elements import is_full, next_element

__all__ = ["pump"]

_COPY = (
    "INSERT INTO acl_mbuf (block, queue, element, place, length, user, is_user_set) "
    "SELECT block, ?, ?, place, length, user, is_user_set "
    "FROM acl_mbuf WHERE router = ? ORDER BY place"
)


def pump(process: AclProcess, tables: sqlite3.Connection, pool: int) -> None:
    """Move elements along the routes of a pool, as far as the targets have room.

    ``pool`` is the number of a pool. A pool contains the queues and buffers of one memory group, or
    those of one program on the host.
    """
    sources = tables.execute(
        "SELECT DISTINCT source FROM acl_route WHERE pool = ? AND source IS NOT NULL "
        "AND target IS NOT NULL",
        (pool,),
    ).fetchall()
    for (source,) in sources:
        # No target is a source, so the order of the sources does not matter.
        while _deliver(tables, source) and _take(process, tables, source):
            pass


def _deliver(tables: sqlite3.Connection, source: int) -> bool:
    """Give the targets of a source the element that the router has taken from the source.

    A target that has the element already does not get it again. Return False if a full target did
    not get the element.
    """
    pending = tables.execute(
        "SELECT acl_route.number, target, depth "
        "FROM acl_route JOIN acl_queue ON acl_queue.number = target "
        "WHERE source = ? AND is_pending ORDER BY acl_route.number",
        (source,),
    ).fetchall()
    is_kept = False
    for route, target, depth in pending:
        if is_full(tables, target, depth):
            is_kept = True
            continue
        tables.execute(_COPY, (target, next_element(tables, target), source))
        tables.execute("UPDATE acl_route SET is_pending = 0 WHERE number = ?", (route,))
    if not is_kept:
        tables.execute("DELETE FROM acl_mbuf WHERE router = ?", (source,))
    return not is_kept


def _take(process: AclProcess, tables: sqlite3.Connection, source: int) -> bool:
    """Take the next element from a source. Return False if the source is empty."""
    tables.execute(
        "UPDATE acl_mbuf SET router = queue, queue = NULL WHERE queue = ? "
        "AND element = (SELECT MIN(element) FROM acl_mbuf WHERE queue = ?)",
        (source, source),
    )
    blocks = tables.execute(
        "SELECT DISTINCT block FROM acl_mbuf WHERE router = ?", (source,)
    ).fetchall()
    for (number,) in blocks:
        block = open_block(process, tables, number) if process.strict else None
        if block is not None:
            statement = "UPDATE acl_block SET digest = ? WHERE number = ?"
            tables.execute(statement, (digest_of(block), number))
    if blocks:
        tables.execute("UPDATE acl_route SET is_pending = 1 WHERE source = ?", (source,))
    return bool(blocks)
