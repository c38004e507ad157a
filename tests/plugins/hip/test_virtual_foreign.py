# SPDX-License-Identifier: Apache-2.0
"""Mechanism ``vmm``: what frameworks mapped, and whether it can be exported."""

import os
from pathlib import Path
from typing import Any

import pytest

import crossmem
from crossmem_hip.driver import GpuDriver
from crossmem_hip.family import CUDA, HIP

MIB = 1 << 20
OTHER_FAILURE = 999
MANAGED, CAPABLE, HANDLE_TYPES, POOL, MAPPED_NBYTES, MAPPED_BASE = 8, 10, 14, 17, 18, 19


def descriptors() -> int:
    """Return how many this process has open of the file that stands for memory."""
    links = [str(one.readlink()) for one in Path("/proc/self/fd").iterdir() if one.is_symlink()]
    return links.count(os.devnull)


class Attributes:
    """``PointerAttributes``."""

    type = 2
    device = 0
    devicePointer = 64 * MIB  # noqa: N815 - CuPy's name


@pytest.fixture
def knowing(fake_virtual: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a runtime of NVIDIA's that knows what is mapped somewhere."""
    rt = fake_virtual(is_hip=False)
    rt.known = {CAPABLE: 0, HANDLE_TYPES: 1, MAPPED_BASE: 64 * MIB, MAPPED_NBYTES: 4 * MIB}

    def attribute(self: Any, number: int, pointer: int) -> int:
        if number not in self.known:
            raise self.CUDARuntimeError(1)
        found: int = self.known[number]
        return found

    monkeypatch.setattr(fake_virtual, "pointerGetAttribute", attribute, raising=False)
    monkeypatch.setattr(
        fake_virtual, "pointerGetAttributes", lambda _, __: Attributes(), raising=False
    )
    return rt


def test_what_others_mapped_is_adopted(knowing: Any) -> None:
    driver = GpuDriver(CUDA, knowing)
    inside = 64 * MIB + 100
    found = driver.inspect(0, inside, "vmm")
    capabilities = driver.capabilities(0, "vmm")
    knowing.calls.clear()
    block = driver.adopt(0, found, "vmm")
    exported = driver.export(block, "vmm", "rw", raw=False)
    driver.release_export(block, exported)
    driver.disown(block)

    assert capabilities.foreign_memory
    assert (found.base, found.nbytes, found.obstacle) == (64 * MIB, 4 * MIB, None)
    assert (found.exposed_base, found.exposed_nbytes) == (64 * MIB, 4 * MIB)
    assert knowing.named() == [
        *("memRetainAllocationHandle", "memExportToShareableHandle", "memRelease"),
    ]
    assert knowing.held == set()


@pytest.mark.parametrize("call", ["memRetainAllocationHandle", "memExportToShareableHandle"])
def test_an_export_of_adopted_memory_that_fails(knowing: Any, call: str) -> None:
    driver = GpuDriver(CUDA, knowing)
    block = driver.adopt(0, driver.inspect(0, 64 * MIB, "vmm"), "vmm")
    before = descriptors()
    knowing.fail(call, OTHER_FAILURE)
    with pytest.raises(crossmem.DriverError, match=call[1:]):
        driver.export(block, "vmm", "rw", raw=False)

    assert (knowing.held, descriptors()) == (set(), before)


def test_a_handle_that_could_not_be_released_is_released_by_disown(knowing: Any) -> None:
    driver = GpuDriver(CUDA, knowing)
    block = driver.adopt(0, driver.inspect(0, 64 * MIB, "vmm"), "vmm")
    before = descriptors()
    knowing.fail("memRelease", OTHER_FAILURE)
    with pytest.raises(crossmem.DriverError, match="MemRelease"):
        driver.export(block, "vmm", "rw", raw=False)
    assert {kind for kind, _ in knowing.held} == {"handle"}

    driver.disown(block)

    assert (knowing.held, descriptors()) == (set(), before)


@pytest.mark.parametrize(
    ("known", "words"),
    [
        ({CAPABLE: 1}, "not mapped by the vendor's calls"),
        ({MANAGED: 1}, "managed"),
        ({POOL: 1}, "pool"),
        ({HANDLE_TYPES: 0}, "not created for export"),
        ({HANDLE_TYPES: 8}, "not created for export"),
        ({MAPPED_NBYTES: 0}, "does not report where its mapping begins"),
    ],
)
def test_what_cannot_be_adopted(knowing: Any, known: dict[int, int], words: str) -> None:
    knowing.known.update(known)
    found = GpuDriver(CUDA, knowing).inspect(0, 64 * MIB, "vmm")

    assert words in str(found.obstacle)
    assert found.nbytes == 0


def test_amd_does_not_tell_the_bounds_of_mappings(knowing: Any) -> None:
    knowing.is_hip = True
    driver = GpuDriver(HIP, knowing)

    assert not driver.capabilities(0, "vmm").foreign_memory
    assert driver.capabilities(0, "legacy").foreign_memory
