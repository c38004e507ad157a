# SPDX-License-Identifier: Apache-2.0
"""The elements of queues, in the table ``acl_mbuf`` of the emulated host's database.

An element is a chain of headers. A header describes one buffer.
"""

import sqlite3
from typing import NamedTuple

__all__ = ["Header", "first_element", "is_full", "next_element"]


class Header(NamedTuple):
    """One header of an element. It refers to the block that contains the data."""

    number: int
    block: int
    length: int
    user: bytes
    is_user_set: int


def is_full(tables: sqlite3.Connection, number: int, depth: int) -> bool:
    """Return whether a queue is full. A queue has room for ``depth - 1`` elements."""
    query = "SELECT count(*) FROM acl_mbuf WHERE queue = ? AND place = 0"
    count: int = tables.execute(query, (number,)).fetchone()[0]
    return count >= depth - 1


def next_element(tables: sqlite3.Connection, number: int) -> int:
    """Return the number for the next element that is added to a queue."""
    query = "SELECT COALESCE(MAX(element), 0) + 1 FROM acl_mbuf WHERE queue = ?"
    element: int = tables.execute(query, (number,)).fetchone()[0]
    return element


def first_element(tables: sqlite3.Connection, number: int) -> list[Header]:
    """Return the headers of the first element of a queue, or an empty list if there is none."""
    rows = tables.execute(
        f"SELECT {', '.join(Header._fields)} FROM acl_mbuf WHERE queue = ? "  # noqa: S608 - fields
        "AND element = (SELECT MIN(element) FROM acl_mbuf WHERE queue = ?) ORDER BY place",
        (number, number),
    )
    return [Header(*row) for row in rows]
