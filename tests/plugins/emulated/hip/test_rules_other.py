# SPDX-License-Identifier: Apache-2.0
"""HIP-X1 to X6: work that waits, directions, what does not exist, and captures."""

import time
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.plugins.emulated.hip.conftest import Start
    from tests.plugins.emulated.hip.hip_actor import (
        BLOCK,
        BY_ADDRESS,
        ON_DEVICE,
        REAL,
        TO_DEVICE,
        TO_HOST,
        Actor,
        differs,
        emulation_only,
        on,
        status,
    )
else:
    from hip_actor import (
        BLOCK,
        BY_ADDRESS,
        ON_DEVICE,
        REAL,
        TO_DEVICE,
        TO_HOST,
        Actor,
        differs,
        emulation_only,
        on,
        status,
    )

    Start = Any


@emulation_only
@on("cuda")
def test_x1_memory_is_taken_from_running_work(start: Start) -> None:
    actor = start(CROSSMEM_EMULATED_SLOW_STREAMS=1)
    pointer = actor.rt.mallocAsync(BLOCK, 0)
    stream, other = (actor.rt.streamCreateWithFlags(1) for _ in range(2))
    actor.rt.memsetAsync(pointer, 1, 4, stream)

    actor.rt.freeAsync(pointer, other)
    actor.check_broken("HIP-X1")


@emulation_only
def test_x1_another_devices_work(start: Start) -> None:
    actor = start(CROSSMEM_EMULATED_SLOW_STREAMS=1)
    pointer = actor.rt.malloc(BLOCK)
    actor.rt.setDevice(1)
    actor.rt.memsetAsync(pointer, 1, 4, actor.rt.streamCreate())

    actor.rt.free(pointer)
    actor.check_broken("HIP-X1")


@emulation_only
@differs({"documented cuda": 1, "clr24 clr26 rocm5": 0})
def test_x2_directions(exporter: Actor, code: int) -> None:
    pointer, own = exporter.rt.malloc(BLOCK), exporter.call("own_memory", 4)

    assert status(exporter.rt.memcpy, pointer, own, 4, 0) == code
    exporter.check_broken("HIP-X2")
    assert status(exporter.rt.memcpy, pointer, own, 4, ON_DEVICE) == 1
    assert status(exporter.rt.memcpy, own, pointer, 4, ON_DEVICE) == 1
    assert status(exporter.rt.memcpy, pointer, own, 4, 5) == 21
    exporter.rt.memcpy(pointer, own, 4, BY_ADDRESS)


@emulation_only
@differs({"documented clr24 clr26": 0, "rocm5 cuda": 21})
def test_x2_copies_without_compute_units(exporter: Actor, code: int) -> None:
    first, second = exporter.rt.malloc(BLOCK), exporter.rt.malloc(BLOCK)
    exporter.write(first, b"data")

    assert status(exporter.rt.memcpy, second, first, 4, 1024) == code
    assert status(exporter.rt.memcpyAsync, second, first, 4, 1024, 0) == code
    assert code or exporter.read(second, 4) == b"data"


@emulation_only
def test_x2_copies_in_a_stream_that_the_host_waits_for(start: Start) -> None:
    actor = start(CROSSMEM_EMULATED_SLOW_STREAMS=1)
    pointer, own = actor.rt.malloc(BLOCK), actor.call("own_memory", 4)
    stream = actor.rt.streamCreateWithFlags(1)
    actor.rt.memsetAsync(pointer, ord("#"), 4, stream)
    actor.rt.memcpyWithStream(own, pointer, 4, TO_HOST, stream)

    assert actor.call("peek", own, 4) == b"####"
    actor.check_broken()


