# SPDX-License-Identifier: Apache-2.0
"""HIP-X12: pools that processes share."""

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from crossmem_emulated.hip import Runtime
from crossmem_emulated.options import Options

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

PINNED, NONE, DESCRIPTOR, ON_A_DEVICE = 1, 0, 1, 1
POOL_OF_ADDRESS = 17
OUT_OF_MEMORY = 2


def create(actor: Actor, handle_type: int = DESCRIPTOR, device: int = 0) -> int:
    return int(actor.call("new_pool", PINNED, handle_type, ON_A_DEVICE, device))


def share(exporter: Actor, importer: Actor, pool: int) -> int:
    """Import a pool by a descriptor of another process, and close both."""
    descriptor = exporter.c.memPoolExportToShareableHandle(pool, DESCRIPTOR, 0)
    own = exporter.give(descriptor, importer)
    exporter.call("close", descriptor)
    try:
        return int(importer.c.memPoolImportFromShareableHandle(own, DESCRIPTOR, 0))
    finally:
        importer.call("close", own)


def take(actor: Actor, pool: int, data: bytes, nbytes: int = BLOCK) -> int:
    pointer = int(actor.c.mallocFromPoolAsync(nbytes, pool, 0))
    actor.write(pointer, data)
    return pointer


@emulation_only
def test_x12_two_processes(exporter: Actor, importer: Actor) -> None:
    pool, before = create(exporter), exporter.free_nbytes
    first, second = take(exporter, pool, b"first"), take(exporter, pool, b"second", 1000)
    exported = [exporter.c.memPoolExportPointer(one) for one in (first, second)]
    assert [len(one) for one in exported] == [64, 64]
    assert exporter.c.memPoolExportPointer(first) == exported[0]
    imported = share(exporter, importer, pool)

    pointers = [importer.c.memPoolImportPointer(imported, one) for one in exported]
    assert [importer.read(one, 5) for one in pointers] == [b"first", b"secon"]
    assert importer.rt.memGetAddressRange(pointers[1] + 9) == (pointers[1], 1000)
    assert importer.rt.pointerGetAttribute(POOL_OF_ADDRESS, pointers[0]) == imported
    importer.write(pointers[0], b"FIRST")
    assert exporter.read(first, 5) == b"FIRST"
    # Charged once, and there until its owner frees it.
    importer.rt.free(pointers[0])
    importer.c.freeAsync(pointers[1], 0)
    importer.c.memPoolDestroy(imported)
    assert exporter.read(second, 6) == b"second"
    for pointer in (first, second):
        exporter.c.freeAsync(pointer, 0)
    assert exporter.free_nbytes == before
    exporter.check_broken()


@emulation_only
def test_x12_the_own_process(exporter: Actor) -> None:
    pool = create(exporter)
    pointer = take(exporter, pool, b"data")
    imported = share(exporter, exporter, pool)
    assert imported != pool
    other = exporter.c.memPoolImportPointer(imported, exporter.c.memPoolExportPointer(pointer))
    assert other != pointer
    assert exporter.read(other, 4) == b"data"
    exporter.rt.free(other)
    exporter.rt.free(pointer)
    exporter.check_broken()


@emulation_only
def test_x12_importing_again_counts(exporter: Actor, importer: Actor) -> None:
    pool = create(exporter)
    data = exporter.c.memPoolExportPointer(take(exporter, pool, b"data"))
    imported = share(exporter, importer, pool)
    pointers = {importer.c.memPoolImportPointer(imported, data) for _ in range(2)}
    (pointer,) = pointers
    importer.rt.free(pointer)
    assert importer.read(pointer, 4) == b"data"
    # It was not opened by a handle, and is not closed as if it had been.
    assert status(importer.rt.ipcCloseMemHandle, pointer) == 1
    importer.c.freeAsync(pointer, 0)
    assert status(importer.rt.free, pointer) == 1
    assert status(importer.c.freeAsync, pointer, 0) == 1
    importer.check_broken("HIP-E6", "HIP-X4", "HIP-X4")


@emulation_only
def test_x12_access_is_told(exporter: Actor, start: Start, two_devices: None) -> None:
    pool, importer = create(exporter), start(HIP_VISIBLE_DEVICES="1,0", CUDA_VISIBLE_DEVICES="1,0")
    exporter.c.memPoolSetAccess(pool, [(ON_A_DEVICE, 1, 3)])
    imported = share(exporter, importer, pool)
    # The device that the exporter calls 1 is 0 here.
    assert importer.c.memPoolGetAccess(imported, ON_A_DEVICE, 0) == 3
    exporter.check_broken()


@emulation_only
def test_x12_an_imported_pool_is_of_its_device(
    exporter: Actor, importer: Actor, start: Start, two_devices: None
) -> None:
    pool = create(exporter, device=1)
    imported = share(exporter, importer, pool)
    access = [importer.c.memPoolGetAccess(imported, ON_A_DEVICE, one) for one in range(2)]
    assert access == [0, 3]
    exporter.check_broken()
    # It stays so, whatever the importer says.
    assert status(importer.c.memPoolSetAccess, imported, [(ON_A_DEVICE, 1, 0)]) == 101
    exporter.check_broken("HIP-X11")
    # Chosen: where that device is not visible, the pool is of the current one.
    masked = start(HIP_VISIBLE_DEVICES="0", CUDA_VISIBLE_DEVICES="0")
    assert masked.c.memPoolGetAccess(share(exporter, masked, pool), ON_A_DEVICE, 0) == 3


