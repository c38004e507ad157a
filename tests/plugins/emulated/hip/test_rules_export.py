# SPDX-License-Identifier: Apache-2.0
"""HIP-E1, E2, E16 and E17: handles, and what can be exported."""

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


def test_e1_handles_of_two_allocations_differ(exporter: Actor) -> None:
    (_, first), (_, second) = exporter.export(), exporter.export()

    assert len(first) == len(second) == 64
    assert first != second


def test_e1_the_same_memory_again(exporter: Actor, importer: Actor) -> None:
    pointer, first = exporter.export(b"data")
    again = exporter.rt.ipcGetMemHandle(pointer)

    assert importer.open(first) == importer.open(again)
    importer.check_broken()


@emulation_only
@differs({"documented clr24 clr26 rocm5": 17, "cuda": 1})
def test_e1_a_new_allocation_at_the_same_address(
    exporter: Actor, importer: Actor, code: int
) -> None:
    old, new = exporter.export_twice(b"new")

    assert old != new
    assert status(importer.open, old) == code
    assert importer.read(importer.open(new), 3) == b"new"
    importer.check_broken()


BUFFER_ID = 7


@emulation_only
@on("documented", "clr24", "clr26", "rocm5", "cuda")
def test_e1_allocations_at_one_address_have_numbers(exporter: Actor) -> None:
    first = exporter.rt.malloc(BLOCK)
    number = exporter.rt.pointerGetAttribute(BUFFER_ID, first)
    assert exporter.rt.pointerGetAttribute(BUFFER_ID, first + 1) == number
    exporter.rt.free(first)

    second = exporter.rt.malloc(BLOCK)
    # The same address nearly always, unless Python itself has taken it meanwhile.
    assert exporter.rt.pointerGetAttribute(BUFFER_ID, second) != number


@emulation_only
def test_e1_memory_of_the_host_has_numbers_too(exporter: Actor) -> None:
    numbers = []

    def note(pointer: int) -> int:
        numbers.append(exporter.rt.pointerGetAttribute(BUFFER_ID, pointer))
        return pointer

    own = exporter.call("own_memory", 64)
    for _ in range(2):
        exporter.c.hostRegister(own, 64, 0)
        exporter.c.hostUnregister(note(own))
    note(exporter.rt.malloc(64))
    note(exporter.rt.hostAlloc(64, 0))
    note(exporter.rt.mallocManaged(64))

    assert len(set(numbers)) == len(numbers)


@pytest.mark.parametrize("offset", [1, 4096, BLOCK - 1])
def test_e2_addresses_inside(exporter: Actor, importer: Actor, offset: int) -> None:
    pointer, _ = exporter.export(b"base")

    inside = exporter.rt.ipcGetMemHandle(pointer + offset)

    assert importer.read(importer.open(inside), 4) == b"base"


def test_e2_what_is_no_memory_of_the_device(exporter: Actor, importer: Actor) -> None:
    pointer, handle = exporter.export()
    imported = importer.open(handle)
    freed = exporter.rt.malloc(BLOCK)
    exporter.rt.free(freed)

    for wrong in (0, freed, pointer + BLOCK, 4096):
        assert status(exporter.rt.ipcGetMemHandle, wrong) == 1
    assert status(importer.rt.ipcGetMemHandle, imported) == 1
    importer.check_broken(*["HIP-E2"] * 5)


def test_e16_memory_of_other_kinds(exporter: Actor, profile: str) -> None:
    pointers = [exporter.rt.hostAlloc(BLOCK, 0), exporter.rt.mallocManaged(BLOCK)]
    if profile == "cuda":
        pointers.append(exporter.rt.mallocAsync(BLOCK, 0))

    for pointer in pointers:
        assert status(exporter.rt.ipcGetMemHandle, pointer) == 1
    exporter.check_broken(*["HIP-E16"] * len(pointers))


IS_MANAGED, IS_EXPORTABLE, POOL = 8, 10, 17


@emulation_only
@differs({"clr26 cuda": 0, "documented clr24 rocm5": 801})
def test_e16_what_can_be_exported_is_known(
    exporter: Actor, importer: Actor, profile: str, code: int
) -> None:
    pointer, handle = exporter.export()
    opened, managed = importer.open(handle), exporter.rt.mallocManaged(BLOCK)
    pinned = exporter.rt.hostAlloc(BLOCK, 0)
    ask = exporter.rt.pointerGetAttribute

    assert status(ask, IS_EXPORTABLE, pointer) == code
    if not code:
        assert [ask(IS_EXPORTABLE, one) for one in (pointer + 1, managed, pinned)] == [1, 0, 0]
        assert importer.rt.pointerGetAttribute(IS_EXPORTABLE, opened) == 0
    assert [ask(IS_MANAGED, one) for one in (pointer, managed, pinned)] == [0, 1, 0]
    if profile == "cuda":
        pooled = exporter.rt.mallocAsync(BLOCK, 0)
        assert (ask(IS_EXPORTABLE, pooled), ask(POOL, pointer)) == (0, 0)
        assert ask(POOL, pooled) == exporter.rt.deviceGetMemPool(0)
    exporter.check_broken()


@on("documented", "clr26")
def test_e16_builds_without_pools(exporter: Actor) -> None:
    with pytest.raises(RuntimeError, match="HIP does not support mallocAsync"):
        exporter.rt.mallocAsync(BLOCK, 0)


@emulation_only
def test_e17_ranges(exporter: Actor, importer: Actor) -> None:
    pointer, handle = exporter.export(nbytes=1000)
    opened = importer.open(handle)

    for offset in (0, 1, 999):
        assert exporter.rt.memGetAddressRange(pointer + offset) == (pointer, 1000)
        assert importer.rt.memGetAddressRange(opened + offset) == (opened, 1000)
    for actor, wrong in ((exporter, pointer + 1000), (importer, opened + 1000), (exporter, 0)):
        assert status(actor.rt.memGetAddressRange, wrong) == 500
    start, size = (exporter.rt.pointerGetAttribute(one, pointer + 7) for one in (11, 12))
    assert (start, size) == (pointer, 1000)
    exporter.check_broken()


@emulation_only
def test_e17_an_importer_sees_the_neighbours(exporter: Actor, importer: Actor) -> None:
    shared, handle = exporter.export(b"shared", nbytes=512)
    secret = exporter.rt.malloc(512)
    exporter.write(secret, b"secret")

    opened = importer.open(handle)

    assert importer.read(opened + secret - shared, 6) == b"secret"
