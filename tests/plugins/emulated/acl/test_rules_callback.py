# SPDX-License-Identifier: Apache-2.0
"""Functions of the program that are work of a stream, and the threads that call them."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from crossmem.conformance.speed import SLOWNESS
from crossmem_emulated.acl import Acl
from crossmem_emulated.options import Options

if TYPE_CHECKING:
    from tests.plugins.emulated.acl.acl_actor import REAL, Actor, ok
else:
    from acl_actor import REAL, Actor, ok

pytestmark = pytest.mark.skipif(bool(REAL), reason="the functions are this process's own")

WAIT_S = 20 * SLOWNESS
NBYTES = 4096
NO_BLOCK, BLOCK = range(2)
IPC = 0x40
NOT_READY, COMPLETE = range(2)


def opened(host: Path, profile: str, *, slow: bool = False) -> Any:
    acl = Acl(profile, options=Options(state=host, slow_streams=slow))
    assert ok(acl.rt.set_device(0)) is None
    return acl


def begin(function: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=function, daemon=True)
    thread.start()
    return thread


def join(*threads: threading.Thread) -> None:
    for thread in threads:
        thread.join(WAIT_S)
        assert not thread.is_alive()


@pytest.mark.parametrize("slow", [False, True])
def test_e43_a_function_has_a_thread_of_its_own(host: Path, profile: str, slow: bool) -> None:
    acl = opened(host, profile, slow=slow)
    stream, memory = ok(acl.rt.create_stream()), ok(acl.rt.malloc(NBYTES, 0))
    context = ok(acl.rt.get_context())
    entered, may_end = threading.Event(), threading.Event()
    seen: list[int] = []

    def function() -> None:
        seen.append(threading.get_ident())
        entered.set()
        assert may_end.wait(WAIT_S)

    def synchronize() -> None:
        ok(acl.rt.set_context(context))
        ok(acl.rt.synchronize_stream(stream))

    ok(acl.c.launch_host_func(stream, function))
    ok(acl.rt.memset_async(memory, NBYTES, 9, NBYTES, stream))
    waiting = begin(synchronize)
    assert entered.wait(WAIT_S)
    # Everybody else goes on, and what is behind the function waits.
    assert ok(acl.rt.stream_query(stream)) == 1
    assert acl.rt.synchronize_stream_with_timeout(stream, 10) == 507046
    may_end.set()
    join(waiting)

    assert ok(acl.rt.stream_query(stream)) == 0
    assert seen[0] not in {threading.get_ident(), waiting.ident}


def test_e43_events_and_other_streams_wait_for_a_function(host: Path, profile: str) -> None:
    acl = opened(host, profile)
    stream, other = (ok(acl.rt.create_stream()) for _ in range(2))
    event = ok(acl.rt.create_event())
    may_end = threading.Event()
    seen: list[int] = []

    ok(acl.c.launch_host_func(stream, lambda: may_end.wait(WAIT_S)))
    for number in range(8):
        ok(acl.c.launch_host_func(stream, lambda number=number: seen.append(number)))
    ok(acl.rt.record_event(event, stream))
    ok(acl.rt.stream_wait_event(other, event))
    ok(acl.c.launch_host_func(other, lambda: seen.append(8)))
    assert acl.rt.synchronize_event_with_timeout(event, 10) == 507047
    assert seen == []
    may_end.set()
    ok(acl.rt.synchronize_stream(other))

    assert seen == list(range(9))


@pytest.mark.parametrize("slow", [False, True])
def test_e43_a_thread_calls_the_functions_of_a_stream(host: Path, profile: str, slow: bool) -> None:
    acl = opened(host, profile, slow=slow)
    stream = ok(acl.rt.create_stream())
    seen: list[object] = []
    codes: list[int] = []
    may_begin = threading.Event()

    def work() -> None:
        assert may_begin.wait(WAIT_S)
        codes.extend(acl.rt.process_report(timeout) for timeout in (-1, 10_000, 10))

    def function(data: object) -> None:
        seen.append((data, threading.get_ident()))

    thread = begin(work)
    assert acl.rt.launch_callback(function, "x", BLOCK, stream) == 107015
    ok(acl.rt.subscribe_report(thread.ident, stream))
    assert acl.rt.subscribe_report(thread.ident, stream) == 107011
    assert acl.rt.launch_callback(function, "x", 2, stream) == 100000
    ok(acl.rt.launch_callback(function, "first", BLOCK, stream))
    ok(acl.rt.launch_callback(function, "second", NO_BLOCK, stream))
    assert seen == []
    assert ok(acl.rt.stream_query(stream)) == 1
    may_begin.set()
    ok(acl.rt.synchronize_stream(stream))
    join(thread)

    assert seen == [("first", thread.ident), ("second", thread.ident)]
    assert codes == [0, 0, 507012]
    assert acl.rt.unsubscribe_report(threading.get_ident(), stream) == 107012
    ok(acl.rt.unsubscribe_report(thread.ident, stream))
    # This thread calls nobody's functions.
    assert acl.rt.process_report(1) == 107012
    assert acl.rt.process_report(0) == 107000


def test_e43_a_stream_goes_on_where_it_was_told_to(host: Path, profile: str) -> None:
    acl = opened(host, profile)
    stream = ok(acl.rt.create_stream())
    ok(acl.rt.subscribe_report(threading.get_ident(), stream))
    seen: list[int] = []

    def function(data: int) -> None:
        # It is not waited for, so it may wait.
        ok(acl.rt.synchronize_stream(stream))
        seen.append(data)

    ok(acl.rt.launch_callback(function, 5, NO_BLOCK, stream))
    ok(acl.rt.synchronize_stream(stream))
    assert seen == []
    ok(acl.rt.process_report(-1))

    assert seen == [5]
    assert acl.violations == []


def test_e43_a_function_does_not_wait_for_itself(host: Path, profile: str) -> None:
    acl = opened(host, profile)
    stream = ok(acl.rt.create_stream())
    codes: list[int] = []

    ok(acl.c.launch_host_func(stream, lambda: codes.append(acl.rt.synchronize_stream(stream))))
    ok(acl.rt.synchronize_stream(stream))

    assert codes == [507899]
    assert {one.rule for one in acl.violations} == {"ACL-E43"}


@pytest.mark.parametrize("is_default", [True, False])
def test_e43_a_reset_device_waits_for_functions_of_its_default_context(
    host: Path, profile: str, is_default: bool
) -> None:
    acl = opened(host, profile)
    if not is_default:
        ok(acl.rt.create_context(0))
    stream = ok(acl.rt.create_stream())
    may_end, has_ended, is_reset = (threading.Event() for _ in range(3))

    def function() -> None:
        assert may_end.wait(WAIT_S)
        has_ended.set()

    def reset() -> None:
        ok(acl.rt.reset_device(0))
        is_reset.set()

    ok(acl.c.launch_host_func(stream, function))
    thread = begin(reset)
    if not is_default:
        assert is_reset.wait(WAIT_S)
    may_end.set()
    join(thread)
    assert has_ended.wait(0 if is_default else WAIT_S)
    assert acl.rt.synchronize_stream(stream) == 107000


@pytest.mark.parametrize("slow", [False, True])
@pytest.mark.parametrize("profile", ["documented", "a2"], indirect=True)
def test_e39_recording_does_not_wait_for_functions(
    host: Path, profile: str, importer: Actor, slow: bool
) -> None:
    """Other processes see that the event is not done, and can wait for it."""
    acl = opened(host, profile, slow=slow)
    stream, event = ok(acl.rt.create_stream()), ok(acl.rt.create_event_ex_with_flag(IPC))
    late = ok(importer.c.ipc_open_event_handle(ok(acl.c.ipc_get_event_handle(event))))
    may_end = threading.Event()
    seen = ok(importer.rt.malloc(NBYTES, 0))
    importer.write(seen, b"before")

    ok(acl.c.launch_host_func(stream, lambda: may_end.wait(WAIT_S)))
    ok(acl.rt.record_event(event, stream))
    early = ok(importer.c.ipc_open_event_handle(ok(acl.c.ipc_get_event_handle(event))))
    for one in (early, late):
        assert ok(importer.rt.query_event_status(one)) == NOT_READY
        assert importer.rt.synchronize_event_with_timeout(one, 10) == 507047
    ok(importer.rt.stream_wait_event(0, late))
    ok(importer.rt.memset_async(seen, NBYTES, 0x21, 6, 0))
    assert ok(importer.rt.stream_query(0)) == 1
    assert importer.read(seen, 6) == b"before"
    may_end.set()
    ok(importer.rt.synchronize_event(early))
    ok(importer.rt.synchronize_stream(0))

    assert importer.read(seen, 6) == b"!!!!!!"
    assert ok(importer.rt.query_event_status(late)) == COMPLETE
    assert acl.violations == []


ENDS: dict[str, Callable[[Any, int, int], int]] = {
    "recorded again": lambda acl, event, _: int(acl.rt.record_event(event, 0)),
    "event destroyed": lambda acl, event, _: int(acl.rt.destroy_event(event)),
    "stream destroyed": lambda acl, _, stream: int(acl.rt.destroy_stream_force(stream)),
    "device reset": lambda acl, *_: int(acl.rt.reset_device_force(0)),
}


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("profile", ["documented"], indirect=True)
def test_e39_nobody_waits_for_what_is_never_done(
    host: Path, profile: str, importer: Actor, end: str
) -> None:
    acl = opened(host, profile)
    # What is left to do in the default one is done before a reset.
    ok(acl.rt.create_context(0))
    stream, event = ok(acl.rt.create_stream()), ok(acl.rt.create_event_ex_with_flag(IPC))
    there = ok(importer.c.ipc_open_event_handle(ok(acl.c.ipc_get_event_handle(event))))
    may_end = threading.Event()

    ok(acl.c.launch_host_func(stream, lambda: may_end.wait(WAIT_S)))
    ok(acl.rt.record_event(event, stream))
    assert importer.rt.synchronize_event_with_timeout(there, 10) == 507047
    importer.begin("acl.rt.synchronize_event", there)
    ok(ENDS[end](acl, event, stream))

    assert importer.result() == 0
    may_end.set()
