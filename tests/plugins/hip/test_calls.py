# SPDX-License-Identifier: Apache-2.0
"""Each operation makes the vendor's calls in the vendor's order, and no others."""

from typing import Any

import pytest

from crossmem.driver import CopyKind, Exported
from crossmem_hip.driver import GpuDriver
from crossmem_hip.family import CUDA, HIP

MIB = 1 << 20


def test_each_operation_makes_its_calls(rt: Any, story: Any) -> None:
    made: dict[str, list[tuple[Any, ...]]] = {}
    for operation in story.OPERATIONS:
        rt.calls.clear()
        getattr(story, operation)()
        made[operation] = [
            call for call in rt.calls if call[0] not in {"getDevice", "streamIsCapturing"}
        ]
    own = story.block.pointer

    assert made == {
        "allocate": [("malloc", 4 * MIB)],
        "export": [("ipcGetMemHandle", own)],
        "import_": [],
        # The flags are 1 since ROCm 6, and always were for NVIDIA.
        "map": [
            ("ipcOpenMemHandle", story.HANDLE, 1),
            ("memGetAddressRange", story.pointer),
        ],
        "unmap": [("ipcCloseMemHandle", story.pointer)],
        "close": [],
        "free": [("free", own)],
    }
    assert rt.held == set()


def test_a_block_is_whole_units_of_what_the_vendor_shares(driver: GpuDriver, rt: Any) -> None:
    blocks = [driver.allocate(0, nbytes, "legacy") for nbytes in (1, 2 * MIB, 2 * MIB + 1)]

    assert [block.capacity // MIB for block in blocks] == [2, 2, 4]
    assert [call[1] for call in rt.calls if call[0] == "malloc"] == [2 * MIB, 2 * MIB, 4 * MIB]


def test_the_vendor_exports_once(driver: GpuDriver, rt: Any, story: Any) -> None:
    story.until("import_")
    raw = driver.export(story.block, "legacy", "rw", raw=True)

    assert raw == story.exported == Exported((story.block.pointer.to_bytes(64, "little"),))
    assert rt.named().count("ipcGetMemHandle") == 1


@pytest.mark.parametrize(
    ("version", "flags"), [(50_221_153, 0), (50_731_921, 0), (60_000_000, 1), (100_000_000, 1)]
)
def test_the_flags_go_by_the_version_of_rocm(version: int, flags: int, fake: Any) -> None:
    rt = fake()
    rt.version = version
    driver = GpuDriver(HIP, rt)
    story = Exported((bytes(64),))
    imported = driver.import_(
        0, story, home=0, mechanism="legacy", nbytes=1, capacity=2 * MIB, access="rw"
    )
    driver.map(imported, remappable=True)

    assert rt.calls[-2] == ("ipcOpenMemHandle", bytes(64), flags)


@pytest.mark.parametrize("version", [11_020, 13_020])
def test_cuda_has_one_value_for_the_flags(version: int) -> None:
    assert CUDA.open_flags(version) == 1


@pytest.mark.parametrize(
    ("kind", "number", "waits"),
    [
        (CopyKind.HOST_TO_DEVICE, 1, True),
        (CopyKind.DEVICE_TO_HOST, 2, False),
        (CopyKind.DEVICE_TO_DEVICE, 3, True),
    ],
)
def test_a_copy_is_done_when_it_returns(
    driver: GpuDriver, rt: Any, kind: CopyKind, number: int, waits: bool
) -> None:
    driver.copy(0, 0x10, 0x20, 5, kind)
    made = [call for call in rt.calls if call[0] not in {"getDevice", "streamIsCapturing"}]

    assert made == [("memcpy", 0x10, 0x20, 5, number)] + [("streamSynchronize", 0)] * waits


def import_for_another(driver: GpuDriver) -> None:
    for _ in range(2):
        imported = driver.import_(
            1,
            Exported((bytes(64),)),
            home=0,
            mechanism="legacy",
            nbytes=1,
            capacity=2 * MIB,
            access="rw",
        )
        mapped = driver.map(imported, remappable=False)
        driver.unmap(mapped)
        driver.close(imported)


def test_amd_is_told_to_let_another_device_in(hip: GpuDriver, hip_rt: Any) -> None:
    import_for_another(hip)

    assert hip_rt.peers == {(1, 0)}
    # Each time, because somebody may have taken it away.
    assert hip_rt.named().count("deviceEnablePeerAccess") == 2


def test_access_that_others_enabled_is_left_alone(hip: GpuDriver, hip_rt: Any) -> None:
    hip_rt.fail("deviceEnablePeerAccess", 704)
    import_for_another(hip)

    assert hip_rt.held == set()


def test_nvidia_lets_another_device_in_by_itself(cuda: GpuDriver, cuda_rt: Any) -> None:
    import_for_another(cuda)

    assert cuda_rt.peers == set()
    assert cuda_rt.current == 0


def test_capabilities(driver: GpuDriver, rt: Any) -> None:
    found = driver.capabilities(0, None)
    calls = len(rt.calls)

    assert driver.capabilities(0, "legacy") == found
    assert len(rt.calls) == calls
    assert found.mechanisms == ("legacy",)
    assert found.max_allocation_nbytes == 64 * MIB
    assert found.peer_access
    assert found.raw_handles
    assert not any(
        getattr(found, name)
        for name in (
            "address_ranges",
            "fork_safe",
            "host_visible",
            "readonly_exports",
            "readonly_imports",
            "survives_owner",
        )
    )


@pytest.mark.parametrize(("devices", "linked"), [(1, True), (3, False)])
def test_devices_that_do_not_reach_each_other(devices: int, linked: bool, fake: Any) -> None:
    rt = fake(devices)
    rt.linked = linked

    assert not GpuDriver(HIP, rt).capabilities(0, None).peer_access


def test_nothing_of_others_is_ended(rt: Any, story: Any) -> None:
    for operation in story.OPERATIONS:
        getattr(story, operation)()

    # The stand-in has no such function, so a call would have raised.
    assert not hasattr(rt, "deviceReset")
    assert not hasattr(rt, "deviceDisablePeerAccess")