@emulation_only
@pytest.mark.parametrize("is_managed", [False, True])
def test_x2_fills_that_the_host_waits_for(start: Start, is_managed: bool) -> None:
    actor = start(CROSSMEM_EMULATED_SLOW_STREAMS=1)
    rt = actor.rt
    pointer = rt.mallocManaged(BLOCK) if is_managed else rt.hostAlloc(BLOCK, 0)
    actor.call("poke", pointer, b"....")
    rt.memsetAsync(pointer, ord("a"), 4, rt.streamCreateWithFlags(1))
    assert actor.call("peek", pointer, 4) == b"...."

    def filled(name: str, *arguments: int) -> bytes:
        assert status(getattr(actor.c, name), pointer, *arguments) == 0
        return bytes(actor.call("peek", pointer, 4))

    assert filled("memset", ord("b"), 4) == b"bbbb"
    assert filled("memset_spt", ord("c"), 2) == b"ccbb"
    assert filled("memsetD16", 0x6564, 2) == b"dede"
    assert filled("memsetD32", 0x69686766, 1) == b"fghi"
    assert filled("memset2D", 2, ord("j"), 1, 2) == b"jgji"
    assert filled("memset2D_spt", 2, ord("k"), 1, 2) == b"kgki"
    assert filled("memset3D", 2, 2, 1, ord("l"), 1, 1, 2) == b"lgli"
    assert filled("memset3D_spt", 2, 2, 1, ord("m"), 1, 1, 2) == b"mgmi"
    # The first fill is still to come.
    actor.check_broken(*["HIP-X13"] * 8)


@emulation_only
@differs({"documented cuda": 1, "clr24 clr26 rocm5": 0})
def test_x2_pinned_memory_is_on_both_sides(exporter: Actor, code: int) -> None:
    pointer, pinned = exporter.rt.malloc(BLOCK), exporter.rt.hostAlloc(BLOCK, 0)
    exporter.call("poke", pinned, b"data")

    for kind in (TO_DEVICE, ON_DEVICE, BY_ADDRESS):
        exporter.rt.memset(pointer, 0, 4)
        exporter.rt.memcpy(pointer, pinned, 4, kind)
        assert exporter.read(pointer, 4) == b"data"
    for kind in (TO_HOST, ON_DEVICE, BY_ADDRESS):
        exporter.rt.memset(pinned, ord("."), BLOCK)
        exporter.rt.memcpy(pinned + 1, pointer, 4, kind)
        exporter.rt.deviceSynchronize()
        assert exporter.call("peek", pinned, 6) == b".data."
    exporter.rt.memcpy(pinned, pinned + 1, 4, 0)
    assert exporter.call("peek", pinned, 4) == b"data"
    exporter.check_broken()
    assert status(exporter.rt.memset, pinned + 1, 0, BLOCK) == 1
    assert status(exporter.rt.memcpy, pinned, pointer, 4, 0) == code
    exporter.check_broken("HIP-X4", "HIP-X2")


@emulation_only
def test_x2_the_programs_own_memory_is_pinned(exporter: Actor) -> None:
    pointer, own = exporter.rt.malloc(BLOCK), exporter.call("own_memory", 16)
    exporter.rt.memset(pointer, ord("x"), 4)
    assert status(exporter.rt.memset, own, ord("."), 16) == 1
    exporter.check_broken("HIP-X4")
    # CuPy's builds for ROCm lack this function, which C programs have.
    assert exporter.call("raw", "hostRegister", own, 16, 0) == 0
    exporter.rt.memset(own, ord("."), 16)
    exporter.rt.memcpy(own + 4, pointer, 4, ON_DEVICE)
    exporter.rt.deviceSynchronize()

    assert exporter.call("peek", own, 9) == b"....xxxx."
    assert exporter.call("raw", "hostUnregister", own) == 0
    assert status(exporter.rt.memcpy, own, pointer, 4, ON_DEVICE) == 1
    assert exporter.call("raw", "hostUnregister", own) == 713
    assert exporter.call("raw", "hostUnregister", 0) == 1


@emulation_only
def test_x2_managed_memory_is_on_both_sides(exporter: Actor) -> None:
    pointer, managed = exporter.rt.malloc(BLOCK), exporter.rt.mallocManaged(BLOCK)
    exporter.call("poke", managed, b"data")

    for kind in (TO_DEVICE, ON_DEVICE, BY_ADDRESS):
        exporter.rt.memcpy(pointer, managed, 4, kind)
    exporter.rt.deviceSynchronize()
    assert exporter.read(pointer, 4) == b"data"
    exporter.rt.free(managed)
    exporter.check_broken()


