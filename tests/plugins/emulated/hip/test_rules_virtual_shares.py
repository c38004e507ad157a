# SPDX-License-Identifier: Apache-2.0
"""HIP-V6 to V13: how long virtual memory lives, and how processes share it."""

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.plugins.emulated.hip.conftest import Start
    from tests.plugins.emulated.hip.hip_actor import (
        BLOCK,
        ON_A_DEVICE,
        PINNED,
        READ_WRITE,
        Actor,
        emulation_only,
        on,
        status,
        virtual_on_devices,
    )
else:
    from hip_actor import (
        BLOCK,
        ON_A_DEVICE,
        PINNED,
        READ_WRITE,
        Actor,
        emulation_only,
        on,
        status,
        virtual_on_devices,
    )

    Start = Any

pytestmark = virtual_on_devices
KINDS = on("documented", "clr24", "clr26", "cuda")


@emulation_only
@KINDS
def test_v6_handles_are_released_once(exporter: Actor) -> None:
    handle, other = exporter.call("create"), exporter.call("create")
    exporter.rt.memRelease(handle)
    pointer = exporter.rt.memAddressReserve(BLOCK, 0, 0, 0)

    assert handle != other
    for wrong in (handle, 0, 12345):
        assert status(exporter.rt.memRelease, wrong) == 1
        assert status(exporter.rt.memMap, pointer, BLOCK, 0, wrong, 0) == 1
        assert status(exporter.rt.memExportToShareableHandle, wrong, 1, 0) == 1
        assert status(exporter.rt.memGetAllocationPropertiesFromHandle, wrong) == 1
    exporter.check_broken(*["HIP-V6"] * 12)


@emulation_only
@KINDS
def test_v6_a_mapping_keeps_what_its_handle_does_not(exporter: Actor) -> None:
    before = exporter.free_nbytes
    handle = exporter.call("create")
    pointer = exporter.call("map", handle)
    exporter.write(pointer, b"data")
    exporter.rt.memRelease(handle)

    assert exporter.free_nbytes == before - BLOCK
    assert exporter.read(pointer, 4) == b"data"
    exporter.check_broken()
    assert status(exporter.rt.memRelease, handle) == 1
    exporter.check_broken("HIP-V6")

    # The handle comes back, as the very same, and counts.
    again = [exporter.rt.memRetainAllocationHandle(pointer + place) for place in (0, BLOCK - 1)]
    assert again == [handle, handle]
    exporter.call("unmap", pointer)
    exporter.rt.memRelease(handle)
    assert exporter.free_nbytes == before - BLOCK
    exporter.rt.memRelease(handle)
    assert exporter.free_nbytes == before


@KINDS
def test_v6_a_descriptor_keeps_memory(exporter: Actor, importer: Actor) -> None:
    handle, descriptor = exporter.export_virtual(b"data")
    exporter.rt.memRelease(handle)
    received = exporter.give(descriptor, importer)
    exporter.kill()
    # Another process's look removes what the dead one left.
    assert importer.free_nbytes > 0
    imported = importer.rt.memImportFromShareableHandle(received, 1)

    assert importer.read(importer.call("map", imported), 4) == b"data"
    importer.check_broken()


@KINDS
def test_v7_each_export_is_a_descriptor_of_its_own(exporter: Actor) -> None:
    # The first use opens what stands for the driver.
    assert exporter.free_nbytes
    before = exporter.call("descriptors")
    handle = exporter.call("create")
    held = exporter.call("descriptors")
    made = [exporter.rt.memExportToShareableHandle(handle, 1, 0) for _ in range(3)]

    assert len(set(made)) == 3
    assert exporter.call("descriptors") == held + 3
    for descriptor in made:
        exporter.call("close", descriptor)
    exporter.rt.memRelease(handle)
    assert exporter.call("descriptors") == before
    exporter.check_broken()


@KINDS
def test_v7_what_cannot_be_exported(exporter: Actor) -> None:
    shared, own = exporter.call("create"), exporter.call("create", BLOCK, 0, 0)
    wrong = [(shared, 0, 0), (shared, 2, 0), (shared, 1, 1), (own, 1, 0), (own, 0, 0)]

    before = exporter.call("descriptors")
    for arguments in wrong:
        assert status(exporter.rt.memExportToShareableHandle, *arguments) == 1
    assert exporter.call("descriptors") == before
    exporter.check_broken(*["HIP-V7"] * len(wrong))


@KINDS
def test_v8_two_processes(exporter: Actor, importer: Actor, profile: str) -> None:
    handle, descriptor = exporter.export_virtual(b"data")
    assert importer.free_nbytes
    before = importer.call("descriptors")
    imported = importer.import_virtual(exporter, descriptor)
    pointer = importer.call("map", imported)

    assert importer.read(pointer, 4) == b"data"
    importer.write(pointer, b"DATA")
    assert exporter.read(exporter.call("map", handle), 4) == b"DATA"
    ask = importer.rt.memGetAllocationPropertiesFromHandle
    assert ask(imported) == (PINNED, int(profile != "cuda"), ON_A_DEVICE, 0)

    importer.call("unmap", pointer)
    importer.rt.memRelease(imported)
    assert importer.call("descriptors") == before
    importer.check_broken()


