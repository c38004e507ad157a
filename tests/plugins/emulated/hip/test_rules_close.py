# SPDX-License-Identifier: Apache-2.0
"""HIP-E6 to E12: closing, freeing, and the end of exporters."""

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
    from hip_actor import (
        BLOCK,
        Actor,
        differs,
        emulation_only,
        on,
        status,
    )

    Start = Any


def test_e6_what_is_not_open(exporter: Actor, importer: Actor) -> None:
    _, handle = exporter.export()
    opened = importer.open(handle)
    importer.rt.ipcCloseMemHandle(opened)

    assert status(importer.rt.ipcCloseMemHandle, 0) == 1
    assert status(importer.rt.ipcCloseMemHandle, opened) == 1
    assert status(importer.rt.ipcCloseMemHandle, importer.rt.malloc(BLOCK)) == 1
    importer.check_broken(*["HIP-E6"] * 3)


@emulation_only
@differs({"documented clr24 rocm5 cuda": 1, "clr26": 0})
def test_e6_addresses_inside(exporter: Actor, importer: Actor, code: int) -> None:
    _, handle = exporter.export()
    opened = importer.open(handle)

    assert status(importer.rt.ipcCloseMemHandle, opened + 4096) == code
    importer.check_broken("HIP-E6")


@emulation_only
def test_e6_closed_memory_is_gone(exporter: Actor, importer: Actor) -> None:
    _, handle = exporter.export()
    before = importer.call("memory_held")
    opened = importer.open(handle)
    importer.rt.ipcCloseMemHandle(opened)

    assert importer.call("memory_held") == before
    assert status(importer.read, opened, 4) == 1
    importer.check_broken("HIP-X4")


@emulation_only
@pytest.mark.parametrize("ends", ["close", "free"])
def test_e7_work_of_the_device_is_done_first(start: Start, ends: str) -> None:
    exporter, importer = start(), start(CROSSMEM_EMULATED_SLOW_STREAMS=1)
    pointer, handle = exporter.export(b"....")
    opened, other = importer.open(handle), importer.rt.malloc(BLOCK)
    stream = importer.rt.streamCreateWithFlags(1)
    importer.rt.memsetAsync(opened, ord("#"), 4, stream)
    assert exporter.read(pointer, 4) == b"...."

    if ends == "close":
        importer.rt.ipcCloseMemHandle(opened)
    else:
        importer.rt.free(other)

    assert exporter.read(pointer, 4) == b"####"
    importer.check_broken()


@differs(
    {
        "rocm5": 1,
        "documented clr24 clr26": (1, -2, 0, 0),
        "cuda": (0, -2, 0, None),
    }
)
def test_e8_attributes(exporter: Actor, importer: Actor, code: Any, profile: str) -> None:
    _, handle = exporter.export()
    opened = importer.open(handle)

    kind, device, pointer, _ = importer.call("attributes", opened)
    assert (kind, device, pointer) == (2, 0, opened)
    importer.rt.ipcCloseMemHandle(opened)
    if code == 1:
        assert status(importer.call, "attributes", opened) == 1
    else:
        # As CuPy has it for ROCm 6 and later, where it confuses unknown memory with the host's.
        # CUDA takes an unknown address for one of the host's.
        *known, host = code
        wanted = (*known, opened if host is None else host)
        assert importer.call("attributes", opened) == wanted


@differs({"documented clr24 clr26 rocm5": True, "cuda": False})
def test_e8_a_thread_without_a_context(exporter: Actor, code: bool) -> None:
    pointer, _ = exporter.export()

    before, after = exporter.call("attributes_in_thread", pointer)

    assert before[2] == (pointer if code else 0)
    assert after[2] == pointer
    exporter.check_broken()


@emulation_only
@differs({"clr24 rocm5": 1, "documented clr26 cuda": 0})
def test_e8_attributes_of_null(exporter: Actor, code: int) -> None:
    assert status(exporter.call, "attributes", 0) == code
    exporter.check_broken()


