# SPDX-License-Identifier: Apache-2.0
"""Whichever call of an operation fails: a typed error, and nothing left behind."""

from collections.abc import Callable
from typing import Any

import pytest

import crossmem
from crossmem.driver import Exported
from crossmem_hip.driver import GpuDriver
from crossmem_hip.family import Family

MIB = 1 << 20
OTHER_FAILURE = 999


def calls_of(rt: Any, operation: Callable[[], object]) -> list[tuple[str, int]]:
    """Return the calls that an operation makes, each with how many of its name come before."""
    rt.calls.clear()
    operation()
    names = rt.named(device=True)
    return [(name, names[:index].count(name)) for index, name in enumerate(names)]


@pytest.mark.parametrize("current", [0, 1], ids=["this-device", "another-device"])
@pytest.mark.parametrize("operation", ["allocate", "map"])
def test_what_fails_leaves_nothing(
    operation: str, current: int, family: Family, rt: Any, story_on: Any
) -> None:
    rt.current = current
    rehearsal = story_on(0)
    rehearsal.until(operation)
    for call, index in calls_of(rt, getattr(rehearsal, operation)):
        story = story_on(0)
        story.until(operation)
        before = set(rt.held)
        rt.fail(call, OTHER_FAILURE, skip=index)
        with pytest.raises(crossmem.DriverError) as raised:
            getattr(story, operation)()

        assert raised.value.call == family.function(call)
        assert raised.value.operation == operation
        assert raised.value.device == "pci:0000:03:00.0"
        assert rt.held == before, call
        rt.codes.clear()
        # What could not be put back is put back by the next call.
        story.driver.synchronize(0)
        assert rt.current == current, call


@pytest.mark.parametrize(("operation", "call"), [("free", "free"), ("unmap", "ipcCloseMemHandle")])
@pytest.mark.parametrize("failing", ["getDevice", "setDevice", "streamIsCapturing", "release"])
@pytest.mark.parametrize("skip", [0, 1])
def test_giving_back_goes_on_where_it_stopped(
    operation: str, call: str, failing: str, skip: int, rt: Any, story: Any
) -> None:
    story.until(operation)
    rt.current = 1
    rt.calls.clear()
    name = call if failing == "release" else failing
    rt.fail(name, OTHER_FAILURE, skip=skip)
    try:
        getattr(story, operation)()
    except crossmem.DriverError:
        rt.codes.clear()
        getattr(story, operation)()

    # Refused once at most, and done once.
    assert rt.named().count(call) <= 2
    assert {kind for kind, _ in rt.held} <= ({"memory"} if operation == "unmap" else set())
    assert rt.current == 1
    made = rt.named().count(call)
    rt.codes.clear()
    getattr(story, operation)()
    assert rt.named().count(call) == made


def test_access_that_is_refused(hip: GpuDriver, hip_rt: Any) -> None:
    imported = hip.import_(
        1,
        Exported((bytes(64),)),
        home=0,
        mechanism="legacy",
        nbytes=1,
        capacity=2 * MIB,
        access="rw",
    )
    hip_rt.fail("deviceEnablePeerAccess", 217)
    with pytest.raises(crossmem.DriverError, match="EnablePeerAccess") as raised:
        hip.map(imported, remappable=True)
    assert "memory's own device" in str(raised.value)
    assert hip_rt.held == set()

    hip.map(imported, remappable=True)

    assert hip_rt.peers == {(1, 0)}


def test_an_import_that_could_not_be_undone_is_closed_later(rt: Any, story: Any) -> None:
    story.until("map")
    rt.fail("memGetAddressRange", OTHER_FAILURE)
    rt.codes["ipcCloseMemHandle"] = [OTHER_FAILURE]
    with pytest.raises(crossmem.DriverError) as raised:
        story.map()
    assert "IpcCloseMemHandle" in raised.value.__notes__[0]
    assert "import" in {kind for kind, _ in rt.held}

    story.close()

    assert "import" not in {kind for kind, _ in rt.held}


def test_an_export_that_fails_can_be_made_again(rt: Any, story: Any) -> None:
    story.allocate()
    rt.fail("ipcGetMemHandle", OTHER_FAILURE)
    with pytest.raises(crossmem.DriverError, match="IpcGetMemHandle"):
        story.export()
    story.export()

    assert story.exported.payloads


def test_an_export_is_remembered_where_only_the_device_fails(rt: Any, story_on: Any) -> None:
    story = story_on(1)
    story.allocate()
    rt.fail("setDevice", OTHER_FAILURE, skip=1)
    with pytest.raises(crossmem.DriverError):
        story.export()
    story.export()

    assert rt.named().count("ipcGetMemHandle") == 1


@pytest.mark.parametrize(
    ("call", "operation", "code", "error"),
    [
        ("malloc", "allocate", 2, crossmem.OutOfMemoryError),
        ("ipcOpenMemHandle", "map", 17, crossmem.StaleHandleError),
        ("ipcOpenMemHandle", "map", 201, crossmem.WrongHostError),
        ("ipcOpenMemHandle", "map", 801, crossmem.UnsupportedError),
        ("malloc", "allocate", 900, crossmem.BusyError),
    ],
)
def test_what_operations_can_meet(
    call: str, operation: str, code: int, error: type[Exception], rt: Any, story: Any
) -> None:
    story.until(operation)
    rt.fail(call, code)
    with pytest.raises(error, match=str(code)):
        getattr(story, operation)()


@pytest.mark.parametrize("told", [2 * MIB, 4 * MIB - 1])
def test_a_size_that_the_memory_does_not_have(told: int, rt: Any, story: Any) -> None:
    story.until("map")
    rt.size_of = lambda _: told
    with pytest.raises(crossmem.InvalidHandleError, match=f"{told} bytes.*4194304"):
        story.map()

    assert "import" not in {kind for kind, _ in rt.held}


def test_a_runtime_that_cannot_tell_the_size(
    rt: Any, story: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(type(rt), "memGetAddressRange")
    story.until("unmap")

    assert story.pointer


@pytest.mark.parametrize(
    ("payloads", "descriptors", "nbytes", "capacity"),
    [
        ((), (), 1, 1),
        ((bytes(63),), (), 1, 1),
        ((bytes(65),), (), 1, 1),
        ((bytes(64), bytes(64)), (), 1, 1),
        ((bytes(64),), (3,), 1, 1),
        ((bytes(64),), (), 0, 1),
        ((bytes(64),), (), 2, 1),
    ],
)
def test_exports_that_are_none(
    payloads: tuple[bytes, ...],
    descriptors: tuple[int, ...],
    nbytes: int,
    capacity: int,
    driver: GpuDriver,
    rt: Any,
) -> None:
    with pytest.raises(crossmem.InvalidHandleError):
        driver.import_(
            0,
            Exported(payloads, descriptors),
            home=0,
            mechanism="legacy",
            nbytes=nbytes,
            capacity=capacity,
            access="rw",
        )

    assert rt.calls == []
