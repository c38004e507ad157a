# SPDX-License-Identifier: Apache-2.0
"""Routes, which pass the elements of a queue on to other queues without copying the data."""

import sqlite3
from enum import IntEnum
from typing import Final

from crossmem_emulated.acl.calls import Refused, entry
from crossmem_emulated.acl.codes import Code
from crossmem_emulated.acl.process import AclProcess
from crossmem_emulated.acl.tdt.objects import RouteQuery, find_object
from crossmem_emulated.acl.tdt.pools import Pool, check_processor, tables_of
from crossmem_emulated.acl.tdt.router import pump
from crossmem_emulated.acl.tdt.state import Route
from crossmem_emulated.acl.tdt.uses import MANAGE, check_use, find_queue

__all__: list[str] = []

_MOST_ROUTES: Final = 65536
_UNBOUND, _BOUND, _ABNORMAL = range(3)


class _Mode(IntEnum):
    SOURCE = 0
    TARGET = 1
    BOTH = 2
    ABNORMAL = 100


_STATUS: Final = f"CASE WHEN source IS NULL OR target IS NULL THEN {_ABNORMAL} ELSE {_BOUND} END"
_CONDITIONS: Final = {
    _Mode.SOURCE: "source_id = :source",
    _Mode.TARGET: "target_id = :target",
    _Mode.BOTH: "source_id = :source AND target_id = :target",
    _Mode.ABNORMAL: "source IS NULL OR target IS NULL",
}


@entry("tdt.bind_queue_routes", "k", is_exclusive=True)
def _bind_queue_routes(process: AclProcess, handle: int) -> None:
    routes: list[Route] = find_object(process, handle, list)
    check_processor(process)
    refused: list[Refused] = []
    with tables_of(process) as (tables, pool):
        process.tdt.has_router = True
        for route in routes:
            try:
                _bind(process, tables, pool, route)
                route.status = _BOUND
            except Refused as error:
                route.status = _UNBOUND
                refused.append(error)
        pump(process, tables, pool.number)
    if refused:
        text = f"{len(refused)} of {len(routes)} routes are not bound: {refused[0].text}"
        raise Refused(Code.FAILURE, text, next((one.rule for one in refused if one.rule), None))


def _bind(process: AclProcess, tables: sqlite3.Connection, pool: Pool, route: Route) -> None:
    ends = []
    for qid in (route.source, route.target):
        queue = find_queue(process, tables, pool, qid)
        check_use(process, queue, MANAGE)
        ends.append(queue.number)
    layers = tables.execute(
        "SELECT 1 FROM acl_route WHERE source = ? OR target = ?", (ends[1], ends[0])
    )
    if route.source == route.target or layers.fetchone():
        text = f"the route {route.source} to {route.target} makes one queue both source and target"
        raise Refused(Code.FAILURE, text, "ACL-Q29")
    same = "SELECT 1 FROM acl_route WHERE source = ? AND target = ?"
    if tables.execute(same, ends).fetchone():
        return
    (count,) = tables.execute(
        "SELECT count(*) FROM acl_route WHERE pool = ?", (pool.number,)
    ).fetchone()
    if count >= _MOST_ROUTES:
        raise Refused(Code.FAILURE, f"there are {count} routes already, which is the limit")
    tables.execute(
        "INSERT OR REPLACE INTO acl_route (pool, source_id, target_id, source, target) "
        "VALUES (?, ?, ?, ?, ?)",
        (pool.number, route.source, route.target, *ends),
    )


def _check_router(process: AclProcess) -> None:
    check_processor(process)
    if not process.tdt.has_router:
        text = "this process has no router; it must bind routes first"
        raise Refused(Code.RT_DRV_INTERNAL_ERROR, text)


@entry("tdt.unbind_queue_routes", "k", is_exclusive=True)
def _unbind_queue_routes(process: AclProcess, handle: int) -> None:
    routes: list[Route] = find_object(process, handle, list)
    _check_router(process)
    with tables_of(process) as (tables, pool):
        for route in routes:
            tables.execute(
                "DELETE FROM acl_route WHERE pool = ? AND source_id = ? AND target_id = ?",
                (pool.number, route.source, route.target),
            )
            route.status = _UNBOUND
        pump(process, tables, pool.number)
    process.queues.changed.notify_all()


@entry("tdt.query_queue_routes", "kk", is_exclusive=True)
def _query_queue_routes(process: AclProcess, info_handle: int, handle: int) -> None:
    query = find_object(process, info_handle, RouteQuery)
    routes: list[Route] = find_object(process, handle, list)
    routes.clear()
    if query.mode not in set(_Mode):
        raise Refused(Code.INVALID_PARAM, f"the mode {query.mode} of the query is invalid")
    mode = _Mode(query.mode)
    if (mode in {_Mode.SOURCE, _Mode.BOTH} and query.source is None) or (
        mode in {_Mode.TARGET, _Mode.BOTH} and query.target is None
    ):
        raise Refused(Code.INVALID_PARAM, f"a query of mode {mode} lacks the id of a queue")
    _check_router(process)
    with tables_of(process) as (tables, pool):
        routes += [
            Route(*row)
            for row in tables.execute(
                f"SELECT source_id, target_id, {_STATUS} FROM acl_route "  # noqa: S608 - our own
                f"WHERE pool = :pool AND ({_CONDITIONS[mode]}) ORDER BY number",
                {"pool": pool.number, "source": query.source, "target": query.target},
            )
        ]