def test_x3_streams_and_events_exist(exporter: Actor) -> None:
    stream, event = exporter.rt.streamCreate(), exporter.rt.eventCreate()
    exporter.rt.eventRecord(event, stream)
    exporter.rt.streamWaitEvent(0, event)
    exporter.rt.streamSynchronize(stream)
    exporter.rt.eventDestroy(event)
    exporter.rt.streamDestroy(stream)
    if not REAL:
        # A real device may end the process for it.
        assert status(exporter.rt.streamSynchronize, stream) == 400
        assert status(exporter.rt.eventSynchronize, event) == 400
    exporter.check_broken(*["HIP-X3"] * 2)


@emulation_only
@differs(
    {"documented clr26": ((1, -1), 1, [1, 1, 0, -1, -1]), "cuda": ((0, -1), 0, [0, 0, 0, -1, -1])}
)
def test_x3_what_streams_are_like(exporter: Actor, code: tuple[Any, int, list[int]]) -> None:
    priorities, flags, found = code
    assert exporter.c.deviceGetStreamPriorityRange() == priorities
    streams = [exporter.c.streamCreateWithPriority(1, one) for one in (2, 1, 0, -1, -2)]
    assert [exporter.c.streamGetPriority(one) for one in streams] == found
    assert [exporter.c.streamGetFlags(one) for one in streams] == [1] * 5
    # AMD's runtime knows the flags of the thread's own stream, and not of the legacy one.
    assert exporter.c.streamGetFlags(2) == 0
    assert status(exporter.c.streamGetFlags, 0) == flags


@emulation_only
def test_x3_events_are_of_one_device(exporter: Actor, two_devices: None) -> None:
    rt, first = exporter.rt, exporter.rt.eventCreate()
    rt.setDevice(1)
    second, stream = rt.eventCreate(), rt.streamCreate()
    rt.eventRecord(second, stream)
    assert status(rt.eventRecord, first, stream) == 400
    assert status(rt.eventRecord, first, 0) == 400
    rt.setDevice(0)
    assert status(rt.eventRecord, second, 0) == 400
    rt.eventRecord(first, 0)
    assert status(rt.eventElapsedTime, first, second) == 400
    exporter.check_broken(*["HIP-X3"] * 4)
    # Waiting is possible everywhere.
    rt.streamWaitEvent(stream, first)
    rt.eventSynchronize(second)
    exporter.check_broken(*["HIP-X3"] * 4)


@emulation_only
@pytest.mark.parametrize("slow", [0, 1])
def test_x3_later_events_have_later_times(start: Start, slow: int) -> None:
    actor = start(CROSSMEM_EMULATED_SLOW_STREAMS=slow)
    rt, pointer = actor.rt, actor.rt.malloc(4)
    events = [rt.eventCreate() for _ in range(3)]
    for event in events:
        rt.eventRecord(event, 0)
        rt.memsetAsync(pointer, 1, 4, 0)
    rt.deviceSynchronize()
    first, second, third = events
    assert rt.eventElapsedTime(first, first) == 0
    assert 0 <= rt.eventElapsedTime(first, second) <= rt.eventElapsedTime(first, third)
    assert rt.eventElapsedTime(third, first) <= 0
    # It is the time of clocks that passes between them.
    time.sleep(0.05)
    rt.eventRecord(third, 0)
    rt.eventSynchronize(third)
    assert 49 < rt.eventElapsedTime(second, third) < 20_000
    actor.check_broken()


def test_x4_addresses_were_allocated(exporter: Actor) -> None:
    pointer = exporter.rt.malloc(BLOCK)
    exporter.rt.free(pointer)
    exporter.rt.free(0)

    assert status(exporter.rt.free, pointer) == 1
    assert exporter.rt.malloc(0) == 0
    exporter.check_broken("HIP-X4")


@emulation_only
def test_x4_copies_end_with_the_allocation(exporter: Actor) -> None:
    pointer = exporter.rt.malloc(BLOCK + 100)

    assert status(exporter.rt.memset, pointer + 100, 0, BLOCK) == 0
    assert status(exporter.rt.memset, pointer + 101, 0, BLOCK) == 1
    assert status(exporter.rt.memset, 0, 0, 1) == 1
    exporter.check_broken("HIP-X4", "HIP-X4")


