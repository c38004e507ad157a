# SPDX-License-Identifier: Apache-2.0
"""The Python side of HIP's functions for memory pools."""

from typing import Any, Final

from crossmem_emulated.abi.hip.convert import Converter, Function
from crossmem_emulated.hip import Runtime

__all__ = ["functions"]

_THRESHOLD: Final = 4
"""The first attribute with a 64-bit value. The values of attributes with lower numbers are ints."""


class _Pools:
    """Functions whose arguments must be converted for the emulation."""

    def __init__(self, convert: Converter) -> None:
        self._convert = convert
        self._ffi = convert.ffi
        self._call = convert.call

    def create(self, place: Any, properties: Any) -> int:
        if not place or not properties:
            return self._convert.null("memPoolCreate")
        location = properties.location
        props = Runtime.MemPoolProps(
            properties.allocType, properties.handleTypes, location.type, location.id
        )
        return int(self._convert.into("memPoolCreate")(place, props))

    def _typed(self, attribute: int, place: Any) -> Any:
        """Return ``place`` as a pointer to the type of the attribute's value."""
        kind = "uint64_t *" if attribute >= _THRESHOLD else "int *"
        return self._ffi.cast(kind, place)

    def get_attribute(self, pool: int, attribute: int, place: Any) -> int:
        if not place:
            return self._convert.null("memPoolGetAttribute")
        typed = self._typed(attribute, place)
        return int(self._convert.into("memPoolGetAttribute")(typed, pool, attribute))

    def set_attribute(self, pool: int, attribute: int, place: Any) -> int:
        if not place:
            return self._convert.null("memPoolSetAttribute")
        value = self._typed(attribute, place)[0]
        return self._call("memPoolSetAttribute", pool, attribute, value)[0]

    def get_access(self, place: Any, pool: int, location: Any) -> int:
        if not location:
            return self._convert.null("memPoolGetAccess")
        ask = self._convert.into("memPoolGetAccess")
        return int(ask(place, pool, location.type, location.id))

    def set_access(self, pool: int, access: Any, count: int) -> int:
        if not access:
            return self._convert.null("memPoolSetAccess")
        # The emulation refuses a list with more entries than devices. So the slice takes at most
        # one entry more than there are devices, which is enough for the refusal. If ``count`` is
        # wrong, this limit also keeps the slice from reading far beyond the array.
        _, devices = self._call("getDeviceCount")
        listed = access[0 : min(count, (devices or 0) + 1)]
        wanted = [(one.location.type, one.location.id, one.flags) for one in listed]
        return self._call("memPoolSetAccess", pool, wanted)[0]

    def import_(self, place: Any, descriptor: int, kind: int, flags: int) -> int:
        if not descriptor:
            return self._convert.null("memPoolImportFromShareableHandle")
        # The argument is a pointer whose lower 32 bits are the descriptor. The vendor ignores the
        # upper 32 bits, so a program may leave them uninitialised.
        number = int(self._ffi.cast("int", descriptor))
        name = "memPoolImportFromShareableHandle"
        return int(self._convert.into(name)(place, number, kind, flags))

    def export_pointer(self, place: Any, pointer: int) -> int:
        if not place:
            return self._convert.null("memPoolExportPointer")
        status, data = self._call("memPoolExportPointer", pointer)
        if not status:
            self._ffi.memmove(place, data, len(data))
        return status

    def import_pointer(self, place: Any, pool: int, data: Any) -> int:
        if not data:
            return self._convert.null("memPoolImportPointer")
        taken = bytes(self._ffi.buffer(data))
        return int(self._convert.into("memPoolImportPointer")(place, pool, taken))


def functions(convert: Converter) -> dict[str, Function]:
    """Return a dict of the functions of this module. Its keys are the names of the C functions."""
    pools, into, plain = _Pools(convert), convert.into, convert.plain
    return {
        "hipDeviceGetDefaultMemPool": into("deviceGetDefaultMemPool"),
        "hipDeviceGetMemPool": into("deviceGetMemPool"),
        "hipDeviceSetMemPool": plain("deviceSetMemPool"),
        "hipMemPoolCreate": pools.create,
        "hipMemPoolDestroy": plain("memPoolDestroy"),
        "hipMemPoolTrimTo": plain("memPoolTrimTo"),
        "hipMemPoolGetAttribute": pools.get_attribute,
        "hipMemPoolSetAttribute": pools.set_attribute,
        "hipMemPoolGetAccess": pools.get_access,
        "hipMemPoolSetAccess": pools.set_access,
        "hipMemPoolExportToShareableHandle": into("memPoolExportToShareableHandle"),
        "hipMemPoolImportFromShareableHandle": pools.import_,
        "hipMemPoolExportPointer": pools.export_pointer,
        "hipMemPoolImportPointer": pools.import_pointer,
        "hipMallocAsync": into("mallocAsync"),
        "hipMallocFromPoolAsync": into("mallocFromPoolAsync"),
        "hipFreeAsync": plain("freeAsync"),
    }
