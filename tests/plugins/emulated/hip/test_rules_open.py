# SPDX-License-Identifier: Apache-2.0
"""HIP-E3 to E5, and E13 to E15: opening."""

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.plugins.emulated.hip.conftest import Start
    from tests.plugins.emulated.hip.hip_actor import (
        ALL,
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
        ALL,
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
@differs({"documented clr24 clr26": 1, "rocm5": 0})
def test_e3_flags(exporter: Actor, importer: Actor, code: int) -> None:
    _, handle = exporter.export()
    wrong = [flags for flags in (0, 1, 2, 123) if flags != code]

    for flags in wrong:
        assert status(importer.rt.ipcOpenMemHandle, handle, flags) == 1
    importer.rt.ipcOpenMemHandle(handle, code)
    importer.check_broken(*["HIP-E3"] * len(wrong))


@on("cuda")
def test_e3_the_only_flag_that_is_looked_at(exporter: Actor, importer: Actor) -> None:
    _, handle = exporter.export()

    for flags in (0, 2):
        assert status(importer.rt.ipcOpenMemHandle, handle, flags) == 1
    importer.rt.ipcOpenMemHandle(handle, 123)
    importer.check_broken(*["HIP-E3"] * 3)


@differs({"documented clr24 clr26 cuda": 201, "rocm5": 0})
def test_e3_the_own_process(exporter: Actor, code: int) -> None:
    _, handle = exporter.export()

    assert status(exporter.open, handle) == code
    exporter.check_broken(*["HIP-E3"] * bool(code))


@emulation_only
@on("documented", "clr24", "clr26")
def test_e3_the_order_of_the_checks(exporter: Actor) -> None:
    """Flags first, then the size, then whose handle it is, then whether there is such memory."""
    _, handle = exporter.export()
    empty = handle[:32] + bytes(8) + handle[40:]
    unknown = bytes(32) + handle[32:]
    foreign = unknown[:48] + bytes(4) + unknown[52:]

    assert status(exporter.rt.ipcOpenMemHandle, empty, 0) == 1
    assert status(exporter.open, empty) == 1
    assert status(exporter.open, unknown) == 201
    assert status(exporter.open, foreign) == 17


@on(*ALL)
def test_e3_nothing_but_zeros(importer: Actor) -> None:
    assert status(importer.open, bytes(64)) == 1
    importer.check_broken()


@emulation_only
@differs({"documented clr24 clr26 rocm5": 17, "cuda": 1})
def test_e3_changed_handles(exporter: Actor, importer: Actor, profile: str, code: int) -> None:
    """Each changed bit is noticed; a runtime that looks at few of them opens the same memory."""
    _, handle = exporter.export(b"data")
    # An offset that is still inside is another handle of the same memory.
    inside = {40, 41}
    looked_at = {*range(64)} - inside if profile in {"documented", "cuda"} else {*range(40)}
    for place in range(64):
        changed = bytearray(handle)
        changed[place] ^= 0x80
        if changed[48:52] == importer.pid.to_bytes(4, "little"):
            # Now it says that the importer made it, which is refused otherwise.
            continue
        found = status(importer.open, bytes(changed))

        if profile == "cuda" and place in {*range(48, 52)}:
            # Now it says that another process made it, which may not exist.
            assert found in {1, 400}, place
        else:
            assert found == code if place in looked_at else found in {0, 1, code}, place
    importer.check_broken()


def test_e4_the_base_elsewhere(exporter: Actor, importer: Actor) -> None:
    pointer, _ = exporter.export(b"base")
    inside = exporter.rt.ipcGetMemHandle(pointer + 4096)

    opened = importer.open(inside)

    assert importer.read(opened, 4) == b"base"
    assert REAL or opened != pointer


def test_e5_opening_counts(exporter: Actor, importer: Actor) -> None:
    _, handle = exporter.export(b"data")
    first, second = importer.open(handle), importer.open(handle)

    assert first == second
    importer.rt.ipcCloseMemHandle(first)
    assert importer.read(first, 4) == b"data"
    importer.rt.ipcCloseMemHandle(first)
    assert status(importer.rt.ipcCloseMemHandle, first) == 1
    importer.check_broken("HIP-E6")


@emulation_only
@on("documented")
def test_e5_other_addresses(exporter: Actor, start: Start) -> None:
    importer = start(CROSSMEM_EMULATED_HIP_QUIRKS="new-addresses")
    _, handle = exporter.export(b"data")
    first, second = importer.open(handle), importer.open(handle)

    assert first != second
    importer.rt.ipcCloseMemHandle(first)
    assert importer.read(second, 4) == b"data"
    importer.rt.ipcCloseMemHandle(second)
    importer.check_broken()


@emulation_only
@differs({"documented cuda": 400, "clr24 clr26 rocm5": 0})
def test_e13_two_contexts(exporter: Actor, importer: Actor, code: int) -> None:
    (_, first), (_, second) = exporter.export(), exporter.export()
    importer.open(first)
    mine = importer.rt.ctxGetCurrent()
    importer.rt.ctxCreate(0, 0)

    assert status(importer.open, second) == code
    # Where a context is its device, there is one of each.
    importer.check_broken(*["HIP-E13"] * bool(code))
    importer.rt.ctxSetCurrent(mine)
    importer.open(second)


MASKS = {"1": [1], "1,0": [1, 0], "0, 1": [0, 1], "1,9,0": [1], "1,1,0": [1], "x": [], "-1": []}


@emulation_only
@pytest.mark.parametrize("mask", MASKS)
def test_e14_masks_renumber(start: Start, profile: str, mask: str) -> None:
    plain = start()
    names = [plain.rt.deviceGetPCIBusId(device) for device in range(2)]
    own = "CUDA_VISIBLE_DEVICES" if profile == "cuda" else "HIP_VISIBLE_DEVICES"
    masked = start(**{own: mask})
    if MASKS[mask]:
        assert masked.rt.getDeviceCount() == len(MASKS[mask])
    for device, index in enumerate(MASKS[mask]):
        assert masked.rt.deviceGetPCIBusId(device) == names[index]
        assert masked.rt.deviceGetByPCIBusId(names[index]) == device
    assert status(masked.rt.setDevice, len(MASKS[mask])) == (101 if MASKS[mask] else 100)


@emulation_only
@on("documented")
def test_e14_masks_of_masks(start: Start) -> None:
    plain = start(CROSSMEM_EMULATED_DEVICES=4)
    names = [plain.rt.deviceGetPCIBusId(device) for device in range(4)]
    masks = {"ROCR_VISIBLE_DEVICES": "3,1,0", "HIP_VISIBLE_DEVICES": "1,0"}
    masked = start(CROSSMEM_EMULATED_DEVICES=4, CUDA_VISIBLE_DEVICES="0", **masks)

    found = [masked.rt.deviceGetPCIBusId(device) for device in range(2)]

    assert found == [names[1], names[3]]


@emulation_only
@differs({"documented clr24 rocm5 cuda": 0, "clr26": 1})
def test_e14_a_device_that_the_importer_does_not_see(start: Start, code: int) -> None:
    exporter, importer = start(), start(HIP_VISIBLE_DEVICES="0", CUDA_VISIBLE_DEVICES="0")
    exporter.rt.setDevice(1)
    _, handle = exporter.export(b"data")

    assert status(importer.open, handle) == code
    importer.check_broken()


@emulation_only
@differs({"documented clr24 clr26 rocm5": 17, "cuda": 217})
def test_e14_devices_that_cannot_reach_each_other(start: Start, code: int) -> None:
    exporter, importer = (start(CROSSMEM_EMULATED_HIP_PEERS=0) for _ in range(2))
    _, handle = exporter.export(b"data")
    importer.rt.setDevice(1)

    assert importer.rt.deviceCanAccessPeer(0, 1) == 0
    assert status(importer.open, handle) == code
    importer.rt.setDevice(0)
    assert importer.read(importer.open(handle), 4) == b"data"
    importer.check_broken()


def test_e14_peers(exporter: Actor, two_devices: None, profile: str) -> None:
    assert exporter.rt.deviceCanAccessPeer(0, 0) == 0
    assert status(exporter.rt.deviceCanAccessPeer, 0, 99) == 101
    assert status(exporter.rt.deviceEnablePeerAccess, 0) == 101
    assert status(exporter.rt.deviceDisablePeerAccess, 1) == 705
    exporter.rt.deviceEnablePeerAccess(1)
    assert status(exporter.rt.deviceEnablePeerAccess, 1) == 704
    exporter.rt.deviceDisablePeerAccess(1)
    if profile != "cuda":
        # What cannot be a peer is told from what is none yet.
        assert status(exporter.rt.deviceDisablePeerAccess, 0) == 101
    exporter.check_broken()


@emulation_only
@differs({"documented clr24 clr26 rocm5": ["HIP-E14"], "cuda": []})
def test_e14_exporting_while_another_device_is_current(exporter: Actor, code: list[str]) -> None:
    pointer = exporter.rt.malloc(BLOCK)
    exporter.rt.setDevice(1)

    exporter.rt.ipcGetMemHandle(pointer)
    exporter.check_broken(*code)


@emulation_only
@differs({"documented clr24 clr26 rocm5": 17, "cuda": 304})
def test_e15_another_namespace(exporter: Actor, start: Start, code: int) -> None:
    importer = start(CROSSMEM_EMULATED_HIP_QUIRKS="foreign-namespace")
    _, handle = exporter.export()

    assert status(importer.open, handle) == code
    importer.check_broken()


@emulation_only
@on("documented", "clr24", "clr26", "cuda")
def test_e15_the_same_number_in_two_namespaces(exporter: Actor, importer: Actor) -> None:
    _, handle = exporter.export()
    collided = handle[:48] + importer.pid.to_bytes(4, "little") + handle[52:]

    assert status(importer.open, collided) == 201
