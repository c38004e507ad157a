# SPDX-License-Identifier: Apache-2.0
"""Functions of the application that run as work of a stream, and the threads that call them.

The rule for these functions is ACL-E43 of docs/reference/acl-rules.md.
"""

import threading
import time
from collections.abc import Callable
from typing import Any, Final

from crossmem_emulated.acl.calls import Refused, entry
from crossmem_emulated.acl.codes import Code
from crossmem_emulated.acl.process import AclProcess
from crossmem_emulated.acl.streams import check_timeout, find_stream
from crossmem_emulated.queues import Caller, Work

__all__: list[str] = []

_BLOCK: Final = 1


@entry("c.launch_host_func", "ko")
def _launch_host_func(process: AclProcess, handle: int, function: Callable[[], None]) -> None:
    stream = find_stream(process, handle)
    process.queues.submit(stream, Work("c.launch_host_func", (), function, caller=Caller()))


@entry("rt.subscribe_report", "Kk")
def _subscribe_report(process: AclProcess, thread: int, handle: int) -> None:
    stream = find_stream(process, handle)
    if stream.subscriber is not None:
        text = f"thread {stream.subscriber:#x} already calls the stream's functions"
        raise Refused(Code.RT_STREAM_SUBSCRIBE, text, "ACL-E43")
    stream.subscriber = thread


@entry("rt.unsubscribe_report", "Kk")
def _unsubscribe_report(process: AclProcess, thread: int, handle: int) -> None:
    stream = find_stream(process, handle)
    if stream.subscriber != thread:
        text = f"thread {thread:#x} does not call the stream's functions"
        raise Refused(Code.RT_THREAD_SUBSCRIBE, text, "ACL-E43")
    stream.subscriber = None


@entry("rt.launch_callback", "ooik")
def _launch_callback(
    process: AclProcess, function: Callable[[Any], None], data: Any, kind: int, handle: int
) -> None:
    stream = find_stream(process, handle)
    if kind not in {0, _BLOCK}:
        # 0: the stream does not wait for the function. 1: it waits.
        raise Refused(Code.INVALID_PARAM, f"the kind of a callback must be 0 or 1, not {kind}")
    if stream.subscriber is None:
        text = "no thread calls the stream's functions"
        raise Refused(Code.RT_STREAM_NO_CB_REG, text, "ACL-E43")
    caller = Caller(stream.subscriber, is_waited_for=kind == _BLOCK)
    process.queues.submit(
        stream, Work("rt.launch_callback", (), lambda: function(data), caller=caller)
    )


@entry("rt.process_report", "i")
def _process_report(process: AclProcess, timeout_ms: int) -> None:
    check_timeout(timeout_ms)
    me = threading.get_ident()
    deadline = None if timeout_ms < 0 else time.monotonic() + timeout_ms / 1000
    while not process.queues.reports.get(me):
        if all(one.subscriber != me for one in process.streams.values()):
            # This refusal names no rule, so it is not recorded as a violation: a lawful program
            # may start this thread before the program subscribes the thread to a stream.
            raise Refused(Code.RT_THREAD_SUBSCRIBE, "this thread is not subscribed to a stream")
        if not process.queues.changed.wait(
            None if deadline is None else deadline - time.monotonic()
        ):
            text = f"no function arrived within {timeout_ms} ms"
            raise Refused(Code.RT_REPORT_TIMEOUT, text)
    stream, work = process.queues.reports[me].pop(0)
    process.thread.callback = work
    # The lock is free while the function runs. If this thread kept the lock, a function that waits
    # for another thread's call of ACL would deadlock, because that call needs the lock.
    process.lock.release()
    try:
        work.run()
    finally:
        process.lock.acquire()
        process.thread.callback = None
        process.queues.end_callback(stream, work)
