# SPDX-License-Identifier: Apache-2.0
"""Adoptions: exporting memory that someone else allocated, as long as that one keeps it."""

from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Literal

from typing_extensions import override

from crossmem.driver import Block
from crossmem.errors import ConfigurationError, InvalidSizeError, UnsupportedError
from crossmem.guards import check_size
from crossmem.models import EventKind
from crossmem.sharing.allocation import Allocation, Busy
from crossmem.sharing.foreign import MAX_ADDRESS, Ground, check_address, look_at
from crossmem.sharing.owned import Owned
from crossmem.sharing.process import Process, drain, is_current

if TYPE_CHECKING:
    from crossmem.sharing.device import Device

__all__ = ["Adopted", "Adoption", "Neighbours", "adopt", "neighbours_of"]

Neighbours = Literal["expose"]
"""What ``adopt`` may do where importers can reach more than what is adopted."""


class Adopted(Owned):
    """The record of an adoption. It keeps the owner of the memory as long as leases last."""

    __slots__ = ("_ground", "_nbytes", "_offset", "_owner")

    is_adopted = True
    began = EventKind.ADOPTED
    ended = EventKind.GIVEN_UP

    def __init__(
        self,
        process: Process,
        device: "Device",
        number: int,
        ground: Ground,
        *,
        offset: int,
        nbytes: int,
        owner: object,
    ) -> None:
        super().__init__(process, device, number, ground.block)
        # The vendor's allocation is exported once for all that is adopted of it.
        self.exported = ground.exported
        self.block_lock = ground.lock
        self._ground = ground
        self._owner: object = owner
        self._offset = offset
        self._nbytes = nbytes

    @property
    @override
    def offset(self) -> int:
        """Where the adopted memory begins in the vendor's allocation."""
        return self._offset

    @property
    @override
    def nbytes(self) -> int:
        """How much of it is adopted."""
        return self._nbytes

    @override
    def lend_block(self) -> Block:
        """Raise: ranges take memory that was made for them."""
        msg = "an address range takes no memory that was adopted"
        raise UnsupportedError(msg, operation="map", backend=self.device.backend)

    @override
    def free_now(self) -> None:
        """Give the memory up, and let its owner go where no lock is held."""
        super().free_now()
        owner, self._owner = self._owner, None
        if owner is not None:
            # The owner's end is foreign code, which may call crossmem.
            self.process.pending.append(partial(_let_go, owner))

    @override
    def _after_work(self) -> AbstractContextManager[None]:
        """Wait for nothing: nothing is freed, and work on the memory is the owner's business."""
        return nullcontext()

    @override
    def _give_back(self) -> None:
        self.process.grounds.leave(self._ground, self.number)


class Adoption(Allocation):
    """Memory that someone else allocated. Made by :meth:`crossmem.Device.adopt`.

    Used as an allocation is; a context manager that gives the memory up. The memory itself is
    never freed: it stays with its owner.

    Attributes
    ----------
    nbytes
        Size of what was adopted, in bytes.
    device
        The device that holds the memory.
    """

    __slots__ = ()

    @override
    def free(self, *, busy: Busy = "defer", timeout: float | None = None) -> None:
        """Give the memory up. Doing so twice is harmless.

        From the moment this returns, the memory's handles are stale (C6). The owner is let go
        when the last lease has ended; where it has, before this returns. The memory is left as it
        is. Parameters and errors are those of :meth:`crossmem.Allocation.free`.
        """
        super().free(busy=busy, timeout=timeout)
        if is_current(self._process) and not self._process.is_closed:
            drain()


def adopt(
    process: Process,
    device: "Device",
    ptr: object,
    nbytes: object,
    owner: object,
    neighbours: object,
) -> Adoption:
    """Adopt memory; see :meth:`crossmem.Device.adopt`."""
    if owner is None:
        msg = "owner must be the object that keeps the memory, not None"
        raise ConfigurationError(msg, operation="adopt")
    if neighbours is not None and neighbours != "expose":
        msg = f'neighbours must be "expose" or None, not {neighbours!r}'
        raise ConfigurationError(msg, operation="adopt")
    pointer = check_address("ptr", ptr)
    size = check_size("nbytes", nbytes, limit=MAX_ADDRESS)
    foreign = look_at(process, device, pointer)
    if foreign.obstacle is not None:
        msg = f"memory at {pointer:#x} on {device.name} {foreign.obstacle}"
        raise UnsupportedError(
            msg,
            operation="adopt",
            backend=device.backend,
            device=device.identity,
            hint="copy it to memory of device.allocate() and export that",
        )
    offset = pointer - foreign.base
    if offset + size > foreign.nbytes:
        msg = (
            f"{size} bytes at {pointer:#x} do not lie in the vendor's allocation of "
            f"{foreign.nbytes} bytes at {foreign.base:#x}"
        )
        raise InvalidSizeError(msg, operation="adopt", backend=device.backend)
    around = neighbours_of(foreign.exposed_nbytes, size)
    if around is not None and neighbours is None:
        msg = f"of {size} bytes at {pointer:#x} on {device.name}, {around}"
        raise UnsupportedError(
            msg,
            operation="adopt",
            backend=device.backend,
            device=device.identity,
            hint='adopt the whole block, or say neighbours="expose" where importers may reach it',
        )
    number = next(process.numbers)
    ground = process.grounds.enter(device, foreign, number)
    adopted = Adopted(process, device, number, ground, offset=offset, nbytes=size, owner=owner)
    adopted.begin()
    adoption = Adoption(adopted)
    process.whereabouts.add(adoption, adoption.ptr, adoption)
    return adoption


def neighbours_of(exposed_nbytes: int, nbytes: int) -> str | None:
    """Return in words what importers reach beside the memory, None where that is nothing."""
    if exposed_nbytes == nbytes:
        return None
    return (
        f"importers could reach {exposed_nbytes - nbytes} bytes more that the vendor shares with "
        "them and that may be somebody else's"
    )


def _let_go(owner: object) -> None:
    """Hold an owner until this is called; whoever called it drops the last reference."""