@emulation_only
@pytest.mark.parametrize(
    ("made", "more", "freed"),
    [("malloc", (), "free"), ("mallocManaged", (1,), "free"), ("hostAlloc", (0,), "freeHost")],
)
def test_x4_memory_that_is_gone_is_not_used(
    exporter: Actor, made: str, more: tuple[int, ...], freed: str
) -> None:
    # So much that what Python itself allocates later does not lie where it began.
    gone = getattr(exporter.rt, made)(32 * BLOCK, *more)
    pointer, own = exporter.rt.malloc(BLOCK), exporter.call("own_memory", 16)
    getattr(exporter.rt, freed)(gone)
    calls = [
        ("memcpy", own, gone, 4, TO_HOST),
        ("memcpy", own, gone, 4, BY_ADDRESS),
        ("memcpy", gone, own, 4, TO_DEVICE),
        ("memcpy", gone, own, 4, BY_ADDRESS),
        # As from the host: it is no device's any more.
        ("memcpy", pointer, gone, 4, TO_DEVICE),
        ("memcpyAsync", pointer, gone, 4, BY_ADDRESS, 0),
        ("memcpy2D", pointer, 4, gone, 4, 4, 2, BY_ADDRESS),
        ("memcpyPeer", pointer, 0, gone, 0, 4),
        ("memset", gone + 1, 0, 4),
        ("hostRegister", gone, 4, 0),
    ]

    assert [exporter.call("raw", *one) for one in calls] == [1] * len(calls)
    exporter.check_broken(*["HIP-X4"] * len(calls))


def test_x4_a_device_without_room(exporter: Actor) -> None:
    assert status(exporter.rt.malloc, 1 << 60) == 2
    exporter.check_broken()


@emulation_only
def test_x4_capacity_is_shared(exporter: Actor, importer: Actor) -> None:
    free, total = exporter.rt.memGetInfo()
    pointer = exporter.rt.malloc(free)

    assert status(importer.rt.malloc, BLOCK) == 2
    exporter.rt.free(pointer)
    importer.rt.malloc(BLOCK)
    assert importer.rt.memGetInfo() == (total - BLOCK, total)


@emulation_only
def test_x4_fresh_memory_is_poisoned(exporter: Actor) -> None:
    assert exporter.read(exporter.rt.malloc(BLOCK), 4) == b"\xa5" * 4


@emulation_only
@on("documented")
@pytest.mark.parametrize("access", [("peek",), ("poke", b"!")])
def test_x5_the_host_stays_out(exporter: Actor, access: tuple[Any, ...]) -> None:
    name, *rest = access
    with pytest.raises(EOFError):
        exporter.call(name, exporter.rt.malloc(BLOCK), *rest)
    assert exporter.wait() == -11


@emulation_only
@on("documented")
def test_x5_a_lax_emulation_lets_it_in(start: Start) -> None:
    exporter, importer = (start(CROSSMEM_EMULATED_STRICT=0) for _ in range(2))
    pointer, handle = exporter.export(b"data")

    assert exporter.call("peek", pointer, 4) == b"data"
    assert importer.call("peek", importer.open(handle), 4) == b"data"


@emulation_only
def test_streams_that_wait(start: Start) -> None:
    """What is not waited for is not there; the legacy stream waits for blocking ones."""
    actor = start(CROSSMEM_EMULATED_SLOW_STREAMS=1)
    pointer, other = actor.rt.malloc(BLOCK), actor.rt.malloc(BLOCK)
    actor.write(pointer, b"....")
    blocking, free = actor.rt.streamCreate(), actor.rt.streamCreateWithFlags(1)
    actor.rt.memsetAsync(pointer, ord("f"), 2, free)
    assert actor.rt.streamQuery(free) == 600
    assert actor.read(pointer, 4) == b"...."
    actor.rt.streamSynchronize(free)
    assert actor.read(pointer, 4) == b"ff.."
    actor.rt.memsetAsync(pointer, ord("b"), 1, blocking)
    assert actor.read(pointer, 4) == b"bf.."
    event = actor.rt.eventCreate()
    actor.rt.memsetAsync(pointer, ord("e"), 1, free)
    actor.rt.eventRecord(event, free)
    actor.rt.memsetAsync(pointer, ord("x"), 4, free)
    assert actor.rt.eventQuery(event) == 600
    actor.rt.eventSynchronize(event)
    assert (actor.rt.eventQuery(event), actor.rt.streamQuery(free)) == (0, 600)
    assert actor.read(pointer, 4) == b"ef.."
    actor.rt.memcpyAsync(other, pointer, 4, ON_DEVICE, blocking)
    actor.rt.streamDestroy(free)
    actor.rt.deviceSynchronize()
    assert actor.read(other, 4) == b"xxxx"
    actor.check_broken("HIP-X13", "HIP-X13")


