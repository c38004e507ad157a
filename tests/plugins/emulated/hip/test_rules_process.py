# SPDX-License-Identifier: Apache-2.0
"""HIP-E18 to E24: forks, threads, errors, no devices, releases that are wrong, and events."""

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.plugins.emulated.hip.conftest import Start
    from tests.plugins.emulated.hip.hip_actor import (
        BLOCK,
        REAL,
        Actor,
        differs,
        emulation_only,
        on,
        status,
    )
else:
    from hip_actor import (
        BLOCK,
        REAL,
        Actor,
        differs,
        emulation_only,
        on,
        status,
    )

    Start = Any


@emulation_only
def test_e18_a_child_of_a_process_that_used_it(exporter: Actor, profile: str) -> None:
    pointer, handle = exporter.export()
    calls = [
        ("rt.getDeviceCount",),
        ("rt.malloc", BLOCK),
        ("rt.free", pointer),
        ("open", handle),
        ("rt.runtimeGetVersion",),
    ]

    # On CUDA, the number of the devices is known there.
    count = 0 if profile == "cuda" else 3
    assert exporter.call("in_fork", *calls) == [count, 3, 3, 3, 0]
    exporter.check_broken(*["HIP-E18"] * (3 + bool(count)))
    exporter.rt.free(pointer)


@emulation_only
def test_e18_a_child_of_one_that_did_not(exporter: Actor) -> None:
    exporter.rt.runtimeGetVersion()

    assert exporter.call("in_fork", ("rt.malloc", BLOCK)) == [0]
    exporter.check_broken()


def test_e19_opening_in_many_threads(exporter: Actor, importer: Actor) -> None:
    _, handle = exporter.export(b"data")
    pointers = importer.call("in_threads", 8, "open", handle)

    assert len(set(pointers)) == 1
    for _ in range(7):
        importer.rt.ipcCloseMemHandle(pointers[0])
    assert importer.read(pointers[0], 4) == b"data"
    importer.rt.ipcCloseMemHandle(pointers[0])
    importer.check_broken()


def test_e19_every_thread_has_its_device(exporter: Actor, two_devices: None) -> None:
    exporter.rt.setDevice(1)

    assert exporter.call("in_threads", 1, "rt.getDevice") == [0]
    assert exporter.rt.getDevice() == 1


@emulation_only
def test_e20_the_last_error_stays(exporter: Actor) -> None:
    assert exporter.call("raw", "free", 4096) == 1
    assert exporter.call("raw", "getDevice") == 0

    assert [exporter.rt.peekAtLastError() for _ in range(2)] == [1, 1]
    assert [exporter.rt.getLastError() for _ in range(2)] == [1, 0]


@emulation_only
def test_e20_the_last_call_is_known_too(exporter: Actor) -> None:
    assert exporter.call("raw", "free", 4096) == 1
    assert [exporter.rt.extGetLastError() for _ in range(2)] == [1, 0]
    assert exporter.call("raw", "malloc", 1 << 50) == 2
    assert exporter.call("raw", "getDevice") == 0
    assert exporter.rt.extGetLastError() == 0
    assert exporter.rt.getLastError() == 2


@emulation_only
@differs({"documented clr26": 2, "clr24 rocm5 cuda": 600})
def test_e20_work_that_is_left_is_no_failure_in_hip_7(start: Start, code: int) -> None:
    actor = start(CROSSMEM_EMULATED_SLOW_STREAMS=1)
    pointer = actor.rt.malloc(4)
    actor.rt.memsetAsync(pointer, 1, 4, 0)
    assert actor.call("raw", "malloc", 1 << 50) == 2
    assert actor.call("raw", "streamQuery", 0) == 600
    assert actor.rt.extGetLastError() == 600
    assert actor.rt.getLastError() == code


@emulation_only
def test_e20_cupy_forgets_what_it_raised(exporter: Actor) -> None:
    assert status(exporter.rt.free, 4096) == 1
    assert exporter.rt.peekAtLastError() == 0


