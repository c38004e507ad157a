# SPDX-License-Identifier: Apache-2.0
"""Memory that a test allocates outside of crossmem, as a framework does, and then adopts."""

import gc
import weakref
from typing import Any, Final, Protocol

import pytest

import crossmem
from crossmem.conformance import actions
from crossmem.driver import CopyKind, TracingDriver
from crossmem.driver.buffers import address_of, new_bytes

__all__ = [
    "MakeStranger",
    "Owner",
    "Stranger",
    "adopt",
    "end_stranger",
    "let_go",
    "make_stranger",
    "needs_foreign",
    "took",
]

needs_foreign: Final = pytest.mark.crossmem_requires("foreign_memory")


class Owner:
    """Stands for the object that keeps foreign memory alive, such as a tensor."""


def let_go(kept: "weakref.ref[Owner]") -> list[str]:
    """Return a list with one complaint if the owner object is still alive, else an empty list."""
    crossmem.collect()
    gc.collect()
    return [] if kept() is None else ["the owner is kept"]


def took(tracer: TracingDriver, before: dict[str, int]) -> dict[str, int]:
    """Return the number of calls of each driver method since the counts ``before`` were taken."""
    return {
        name: count - before.get(name, 0)
        for name, count in tracer.calls.items()
        if count > before.get(name, 0)
    }


class Stranger:
    """Memory that crossmem does not know. The test allocates it by a direct call of the driver.

    Parameters
    ----------
    blocks
        Size of the memory, in units of the granularity.
    data
        The bytes to write at offset 0.
    """

    def __init__(self, blocks: int = 1, data: bytes = b"") -> None:
        device = actions.device()
        self._device = device
        self._driver = actions.tracer().inner
        nbytes = blocks * device.capabilities.granularity_nbytes
        self._block = self._driver.allocate(device.ordinal, nbytes, device.mechanism)
        self.ptr = self._block.pointer
        self.nbytes = self._block.capacity
        self.is_freed = False
        if data:
            self.write(data)

    def write(self, data: bytes, *, offset: int = 0) -> None:
        """Write by a direct call of the driver."""
        with address_of(data) as (source, nbytes):
            self._driver.copy(
                self._device.ordinal, self.ptr + offset, source, nbytes, CopyKind.HOST_TO_DEVICE
            )

    def read(self, nbytes: int, *, offset: int = 0) -> bytes:
        """Read by a direct call of the driver."""
        data = new_bytes(nbytes)
        with address_of(data) as (target, _):
            self._driver.copy(
                self._device.ordinal, target, self.ptr + offset, nbytes, CopyKind.DEVICE_TO_HOST
            )
        return data

    def free(self) -> None:
        """Free the memory; a second call does nothing."""
        if not self.is_freed:
            self.is_freed = True
            self._driver.free(self._block)

    def adopt(self, nbytes: int | None = None, *, at: int = 0, **options: Any) -> crossmem.Adoption:
        """Adopt the whole memory, or ``nbytes`` bytes from offset ``at``."""
        size = self.nbytes if nbytes is None else nbytes
        return self._device.adopt(self.ptr + at, size, **{"owner": self, **options})


class MakeStranger(Protocol):
    """The type of the fixture ``stranger``."""

    def __call__(self, blocks: int = 1, data: bytes = b"") -> Stranger:
        """Allocate memory, which is freed after the test, and write ``data`` at offset 0."""
        ...


# In peers ---------------------------------------------------------------------------------


def make_stranger(name: str, blocks: int = 1, data: bytes = b"") -> tuple[int, int]:
    """Allocate memory that can be adopted; return its address and its size in bytes."""
    stranger = actions.objects[name] = Stranger(blocks, data)
    return stranger.ptr, stranger.nbytes


def adopt(
    name: str, stranger: str, nbytes: int | None = None, *, at: int = 0, **options: Any
) -> bytes:
    """Adopt memory and export it; return the handle's bytes."""
    adopted = actions.objects[name] = actions.objects[stranger].adopt(nbytes, at=at, **options)
    blob: bytes = adopted.export().to_bytes()
    return blob


def end_stranger(name: str) -> None:
    """Free the memory of a stranger."""
    actions.objects.pop(name).free()
