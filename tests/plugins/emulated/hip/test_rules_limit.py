# SPDX-License-Identifier: Apache-2.0
"""HIP-X10: limits of a device, hints and flags, and modes of captures."""

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.plugins.emulated.hip.conftest import Start
    from tests.plugins.emulated.hip.hip_actor import (
        BLOCK,
        ON_DEVICE,
        Actor,
        differs,
        emulation_only,
        on,
        status,
    )
else:
    from hip_actor import BLOCK, ON_DEVICE, Actor, differs, emulation_only, on, status

    Start = Any

STACK, PRINTF, HEAP = range(3)
MEMORY_TYPE, SYNC_MEMOPS = 2, 6


@emulation_only
def test_x10_limits_stay_with_their_device(exporter: Actor) -> None:
    c = exporter.c
    assert [c.deviceGetLimit(one) for one in (STACK, HEAP)] == [1 << 10, 8 << 20]
    c.deviceSetLimit(STACK, 4096)
    c.deviceSetLimit(HEAP, 1 << 30)
    assert [c.deviceGetLimit(one) for one in (STACK, HEAP)] == [4096, 1 << 30]
    exporter.rt.setDevice(1)
    assert c.deviceGetLimit(STACK) == 1 << 10
    exporter.rt.setDevice(0)
    exporter.rt.deviceReset()
    assert c.deviceGetLimit(STACK) == 1 << 10
    exporter.check_broken()


@emulation_only
@differs({"documented clr26": (215, 1), "cuda": (0, 215)})
def test_x10_limits_that_there_are_not(exporter: Actor, code: tuple[int, int]) -> None:
    assert (status(exporter.c.deviceGetLimit, PRINTF), status(exporter.c.deviceGetLimit, 3)) == code
    for wrong in (-1, 7):
        assert status(exporter.c.deviceGetLimit, wrong) == 1
        assert status(exporter.c.deviceSetLimit, wrong, 0) == 1
    assert status(exporter.c.deviceSetLimit, STACK, 128 << 10) == 1
    assert status(exporter.c.deviceSetLimit, HEAP, 1 << 60) == 1
    assert exporter.c.deviceGetLimit(STACK) == 1 << 10


@emulation_only
@differs({"documented clr24 clr26 cuda": 0, "rocm5": 801})
@pytest.mark.parametrize(("name", "usual", "count"), [("Cache", 0, 4), ("SharedMem", 1, 3)])
def test_x10_hints_change_nothing(
    exporter: Actor, code: int, name: str, usual: int, count: int
) -> None:
    get, set_ = (getattr(exporter.rt, f"device{verb}{name}Config") for verb in ("Get", "Set"))
    for value in range(count):
        assert status(set_, value) == code
        assert get() == usual
    exporter.check_broken()
    assert [status(set_, wrong) for wrong in (-1, count)] == [1, 1]


@emulation_only
def test_x10_flags_say_how_to_wait(exporter: Actor) -> None:
    rt = exporter.rt
    for flags in (0, 1, 2, 4, 4 | 8 | 16):
        rt.setDeviceFlags(flags)
        assert rt.getDeviceFlags() == flags & 7
    exporter.check_broken()
    for wrong in (3, 5, 7, 32):
        assert status(rt.setDeviceFlags, wrong) == 1
    assert rt.getDeviceFlags() == 4
    rt.deviceReset()
    assert rt.getDeviceFlags() == 0


@emulation_only
@differs({"documented clr24 clr26": 0, "rocm5": 1})
def test_x10_kinds_of_memory(exporter: Actor, code: int) -> None:
    rt = exporter.rt
    # Usual, fine-grained, and for a signal.
    for size, flags in ((BLOCK, 0), (BLOCK, 1), (8, 2)):
        rt.free(rt.extMallocWithFlags(size, flags))
    assert rt.extMallocWithFlags(0, 1) == 0
    # Uncached and contiguous came later.
    for flags in (3, 4):
        assert status(rt.extMallocWithFlags, BLOCK, flags) == code
    for size, flags in ((BLOCK, 2), (0, 2), (BLOCK, 5), (BLOCK, 0x4000_0000)):
        assert status(rt.extMallocWithFlags, size, flags) == 1
    for flags in (0x4000_0000, 0x8000_0000):
        rt.freeHost(rt.hostAlloc(BLOCK, flags))
    assert status(rt.hostAlloc, BLOCK, 0xC000_0000) == 1


