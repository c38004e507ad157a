# SPDX-License-Identifier: Apache-2.0
"""The common base of vendor drivers.

The base makes the device current around each of its calls of a mechanism, except ``keep_mapped``. A
mechanism keeps each of the vendor's objects in the ``reference`` of the block or import until the
object is released. Therefore core can repeat an interrupted release.
"""

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

from typing_extensions import override

from crossmem.driver.base import Block, Driver, Imported, Mapped, Reserved
from crossmem.driver.recording import call_into
from crossmem.errors import CrossmemError
from crossmem.models import DeviceInfo

__all__ = ["RangeMechanism", "VendorDriver"]

_log = logging.getLogger(__name__)


class RangeMechanism(Protocol):
    """The steps of a mechanism whose memory can be mapped at reserved addresses."""

    def reserve(self, reserved: Reserved) -> None:
        """Reserve addresses, and record the first address in ``reserved``."""
        ...

    def release(self, reserved: Reserved) -> None:
        """Clear the address in ``reserved``, and release the addresses in the next statement."""
        ...

    def map_at(self, memory: Block | Imported, pointer: int) -> None:
        """Map memory at reserved addresses."""
        ...

    def unmap_at(self, memory: Block | Imported, pointer: int) -> None:
        """Unmap the memory at these addresses, if it is mapped."""
        ...


class VendorDriver(Driver):
    """A driver whose mechanisms make the vendor's calls.

    A subclass sets ``_devices``, ``_mechanisms`` (by name) and ``_current``.
    ``_current.on(ordinal)`` makes a device current for this thread in a ``with`` block, and then
    restores the previous device.
    """

    _devices: tuple[DeviceInfo, ...]
    _mechanisms: Mapping[str, Any]
    _current: Any

    reserve: Callable[[int, int], Reserved]
    release: Callable[[Reserved], None]
    map_at: Callable[[Block | Imported, int], Mapped]
    unmap_at: Callable[[Mapped], None]
    violations: Callable[[], list[str]]

    @override
    def devices(self) -> tuple[DeviceInfo, ...]:
        return self._devices

    @override
    def allocate(self, ordinal: int, nbytes: int, mechanism: str) -> Block:
        made: list[Block] = []
        try:
            with self._on(ordinal, "allocate"):
                call_into(made, self._mechanisms[mechanism].allocate, ordinal, nbytes)
        except BaseException as error:
            for block in made:
                self._undo(error, self.free, block)
            raise
        return made[0]

    @override
    def free(self, block: Block) -> None:
        with self._on(block.ordinal, "free"):
            block.reference.mechanism.free(block)

    @override
    def close(self, imported: Imported) -> None:
        with self._on(imported.ordinal, "close"):
            imported.reference.mechanism.close(imported)

    @override
    def map(self, imported: Imported, *, remappable: bool) -> Mapped:
        mapped = Mapped(imported, 0)
        mechanism = imported.reference.mechanism
        try:
            with self._on(imported.ordinal, "map"):
                mapped.pointer = mechanism.map(imported)
            if not remappable:
                # This step comes last, because nothing can undo it.
                with self._about(imported.ordinal, "map"):
                    mechanism.keep_mapped(imported)
        except BaseException as error:
            # If the vendor refused the call, the error is a CrossmemError and there is no address.
            # The mechanism has then cleaned up already.
            if mapped.pointer or not isinstance(error, CrossmemError):
                self._undo(error, self._unmap, imported)
            raise
        return mapped

    @override
    def unmap(self, mapped: Mapped) -> None:
        if mapped.pointer and isinstance(mapped.source, Imported):
            self._unmap(mapped.source)
        mapped.pointer = 0

    def _unmap(self, imported: Imported) -> None:
        with self._on(imported.ordinal, "unmap"):
            imported.reference.mechanism.unmap(imported)

    # Address ranges -----------------------------------------------------------------------

    def _offer_ranges(self, mechanism: RangeMechanism) -> None:
        """Offer the group :class:`crossmem.driver.AddressRanges` through a mechanism."""

        def reserve(ordinal: int, nbytes: int) -> Reserved:
            reserved = Reserved(ordinal, 0, nbytes)
            try:
                with self._on(ordinal, "reserve"):
                    mechanism.reserve(reserved)
            except BaseException as error:
                self._undo(error, release, reserved)
                raise
            return reserved

        def release(reserved: Reserved) -> None:
            if reserved.pointer:
                try:
                    with self._on(reserved.ordinal, "release"):
                        mechanism.release(reserved)
                except CrossmemError:
                    if reserved.pointer:
                        raise
                    # The addresses are released, but the thread's previous device could not be made
                    # current again.
                    _log.warning(
                        "this thread's previous device is not current; the thread's next call of "
                        "crossmem tries again to make it current",
                        exc_info=True,
                    )

        def map_at(memory: Block | Imported, pointer: int) -> Mapped:
            mapped = Mapped(memory, pointer)
            try:
                with self._on(memory.ordinal, "map"):
                    mechanism.map_at(memory, pointer)
            except BaseException as error:
                self._undo(error, unmap_at, mapped)
                raise
            return mapped

        def unmap_at(mapped: Mapped) -> None:
            memory = mapped.source
            if mapped.pointer:
                with self._on(memory.ordinal, "unmap"):
                    mechanism.unmap_at(memory, mapped.pointer)
                mapped.pointer = 0

        self.reserve, self.release, self.map_at, self.unmap_at = reserve, release, map_at, unmap_at

    # Around every call --------------------------------------------------------------------

    def _on(self, ordinal: int, operation: str) -> AbstractContextManager[None]:
        """Make a device current for this thread in a ``with`` block."""
        return self._named(ordinal, operation, self._current.on(ordinal))

    def _about(self, ordinal: int, operation: str) -> AbstractContextManager[None]:
        """Add the operation and the device to the errors that a ``with`` block raises."""
        return self._named(ordinal, operation, None)

    @contextmanager
    def _named(
        self, ordinal: int, operation: str, current: AbstractContextManager[None] | None
    ) -> Iterator[None]:
        try:
            if current is None:
                yield
            else:
                with current:
                    yield
        except CrossmemError as error:
            error.operation = error.operation or operation
            error.device = error.device or self._devices[ordinal].identity
            raise

    @staticmethod
    def _undo(error: BaseException, step: Callable[[Any], object], what: object) -> None:
        """Release the resources of a failed method. If that fails, too, ``error`` gets a note."""
        try:
            step(what)
        except CrossmemError as failure:
            error.add_note(f"cleaning up failed too: {failure}")
