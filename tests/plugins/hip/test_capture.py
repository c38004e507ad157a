# SPDX-License-Identifier: Apache-2.0
"""A thread that records a graph is told so, and its graph is not broken."""

import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

import crossmem
from crossmem.driver import CopyKind, SharedEvent
from crossmem_hip.cupy import current_streams
from crossmem_hip.driver import GpuDriver
from crossmem_hip.family import CUDA, HIP, Family

BREAKING = ("allocate", "map", "unmap", "free")
CAPTURE_IMPLICIT = 906


def synchronize(driver: GpuDriver) -> None:
    driver.synchronize(0)


def copy(driver: GpuDriver) -> None:
    driver.copy(0, 1, 2, 3, CopyKind.HOST_TO_DEVICE)


@pytest.mark.parametrize("work", [synchronize, copy])
def test_work_is_refused(work: Callable[[GpuDriver], None], driver: Any, rt: Any) -> None:
    rt.capturing = {0}
    with pytest.raises(crossmem.BusyError, match="captured into a graph") as raised:
        work(driver)

    assert rt.named() == []
    assert raised.value.hint
    assert raised.value.device == "pci:0000:03:00.0"


@pytest.mark.parametrize("operation", BREAKING)
def test_so_is_what_the_vendor_would_refuse(operation: str, rt: Any, story: Any) -> None:
    story.until(operation)
    rt.calls.clear()
    rt.capturing = {0}
    with pytest.raises(crossmem.BusyError):
        getattr(story, operation)()
    assert rt.named() == []
    rt.capturing = set()

    getattr(story, operation)()

    assert rt.named()


STREAM = 7
OF_A_STREAM: dict[str, Callable[[Any], object]] = {
    "streamSynchronize": lambda order: order.synchronize_stream(0, STREAM),
    "streamWriteValue64": lambda order: order.write_value(0, 0x1000, 1, STREAM),
    "streamWaitValue64": lambda order: order.wait_value(0, 0x1000, 1, STREAM),
    "eventRecord": lambda order: order.record_event(SharedEvent(0, 5, b""), STREAM),
    "streamWaitEvent": lambda order: order.wait_event(SharedEvent(0, 5, b""), STREAM),
}


@pytest.mark.parametrize("function", OF_A_STREAM)
def test_a_graph_records_no_step_of_a_timeline(function: str, fake: Any) -> None:
    rt = fake(is_hip=False)
    driver: Any = GpuDriver(CUDA, rt)
    called: list[str] = []
    setattr(rt, function, lambda *_: called.append(function))
    rt.capturing = {STREAM}
    with pytest.raises(crossmem.BusyError, match="captured into a graph") as raised:
        OF_A_STREAM[function](driver._order)
    assert not called
    assert raised.value.hint
    rt.capturing = {STREAM + 1}

    OF_A_STREAM[function](driver._order)

    assert called == [function]


def test_amd_is_asked_about_no_stream_that_may_be_destroyed(fake: Any) -> None:
    rt = fake()
    driver: Any = GpuDriver(HIP, rt)
    rt.calls.clear()
    driver._order.synchronize_stream(0, STREAM)

    assert rt.named() == ["streamSynchronize"]
    assert ("streamIsCapturing", STREAM) not in rt.calls


def test_a_page_is_not_registered_in_a_capture(driver: Any, rt: Any) -> None:
    rt.hostRegister = lambda *_: pytest.fail("the vendor would refuse this, and end the capture")
    rt.hostUnregister = rt.hostRegister
    rt.capturing = {0}
    with pytest.raises(crossmem.BusyError):
        driver._order.register_host(0, 0x1000, 4096)


@pytest.mark.parametrize("operation", ["export", "import_", "close"])
def test_what_breaks_nothing_goes_on(operation: str, rt: Any, story: Any) -> None:
    story.until(operation)
    rt.capturing = {0}
    getattr(story, operation)()


def test_a_stream_that_the_default_one_would_wait_for(driver: GpuDriver, rt: Any) -> None:
    rt.fail("streamIsCapturing", CAPTURE_IMPLICIT)
    with pytest.raises(crossmem.BusyError):
        driver.synchronize(0)

    assert rt.named() == []


def test_the_streams_of_libraries_are_asked_about(family: Family, rt: Any) -> None:
    driver = GpuDriver(family, rt, lambda: (7, 8))
    rt.capturing = {8}
    with pytest.raises(crossmem.BusyError):
        driver.synchronize(0)
    rt.capturing = set()
    rt.calls.clear()
    driver.synchronize(0)

    assert [call[1] for call in rt.calls if call[0] == "streamIsCapturing"] == [0, 7, 8]


def test_a_runtime_that_cannot_tell(
    driver: GpuDriver, rt: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: int) -> bool:
        raise RuntimeError("HIP does not support streamIsCapturing")

    monkeypatch.setattr(rt, "streamIsCapturing", refuse)
    driver.synchronize(0)
    monkeypatch.undo()
    monkeypatch.delattr(type(rt), "streamIsCapturing")
    driver.synchronize(0)

    assert rt.named() == ["deviceSynchronize"] * 2


def test_the_question_can_fail(driver: GpuDriver, rt: Any) -> None:
    rt.fail("streamIsCapturing", 700)
    with pytest.raises(crossmem.DriverError, match="StreamIsCapturing"):
        driver.synchronize(0)


def test_streams_are_those_of_libraries_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("cupy.cuda.stream", "torch"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    assert current_streams() == ()

    stream = SimpleNamespace(ptr=5)
    cupy = SimpleNamespace(get_current_stream=lambda: stream)
    torch = SimpleNamespace(
        cuda=SimpleNamespace(
            is_initialized=lambda: True, current_stream=lambda: SimpleNamespace(cuda_stream=6)
        )
    )
    monkeypatch.setitem(sys.modules, "cupy.cuda.stream", cupy)
    monkeypatch.setitem(sys.modules, "torch", torch)
    assert current_streams() == (5, 6)

    torch.cuda.is_initialized = lambda: False
    stream.ptr = 0
    assert current_streams() == ()

    # Another thread is importing the libraries.
    for unfinished in (SimpleNamespace(), SimpleNamespace(cuda=SimpleNamespace())):
        monkeypatch.setitem(sys.modules, "cupy.cuda.stream", unfinished)
        monkeypatch.setitem(sys.modules, "torch", unfinished)
        assert current_streams() == ()