@emulation_only
@on("documented", "rocm5", "cuda")
def test_e8_attributes_of_the_hosts_memory(exporter: Actor, profile: str) -> None:
    pinned, managed = exporter.rt.hostAlloc(100, 0), exporter.rt.mallocManaged(100)

    # What CuPy says of pinned memory is wrong since ROCm 6.
    expected = 2 if profile == "documented" else 1
    assert exporter.call("attributes", pinned + 1) == (expected, 0, pinned + 1, pinned + 1)
    assert exporter.call("attributes", managed)[0] == 3
    # The vendor's own function is right; its numbers are what they were before ROCm 6.
    types = [exporter.rt.pointerGetAttribute(2, one) for one in (pinned, exporter.rt.malloc(BLOCK))]
    assert types == ([0, 1] if profile == "rocm5" else [1, 2])
    assert exporter.rt.pointerGetAttribute(9, managed) == 0
    assert status(exporter.rt.pointerGetAttribute, 2, 4096) == 1
    assert status(exporter.rt.pointerGetAttribute, 99, pinned) == 1


def test_e9_others_keep_what_one_closes(exporter: Actor, importer: Actor, start: Start) -> None:
    pointer, handle = exporter.export(b"data")
    other = start()
    first, second = importer.open(handle), other.open(handle)
    importer.rt.ipcCloseMemHandle(first)

    assert other.read(second, 4) == exporter.read(pointer, 4) == b"data"


@emulation_only
@differs({"documented clr24 rocm5": 17, "clr26": 0, "cuda": 0})
def test_e10_freed_while_it_is_open(exporter: Actor, importer: Actor, code: int) -> None:
    pointer, handle = exporter.export(b"data")
    before = importer.free_nbytes
    opened = importer.open(handle)
    exporter.rt.free(pointer)
    importer.check_broken("HIP-E10")

    # Undefined by the vendors; here it stays, and stays charged, until it is closed.
    assert importer.read(opened, 4) == b"data"
    assert importer.free_nbytes == before
    # A runtime that knows the handle does not ask its exporter again.
    assert status(importer.open, handle) == code
    for _ in range(1 + (not code)):
        importer.rt.ipcCloseMemHandle(opened)
    assert importer.free_nbytes == before + BLOCK
    assert status(importer.open, handle) in {17, 1}


@emulation_only
def test_e10_who_died_has_nothing_open(exporter: Actor, importer: Actor) -> None:
    pointer, handle = exporter.export()
    importer.open(handle)
    importer.kill()

    exporter.rt.free(pointer)
    exporter.check_broken()


@emulation_only
def test_e11_imports_are_not_freed(exporter: Actor, importer: Actor) -> None:
    _, handle = exporter.export(b"data")
    opened = importer.open(handle)

    assert status(importer.rt.free, opened) == 1
    assert importer.read(opened, 4) == b"data"
    importer.check_broken("HIP-E11")


@emulation_only
@differs({"documented clr24 clr26 rocm5": 17, "cuda": 400})
@pytest.mark.parametrize("end", ["kill", "leave"])
def test_e12_the_exporter_ends(
    exporter: Actor, importer: Actor, start: Start, code: int, end: str
) -> None:
    _, handle = exporter.export(b"data")
    opened = importer.open(handle)
    getattr(exporter, end)()

    assert importer.read(opened, 4) == b"data"
    assert status(start().open, handle) == code
    importer.rt.ipcCloseMemHandle(opened)
    importer.check_broken()


@emulation_only
def test_e22_what_processes_leave(exporter: Actor, importer: Actor, start: Start) -> None:
    _, handle = exporter.export()
    importer.open(handle)
    witness = start()
    before = witness.free_nbytes
    importer.kill()
    exporter.kill()

    assert witness.free_nbytes == before + BLOCK
    rows = witness.call("rows")
    names = ("pages", "holding", "hip_share", "hip_import", "hip_event")
    assert {name: rows[name] for name in names} == dict.fromkeys(names, 0)
    assert rows["process"] <= 1
