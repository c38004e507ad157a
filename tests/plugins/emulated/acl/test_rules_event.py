# SPDX-License-Identifier: Apache-2.0
"""ACL-E37 to E40 and X7: events, and waiting."""

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.plugins.emulated.acl.acl_actor import GRANULARITY, Actor, emulation_only, ok
    from tests.plugins.emulated.acl.conftest import Start
else:
    from acl_actor import GRANULARITY, Actor, emulation_only, ok

    Start = Any


SYNC, TIME_LINE, DEVICE_ONLY, EXTERNAL, IPC = 0x1, 0x8, 0x10, 0x20, 0x40
NOT_READY, COMPLETE = 0, 1
documented = pytest.mark.parametrize("profile", ["documented"], indirect=True)


def begin_copy(acl: Actor, stream: int) -> int:
    """Give a stream work that it does only when somebody waits, where streams are slow."""
    pointer = int(ok(acl.rt.malloc(GRANULARITY, 0)))
    ok(acl.rt.memset_async(pointer, GRANULARITY, 7, GRANULARITY, stream))
    return pointer


@documented
def test_e37_flags(acl: Actor) -> None:
    for flags in (0, 0x80, EXTERNAL | SYNC, DEVICE_ONLY | SYNC, IPC | SYNC):
        assert acl.rt.create_event_with_flag(flags) == (0, 107000)
        assert acl.rt.create_event_ex_with_flag(flags) == (0, 107000)
    assert acl.rt.create_event_with_flag(IPC) == (0, 107000)
    acl.check_broken(*["ACL-E37"] * 11)
    for flags in (SYNC, SYNC | TIME_LINE, DEVICE_ONLY):
        ok(acl.rt.destroy_event(ok(acl.rt.create_event_with_flag(flags))))
        ok(acl.rt.destroy_event(ok(acl.rt.create_event_ex_with_flag(flags))))


@emulation_only
@documented
def test_e37_what_flags_do_not_allow(acl: Actor) -> None:
    timed = ok(acl.rt.create_event_with_flag(TIME_LINE))
    again = ok(acl.rt.create_event_ex_with_flag(SYNC))
    shared = ok(acl.rt.create_event_ex_with_flag(IPC))
    outside = ok(acl.rt.create_event_with_flag(EXTERNAL))

    assert [
        acl.rt.reset_event(timed, 0),
        acl.rt.stream_wait_event(0, timed),
        acl.rt.query_event_wait_status(timed)[-1],
        *(acl.rt.reset_event(one, 0) for one in (again, shared)),
        *(acl.rt.query_event(one)[-1] for one in (again, shared, outside)),
        *(acl.rt.query_event_wait_status(one)[-1] for one in (again, shared)),
        acl.rt.query_event_status(outside)[-1],
        acl.rt.synchronize_event(outside),
        acl.rt.event_get_timestamp(shared)[-1],
        acl.c.get_event_id(shared)[-1],
    ] == [207000] * 14
    acl.check_broken(*["ACL-E37"] * 14)


@pytest.mark.parametrize("slow", [0, 1])
@emulation_only
@documented
def test_events_tell_what_is_done(start: Start, slow: int) -> None:
    acl = start(CROSSMEM_EMULATED_SLOW_STREAMS=slow)
    stream, other = ok(acl.rt.create_stream()), ok(acl.rt.create_stream())
    event = ok(acl.rt.create_event_with_flag(SYNC))
    assert ok(acl.rt.query_event_status(event)) == NOT_READY
    begin_copy(acl, stream)
    ok(acl.rt.record_event(event, stream))
    ok(acl.rt.stream_wait_event(other, event))

    assert ok(acl.rt.query_event_status(event)) == (NOT_READY if slow else COMPLETE)
    assert ok(acl.rt.query_event(event)) == slow
    assert ok(acl.rt.stream_query(stream)) == ok(acl.rt.stream_query(other)) == slow
    assert ok(acl.rt.query_event_wait_status(event)) == slow
    ok(acl.rt.synchronize_stream(other))
    assert ok(acl.rt.stream_query(stream)) == ok(acl.rt.query_event_wait_status(event)) == 0
    assert ok(acl.rt.query_event_status(event)) == COMPLETE
    ok(acl.rt.reset_event(event, stream))
    ok(acl.rt.synchronize_stream(stream))
    assert ok(acl.rt.query_event_status(event)) == NOT_READY
    acl.check_broken()


@emulation_only
@documented
def test_events_can_be_recorded_again(start: Start) -> None:
    acl = start(CROSSMEM_EMULATED_SLOW_STREAMS=1)
    event = ok(acl.rt.create_event_ex_with_flag(SYNC | TIME_LINE))
    assert ok(acl.rt.query_event_status(event)) == COMPLETE
    ok(acl.rt.synchronize_event(event))
    for _ in range(2):
        begin_copy(acl, 0)
        ok(acl.rt.record_event(event, 0))
        assert ok(acl.rt.query_event_status(event)) == NOT_READY
    ok(acl.rt.synchronize_event(event))

    assert ok(acl.rt.query_event_status(event)) == COMPLETE
    ok(acl.rt.destroy_event(event))
    acl.check_broken()


