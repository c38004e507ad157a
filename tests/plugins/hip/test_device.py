# SPDX-License-Identifier: Apache-2.0
"""Which devices there are, and that every entry leaves the thread's as it found it (law C19)."""

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import count
from typing import Any
from uuid import UUID

import pytest

import crossmem
from crossmem.conformance.interrupts import Interrupted, Interrupts
from crossmem.driver import CopyKind, Exported
from crossmem_hip.driver import GpuDriver
from crossmem_hip.family import CUDA, HIP, Family

UUID_TEXT = "9b1c2f6e-3b7a-11ee-be56-0242ac120002"


def test_devices_go_by_their_bus_id(family: Family, fake: Any) -> None:
    found = GpuDriver(family, fake()).devices()

    assert [one.identity for one in found] == ["pci:0000:03:00.0", "pci:0000:04:00.0"]
    assert [(one.ordinal, one.name, one.total_nbytes) for one in found] == [
        (0, "Some GPU", 64 << 20),
        (1, "Some GPU", 64 << 20),
    ]


def test_nvidia_has_identities_of_its_own(fake: Any) -> None:
    rt = fake(1, is_hip=False)
    rt.properties["uuid"] = UUID(UUID_TEXT).bytes

    assert GpuDriver(CUDA, rt).devices()[0].identity == f"GPU-{UUID_TEXT}"


def test_cupy_may_read_more_than_the_uuid(fake: Any) -> None:
    rt = fake(1, is_hip=False)
    rt.properties["uuid"] = UUID(UUID_TEXT).bytes + b"luid"

    assert GpuDriver(CUDA, rt).devices()[0].identity == f"GPU-{UUID_TEXT}"


