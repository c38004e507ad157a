# SPDX-License-Identifier: Apache-2.0
"""HIP-X8 and X9: contexts of drivers, and what a reset takes away."""

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.plugins.emulated.hip.conftest import Start
    from tests.plugins.emulated.hip.hip_actor import (
        BLOCK,
        Actor,
        differs,
        emulation_only,
        on,
        status,
    )
else:
    from hip_actor import BLOCK, Actor, differs, emulation_only, on, status

    Start = Any


@emulation_only
@on("documented", "cuda")
def test_x8_the_context_on_top_is_current(exporter: Actor) -> None:
    rt = exporter.rt
    usual, first = rt.ctxGetCurrent(), rt.ctxCreate(0, 1)
    assert (rt.ctxGetCurrent(), rt.getDevice()) == (first, 1)
    second = rt.ctxCreate(0, 0)
    assert len({usual, first, second}) == 3
    rt.ctxSetCurrent(first)
    assert (rt.ctxGetCurrent(), rt.getDevice()) == (first, 1)
    assert [rt.ctxPopCurrent(), rt.ctxPopCurrent()] == [first, first]
    assert (rt.ctxGetCurrent(), rt.getDevice()) == (usual, 0)
    rt.ctxPushCurrent(second)
    rt.setDevice(1)
    assert rt.getDevice() == 1
    assert rt.ctxPopCurrent() == rt.ctxGetCurrent() == rt.devicePrimaryCtxRetain(1)
    exporter.check_broken()
    assert status(rt.ctxPopCurrent) == 201
    exporter.check_broken("HIP-X3")


@emulation_only
@on("clr24", "clr26", "rocm5")
def test_x8_contexts_of_these_runtimes_are_devices(exporter: Actor) -> None:
    rt = exporter.rt
    first, second = rt.ctxCreate(0, 1), rt.ctxCreate(0, 0)
    # Nobody was made current yet, against the documents.
    assert (rt.getDevice(), rt.ctxGetCurrent()) == (0, second)
    assert first == rt.devicePrimaryCtxRetain(1)
    rt.ctxSetCurrent(first)
    assert rt.getDevice() == 1
    # What is popped stays current.
    assert [rt.ctxPopCurrent(), rt.ctxPopCurrent()] == [first, first]
    assert (rt.getDevice(), rt.ctxGetCurrent()) == (1, first)
    rt.ctxPushCurrent(second)
    assert rt.getDevice() == 0
    rt.ctxDestroy(second)
    rt.ctxDestroy(second)
    assert status(rt.ctxPopCurrent) == 201
    exporter.check_broken("HIP-X3")


@emulation_only
@on("documented", "clr26", "cuda")
def test_x8_no_context_is_unbound(exporter: Actor) -> None:
    rt = exporter.rt
    rt.ctxSetCurrent(0)
    context = rt.ctxCreate(0, 0)
    rt.ctxSetCurrent(context)
    rt.ctxSetCurrent(0)
    exporter.check_broken()

    assert status(rt.ctxPopCurrent) == 201
    assert rt.getDevice() == 0
    rt.ctxSetCurrent(context)
    assert rt.ctxPopCurrent() == context
    exporter.check_broken("HIP-X3")


@emulation_only
@differs({"documented clr26": (1, 1), "cuda": (201, 101)})
def test_x8_no_such_context(exporter: Actor, code: tuple[int, int]) -> None:
    no_context, no_device = code
    assert status(exporter.rt.ctxDestroy, 0) == no_context
    assert status(exporter.rt.ctxCreate, 0, 2) == no_device
    for name in ("ctxSetCurrent", "ctxPushCurrent"):
        assert status(getattr(exporter.rt, name), 4096) == 201
    assert status(exporter.rt.ctxPushCurrent, 0) == 201


@emulation_only
def test_x8_a_destroyed_context_is_nobodys(exporter: Actor, profile: str) -> None:
    context = exporter.rt.ctxCreate(0, 1)
    exporter.rt.ctxDestroy(context)

    assert exporter.rt.getDevice() == 0
    assert status(exporter.rt.ctxPopCurrent) == 201
    assert status(exporter.rt.ctxDestroy, context) == (0 if profile == "clr26" else 201)