@emulation_only
@documented
def test_a_stream_that_is_forced_to_end_does_nothing(start: Start) -> None:
    acl = start(CROSSMEM_EMULATED_SLOW_STREAMS=1)
    stream = ok(acl.rt.create_stream())
    pointer = begin_copy(acl, stream)
    ok(acl.rt.destroy_stream_force(stream))

    assert acl.read(pointer, 2) == b"\xa5" * 2
    acl.check_broken()


@emulation_only
@documented
def test_e38_times(start: Start) -> None:
    acl = start(CROSSMEM_EMULATED_SLOW_STREAMS=1)
    first, second, untimed = (
        ok(acl.rt.create_event()),
        ok(acl.rt.create_event()),
        ok(acl.rt.create_event_with_flag(SYNC)),
    )

    assert acl.rt.event_elapsed_time(first, second) == (0.0, 107006)
    for event in (first, second, untimed):
        ok(acl.rt.record_event(event, 0))
    assert acl.rt.event_elapsed_time(first, second) == (0.0, 507006)
    ok(acl.rt.synchronize_device())
    assert acl.rt.event_elapsed_time(second, first) == (0.0, 107007)
    assert acl.rt.event_elapsed_time(first, untimed) == (0.0, 107006)
    acl.check_broken(*["ACL-E38"] * 4)
    assert ok(acl.rt.event_elapsed_time(first, second)) > 0
    assert ok(acl.rt.event_get_timestamp(first)) <= ok(acl.rt.event_get_timestamp(second))


@emulation_only
@pytest.mark.parametrize("profile", ["documented", "a2", "a3"], indirect=True)
def test_e39_events_of_other_processes(exporter: Actor, importer: Actor) -> None:
    event = ok(exporter.rt.create_event_ex_with_flag(IPC))
    handle = ok(exporter.c.ipc_get_event_handle(event))
    there = ok(importer.c.ipc_open_event_handle(handle))
    ok(exporter.rt.record_event(event, 0))

    assert len(handle) == 64
    assert ok(exporter.c.ipc_get_event_handle(event)) == handle
    ok(importer.rt.stream_wait_event(0, there))
    ok(importer.rt.synchronize_event(there))
    assert ok(importer.rt.query_event_status(there)) == COMPLETE
    ok(importer.rt.destroy_event(there))
    ok(importer.c.ipc_open_event_handle(handle))
    importer.check_broken()
    assert exporter.c.ipc_open_event_handle(handle) == (0, 507899)
    assert exporter.c.ipc_get_event_handle(ok(exporter.rt.create_event())) == (b"", 107000)
    exporter.check_broken("ACL-E39", "ACL-E39")
    ok(exporter.rt.destroy_event(event))
    assert importer.c.ipc_open_event_handle(handle) == (0, 107017)


@emulation_only
@documented
def test_e39_events_die_with_their_maker(exporter: Actor, importer: Actor) -> None:
    handle = ok(exporter.c.ipc_get_event_handle(ok(exporter.rt.create_event_ex_with_flag(IPC))))
    exporter.kill()

    assert importer.c.ipc_open_event_handle(handle) == (0, 107017)
    importer.check_broken()


@emulation_only
@pytest.mark.parametrize("profile", ["cann8", "950", "old-driver", "310b-rc"], indirect=True)
def test_e39_not_everywhere(acl: Actor) -> None:
    assert acl.rt.create_event_ex_with_flag(IPC) == (0, 207000)
    assert acl.c.ipc_get_event_handle(1) == (b"", 207000)
    assert acl.c.ipc_open_event_handle(bytes(64)) == (0, 207000)
    acl.check_broken()


@emulation_only
def test_e40_how_long(acl: Actor) -> None:
    event = ok(acl.rt.create_event())
    for timeout in (-2, 0):
        assert acl.rt.synchronize_event_with_timeout(event, timeout) == 107000
        assert acl.rt.synchronize_stream_with_timeout(0, timeout) == 107000
        assert acl.rt.synchronize_device_with_timeout(timeout) == 107000
    assert acl.c.stream_wait_event_with_timeout(0, event, -2) == 107000
    acl.check_broken(*["ACL-E40"] * 7)
    for timeout in (-1, 1):
        ok(acl.rt.synchronize_event_with_timeout(event, timeout))
        ok(acl.rt.synchronize_stream_with_timeout(0, timeout))
        ok(acl.rt.synchronize_device_with_timeout(timeout))
    for timeout in (0, 1):
        ok(acl.c.stream_wait_event_with_timeout(0, event, timeout))
    ok(acl.rt.set_op_wait_timeout(1))
    ok(acl.rt.set_op_execute_time_out(1))


@emulation_only
def test_x7_unknown_events(acl: Actor) -> None:
    event = ok(acl.rt.create_event())
    ok(acl.rt.destroy_event(event))

    assert acl.rt.destroy_event(0) == 100000
    assert [
        acl.rt.destroy_event(event),
        acl.rt.record_event(event, 0),
        acl.rt.query_event_status(4096)[-1],
    ] == [107000] * 3
    acl.check_broken(*["ACL-X7"] * 3)


@emulation_only
def test_events_need_a_context(start: Start) -> None:
    assert start(device=None).rt.create_event() == (0, 107002)