@emulation_only
@KINDS
def test_v8_the_own_process(exporter: Actor) -> None:
    handle, descriptor = exporter.export_virtual(b"data")
    before = exporter.free_nbytes
    handles = [exporter.rt.memImportFromShareableHandle(descriptor, 1) for _ in range(2)]

    assert len({handle, *handles}) == 3
    assert exporter.read(exporter.call("map", handles[0]), 4) == b"data"
    assert exporter.free_nbytes == before
    exporter.check_broken()


@KINDS
def test_v8_what_was_imported_can_be_passed_on_by_amd(
    exporter: Actor, importer: Actor, start: Start, profile: str
) -> None:
    _, descriptor = exporter.export_virtual(b"data")
    imported = importer.import_virtual(exporter, descriptor)
    if profile == "cuda":
        assert status(importer.rt.memExportToShareableHandle, imported, 1, 0) == 1
        importer.check_broken("HIP-V7")
        return
    third = start()
    passed = importer.rt.memExportToShareableHandle(imported, 1, 0)
    exporter.kill()

    assert third.read(third.call("map", third.import_virtual(importer, passed)), 4) == b"data"
    third.check_broken()


@emulation_only
@KINDS
def test_v8_what_is_no_memory(
    exporter: Actor, importer: Actor, host: Any, start: Start, profile: str
) -> None:
    (host / "elsewhere").mkdir()
    stranger = start(CROSSMEM_EMULATED_STATE=host / "elsewhere")
    _, of_another_host = stranger.export_virtual()
    _, descriptor = exporter.export_virtual()
    received = exporter.give(descriptor, importer)
    importer.call("close", received)
    file = importer.call("open_file", "/proc/self/cmdline")
    read_only = exporter.call("open_file", f"/proc/self/fd/{descriptor}")
    wrong = [
        received,
        -1,
        file,
        stranger.give(of_another_host, importer),
        exporter.give(read_only, importer),
    ]

    take = importer.rt.memImportFromShareableHandle
    code = 999 if profile == "cuda" else 1
    assert [status(take, one, 1) for one in wrong] == [code] * len(wrong)
    received = exporter.give(descriptor, importer)
    assert [status(take, received, kind) for kind in (0, 2, 8)] == [1] * 3
    importer.check_broken(*["HIP-V8"] * (len(wrong) + 3))
    assert take(received, 1)


@KINDS
def test_v8_descriptor_0(exporter: Actor, importer: Actor, profile: str) -> None:
    _, descriptor = exporter.export_virtual()
    importer.call("renumber", exporter.give(descriptor, importer), 0)

    if profile in {"clr26", "cuda"}:
        # The argument is the descriptor itself there, and 0 is no argument.
        assert status(importer.rt.memImportFromShareableHandle, 0, 1) == 1
        importer.check_broken("HIP-V8")
    else:
        assert importer.rt.memImportFromShareableHandle(0, 1)
        importer.check_broken()


@KINDS
def test_v8_a_device_that_is_not_visible(exporter: Actor, start: Start, two_devices: None) -> None:
    handle = exporter.call("create", BLOCK, 1)
    descriptor = exporter.rt.memExportToShareableHandle(handle, 1, 0)
    blind, other = (
        start(HIP_VISIBLE_DEVICES=mask, CUDA_VISIBLE_DEVICES=mask) for mask in ("0", "1")
    )

    assert status(blind.import_virtual, exporter, descriptor) == 801
    imported = other.import_virtual(exporter, descriptor)
    assert other.rt.memGetAllocationPropertiesFromHandle(imported)[3] == 0
    assert other.read(other.call("map", imported), 0) == b""
    other.check_broken()


@emulation_only
@KINDS
@pytest.mark.parametrize("end", ["release", "leave", "kill"])
def test_v9_importers_keep_memory(exporter: Actor, start: Start, end: str) -> None:
    handle, descriptor = exporter.export_virtual(b"data")
    keeper, other = start(), start()
    kept, given = (one.import_virtual(exporter, descriptor) for one in (keeper, other))
    other.rt.memRelease(given)
    exporter.call("close", descriptor)
    if end == "release":
        exporter.rt.memRelease(handle)
    else:
        getattr(exporter, end)()

    assert keeper.read(keeper.call("map", kept), 4) == b"data"
    keeper.check_broken()


@emulation_only
@KINDS
def test_v10_the_device_is_charged_once(exporter: Actor, importer: Actor, start: Start) -> None:
    witness = start()
    before = witness.free_nbytes
    handle, descriptor = exporter.export_virtual()
    imported = importer.import_virtual(exporter, descriptor)
    pointer = importer.call("map", imported)

    assert witness.free_nbytes == before - BLOCK
    exporter.rt.memRelease(handle)
    importer.rt.memRelease(imported)
    assert witness.free_nbytes == before - BLOCK
    importer.call("unmap", pointer)
    assert witness.free_nbytes == before