@emulation_only
@differs({"documented clr26": 216, "cuda": 0})
def test_x8_each_devices_own_context(exporter: Actor, code: int) -> None:
    rt = exporter.rt
    assert rt.devicePrimaryCtxGetState(1) == (0, False)
    context = rt.devicePrimaryCtxRetain(1)
    assert rt.devicePrimaryCtxGetState(1) == (0, True)
    rt.devicePrimaryCtxRelease(1)
    assert rt.devicePrimaryCtxRetain(1) == context
    assert status(rt.devicePrimaryCtxSetFlags, 1, 0) == code
    for name, *more in (("Retain",), ("Release",), ("GetState",), ("SetFlags", 0)):
        assert status(getattr(rt, f"devicePrimaryCtx{name}"), 2, *more) == 101
    exporter.check_broken()


@emulation_only
@pytest.mark.parametrize("call", [("deviceReset",), ("devicePrimaryCtxReset", 0)])
@on("documented", "cuda")
def test_x9_what_a_device_had_is_gone(exporter: Actor, call: tuple[Any, ...]) -> None:
    rt, (name, *arguments) = exporter.rt, call
    before = exporter.free_nbytes
    pointer, pinned, managed = rt.malloc(BLOCK), rt.hostAlloc(BLOCK, 0), rt.mallocManaged(BLOCK)
    stream, event, own = rt.streamCreate(), rt.eventCreate(), exporter.call("own_memory", 64)
    assert exporter.call("raw", "hostRegister", own, 64, 0) == 0
    rt.setDevice(1)
    kept, elsewhere, other = rt.malloc(BLOCK), rt.hostAlloc(BLOCK, 0), rt.streamCreate()
    rt.setDevice(0)
    rt.memsetAsync(pointer, 1, BLOCK, stream)
    getattr(rt, name)(*arguments)

    assert exporter.free_nbytes == before
    exporter.check_broken()
    assert [status(rt.free, one) for one in (pointer, managed)] == [1, 1]
    assert status(rt.freeHost, pinned) == 1
    assert status(rt.streamSynchronize, stream) == 400
    assert status(rt.eventSynchronize, event) == 400
    assert exporter.call("raw", "hostUnregister", own) == 713
    # Those of the other device are not touched, and the device itself goes on.
    for given_back, one in ((rt.free, kept), (rt.freeHost, elsewhere), (rt.streamDestroy, other)):
        assert status(given_back, one) == 0
    rt.free(rt.malloc(BLOCK))
    rt.streamSynchronize(0)


@emulation_only
@on("clr26")
def test_x9_memory_of_the_host_is_of_all_devices(exporter: Actor, start: Start) -> None:
    alone = start(HIP_VISIBLE_DEVICES="1")
    for actor, code in ((exporter, 0), (alone, 1)):
        rt = actor.rt
        pinned, stream, event = rt.hostAlloc(BLOCK, 0), rt.streamCreate(), rt.eventCreate()
        pointer = rt.malloc(BLOCK)
        # This runtime does nothing here, whatever the device.
        rt.devicePrimaryCtxReset(0)
        rt.devicePrimaryCtxReset(7)
        rt.free(pointer)
        rt.deviceReset()
        assert status(rt.freeHost, pinned) == code
        assert status(rt.streamSynchronize, stream) == 400
        rt.eventDestroy(event)


@emulation_only
@on("documented", "cuda")
def test_x9_there_is_no_such_device(exporter: Actor) -> None:
    assert status(exporter.rt.devicePrimaryCtxReset, 2) == 101


@emulation_only
def test_x9_what_was_imported_is_closed(exporter: Actor, importer: Actor) -> None:
    pointer, handle = exporter.export(b"data")
    opened = importer.open(handle)
    importer.rt.deviceReset()

    assert status(importer.rt.ipcCloseMemHandle, opened) == 1
    assert importer.read(importer.open(handle), 4) == b"data"
    exporter.rt.deviceReset()
    assert status(exporter.rt.free, pointer) == 1