@emulation_only
@differs({"documented clr24 clr26": 2, "cuda": 1})
def test_x12_what_cannot_be_shared(exporter: Actor, tmp_path: Path, code: int) -> None:
    c, pool, own = exporter.c, create(exporter), create(exporter, NONE)
    for handle, kind, flags in (
        (pool, NONE, 0),
        (pool, 2, 0),
        (pool, 1, 1),
        (own, 1, 0),
        (own, 0, 0),
    ):
        assert status(c.memPoolExportToShareableHandle, handle, kind, flags) == 1
    (tmp_path / "file").write_bytes(bytes(4096))
    descriptor = exporter.call("open_file", str(tmp_path / "file"))
    good = c.memPoolExportToShareableHandle(pool, DESCRIPTOR, 0)
    memory = exporter.rt.memExportToShareableHandle(exporter.call("create"), DESCRIPTOR, 0)
    for number in (descriptor, memory, 999, -1):
        assert status(c.memPoolImportFromShareableHandle, number, DESCRIPTOR, 0) == code
    assert status(c.memPoolImportFromShareableHandle, good, NONE, 0) == 1
    assert status(c.memPoolImportFromShareableHandle, good, DESCRIPTOR, 1) == 1
    assert status(exporter.rt.memImportFromShareableHandle, good, DESCRIPTOR) in {1, 999}
    for pointer in (take(exporter, own, b"data"), exporter.rt.malloc(BLOCK), 4096):
        assert status(c.memPoolExportPointer, pointer) == code
    assert status(c.memPoolExportPointer, 0) == 1
    exporter.check_broken(*["HIP-X12"] * 11, "HIP-V8", *["HIP-X12"] * 4)


@emulation_only
@differs({"documented clr24 clr26": 2, "cuda": 1})
def test_x12_memory_that_is_gone(exporter: Actor, importer: Actor, code: int) -> None:
    pool = create(exporter)
    first, second = take(exporter, pool, b"data"), take(exporter, pool, b"more")
    exported = [exporter.c.memPoolExportPointer(one) for one in (first, second)]
    imported = share(exporter, importer, pool)
    assert status(importer.c.memPoolImportPointer, imported, bytes(64)) == code
    pointer = importer.c.memPoolImportPointer(imported, exported[0])
    exporter.check_broken()
    exporter.c.freeAsync(first, 0)
    exporter.check_broken("HIP-E10")
    assert importer.read(pointer, 4) == b"data"
    exporter.destroy()
    assert [status(importer.c.memPoolImportPointer, imported, one) for one in exported] == [
        code
    ] * 2
    assert importer.read(pointer, 4) == b"data"
    importer.rt.free(pointer)


@emulation_only
@differs({"documented cuda": 1, "clr24 clr26": 0})
def test_x12_imported_pools_make_nothing_new(exporter: Actor, code: int) -> None:
    pool = create(exporter)
    imported = share(exporter, exporter, pool)
    assert status(exporter.c.mallocFromPoolAsync, 1000, imported, 0) == code
    assert status(exporter.c.deviceSetMemPool, 0, imported) == code
    exporter.check_broken(*["HIP-X12"] * 2)
    assert status(exporter.c.memPoolExportToShareableHandle, imported, DESCRIPTOR, 0) == 1
    data = exporter.c.memPoolExportPointer(take(exporter, pool, b"data"))
    assert status(exporter.c.memPoolImportPointer, pool, data) == code


@emulation_only
@on("rocm5")
def test_x12_a_release_without_it(exporter: Actor) -> None:
    pool = create(exporter)
    pointer = take(exporter, pool, b"data")
    for call in (
        ("memPoolExportToShareableHandle", pool, DESCRIPTOR, 0),
        ("memPoolImportFromShareableHandle", 5, DESCRIPTOR, 0),
        ("memPoolExportPointer", pointer),
        ("memPoolImportPointer", pool, bytes(64)),
    ):
        assert status(getattr(exporter.c, call[0]), *call[1:]) == 801
    assert status(exporter.c.memPoolExportPointer, 0) == 1
    exporter.check_broken("HIP-X12")


@emulation_only
def test_x12_an_export_that_fails_leaves_no_descriptor(
    host: Path, footprint: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    rt = Runtime("clr26", options=Options(state=host))
    _, pool = rt.call("memPoolCreate", rt.MemPoolProps(PINNED, DESCRIPTOR, ON_A_DEVICE, 0))
    before = footprint()
    monkeypatch.setattr(os, "pwrite", fail)

    code, _ = rt.call("memPoolExportToShareableHandle", pool, DESCRIPTOR, 0)

    assert code == OUT_OF_MEMORY
    assert footprint() == before