@emulation_only
@KINDS
def test_v10_who_was_killed_keeps_nothing(exporter: Actor, importer: Actor, start: Start) -> None:
    witness = start()
    before = witness.free_nbytes
    exporter.call("create", 4 * BLOCK)
    _, descriptor = exporter.export_virtual()
    importer.call("map", importer.import_virtual(exporter, descriptor))
    exporter.kill()

    assert witness.free_nbytes == before - BLOCK
    importer.kill()
    assert witness.free_nbytes == before
    rows = witness.call("rows")
    assert (rows["pages"], rows["holding"]) == (0, 0)


@emulation_only
@KINDS
def test_v10_room_that_others_take(start: Start) -> None:
    exporter, importer = (start(CROSSMEM_EMULATED_CAPACITY="8MiB") for _ in range(2))
    handle, descriptor = exporter.export_virtual(nbytes=6 << 20)
    imported = importer.import_virtual(exporter, descriptor)
    exporter.rt.memRelease(handle)

    assert status(exporter.call, "create", 4 << 20) == 2
    assert status(exporter.rt.malloc, 4 << 20) == 2
    importer.rt.memRelease(imported)
    assert status(exporter.call, "create", 4 << 20) == 0
    exporter.check_broken()


@KINDS
def test_v11_mapped_memory_is_not_an_allocation(exporter: Actor, profile: str) -> None:
    pointer = exporter.call("map", exporter.call("create"))

    assert status(exporter.rt.free, pointer) == 1
    exporter.check_broken("HIP-V11")
    assert status(exporter.rt.ipcGetMemHandle, pointer) == 1
    assert status(exporter.rt.ipcCloseMemHandle, pointer) == 1
    exporter.check_broken("HIP-V11", "HIP-E16", "HIP-E6")
    if profile == "cuda":
        assert status(exporter.rt.freeAsync, pointer, 0) == 1
    exporter.call("unmap", pointer)


@KINDS
def test_v11_a_handle_is_of_what_is_mapped(exporter: Actor) -> None:
    retain = exporter.rt.memRetainAllocationHandle
    pointer = exporter.rt.memAddressReserve(BLOCK, 0, 0, 0)

    assert [status(retain, one) for one in (0, 4096, pointer)] == [1] * 3
    exporter.check_broken()
    assert status(retain, exporter.rt.malloc(BLOCK)) == 1
    exporter.check_broken("HIP-V11")


RANGE_START, RANGE_SIZE, MAPPED, HANDLE_TYPES, MAPPING_SIZE, MAPPING_START = 11, 12, 13, 14, 18, 19


@emulation_only
@KINDS
def test_v12_what_is_known_of_an_address(exporter: Actor, profile: str) -> None:
    pointer = exporter.rt.memAddressReserve(4 * BLOCK, 0, 0, 0)
    for place, handle_type in ((1, 1), (2, 0)):
        handle = exporter.call("create", BLOCK, 0, handle_type)
        exporter.rt.memMap(pointer + place * BLOCK, BLOCK, 0, handle, 0)
    inside = pointer + BLOCK + 100
    ask = exporter.rt.pointerGetAttribute

    assert exporter.rt.memGetAddressRange(inside) == (pointer, 4 * BLOCK)
    assert [ask(one, inside) for one in (RANGE_START, RANGE_SIZE, MAPPED)] == [
        pointer,
        4 * BLOCK,
        1,
    ]
    assert [ask(HANDLE_TYPES, pointer + place * BLOCK) for place in (1, 2)] == [1, 0]
    assert exporter.call("attributes", inside) == (2, 0, inside, 0)
    for nothing in (pointer, pointer + 3 * BLOCK):
        assert status(exporter.rt.memGetAddressRange, nothing) == 500
        assert status(ask, MAPPED, nothing) == 1
    if profile == "cuda":
        assert (ask(MAPPING_START, inside), ask(MAPPING_SIZE, inside)) == (pointer + BLOCK, BLOCK)
    else:
        assert [status(ask, one, inside) for one in (MAPPING_START, MAPPING_SIZE)] == [1, 1]
    exporter.check_broken()


@on("rocm5")
def test_v13_a_release_that_has_the_names_alone(exporter: Actor) -> None:
    calls: list[tuple[Any, ...]] = [
        ("memGetAllocationGranularity", PINNED, 1, ON_A_DEVICE, 0, 0),
        ("memCreate", BLOCK, PINNED, 1, ON_A_DEVICE, 0, 0),
        ("memRelease", 1),
        ("memRetainAllocationHandle", 1),
        ("memGetAllocationPropertiesFromHandle", 1),
        ("memAddressReserve", BLOCK, 0, 0, 0),
        ("memAddressFree", 1, BLOCK),
        ("memMap", 1, BLOCK, 0, 1, 0),
        ("memUnmap", 1, BLOCK),
        ("memSetAccess", 1, BLOCK, [(ON_A_DEVICE, 0, READ_WRITE)]),
        ("memGetAccess", ON_A_DEVICE, 0, 1),
        ("memExportToShareableHandle", 1, 1, 0),
        ("memImportFromShareableHandle", 0, 1),
    ]

    for name, *arguments in calls:
        assert status(getattr(exporter.rt, name), *arguments) == 801, name
    exporter.check_broken()