@emulation_only
def test_copies_on_the_device_are_not_waited_for(start: Start) -> None:
    actor = start(CROSSMEM_EMULATED_SLOW_STREAMS=1)
    pointer, other = actor.rt.malloc(BLOCK), actor.rt.malloc(BLOCK)
    actor.write(pointer, b"data")
    actor.rt.memcpy(other, pointer, 4, ON_DEVICE)
    actor.rt.memset(pointer, 0, 4)
    assert actor.rt.streamQuery(0) == 600
    actor.rt.deviceSynchronize()

    assert actor.read(other, 4) == b"data"


@on("cuda")
def test_x6_captures_break(exporter: Actor) -> None:
    stream = exporter.rt.streamCreate()
    exporter.rt.streamBeginCapture(stream, 0)
    assert exporter.rt.streamIsCapturing(stream) is True
    # Asking for the legacy stream breaks nothing.
    assert status(exporter.rt.streamIsCapturing, 0) == 906
    assert status(exporter.rt.deviceSynchronize) == 900
    with pytest.raises(RuntimeError, match="invalidated"):
        exporter.rt.streamIsCapturing(stream)
    assert status(exporter.rt.streamEndCapture, stream) == 901
    assert exporter.rt.streamIsCapturing(0) is False
    exporter.check_broken("HIP-X6")


@emulation_only
def test_x6_captures_have_numbers(exporter: Actor) -> None:
    c = exporter.c
    first, second = (c.streamCreateWithFlags(1) for _ in range(2))
    assert c.streamGetCaptureInfo(first) == c.streamGetCaptureInfo(0) == (0, 0, 0)
    for stream in (first, second):
        c.streamBeginCapture(stream, 2)
    state, number, graph = c.streamGetCaptureInfo(first)
    assert (state, c.streamGetCaptureInfo(first)) == (1, (1, number, graph))
    assert number not in {0, c.streamGetCaptureInfo(second)[1]}
    assert c.streamEndCapture(first) == graph
    c.graphDestroy(graph)
    c.streamBeginCapture(first, 2)
    assert c.streamGetCaptureInfo(first)[1] > number
    exporter.check_broken()
    assert status(c.streamSynchronize, first) == 900
    assert c.streamGetCaptureInfo(first) == (2, 0, 0)
    c.streamBeginCapture(c.streamCreate(), 2)
    assert status(c.streamGetCaptureInfo, 0) == 906
    exporter.check_broken("HIP-X6")


@on("cuda")
def test_x6_captured_work_is_not_done(exporter: Actor) -> None:
    pointer = exporter.rt.malloc(BLOCK)
    exporter.write(pointer, b"....")
    stream, event = exporter.rt.streamCreateWithFlags(1), exporter.rt.eventCreate()
    exporter.rt.streamBeginCapture(stream)
    exporter.rt.memsetAsync(pointer, 0, 4, stream)
    # A graph frees only what it allocated.
    assert status(exporter.rt.freeAsync, pointer, stream) == 1
    exporter.rt.eventRecord(event, stream)
    graph = exporter.rt.streamEndCapture(stream)

    assert exporter.read(pointer, 4) == b"...."
    assert status(exporter.rt.eventElapsedTime, event, event) == 1
    assert exporter.rt.eventQuery(event) == 1
    exporter.rt.free(pointer)
    exporter.rt.graphDestroy(graph)
    exporter.check_broken()


@emulation_only
@on("cuda")
@pytest.mark.parametrize(
    ("mode", "call", "code"),
    [
        (0, ("malloc", BLOCK), 900),
        (1, ("malloc", BLOCK), 900),
        (2, ("malloc", BLOCK), 0),
        (0, ("ipcCloseMemHandle", 0), 900),
        (2, ("memset", 0, 0, 0), 0),
        (2, ("streamSynchronize", 0), 906),
    ],
)
def test_x6_modes(exporter: Actor, mode: int, call: tuple[Any, ...], code: int) -> None:
    exporter.rt.streamBeginCapture(exporter.rt.streamCreate(), mode)
    name, *arguments = call

    assert status(getattr(exporter.rt, name), *arguments) == code
