# SPDX-License-Identifier: Apache-2.0
"""The common base class of vendor drivers.

The base class makes the device current before it calls a method of a mechanism. The only exception
is the method ``keep_mapped``. A mechanism keeps each of the vendor's objects in the ``reference``
of the block or import until the mechanism has released the object. So after an interrupted release,
the ``reference`` shows the objects that are left, and core can repeat the release.
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
    """A mechanism whose memory can be mapped at reserved addresses."""

    def reserve(self, reserved: Reserved) -> None:
        """Reserve addresses, and record the first address in ``reserved``."""
        ...

    def release(self, reserved: Reserved) -> None:
        """Release reserved addresses.

        The method sets ``reserved.pointer`` to 0 right before the vendor call that releases the
        addresses. If the vendor refuses, the method restores the pointer.
        """
        ...

    def map_at(self, memory: Block | Imported, pointer: int) -> None:
        """Map memory at reserved addresses."""
        ...

    def unmap_at(self, memory: Block | Imported, pointer: int) -> None:
        """Unmap memory from reserved addresses, if the memory is mapped at ``pointer``."""
        ...


class VendorDriver(Driver):
    """A driver whose mechanisms make the vendor's calls.

    A subclass sets ``_devices``, ``_mechanisms`` and ``_current``. The keys of ``_mechanisms`` are
    the names of the mechanisms. ``_current.on(ordinal)`` makes a device current for this thread in
    a ``with`` block, and restores the previous device at the end of the block.
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
                # keep_mapped() comes last, because nothing can undo it.
                with self._about(imported.ordinal, "map"):
                    mechanism.keep_mapped(imported)
        except BaseException as error:
            # If the pointer is 0 after a CrossmemError, the vendor refused the call, and the
            # mechanism has cleaned up. In all other cases, the import may be mapped.
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
        """Give this driver the methods of :class:`crossmem.driver.AddressRanges`."""

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

    # Contexts and cleanup of the calls ----------------------------------------------------

    def _on(self, ordinal: int, operation: str) -> AbstractContextManager[None]:
        """Return a context that makes a device current for this thread.

        The context also adds the operation and the device to errors, like :meth:`_about`.
        """
        return self._named(ordinal, operation, self._current.on(ordinal))

    def _about(self, ordinal: int, operation: str) -> AbstractContextManager[None]:
        """Return a context that adds the operation and the device to errors in a ``with`` block."""
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
        """Release the resource of a failed method. If the release fails, ``error`` gets a note."""
        try:
            step(what)
        except CrossmemError as failure:
            error.add_note(f"cleaning up failed too: {failure}")