def test_two_mig_devices_of_one_gpu_are_told_apart(
    fake: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    rt = fake(2, is_hip=False)
    # Both bindings of the properties cut a UUID at its first zero byte.
    rt.properties["uuid"] = b"\x9b\x1c"
    rt.deviceGetUuid = lambda device: bytes([0x9B, 0x1C, 0, device, *range(12)])
    monkeypatch.setattr(rt, "deviceGetPCIBusId", lambda _: "0000:C1:00.0")

    assert [one.identity for one in GpuDriver(CUDA, rt).devices()] == [
        "GPU-9b1c0000-0001-0203-0405-060708090a0b",
        "GPU-9b1c0001-0001-0203-0405-060708090a0b",
    ]


@pytest.mark.parametrize("uuid", [b"", bytes(16), b"cut short", None])
def test_an_identity_that_is_none(uuid: object, fake: Any) -> None:
    rt = fake(1, is_hip=False)
    rt.properties["uuid"] = uuid

    assert GpuDriver(CUDA, rt).devices()[0].identity == "pci:0000:03:00.0"


def test_devices_that_cannot_be_told_apart(
    family: Family, fake: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    rt = fake()
    monkeypatch.setattr(rt, "deviceGetPCIBusId", lambda _: "0000:C1:00.0")
    with pytest.raises(crossmem.ConfigurationError, match=r"pci:0000:c1:00\.0") as raised:
        GpuDriver(family, rt)

    assert raised.value.hint


def test_a_device_may_have_no_name_and_no_size(fake: Any) -> None:
    rt = fake(1)
    rt.properties = {"name": ""}
    driver = GpuDriver(HIP, rt)

    assert driver.devices()[0].name == "AMD GPU"
    assert driver.devices()[0].total_nbytes is None
    assert driver.capabilities(0, None).max_allocation_nbytes == 1 << 40


@pytest.mark.parametrize(
    ("code", "missing"), [(35, "driver"), (100, "device"), (101, "device"), (0, "device")]
)
def test_a_machine_without_devices(code: int, missing: str, family: Family, fake: Any) -> None:
    rt = fake(0)
    if code:
        rt.fail("getDeviceCount", code)
    with pytest.raises(crossmem.BackendUnavailableError, match=f"finds no {missing}") as raised:
        GpuDriver(family, rt)

    wanted = family.install_hint if missing == "driver" else family.masks[0]
    assert wanted in str(raised.value.hint)
    assert len(str(raised.value.hint)) <= 200


def test_a_machine_that_cannot_be_asked(family: Family, fake: Any) -> None:
    rt = fake()
    rt.fail("getDeviceCount", 999)
    with pytest.raises(crossmem.DriverError, match="GetDeviceCount"):
        GpuDriver(family, rt)


def test_a_runtime_that_lacks_a_function(family: Family) -> None:
    with pytest.raises(crossmem.BackendUnavailableError, match=r"of cupy\.cuda\.runtime") as raised:
        GpuDriver(family, threading)  # type: ignore[arg-type]

    assert "malloc" in raised.value.details.splitlines()
    assert len(raised.value.message) <= 200


def test_looking_at_devices_opens_none(driver: GpuDriver, rt: Any) -> None:
    for device in driver.devices():
        driver.capabilities(device.ordinal, None)

    assert "setDevice" not in rt.named(device=True)


@pytest.mark.parametrize("ordinal", [0, 1])
def test_what_was_current_is_current_again(ordinal: int, rt: Any, story_on: Any) -> None:
    story = story_on(ordinal)
    for operation in story.OPERATIONS:
        rt.calls.clear()
        getattr(story, operation)()
        chosen = [call[1] for call in rt.calls if call[0] == "setDevice"]

        assert rt.current == 0, operation
        assert chosen in ([], [1, 0]), operation


def test_the_memorys_device_is_current_for_its_export(rt: Any, story_on: Any) -> None:
    story = story_on(1)
    story.until("export")
    rt.calls.clear()
    story.export()

    called = [name for name in rt.named(device=True) if name != "streamIsCapturing"]
    assert called == ["getDevice", "setDevice", "ipcGetMemHandle", "setDevice"]


def test_it_is_current_again_after_a_failure(driver: GpuDriver, rt: Any) -> None:
    rt.fail("memcpy", 999)
    with pytest.raises(crossmem.DriverError):
        driver.copy(1, 1, 2, 3, CopyKind.HOST_TO_DEVICE)

    assert rt.current == 0


def test_a_device_that_does_not_open_is_not_left_current(driver: GpuDriver, rt: Any) -> None:
    rt.fail("setDevice", 2)
    with pytest.raises(crossmem.OutOfMemoryError):
        driver.synchronize(1)

    called = [name for name in rt.named(device=True) if name != "streamIsCapturing"]
    assert called == ["getDevice", "setDevice", "setDevice"]
    assert rt.current == 0


def test_a_capture_on_the_threads_own_device_is_not_left(driver: GpuDriver, rt: Any) -> None:
    rt.capturing = {0}
    rt.calls.clear()
    with pytest.raises(crossmem.BusyError):
        driver.allocate(1, 1, "legacy")

    assert "setDevice" not in rt.named(device=True)


def test_a_thread_gets_back_what_it_is_owed(driver: GpuDriver, rt: Any) -> None:
    rt.fail("setDevice", 999, skip=1)
    with pytest.raises(crossmem.DriverError, match="SetDevice"):
        driver.synchronize(1)
    assert rt.current == 1

    driver.synchronize(1)

    assert rt.current == 0


def test_the_applications_choice_is_worth_more_than_a_debt(fake: Any) -> None:
    rt = fake(3)
    driver = GpuDriver(HIP, rt)
    rt.fail("setDevice", 999, skip=1)
    with pytest.raises(crossmem.DriverError):
        driver.synchronize(1)
    rt.setDevice(2)
    driver.synchronize(1)

    assert rt.current == 2


def test_an_interrupted_call_restores_it_at_the_latest_at_the_next_call(
    driver: GpuDriver, rt: Any
) -> None:
    for number in count(1):
        with (
            Interrupts(number, lambda file: "crossmem_hip" in file, innermost=True) as interrupts,
            suppress(Interrupted),
        ):
            driver.synchronize(1)
        if not interrupts.place:
            break
        if rt.current:
            driver.synchronize(1)
        assert rt.current == 0, interrupts.place
    assert number > 10


def test_threads_do_not_mix_up_their_devices(driver: GpuDriver, rt: Any) -> None:
    barrier = threading.Barrier(4)

    def work(own: int) -> int:
        rt.current = own
        barrier.wait(10)
        for _ in range(50):
            driver.synchronize(1 - own)
        found: int = rt.current
        return found

    with ThreadPoolExecutor(max_workers=4) as threads:
        assert list(threads.map(work, [0, 1, 0, 1])) == [0, 1, 0, 1]


def test_an_open_that_takes_long_keeps_nobody_waiting(driver: GpuDriver, rt: Any) -> None:
    entered, leave = threading.Event(), threading.Event()
    inner = rt.ipcOpenMemHandle

    def slow(handle: bytes, flags: int) -> int:
        entered.set()
        assert leave.wait(10)
        pointer: int = inner(handle, flags)
        return pointer

    rt.ipcOpenMemHandle = slow

    def map_it() -> None:
        imported = driver.import_(
            0,
            Exported((bytes(64),)),
            home=0,
            mechanism="legacy",
            nbytes=1,
            capacity=2 << 20,
            access="rw",
        )
        driver.map(imported, remappable=True)

    with ThreadPoolExecutor(max_workers=1) as threads:
        running = threads.submit(map_it)
        try:
            assert entered.wait(10)
            block = driver.allocate(0, 1, "legacy")
            driver.export(block, "legacy", "rw", raw=False)
            driver.copy(0, block.pointer, 1, 1, CopyKind.HOST_TO_DEVICE)
            driver.free(block)
            assert not running.done()
        finally:
            leave.set()
        running.result(10)
