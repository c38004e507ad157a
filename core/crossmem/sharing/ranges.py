# SPDX-License-Identifier: Apache-2.0
"""Address ranges: consecutive addresses, reserved first and given memory later."""

import warnings
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from typing_extensions import override

from crossmem.errors import BusyError, ClosedError, ConfigurationError, UnsupportedError
from crossmem.sharing.allocation import Allocation
from crossmem.sharing.mapping import Import
from crossmem.sharing.memory import Memory
from crossmem.sharing.process import may_release, refuse_foreign
from crossmem.sharing.reservation import Placed, Reservation

if TYPE_CHECKING:
    from crossmem.sharing.device import Device

__all__ = ["AddressRange", "Piece"]


class AddressRange:
    """Consecutive addresses of this process, to which memory is mapped in pieces.

    Made by :meth:`crossmem.Device.reserve`; a context manager that releases them. While nothing
    is mapped at an address, no access there is allowed.

    Attributes
    ----------
    device
        The device for which, and of whose memory, pieces can be mapped.
    nbytes
        Size in bytes: what was asked for, rounded up to the granularity.
    """

    __slots__ = ("__weakref__", "_process", "_reservation", "device", "nbytes")

    def __init__(self, reservation: Reservation) -> None:
        self._process = reservation.process
        self.device: Device = reservation.device
        self.nbytes = reservation.nbytes
        # Last: from here on, this object gives the addresses back.
        self._reservation: Reservation | None = reservation

    @override
    def __repr__(self) -> str:
        at = "released" if self._reservation is None else f"at {self._reservation.pointer:#x}"
        return f"<AddressRange of {self.nbytes} bytes on {self.device.name}, {at}>"

    def _live(self) -> Reservation:
        refuse_foreign(self._process, self)
        reservation = self._reservation
        if reservation is None:
            msg = f"{self!r} cannot be used any more"
            raise ClosedError(msg)
        return reservation

    @property
    def ptr(self) -> int:
        """The first address."""
        return self._live().pointer

    @property
    def closed(self) -> bool:
        """Whether the addresses were released."""
        return self._reservation is None

    def map(self, memory: Allocation | Import, *, at: int) -> "Piece":
        """Map the whole capacity of some memory at an offset.

        The memory stays mapped wherever else it is. As long as the piece is, an allocation
        cannot be freed and an import cannot be closed.

        Parameters
        ----------
        memory
            An allocation of this device, or an import of memory of this device for this device;
            not of a part. The first piece decides whether the range takes this process's own
            memory or that of others, for as long as the range lasts.
        at
            Offset in bytes from the start of the range, a multiple of the granularity.

        Returns
        -------
        Piece
            Unmap it, or use it as a context manager. Then the offset is free again.

        Raises
        ------
        InvalidSizeError
            Where the capacity does not fit there, or the offset is no such multiple.
        BusyError
            Where another piece is in the way.
        UnsupportedError
            Where the range cannot take this memory; see above.
        DriverError, OutOfMemoryError
            Where the vendor's call failed.
        ClosedError, ForkedProcessError
            Where the range or the memory may not be used any more.
        """
        reservation = self._live()
        if not isinstance(memory, Allocation | Import):
            msg = f"memory must be a crossmem.Allocation or crossmem.Import, not {memory!r}"
            raise ConfigurationError(msg, operation="map")
        # A piece that was dropped holds its place until it is given back.
        self._process.drain()
        with self._process.lifetimes:
            placed = self._live().claim(self, memory, at)
        reservation.map(placed)
        return Piece(reservation, placed, memory.nbytes)

    def release(self) -> None:
        """Give the addresses back. Releasing twice is harmless.

        Raises
        ------
        BusyError
            Where pieces are not unmapped yet. Nothing has changed then.
        """
        if self._reservation is None or self._process.is_closed:
            return
        refuse_foreign(self._process, self)
        if self._process.is_inside:
            self._process.pending.append(self.release)
            return
        # Pieces that were dropped count until they are given back.
        self._process.drain()
        with self._process.lifetimes:
            reservation = self._reservation
            if reservation is None:
                return
            if reservation.pieces:
                msg = f"{self!r} has {reservation.pieces} pieces"
                raise BusyError(msg, operation="release", hint="unmap them first")
            self._reservation = None
        reservation.release()

    def __enter__(self) -> Self:
        self._live()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def __del__(self) -> None:
        reservation = getattr(self, "_reservation", None)
        if reservation is None or not may_release(self._process):
            return
        self._process.pending.append(reservation.release)
        warnings.warn(
            f"{self!r} was dropped without release()", ResourceWarning, stacklevel=2, source=self
        )

    @override
    def __reduce__(self) -> tuple[Any, ...]:
        msg = "an AddressRange stays in its process; send the handles of what is mapped in it"
        raise UnsupportedError(msg)