@emulation_only
@differs({"documented clr24 clr26 cuda": 100, "rocm5": 101})
@pytest.mark.parametrize("mask", ["", "-1"])
def test_e21_no_device(start: Start, code: int, mask: str, profile: str) -> None:
    actor = start(HIP_VISIBLE_DEVICES=mask, CUDA_VISIBLE_DEVICES=mask)
    calls: list[tuple[Any, ...]] = [
        ("getDevice",),
        ("setDevice", 0),
        ("malloc", 0),
        ("free", 0),
        ("memcpy", 0, 0, 0, 1),
        ("deviceSynchronize",),
        ("ipcGetMemHandle", 0),
        ("ipcOpenMemHandle", bytes(64), 123),
        ("ipcCloseMemHandle", 0),
        ("memGetAddressRange", 0),
    ]
    for name, *arguments in calls:
        assert status(getattr(actor.rt, name), *arguments) == code, name
    assert status(actor.rt.getDeviceCount) == 100
    # CuPy has forgotten the failures, but AMD has none of its calls succeed.
    expected = 0 if profile == "cuda" else code
    for _ in range(2):
        assert actor.rt.getLastError() == actor.rt.peekAtLastError() == expected
    assert actor.rt.runtimeGetVersion() > 0
    actor.check_broken()


@emulation_only
@on("documented")
@pytest.mark.parametrize("quirk", ["leak-on-close", "pin-after-free"])
def test_e23_memory_that_is_not_released(start: Start, quirk: str) -> None:
    exporter, importer = (start(CROSSMEM_EMULATED_HIP_QUIRKS=quirk) for _ in range(2))
    witness = start()
    before = witness.free_nbytes
    pointer, handle = exporter.export()
    opened = importer.open(handle)
    importer.rt.ipcCloseMemHandle(opened)
    exporter.rt.free(pointer)

    assert witness.free_nbytes == before - BLOCK
    (importer if quirk == "leak-on-close" else exporter).kill()
    assert witness.free_nbytes == before
    witness.check_broken()


@emulation_only
@on("documented")
def test_e23_kernels_that_cannot_export(start: Start) -> None:
    exporter = start(CROSSMEM_EMULATED_HIP_QUIRKS="no-export")

    assert status(exporter.rt.ipcGetMemHandle, exporter.rt.malloc(BLOCK)) == 1
    exporter.check_broken()


@emulation_only
@on("documented")
def test_e23_slow_opens_keep_nobody_waiting(exporter: Actor, start: Start) -> None:
    importer = start(CROSSMEM_EMULATED_HIP_QUIRKS="slow-open")
    _, handle = exporter.export(b"data")
    pointers = importer.call("in_threads", 4, "open", handle)

    assert len(set(pointers)) == 1


@emulation_only
@on("documented")
def test_e23_opening_that_gives_no_access(exporter: Actor, start: Start) -> None:
    importer = start(CROSSMEM_EMULATED_HIP_QUIRKS="ignored-flag")
    _, handle = exporter.export(b"data")
    importer.rt.setDevice(1)
    opened = importer.open(handle)

    assert status(importer.read, opened, 4) == 1
    importer.rt.deviceEnablePeerAccess(0)
    assert importer.read(opened, 4) == b"data"


@emulation_only
@on("documented")
def test_e23_handles_that_are_used_again(start: Start, importer: Actor) -> None:
    exporter = start(CROSSMEM_EMULATED_HIP_QUIRKS="reused-handles")
    old, new = exporter.export_twice(b"new")

    assert old == new
    assert importer.read(importer.open(old), 3) == b"new"


@emulation_only
@on("documented")
def test_e23_handles_that_are_always_new(start: Start, importer: Actor) -> None:
    exporter = start(CROSSMEM_EMULATED_HIP_QUIRKS="fresh-handles")
    pointer, first = exporter.export(b"data")
    second = exporter.rt.ipcGetMemHandle(pointer)

    assert first != second
    for handle in (first, second):
        assert importer.read(importer.open(handle), 4) == b"data"


@emulation_only
def test_e23_calls_that_are_made_to_fail(exporter: Actor, importer: Actor) -> None:
    _, handle = exporter.export()
    importer.call("fail", "ipcOpenMemHandle", 205, {"skip": 1})
    opened = importer.open(handle)

    assert status(importer.open, handle) == 205
    assert importer.open(handle) == opened


