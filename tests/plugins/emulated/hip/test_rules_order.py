# SPDX-License-Identifier: Apache-2.0
"""HIP-X13: memory is not used before earlier work has written it."""

import ctypes
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from crossmem_emulated.hip import Runtime
from crossmem_emulated.options import Options

if TYPE_CHECKING:
    from tests.plugins.emulated.hip.conftest import Start
    from tests.plugins.emulated.hip.hip_actor import (
        BLOCK,
        ON_DEVICE,
        TO_DEVICE,
        TO_HOST,
        Actor,
        emulation_only,
    )
else:
    from hip_actor import BLOCK, ON_DEVICE, TO_DEVICE, TO_HOST, Actor, emulation_only

    Start = Any

NBYTES = 4096


@pytest.fixture
def slow(start: Start) -> Actor:
    return start(CROSSMEM_EMULATED_SLOW_STREAMS=1)


def streams(actor: Actor, count: int = 2) -> list[int]:
    return [actor.rt.streamCreateWithFlags(1) for _ in range(count)]


@emulation_only
def test_x13_the_host_reads_too_early(slow: Actor) -> None:
    (stream,), pointer = streams(slow, 1), slow.rt.malloc(BLOCK)
    slow.rt.memsetAsync(pointer, 9, 8, stream)
    # What lies beside it may be read.
    slow.read(pointer + 8, 8)
    slow.check_broken()

    slow.read(pointer + 4, 8)
    slow.check_broken("HIP-X13")
    slow.rt.streamSynchronize(stream)
    slow.read(pointer, 8)
    slow.check_broken("HIP-X13")


@emulation_only
def test_x13_another_stream_reads_too_early(slow: Actor) -> None:
    (one, other), event = streams(slow), slow.rt.eventCreateWithFlags(2)
    pointer, copy = slow.rt.malloc(BLOCK), slow.rt.malloc(BLOCK)
    slow.rt.memsetAsync(pointer, 9, BLOCK, one)
    slow.rt.eventRecord(event, one)
    slow.rt.streamWaitEvent(other, event)
    slow.rt.memcpyAsync(copy, pointer, BLOCK, ON_DEVICE, other)
    # A later write is not too late.
    slow.rt.memsetAsync(copy, 7, BLOCK, one)
    slow.rt.streamSynchronize(other)
    slow.check_broken()

    slow.rt.memsetAsync(pointer, 8, BLOCK, one)
    slow.rt.memcpyAsync(copy, pointer, BLOCK, ON_DEVICE, other)
    slow.rt.streamSynchronize(other)
    slow.check_broken("HIP-X13")


@emulation_only
def test_x13_another_process_reads_too_early(slow: Actor, importer: Actor, start: Start) -> None:
    pointer, handle = slow.export(bytes(BLOCK))
    readers = [start(CROSSMEM_EMULATED_SLOW_STREAMS=1) for _ in range(2)]
    opened = [one.open(handle) for one in readers]
    (stream,) = streams(slow, 1)
    slow.rt.memsetAsync(pointer, 9, 8, stream)

    readers[0].read(opened[0] + 8, 8)
    slow.check_broken()
    readers[0].read(opened[0], 8)
    slow.check_broken("HIP-X13")
    slow.rt.streamSynchronize(stream)
    readers[0].read(opened[0], 8)
    # A writer that died writes nothing more.
    slow.rt.memsetAsync(pointer, 9, 8, stream)
    slow.kill()
    readers[1].read(opened[1], 8)
    readers[1].check_broken("HIP-X13")


@emulation_only
def test_x13_who_waits_for_a_value_comes_in_time(slow: Actor, start: Start, tmp_path: Path) -> None:
    path = tmp_path / "words"
    path.write_bytes(bytes(NBYTES))
    reader = start(CROSSMEM_EMULATED_SLOW_STREAMS=1)
    theirs, ours = (one.call("map_words", str(path), NBYTES) for one in (slow, reader))
    pointer, handle = slow.export(bytes(BLOCK))
    opened, target = reader.open(handle), reader.rt.malloc(BLOCK)
    (stream,), (back,) = streams(reader, 1), streams(slow, 1)
    reader.c.streamWaitValue64(stream, ours, 1, 0)
    reader.rt.memcpyAsync(target, opened, BLOCK, ON_DEVICE, stream)
    reader.c.streamWriteValue64(stream, ours + 8, 1, 0)
    # The next contents come when the reader is done.
    slow.rt.memsetAsync(pointer, 9, BLOCK, 0)
    slow.c.streamWriteValue64(0, theirs, 1, 0)
    slow.c.streamWaitValue64(back, theirs + 8, 1, 0)
    slow.rt.memsetAsync(pointer, 8, BLOCK, back)
    reader.rt.streamSynchronize(stream)

    assert reader.read(target, 4) == b"\x09" * 4
    slow.rt.streamSynchronize(back)
    assert reader.read(opened, 4) == b"\x08" * 4
    reader.check_broken()


@emulation_only
def test_x13_lost_work_writes_nothing(slow: Actor, importer: Actor) -> None:
    (stream,) = streams(slow, 1)
    handle = slow.call("create")
    pointer = slow.call("map", handle)
    slow.rt.memsetAsync(pointer, 9, BLOCK, stream)
    assert importer.call("rows")["pending_write"] == 1

    slow.call("unmap", pointer)
    assert importer.call("rows")["pending_write"] == 0
    slow.check_broken("HIP-X1")


@emulation_only
def test_x13_a_write_that_the_host_waits_for_is_not_late(
    host: Path, profile: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rt = Runtime(profile, options=Options(state=host, slow_streams=True))
    late: list[str] = []
    ordering = rt._process.queues.ordering
    monkeypatch.setattr(ordering, "submitted", lambda _stream, work: late.append(work.call))
    pointer, stream = rt.malloc(BLOCK), rt.streamCreateWithFlags(1)
    data = ctypes.create_string_buffer(8)
    rt.memcpy(pointer, ctypes.addressof(data), 8, TO_DEVICE)
    rt.memsetAsync(pointer, 1, 8, stream)

    assert late == ["memsetAsync"]


@emulation_only
@pytest.mark.parametrize("is_plane", [False, True])
def test_x13_a_late_copy_has_read_memory_that_is_not_pinned(
    host: Path, profile: str, *, is_plane: bool
) -> None:
    # A program may reuse such memory when the call returns. CuPy's set() depends on that.
    options = Options(state=host, slow_streams=True)
    rt = Runtime(profile, options=options, is_cupy=False)
    pointer, stream = rt.malloc(BLOCK), rt.streamCreateWithFlags(1)
    data, found = (ctypes.create_string_buffer(64) for _ in range(2))
    source, target = ctypes.addressof(data), ctypes.addressof(found)
    data.raw = b"a" * 64
    if is_plane:
        rt.memcpy2DAsync(pointer, 16, source, 16, 16, 4, TO_DEVICE, stream)
    else:
        rt.memcpyAsync(pointer, source, 64, TO_DEVICE, stream)
    data.raw = b"b" * 64
    rt.streamSynchronize(stream)
    rt.memcpy(target, pointer, 64, TO_HOST)
    assert found.raw == b"a" * 64

    # Earlier work writes the source, so its bytes are not taken before.
    rt.memcpyAsync(source, pointer, 64, TO_HOST, stream)
    rt.memcpyAsync(pointer + 64, source, 64, TO_DEVICE, stream)
    rt.streamSynchronize(stream)
    rt.memcpy(target, pointer + 64, 64, TO_HOST)
    assert found.raw == b"a" * 64
