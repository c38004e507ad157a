# SPDX-License-Identifier: Apache-2.0
"""A traced driver's ranges: every call that the contract forbids is noted."""

from typing import Any, cast

import pytest

from crossmem.driver import Block, Driver, Imported, Mapped, Reserved, TracingDriver

UNIT = 4096
BASE = 1 << 20


class Ranges:
    """The part of a driver that is traced here; it does nothing."""

    backend = "none"

    def reserve(self, ordinal: int, nbytes: int) -> Reserved:
        return Reserved(ordinal, BASE, nbytes)

    def release(self, reserved: Reserved) -> None:
        pass

    def map_at(self, memory: Block | Imported, pointer: int) -> Mapped:
        return Mapped(memory, pointer)

    def unmap_at(self, mapped: Mapped) -> None:
        pass

    def allocate(self, ordinal: int, nbytes: int, mechanism: str) -> Block:
        return Block(ordinal, 0, nbytes, UNIT)

    def fill(self, block: Block, offset: int, source: int, nbytes: int) -> None:
        pass

    def free(self, block: Block) -> None:
        pass

    def import_(self, ordinal: int, exported: Any, **_: object) -> Imported:
        return Imported(ordinal, UNIT, "rw")

    def close(self, imported: Imported) -> None:
        pass


@pytest.fixture
def tracer() -> Any:
    """Return a driver of which the optional methods are known at run time only."""
    return TracingDriver(cast("Driver", Ranges()))


def import_one(tracer: Any) -> Imported:
    options = {"home": 0, "mechanism": "none", "nbytes": 1, "capacity": UNIT, "access": "rw"}
    imported: Imported = tracer.import_(0, None, **options)
    return imported


def test_what_is_lawful_is_counted_and_not_noted(tracer: Any) -> None:
    block = tracer.allocate(0, 1, "none")
    pointer = tracer.reserve(0, 2 * UNIT).pointer
    tracer.map_at(block, pointer)
    tracer.map_at(block, pointer + UNIT)

    assert (tracer.live["ranges"], tracer.live["mappings"]) == (1, 2)

    tracer.unmap_at(Mapped(block, pointer))
    tracer.map_at(block, pointer)
    tracer.unmap_at(Mapped(block, pointer))
    tracer.unmap_at(Mapped(block, pointer + UNIT))
    tracer.release(Reserved(0, pointer, 2 * UNIT))
    tracer.free(block)

    assert not any(tracer.live.values())
    assert tracer.violations == []
    assert {name: tracer.calls[name] for name in ("reserve", "map_at", "unmap_at", "release")} == {
        "reserve": 1,
        "map_at": 3,
        "unmap_at": 3,
        "release": 1,
    }


@pytest.mark.parametrize(
    "arguments", [(0, BASE + UNIT, UNIT), (0, BASE, UNIT), (1, BASE, 2 * UNIT)]
)
def test_releasing_what_was_not_reserved(tracer: Any, arguments: tuple[int, int, int]) -> None:
    tracer.reserve(0, 2 * UNIT)
    tracer.release(Reserved(*arguments))

    assert len(tracer.violations) == 1


def test_releasing_twice_or_under_a_piece(tracer: Any) -> None:
    block = tracer.allocate(0, 1, "none")
    tracer.map_at(block, tracer.reserve(0, UNIT).pointer)
    tracer.release(Reserved(0, BASE, UNIT))

    assert tracer.violations == ["release: pieces are still mapped"]

    tracer.release(Reserved(0, BASE, UNIT))

    assert len(tracer.violations) == 2


@pytest.mark.parametrize("pointer", [BASE - UNIT, BASE + 1, BASE + UNIT])
def test_mapping_where_nothing_is_reserved(tracer: Any, pointer: int) -> None:
    block = tracer.allocate(0, 1, "none")
    tracer.reserve(0, UNIT)
    tracer.map_at(block, pointer)

    assert "not reserved" in tracer.violations[0]


def test_mapping_over_another_piece(tracer: Any) -> None:
    block = tracer.allocate(0, 1, "none")
    tracer.map_at(block, tracer.reserve(0, 2 * UNIT).pointer)
    tracer.map_at(block, BASE + UNIT - 1)

    assert tracer.violations == ["map_at: another piece is mapped there"]


@pytest.mark.parametrize("own_first", [True, False])
def test_mixing_own_and_imported_memory(tracer: Any, own_first: bool) -> None:
    both = [tracer.allocate(0, 1, "none"), import_one(tracer)]
    first, second = both if own_first else both[::-1]
    tracer.map_at(first, tracer.reserve(0, 2 * UNIT).pointer)
    tracer.unmap_at(Mapped(first, BASE))
    tracer.map_at(second, BASE)

    assert tracer.violations == ["map_at: the range has both own and imported memory"]


def test_memory_of_another_device_or_of_nobody(tracer: Any) -> None:
    tracer.map_at(tracer.allocate(1, 1, "none"), tracer.reserve(0, 2 * UNIT).pointer)
    tracer.map_at(Block(0, 0, 1, UNIT), BASE + UNIT)

    assert tracer.violations == [
        "map_at: the range belongs to another device",
        "map_at: unknown or released memory",
    ]


def test_unmapping_what_is_not_mapped(tracer: Any) -> None:
    block, other = tracer.allocate(0, 1, "none"), tracer.allocate(0, 1, "none")
    tracer.map_at(block, tracer.reserve(0, UNIT).pointer)
    tracer.unmap_at(Mapped(other, BASE))
    tracer.unmap_at(Mapped(block, BASE + 1))

    assert len(tracer.violations) == 2


def test_giving_memory_back_that_is_still_mapped(tracer: Any) -> None:
    block, imported = tracer.allocate(0, 1, "none"), import_one(tracer)
    tracer.map_at(block, tracer.reserve(0, UNIT).pointer)
    tracer.free(block)

    assert tracer.violations == ["free: still mapped in an address range"]

    tracer.inner.reserve = lambda ordinal, nbytes: Reserved(ordinal, 2 * BASE, nbytes)
    tracer.map_at(imported, tracer.reserve(0, UNIT).pointer)
    tracer.close(imported)

    assert tracer.violations[1:] == ["close: still mapped in an address range"]


def test_a_driver_without_ranges_offers_none() -> None:
    class Plain:
        backend = "none"

    tracer = TracingDriver(cast("Driver", Plain()))

    assert not any(hasattr(tracer, name) for name in ("reserve", "release", "map_at", "unmap_at"))


def test_filling_what_is_not_there_is_noted(tracer: Any) -> None:
    block = tracer.allocate(0, UNIT, "none")
    tracer.fill(block, 1, BASE, UNIT - 1)
    assert tracer.violations == []

    for offset, nbytes in ((1, UNIT), (0, 0), (-1, 2)):
        tracer.fill(block, offset, BASE, nbytes)
    tracer.free(block)
    tracer.fill(block, 0, BASE, 1)

    assert tracer.calls["fill"] == 5
    assert tracer.violations == [
        f"fill: {UNIT} bytes at offset 1 are not a part of the block",
        "fill: 0 bytes at offset 0 are not a part of the block",
        "fill: 2 bytes at offset -1 are not a part of the block",
        "fill: unknown or freed block",
    ]