class Piece(Memory):
    """Memory at its place in an address range; a context manager that unmaps it.

    Made by :meth:`AddressRange.map`.

    Attributes
    ----------
    offset
        Where it starts in the range, in bytes.
    nbytes
        Size of the memory in bytes. Its whole capacity takes up the range.
    readonly
        Whether writing is refused, as for the import that was mapped.
    """

    __slots__ = ("_placed", "_pointer", "_reservation", "offset")

    def __init__(self, reservation: Reservation, placed: Placed, nbytes: int) -> None:
        loan = placed.loan
        super().__init__(
            reservation.process, reservation.device, nbytes, loan.uses, readonly=loan.readonly
        )
        self._reservation = reservation
        self._pointer = reservation.pointer + placed.offset
        self.offset = placed.offset
        # Last: from here on, this object gives the piece back.
        self._placed: Placed | None = placed

    @override
    def __repr__(self) -> str:
        state = "unmapped" if self._placed is None else f"at {self._pointer:#x}"
        return f"<Piece of {self.nbytes} bytes at offset {self.offset} of a range, {state}>"

    @property
    @override
    def ptr(self) -> int:
        """Address of the first byte in this process, for the device's own calls."""
        refuse_foreign(self._process, self)
        if self._placed is None:
            msg = f"{self!r} cannot be used any more"
            raise ClosedError(msg)
        return self._pointer

    @property
    @override
    def closed(self) -> bool:
        """Whether the memory was unmapped."""
        return self._placed is None

    def unmap(self) -> None:
        """Take the memory away from its place, after waiting for the device's work (C9).

        The addresses stay reserved. Unmapping twice is harmless.

        Raises
        ------
        BusyError
            Where a view of the piece is alive, or another thread reads or writes it. Also where
            the device's work cannot be waited for because it is being captured: this object is
            then closed, and a later call of crossmem unmaps the piece.
        """
        if self._placed is None or self._process.is_closed:
            return
        refuse_foreign(self._process, self)
        if self._process.is_inside:
            self._process.pending.append(self.unmap)
            return
        with self._process.lifetimes:
            if self._placed is None:
                return
            self._refuse_if_used("unmap")
            placed, self._placed = self._placed, None
        if not self._reservation.unmap(placed):
            self._process.pending.append(partial(self._reservation.unmap, placed))
        self._process.drain()

    def __enter__(self) -> Self:
        self.ptr  # noqa: B018 - raises where it may not be used any more
        return self

    def __exit__(self, *_: object) -> None:
        self.unmap()

    def __del__(self) -> None:
        placed = getattr(self, "_placed", None)
        if placed is None or not may_release(self._process):
            return
        self._process.pending.append(partial(self._reservation.unmap, placed))
        if not self._is_left:
            warnings.warn(
                f"{self!r} was dropped without unmap()", ResourceWarning, stacklevel=2, source=self
            )

    @override
    def __reduce__(self) -> tuple[Any, ...]:
        msg = "a Piece stays in its process; send the handle of what is mapped"
        raise UnsupportedError(msg)
