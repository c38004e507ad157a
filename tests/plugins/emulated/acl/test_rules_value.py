# SPDX-License-Identifier: Apache-2.0
"""ACL-E44 and E45: values that streams write and wait for, and notifies."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from crossmem.conformance.speed import SLOWNESS

if TYPE_CHECKING:
    from tests.plugins.emulated.acl.acl_actor import (
        DRIVER,
        GRANULARITY,
        Actor,
        differs,
        emulation_only,
        ok,
    )
    from tests.plugins.emulated.acl.conftest import Start
else:
    from acl_actor import DRIVER, GRANULARITY, Actor, differs, emulation_only, ok

    Start = Any


NBYTES = 4096
WAIT_S = 20 * SLOWNESS
AT_LEAST, EQUAL, ANY_BIT, NOT_ALL_BITS = range(4)
ALL_BITS = (1 << 64) - 1
EVERYBODY, WITH_PEERS = 2, 2
KEY_NBYTES = 65
documented = pytest.mark.parametrize("profile", ["documented"], indirect=True)


@pytest.fixture(params=[0, 1], ids=["quick", "slow"])
def slow(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture
def word_file(tmp_path: Path) -> str:
    """Return the path of a file that processes map."""
    path = tmp_path / "words"
    path.write_bytes(bytes(NBYTES))
    return str(path)


def soon(is_so: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + WAIT_S
    while not is_so() and time.monotonic() < deadline:
        time.sleep(0.001)
    return is_so()


def new_word(acl: Actor, value: int = 0) -> int:
    """Return the address of a word of the device."""
    pointer = int(ok(acl.rt.malloc(NBYTES, 0)))
    acl.write(pointer, value.to_bytes(8, "little"))
    return pointer


def set_word(acl: Actor, pointer: int, value: int) -> None:
    acl.write(pointer, value.to_bytes(8, "little"))


# Values ---------------------------------------------------------------------------------------


@emulation_only
@differs(dict.fromkeys([*DRIVER.split(), "documented"], 0))
def test_e44_a_wait_holds_back_its_own_stream_alone(start: Start, slow: int, code: int) -> None:
    acl = start(CROSSMEM_EMULATED_SLOW_STREAMS=slow)
    word, memory = new_word(acl), int(ok(acl.rt.malloc(GRANULARITY, 0)))
    stream, other = ok(acl.rt.create_stream()), ok(acl.rt.create_stream())
    acl.write(memory, b"old")

    assert acl.rt.value_wait(word, 5, AT_LEAST, stream) == code
    ok(acl.rt.memset_async(memory, GRANULARITY, 9, GRANULARITY, stream))
    ok(acl.rt.memset_async(memory + 4096, 8, 7, 8, other))
    ok(acl.rt.synchronize_stream(other))
    assert ok(acl.rt.stream_query(stream)) == 1
    assert acl.read(memory, 3) == b"old"
    set_word(acl, word, 4)
    assert ok(acl.rt.stream_query(stream)) == 1
    set_word(acl, word, 5)
    ok(acl.rt.synchronize_stream(stream))
    assert acl.read(memory, 3) == b"\x09\x09\x09"
    acl.check_broken()


@emulation_only
@documented
def test_e44_a_value_is_written_after_earlier_work(start: Start, slow: int) -> None:
    acl = start(CROSSMEM_EMULATED_SLOW_STREAMS=slow)
    gate, word = new_word(acl), new_word(acl)
    stream = ok(acl.rt.create_stream())
    ok(acl.rt.value_wait(gate, 1, EQUAL, stream))
    ok(acl.rt.value_write(word, ALL_BITS, 0, stream))
    time.sleep(0.1)

    assert acl.read(word, 8) == bytes(8)
    set_word(acl, gate, 1)
    assert soon(lambda: acl.read(word, 8) == b"\xff" * 8)


@emulation_only
@documented
def test_e44_two_processes(start: Start, slow: int, word_file: str) -> None:
    writer, reader = (start(CROSSMEM_EMULATED_SLOW_STREAMS=slow) for _ in range(2))
    theirs, ours = (one.call("map_words", word_file, NBYTES) for one in (writer, reader))
    stream = ok(reader.rt.create_stream())
    ok(reader.rt.value_wait(ours, 3, AT_LEAST, stream))

    assert ok(reader.rt.stream_query(stream)) == 1
    ok(writer.rt.value_write(theirs, 3, 0, 0))
    ok(reader.rt.synchronize_stream(stream))
    # A store of the host does as well.
    ok(reader.rt.value_wait(ours, 4, AT_LEAST, stream))
    reader.begin("acl.rt.synchronize_stream", stream)
    writer.call("poke", theirs, (4).to_bytes(8, "little"))
    assert reader.result() == 0
    reader.check_broken()


@emulation_only
@documented
@pytest.mark.parametrize(
    ("flag", "word", "value", "expected"),
    [
        (AT_LEAST, 5, 5, True),
        (AT_LEAST, 4, 5, False),
        # The comparison is cyclic.
        (AT_LEAST, 2, ALL_BITS, True),
        (AT_LEAST, ALL_BITS, 2, False),
        (AT_LEAST, (1 << 63) - 1, 0, True),
        (EQUAL, 6, 5, False),
        (ANY_BIT, 6, 12, True),
        (ANY_BIT, 3, 12, False),
        (NOT_ALL_BITS, ALL_BITS ^ 6, 2, True),
        (NOT_ALL_BITS, ALL_BITS ^ 6, 6, False),
    ],
)
def test_e44_conditions(acl: Actor, flag: int, word: int, value: int, expected: bool) -> None:
    pointer, stream = new_word(acl, word), ok(acl.rt.create_stream())
    ok(acl.rt.value_wait(pointer, value, flag, stream))
    time.sleep(0.01)

    assert ok(acl.rt.stream_query(stream)) == int(not expected)
    ok(acl.rt.destroy_stream_force(stream))


@emulation_only
@differs({"documented": 107000, "a2": 0, "950": 0})
def test_e44_flags_of_a_write(acl: Actor, code: int) -> None:
    assert acl.rt.value_write(new_word(acl), 1, 1, 0) == code


@emulation_only
@documented
def test_e44_words_that_no_stream_uses(acl: Actor) -> None:
    word, own = new_word(acl), acl.call("buffer", bytes(64))
    freed = new_word(acl)
    ok(acl.rt.free(freed))

    for call in (acl.rt.value_write, acl.rt.value_wait):
        assert call(0, 1, 0, 0) == 100000
        assert call(word + 4, 1, 0, 0) == 107000
        assert call(-own % 8 + own, 1, 0, 0) == 107000
        assert call(freed, 1, 0, 0) in {107000, 507899}
        assert call(word, 1, 0, 4096) == 107000
    assert acl.rt.value_wait(word, 1, 4, 0) == 107000
    assert {"ACL-E44", "ACL-X3"} <= set(acl.broken_rules)


@emulation_only
@documented
def test_e44_registered_memory_is_taken_from_a_waiting_stream(acl: Actor, word_file: str) -> None:
    word, stream = acl.call("map_words", word_file, NBYTES), ok(acl.rt.create_stream())
    ok(acl.rt.value_wait(word, 1, EQUAL, stream))

    ok(acl.rt.host_unregister(word))
    assert ok(acl.rt.stream_query(stream)) == 0
    assert acl.rt.value_wait(word, 1, EQUAL, stream) == 107000
    acl.check_broken("ACL-X1", "ACL-E44")


@emulation_only
@documented
def test_e44_a_value_that_never_comes_keeps_nobody(start: Start, slow: int) -> None:
    acl = start(CROSSMEM_EMULATED_SLOW_STREAMS=slow)
    word = new_word(acl)
    stream, other = ok(acl.rt.create_stream()), ok(acl.rt.create_stream())
    for one in (stream, other):
        ok(acl.rt.value_wait(word, 1, EQUAL, one))

    assert acl.rt.synchronize_stream_with_timeout(stream, 20) == 507046
    ok(acl.rt.destroy_stream_force(stream))
    acl.leave()


@emulation_only
@differs({"310b-rc": 207000, "documented a2 a3 950 old-driver": 0})
def test_e44_not_everywhere(acl: Actor, code: int) -> None:
    word = ok(acl.rt.malloc(NBYTES, 0))

    assert acl.rt.value_write(word, 1, 0, 0) == code
    assert acl.rt.value_wait(word, 1, EQUAL, 0) == code
    acl.check_broken()


# Notifies -------------------------------------------------------------------------------------


@emulation_only
@differs(dict.fromkeys([*DRIVER.split(), "documented", "310b-rc"], 0))
def test_e45_a_stream_waits_for_a_record(start: Start, slow: int, code: int) -> None:
    acl = start(CROSSMEM_EMULATED_SLOW_STREAMS=slow)
    notify = ok(acl.rt.create_notify(0))
    stream, other = ok(acl.rt.create_stream()), ok(acl.rt.create_stream())

    assert acl.rt.wait_and_reset_notify(notify, stream, 0) == code
    assert ok(acl.rt.stream_query(stream)) == 1
    assert acl.rt.record_notify(notify, other) == code
    ok(acl.rt.synchronize_stream(stream))
    # The wait has reset it.
    ok(acl.rt.wait_and_reset_notify(notify, stream, 10))
    time.sleep(0.01)
    assert ok(acl.rt.stream_query(stream)) == 1
    ok(acl.rt.record_notify(notify, other))
    ok(acl.rt.synchronize_stream(stream))
    # A record that comes first is kept.
    ok(acl.rt.record_notify(notify, other))
    ok(acl.rt.synchronize_stream(other))
    ok(acl.rt.wait_and_reset_notify(notify, stream, 0))
    ok(acl.rt.synchronize_stream(stream))
    ok(acl.rt.destroy_notify(notify))
    acl.check_broken()


@emulation_only
@differs({"documented": 0, "a2": 0, "950": 0})
def test_e45_notifies_of_two_processes(start: Start, slow: int, code: int) -> None:
    waiter, recorder = (start(CROSSMEM_EMULATED_SLOW_STREAMS=slow) for _ in range(2))
    notify = ok(waiter.rt.create_notify(0))
    key = ok(waiter.rt.notify_get_export_key(notify, KEY_NBYTES, 0))

    assert len(key) == KEY_NBYTES - 1
    assert ok(waiter.rt.notify_get_export_key(notify, KEY_NBYTES, 0)) == key
    assert recorder.rt.notify_import_by_key(key, 0) == (0, 507899)
    ok(waiter.rt.notify_set_import_pid(notify, [recorder.tgid]))
    imported, answer = recorder.rt.notify_import_by_key(key, 0)
    assert answer == code
    assert ok(recorder.rt.get_notify_id(imported)) == ok(waiter.rt.get_notify_id(notify))
    stream = ok(waiter.rt.create_stream())
    ok(waiter.rt.wait_and_reset_notify(notify, stream, 0))
    assert ok(waiter.rt.stream_query(stream)) == 1
    ok(recorder.rt.record_notify(imported, 0))
    ok(waiter.rt.synchronize_stream(stream))
    # It ends when the last process has destroyed it.
    ok(waiter.rt.destroy_notify(notify))
    ok(recorder.rt.record_notify(imported, 0))
    ok(recorder.rt.wait_and_reset_notify(imported, 0, 0))
    ok(recorder.rt.synchronize_stream(0))
    ok(recorder.rt.destroy_notify(imported))
    assert recorder.rt.notify_import_by_key(key, 0) == (0, 507899)
    recorder.check_broken("ACL-E45")


@emulation_only
@documented
def test_e45_notifies_for_everybody(start: Start) -> None:
    maker, other = start(), start()
    notify = ok(maker.rt.create_notify(1))
    key = ok(maker.rt.notify_get_export_key(notify, KEY_NBYTES, EVERYBODY))
    assert maker.rt.notify_set_import_pid(notify, [other.tgid]) == 207006

    # Also the process that made it.
    own = ok(maker.rt.notify_import_by_key(key, WITH_PEERS))
    imported = ok(other.rt.notify_import_by_key(key, WITH_PEERS))
    assert other.rt.notify_get_export_key(imported, KEY_NBYTES, 0) == ("", 507899)
    ok(maker.rt.destroy_notify(own))
    assert other.call("rows")["acl_notify_holder"] == 2
    maker.kill()
    # Who has it keeps it, and nobody else gets it.
    ok(other.rt.record_notify(imported, 0))
    assert other.rt.notify_import_by_key(key, 0) == (0, 507899)
    ok(other.rt.destroy_notify(imported))
    assert other.call("rows")["acl_notify"] == 0
    other.check_broken("ACL-E45", "ACL-E45")


@emulation_only
@documented
def test_e45_what_there_is_not(acl: Actor) -> None:
    notify = ok(acl.rt.create_notify(0))

    assert acl.rt.create_notify(2) == (0, 107000)
    assert acl.rt.notify_get_export_key(notify, KEY_NBYTES - 1, 0) == ("", 107000)
    assert acl.rt.notify_get_export_key(notify, KEY_NBYTES, 1) == ("", 107000)
    assert acl.rt.notify_set_import_pid(notify, [1]) == 107000
    assert acl.rt.notify_set_import_pid(notify, []) == 100000
    assert acl.rt.notify_import_by_key("0" * 64, 1) == (0, 107000)
    assert acl.rt.notify_import_by_key("0" * 64, 0) == (0, 507899)
    acl.check_broken(*["ACL-E45"] * 5)
    with pytest.raises(ValueError, match="negative"):
        acl.rt.wait_and_reset_notify(notify, 0, -1)
    with pytest.raises(ValueError, match="less than"):
        acl.rt.wait_and_reset_notify(notify, 0, 1 << 32)
    with pytest.raises(ValueError, match="less than 1024"):
        acl.rt.notify_get_export_key(notify, 1024, 0)


@emulation_only
@documented
def test_e45_a_destroyed_notify_keeps_nobody(start: Start, slow: int) -> None:
    acl = start(CROSSMEM_EMULATED_SLOW_STREAMS=slow)
    notify, stream = ok(acl.rt.create_notify(0)), ok(acl.rt.create_stream())
    ok(acl.rt.wait_and_reset_notify(notify, stream, 0))
    assert acl.rt.synchronize_stream_with_timeout(stream, 20) == 507046
    ok(acl.rt.destroy_notify(notify))

    ok(acl.rt.synchronize_stream(stream))


@emulation_only
@differs({"310b-rc": 2048})
def test_e45_a_device_has_so_many(acl: Actor, code: int) -> None:
    made = [acl.rt.create_notify(0) for _ in range(code + 1)]

    assert [answer for _, answer in made] == [0] * code + [207009]


@emulation_only
@differs({"cann8 310b-rc": 207000, "documented a3 950 old-driver": 0})
def test_e45_not_shared_everywhere(acl: Actor, code: int) -> None:
    notify = ok(acl.rt.create_notify(0))

    assert acl.rt.notify_get_export_key(notify, KEY_NBYTES, 0)[1] == code


@emulation_only
@documented
def test_x7_unknown_notifies(acl: Actor) -> None:
    for unknown, code in ((0, 100000), (4096, 107000)):
        assert acl.rt.destroy_notify(unknown) == code
        assert acl.rt.record_notify(unknown, 0) == code
        assert acl.rt.wait_and_reset_notify(unknown, 0, 0) == code
        assert acl.rt.get_notify_id(unknown) == (0, code)
        assert acl.rt.notify_get_export_key(unknown, KEY_NBYTES, 0) == ("", code)
        assert acl.rt.notify_set_import_pid(unknown, [1]) == code
    acl.check_broken(*["ACL-X7"] * 6)


# Order ----------------------------------------------------------------------------------------


@emulation_only
@documented
def test_x8_the_host_and_other_streams_read_too_early(start: Start) -> None:
    acl = start(CROSSMEM_EMULATED_SLOW_STREAMS=1)
    stream, other = ok(acl.rt.create_stream()), ok(acl.rt.create_stream())
    pointer, copy = (int(ok(acl.rt.malloc(GRANULARITY, 0))) for _ in range(2))
    ok(acl.rt.memset_async(pointer, 8, 9, 8, stream))
    acl.read(pointer + 8, 8)
    acl.check_broken()

    acl.read(pointer, 8)
    ok(acl.rt.memcpy_async(copy, 8, pointer, 8, 4, other))
    ok(acl.rt.synchronize_stream(other))
    acl.check_broken("ACL-X8", "ACL-X8")
    ok(acl.rt.synchronize_stream(stream))
    acl.read(pointer, 8)
    # Work that is lost writes nothing.
    ok(acl.rt.memset_async(pointer, 8, 9, 8, stream))
    assert acl.call("rows")["pending_write"] == 1
    ok(acl.rt.destroy_stream_force(stream))
    assert acl.call("rows")["pending_write"] == 0
    acl.read(pointer, 8)
    acl.check_broken("ACL-X8", "ACL-X8")


@emulation_only
@documented
def test_x8_another_process_reads_too_early(start: Start) -> None:
    writer, reader = (start(CROSSMEM_EMULATED_SLOW_STREAMS=1) for _ in range(2))
    handle, pointer = writer.physical()
    share = ok(writer.rt.mem_export_to_shareable_handle(handle, 0, 1))
    opened = reader.map_new(ok(reader.rt.mem_import_from_shareable_handle(share, 0)))
    target, stream = int(ok(reader.rt.malloc(GRANULARITY, 0))), ok(reader.rt.create_stream())
    notify = ok(reader.rt.create_notify(0))
    key = ok(reader.rt.notify_get_export_key(notify, KEY_NBYTES, EVERYBODY))
    theirs = ok(writer.rt.notify_import_by_key(key, 0))
    ok(reader.rt.wait_and_reset_notify(notify, stream, 0))
    ok(reader.rt.memcpy_async(target, 8, opened, 8, 4, stream))
    ok(writer.rt.memset_async(pointer, 8, 9, 8, 0))
    ok(writer.rt.record_notify(theirs, 0))
    ok(reader.rt.synchronize_stream(stream))
    assert reader.read(target, 8) == b"\x09" * 8
    reader.check_broken()

    ok(writer.rt.memset_async(pointer, 8, 8, 8, 0))
    ok(reader.rt.memcpy_async(target, 8, opened, 8, 4, stream))
    ok(reader.rt.synchronize_stream(stream))
    reader.check_broken("ACL-X8")
