# SPDX-License-Identifier: Apache-2.0
"""Permissions of other processes to use a queue.

Processes can grant permissions and attach queues only if the implementation of TDT for memory
groups serves them.
"""

from crossmem.models.identity import process_start_time
from crossmem_emulated.acl.calls import Refused, entry
from crossmem_emulated.acl.codes import Code
from crossmem_emulated.acl.process import AclProcess
from crossmem_emulated.acl.tdt.pools import READ, check_processor, tables_of
from crossmem_emulated.acl.tdt.state import Processor
from crossmem_emulated.acl.tdt.uses import (
    EVERY_BIT,
    MANAGE,
    check_id,
    check_right,
    check_use,
    find_queue,
    grant,
    record_use,
)

__all__: list[str] = []

_ALONE = (Processor.HOST, Processor.DEVICE)


@entry("tdt.grant_queue", "IiIi")
def _grant_queue(process: AclProcess, qid: int, pid: int, bits: int, _timeout_ms: int) -> None:
    check_processor(process, lacking=_ALONE)
    if pid <= 0:
        raise Refused(Code.RT_PARAM_INVALID, f"a pid is positive, not {pid}", "ACL-Q25")
    with tables_of(process) as (tables, pool):
        queue = find_queue(process, tables, pool, qid)
        check_use(process, queue, MANAGE)
        # If no process has this pid, the grant gets the start time -1. No process has this start
        # time, so the grant has no effect.
        started = process_start_time(pid)
        grant(tables, queue.number, (pid, -1 if started is None else started), bits)
        record_use(process, "tdt.grant_queue", queue, MANAGE)


@entry("tdt.attach_queue", "Ii", 0)
def _attach_queue(process: AclProcess, qid: int, timeout_ms: int) -> int:
    check_processor(process, lacking=_ALONE)
    check_id(qid)
    if timeout_ms < -1:
        text = f"the timeout must be at least -1, not {timeout_ms}"
        raise Refused(Code.RT_PARAM_INVALID, text, "ACL-Q23")
    with tables_of(process) as (tables, pool):
        check_right(pool, READ)
        me = process.machine.me(tables)
        # A refusal below rolls the transaction back, so the refused process is not attached.
        tables.execute(
            "INSERT OR IGNORE INTO acl_queue_user (queue, process) "
            "SELECT number, ? FROM acl_queue WHERE pool = ? AND id = ?",
            (me, pool.number, qid),
        )
        queue = find_queue(process, tables, pool, qid)
        if queue.bits is None:
            text = "this process was granted no permission for the queue"
            if process.profile.is_documented:
                raise Refused(Code.RT_NO_PERMISSION, text, "ACL-Q26")
            process.violate("tdt.attach_queue", "ACL-Q26", text)
    return (queue.bits or 0) if process.profile.is_documented else EVERY_BIT
