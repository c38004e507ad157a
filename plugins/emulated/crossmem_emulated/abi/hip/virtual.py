# SPDX-License-Identifier: Apache-2.0
"""The Python side of HIP's functions for virtual memory.

The emulation gets the fields of structs as separate arguments.
"""

from typing import Any, Final

from crossmem_emulated.abi.hip.convert import Converter, Function

__all__ = ["functions"]

_LOWEST_ADDRESS: Final = 1 << 16
"""By default, Linux maps no memory below this address. So a smaller argument of
hipMemImportFromShareableHandle is not a pointer to a descriptor, but the descriptor itself."""


class _Virtual:
    """Functions with struct arguments, and the import of a descriptor."""

    def __init__(self, convert: Converter) -> None:
        self._convert = convert
        self._ffi = convert.ffi
        self._call = convert.call
        self._is_old = False
        """Whether the program's latest hipMemAllocationProp had the layout of ROCm 5.2."""

    def _fields(self, properties: Any) -> tuple[int, int, int, int]:
        """Return the memory's type, the type of its handles, and its location's type and number.

        The struct may have the layout of ROCm 5.2, or the layout of later releases.
        """
        # No memory has type 0. So the struct has the older layout if the later layout's field
        # ``type`` is 0, and the older layout's field ``type`` is not 0.
        self._is_old = not properties.now.type and bool(properties.before.type)
        described = properties.before if self._is_old else properties.now
        location = described.location
        return described.type, described.requestedHandleType, location.type, location.id

    def create(self, place: Any, size: int, properties: Any, flags: int) -> int:
        if not properties:
            return self._convert.null("memCreate")
        create = self._convert.into("memCreate")
        return int(create(place, size, *self._fields(properties), flags))

    def granularity(self, place: Any, properties: Any, option: int) -> int:
        if not properties:
            return self._convert.null("memGetAllocationGranularity")
        ask = self._convert.into("memGetAllocationGranularity")
        return int(ask(place, *self._fields(properties), option))

    def properties(self, place: Any, handle: int) -> int:
        name = "memGetAllocationPropertiesFromHandle"
        if not place:
            return self._convert.null(name)
        status, found = self._call(name, handle)
        if not status:
            nbytes = self._ffi.sizeof(place[0])
            self._ffi.memmove(place, bytes(nbytes), nbytes)
            described = place.before if self._is_old else place.now
            location = described.location
            described.type, described.requestedHandleType, location.type, location.id = found
        return status

    def set_access(self, pointer: int, size: int, access: Any, count: int) -> int:
        if not access or not count:
            return self._convert.null("memSetAccess")
        wanted = [(one.location.type, one.location.id, one.flags) for one in access[0:count]]
        return self._call("memSetAccess", pointer, size, wanted)[0]

    def get_access(self, place: Any, location: Any, pointer: int) -> int:
        if not location:
            return self._convert.null("memGetAccess")
        return int(self._convert.into("memGetAccess")(place, location.type, location.id, pointer))

    def import_(self, place: Any, descriptor: int, kind: int) -> int:
        if not descriptor:
            return self._convert.null("memImportFromShareableHandle")
        if descriptor >= _LOWEST_ADDRESS:
            # Before ROCm 7.1, the argument points to the descriptor. Since ROCm 7.1, the argument
            # is the descriptor itself.
            descriptor = self._ffi.cast("int *", descriptor)[0]
        return int(self._convert.into("memImportFromShareableHandle")(place, descriptor, kind))


def functions(convert: Converter) -> dict[str, Function]:
    """Return the functions of this module. The key is the name of the C function."""
    virtual = _Virtual(convert)
    into, plain = convert.into, convert.plain
    return {
        "hipMemAddressReserve": into("memAddressReserve"),
        "hipMemAddressFree": plain("memAddressFree"),
        "hipMemGetAllocationGranularity": virtual.granularity,
        "hipMemCreate": virtual.create,
        "hipMemRelease": plain("memRelease"),
        "hipMemRetainAllocationHandle": into("memRetainAllocationHandle"),
        "hipMemGetAllocationPropertiesFromHandle": virtual.properties,
        "hipMemMap": plain("memMap"),
        "hipMemUnmap": plain("memUnmap"),
        "hipMemSetAccess": virtual.set_access,
        "hipMemGetAccess": virtual.get_access,
        "hipMemExportToShareableHandle": into("memExportToShareableHandle"),
        "hipMemImportFromShareableHandle": virtual.import_,
    }
