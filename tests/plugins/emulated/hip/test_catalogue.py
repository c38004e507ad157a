# SPDX-License-Identifier: Apache-2.0
"""T1 to T16: the cases of AMD's own test suite for IPC (hip-tests), by their number."""

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.plugins.emulated.hip.conftest import Start
    from tests.plugins.emulated.hip.hip_actor import (
        ALL,
        AMD,
        BLOCK,
        ON_DEVICE,
        Actor,
        differs,
        emulation_only,
        on,
        status,
    )
else:
    from hip_actor import (
        ALL,
        AMD,
        BLOCK,
        ON_DEVICE,
        Actor,
        differs,
        emulation_only,
        on,
        status,
    )

    Start = Any


def test_t1_two_allocations(exporter: Actor) -> None:
    first, second = exporter.rt.malloc(1024), exporter.rt.malloc(1024)

    assert exporter.rt.ipcGetMemHandle(first) != exporter.rt.ipcGetMemHandle(second)


def test_t2_the_same_address_again(exporter: Actor) -> None:
    first, old = exporter.export()
    exporter.rt.free(first)
    second, new = exporter.export()

    if first != second:
        pytest.skip("the allocator gave another address")
    assert old != new


def test_t3_arguments_of_get(exporter: Actor) -> None:
    assert status(exporter.rt.ipcGetMemHandle, 0) == 1
    assert len(exporter.rt.ipcGetMemHandle(exporter.rt.malloc(1024))) == 64


def test_t4_freed_memory(exporter: Actor) -> None:
    pointer = exporter.rt.malloc(BLOCK)
    exporter.rt.free(pointer)

    assert status(exporter.rt.ipcGetMemHandle, pointer) == 1


def test_t5_out_of_bounds(exporter: Actor) -> None:
    pointer = exporter.rt.malloc(BLOCK)

    assert status(exporter.rt.ipcGetMemHandle, pointer + BLOCK) == 1


@on(*AMD)
def test_t6_arguments_of_open(exporter: Actor) -> None:
    _, handle = exporter.export()

    assert status(exporter.open, bytes(64)) in {1, 17}
    assert status(exporter.rt.ipcOpenMemHandle, handle, 123) == 1


@on(*ALL)
def test_t7_reference_counting(exporter: Actor, importer: Actor, profile: str) -> None:
    pointer, handle = exporter.export(b"data")
    first, second = importer.open(handle), importer.open(handle)
    assert first == second
    importer.rt.ipcCloseMemHandle(first)
    assert importer.call("attributes", first)[2] == first
    importer.rt.ipcCloseMemHandle(second)
    if profile == "rocm5":
        assert status(importer.call, "attributes", first) == 1
    else:
        # Against the suite, these runtimes say that the memory is nobody's.
        assert importer.call("attributes", first)[1] == -2
    importer.leave()

    assert exporter.read(pointer, 4) == b"data"
    exporter.rt.free(pointer)
    exporter.check_broken()


@on("documented", "clr24", "clr26", "cuda")
def test_t8_the_creating_process(exporter: Actor) -> None:
    _, handle = exporter.export()

    assert status(exporter.open, handle) == 201


@emulation_only
@differs({"documented cuda": 400, "clr24 clr26 rocm5": 0})
def test_t9_two_contexts(exporter: Actor, importer: Actor, code: int) -> None:
    _, handle = exporter.export()
    importer.open(handle)
    importer.rt.ctxCreate(0, 0)

    assert status(importer.open, handle) == code


def test_t10_closing_in_the_originating_process(exporter: Actor) -> None:
    assert status(exporter.rt.ipcCloseMemHandle, exporter.export()[0]) == 1


def test_t11_arguments_of_close(exporter: Actor) -> None:
    assert status(exporter.rt.ipcCloseMemHandle, 0) == 1


def test_t12_every_device_of_every_device(exporter: Actor, importer: Actor) -> None:
    count = exporter.rt.getDeviceCount()
    for home in range(count):
        exporter.rt.setDevice(home)
        pointer, handle = exporter.export()
        exporter.write(pointer, b"device %d" % home)
        for device in range(count):
            if device != home and not importer.rt.deviceCanAccessPeer(device, home):
                continue
            importer.rt.setDevice(device)
            if device != home:
                status(importer.rt.deviceEnablePeerAccess, home)
            opened, copied = importer.open(handle), importer.rt.malloc(BLOCK)
            importer.rt.memcpy(copied, opened, 8, ON_DEVICE)
            importer.rt.deviceSynchronize()
            for place in (opened, copied):
                assert importer.read(place, 8) == b"device %d" % home
            importer.rt.free(copied)
            importer.rt.ipcCloseMemHandle(opened)
        exporter.rt.free(pointer)
    exporter.check_broken()


@emulation_only
@pytest.mark.parametrize("mask", ["0", "1", "1,0"])
@differs({"documented clr24 rocm5 cuda": 0, "clr26": 1})
def test_t13_importers_with_other_masks(start: Start, mask: str, code: int) -> None:
    exporter = start()
    exporter.rt.setDevice(1)
    pointer, handle = exporter.export(b"....")
    importer = start(HIP_VISIBLE_DEVICES=mask, CUDA_VISIBLE_DEVICES=mask)
    if code and mask != "1,0":
        # This runtime takes the exporter's number of the device for one of its own.
        assert status(importer.open, handle) == code
        return
    opened = importer.open(handle)
    assert importer.open(handle) == opened
    importer.write(opened, b"done")

    assert exporter.read(pointer, 4) == b"done"
    importer.check_broken()


@on("cuda")
def test_t14_memory_and_events(exporter: Actor, importer: Actor) -> None:
    pointer, handle = exporter.export(b"....")
    event = exporter.rt.eventCreateWithFlags(6)
    opened = importer.open(handle)
    theirs = importer.rt.ipcOpenEventHandle(exporter.rt.ipcGetEventHandle(event))
    importer.rt.memsetAsync(opened, ord("#"), 4, 0)
    importer.rt.eventRecord(theirs, 0)
    importer.rt.ipcCloseMemHandle(opened)
    exporter.rt.eventSynchronize(event)

    assert exporter.read(pointer, 4) == b"####"
    exporter.check_broken()


@on("cuda")
def test_t15_arguments_of_event_handles(exporter: Actor) -> None:
    handle = exporter.rt.ipcGetEventHandle(exporter.rt.eventCreateWithFlags(6))

    assert status(exporter.rt.ipcGetEventHandle, exporter.rt.eventCreateWithFlags(2)) == 400
    assert status(exporter.rt.ipcOpenEventHandle, bytes(64)) in {1, 205, 400}
    assert status(exporter.rt.ipcOpenEventHandle, handle) == 201


@on("cuda")
def test_t16_events_for_others_work_here_too(exporter: Actor) -> None:
    event, plain = exporter.rt.eventCreateWithFlags(6), exporter.rt.eventCreate()
    for one in (event, plain):
        exporter.rt.eventRecord(one, 0)
        exporter.rt.eventSynchronize(one)

    assert exporter.rt.eventQuery(event) == 0
    assert status(exporter.rt.eventElapsedTime, plain, event) == 400