@emulation_only
@on("cuda")
@pytest.mark.parametrize(("mode", "code"), [(0, 900), (1, 0), (2, 0)])
def test_x6_a_thread_chooses_what_others_captures_forbid(
    exporter: Actor, mode: int, code: int
) -> None:
    stream = exporter.rt.streamCreate()
    exporter.rt.streamBeginCapture(stream, 0)
    calls = ("rt.threadExchangeStreamCaptureMode", mode), ("rt.malloc", BLOCK)

    assert exporter.call("in_thread_codes", *calls) == [0, code]
    assert status(exporter.rt.streamEndCapture, stream) == (901 if code else 0)


@emulation_only
@on("cuda")
@pytest.mark.parametrize(("mode", "code"), [(0, 900), (1, 900), (2, 0)])
def test_x6_a_thread_chooses_what_its_captures_forbid(
    exporter: Actor, mode: int, code: int
) -> None:
    rt = exporter.rt
    assert rt.threadExchangeStreamCaptureMode(mode) == 0
    assert rt.threadExchangeStreamCaptureMode(mode) == mode
    rt.streamBeginCapture(rt.streamCreate(), 1)

    assert status(rt.malloc, BLOCK) == code
    assert [status(rt.threadExchangeStreamCaptureMode, one) for one in (-1, 3)] == [1, 1]


@emulation_only
def test_x10_copies_that_the_host_waits_for(start: Start) -> None:
    actor = start(CROSSMEM_EMULATED_SLOW_STREAMS=1)
    rt, pointer, other = actor.rt, actor.rt.malloc(BLOCK), actor.rt.malloc(BLOCK)
    assert rt.pointerGetAttribute(SYNC_MEMOPS, pointer) == 0
    rt.memcpy(other, pointer, 4, ON_DEVICE)
    assert rt.streamQuery(0) == 600
    rt.pointerSetAttribute(1, SYNC_MEMOPS, pointer + 5)
    assert rt.pointerGetAttribute(SYNC_MEMOPS, pointer) == 1
    rt.memcpy(other, pointer, 4, ON_DEVICE)
    assert rt.streamQuery(0) == 0
    rt.pointerSetAttribute(0, SYNC_MEMOPS, pointer)
    rt.memcpy(other, pointer, 4, ON_DEVICE)
    assert rt.streamQuery(0) == 600

    for value, attribute in ((1, MEMORY_TYPE), (2, SYNC_MEMOPS)):
        assert status(rt.pointerSetAttribute, value, attribute, pointer) == 1
    assert status(rt.pointerSetAttribute, 1, SYNC_MEMOPS, 0) == 1
    assert status(rt.pointerSetAttribute, 1, SYNC_MEMOPS, actor.call("own_memory", 4)) == 17


@emulation_only
def test_x10_work_of_the_threads_own_stream(start: Start) -> None:
    """It waits for the thread's stream, and not for others that do not block."""
    actor = start(CROSSMEM_EMULATED_SLOW_STREAMS=1)
    rt, pointer = actor.rt, actor.rt.malloc(BLOCK)
    pinned, free = rt.hostAlloc(16, 0), rt.streamCreateWithFlags(1)
    rt.memsetAsync(pointer, ord("a"), 4, free)
    rt.memset_spt(pointer + 4, ord("b"), 4)
    assert (rt.streamQuery(2), rt.streamQuery(0)) == (600, 0)
    actor.c.memcpy2D_spt(pinned, 4, pointer + 4, 4, 4, 1, 2)
    assert (rt.streamQuery(2), rt.streamQuery(free)) == (0, 600)
    assert actor.call("peek", pinned, 4) == b"bbbb"
    rt.streamSynchronize(free)
    rt.memcpy_spt(pinned, pointer, 8, 2)
    assert actor.call("peek", pinned, 8) == b"aaaabbbb"