@on("documented", "clr26")
def test_e24_events_are_not_shared_by_cupy_on_rocm(exporter: Actor) -> None:
    event = exporter.rt.eventCreateWithFlags(6)

    assert status(exporter.rt.ipcGetEventHandle, event) == 999
    assert status(exporter.rt.ipcOpenEventHandle, bytes(64)) == 999


@on("cuda")
def test_e24_events_of_two_processes(exporter: Actor, importer: Actor) -> None:
    event = exporter.rt.eventCreateWithFlags(6)
    handle = exporter.rt.ipcGetEventHandle(event)
    opened = importer.rt.ipcOpenEventHandle(handle)
    exporter.rt.eventRecord(event, 0)
    importer.rt.eventSynchronize(opened)

    assert importer.rt.eventQuery(opened) == 0
    importer.rt.eventDestroy(opened)
    exporter.rt.eventDestroy(event)
    # NVIDIA's library opens it, and the next event may have the same handle.
    assert REAL or status(importer.rt.ipcOpenEventHandle, handle) == 205


@on("cuda")
def test_e24_what_is_no_event_for_others(exporter: Actor) -> None:
    plain = exporter.rt.eventCreateWithFlags(2)
    shared = exporter.rt.ipcGetEventHandle(exporter.rt.eventCreateWithFlags(6))

    assert status(exporter.rt.eventCreateWithFlags, 4) == 1
    assert status(exporter.rt.ipcGetEventHandle, plain) == 400
    assert status(exporter.rt.ipcOpenEventHandle, bytes(64)) == 205
    assert status(exporter.rt.ipcOpenEventHandle, shared) == 201
    exporter.check_broken(*["HIP-E24"] * 3)


@emulation_only
@pytest.mark.parametrize("slow", [0, 1])
@pytest.mark.parametrize("order", ["handle first", "record first"])
def test_e24_others_wait_for_functions_of_the_program(start: Start, slow: int, order: str) -> None:
    exporter, importer = (start(CROSSMEM_EMULATED_SLOW_STREAMS=slow) for _ in range(2))
    event, stream = exporter.rt.eventCreateWithFlags(6), importer.rt.streamCreateWithFlags(1)
    if order == "handle first":
        exporter.c.ipcGetEventHandle(event)
    exporter.call("occupy", 0)
    exporter.rt.eventRecord(event, 0)
    opened = importer.c.ipcOpenEventHandle(exporter.c.ipcGetEventHandle(event))

    assert importer.rt.eventQuery(opened) == exporter.rt.eventQuery(event) == 600
    importer.rt.streamWaitEvent(stream, opened)
    theirs = importer.rt.eventCreateWithFlags(2)
    importer.rt.eventRecord(theirs, stream)
    assert importer.rt.eventQuery(theirs) == 600
    importer.begin("rt.eventSynchronize", opened)
    exporter.call("let_go")
    assert importer.result() is None
    importer.rt.streamSynchronize(stream)
    assert [importer.rt.eventQuery(one) for one in (opened, theirs)] == [0, 0]


@emulation_only
def test_e24_an_event_that_both_record(exporter: Actor, importer: Actor) -> None:
    event = exporter.rt.eventCreateWithFlags(6)
    opened = importer.c.ipcOpenEventHandle(exporter.c.ipcGetEventHandle(event))
    exporter.rt.eventRecord(event, 0)
    importer.call("occupy", 0)
    importer.rt.eventRecord(opened, 0)

    assert exporter.rt.eventQuery(event) == importer.rt.eventQuery(opened) == 600
    importer.call("let_go")
    exporter.rt.eventSynchronize(event)
    assert exporter.rt.eventQuery(event) == 0


@emulation_only
def test_e24_who_records_and_dies_keeps_nobody_waiting(exporter: Actor, importer: Actor) -> None:
    event = exporter.rt.eventCreateWithFlags(6)
    opened = importer.c.ipcOpenEventHandle(exporter.c.ipcGetEventHandle(event))
    exporter.call("occupy", 0)
    exporter.rt.eventRecord(event, 0)
    importer.begin("rt.eventSynchronize", opened)
    exporter.kill()

    assert importer.result() is None
    assert importer.rt.eventQuery(opened) == 0
