# SPDX-License-Identifier: Apache-2.0
"""The Python side of HIP's functions for device memory, host memory, IPC memory and copies."""

from typing import Any, Final

from crossmem_emulated.abi.hip.convert import Converter, Function

__all__ = ["functions"]

_ELEMENTS: Final = frozenset({4, 8, 16})
"""Valid element sizes of :c:func:`hipMemAllocPitch`, in bytes."""
_DEVICE_POINTER, _HOST_POINTER = 3, 4
_MANAGED: Final = frozenset({3, 4})
"""The values of ``hipMemoryTypeManaged``: 3 since ROCm 6, and 4 in earlier releases."""
# Size in bytes of the value of each pointer attribute. The key is the attribute's number. The
# device pointer and the host pointer are missing, because pointerGetAttributes returns them.
_SIZES: Final = {2: 4, 6: 1, 7: 8, 8: 1, 9: 4, 10: 4, 11: 8, 12: 8, 13: 1, 14: 4, 17: 8}


class _Memory:
    """The functions that a :class:`Converter` cannot make. Copies and fills are in ``_copies``."""

    def __init__(self, convert: Converter) -> None:
        self._convert = convert
        self._ffi = convert.ffi
        self._call = convert.call

    # Allocations ------------------------------------------------------------------------------

    def pitched(self, place: Any, pitch: Any, width: int, height: int) -> int:
        if not place or not pitch:
            return self._convert.null("mallocPitch")
        status, found = self._call("mallocPitch", width, height, 1)
        if not status:
            place[0], row = found
            if row is not None:
                pitch[0] = row
        return status

    def pitched_elements(
        self, place: Any, pitch: Any, width: int, height: int, element: int
    ) -> int:
        if not width or not height or element not in _ELEMENTS:
            return self._convert.null("mallocPitch")
        return self.pitched(place, pitch, width, height)

    def cubic(self, place: Any, extent: Any) -> int:
        if not place:
            return self._convert.null("malloc3D")
        status, found = self._call("mallocPitch", extent.width, extent.height, extent.depth)
        if not status:
            pointer, row = found
            place[0] = (pointer, row or 0, extent.width, extent.height)
        return status

    def host(self, place: Any, size: int, flags: int = 0) -> int:
        return int(self._convert.into("hostAlloc")(place, size, flags))

    # Queries about addresses ------------------------------------------------------------------

    def range_of(self, base: Any, size: Any, pointer: int) -> int:
        status, found = self._call("memGetAddressRange", pointer)
        if not status:
            for place, value in zip((base, size), found, strict=True):
                if place:
                    place[0] = value
        return status

    def size_of(self, pointer: int, size: Any) -> int:
        if not size:
            return self._convert.null("memPtrGetInfo")
        return self.range_of(None, size, pointer)

    def attributes(self, place: Any, pointer: int) -> int:
        if not place:
            return self._convert.null("pointerGetAttributes")
        status, found = self._call("pointerGetAttributes", pointer)
        if status:
            return status
        place[0] = {
            "type": found.number,
            "device": found.device,
            "devicePointer": found.devicePointer,
            "hostPointer": found.hostPointer,
            "isManaged": found.number in _MANAGED,
            "allocationFlags": found.allocationFlags,
        }
        return 0

    def attribute(self, place: Any, attribute: int, pointer: int) -> int:
        if not place:
            return self._convert.null("pointerGetAttribute")
        if attribute in {_DEVICE_POINTER, _HOST_POINTER}:
            status, found = self._call("pointerGetAttributes", pointer)
            if not status:
                is_device = attribute == _DEVICE_POINTER
                self._put(place, 8, found.devicePointer if is_device else found.hostPointer)
            return status
        status, value = self._call("pointerGetAttribute", attribute, pointer)
        if not status:
            self._put(place, _SIZES[attribute], value)
        return status

    def _put(self, place: Any, nbytes: int, value: int) -> None:
        self._ffi.memmove(place, value.to_bytes(nbytes, "little", signed=value < 0), nbytes)

    def set_attribute(self, place: Any, attribute: int, pointer: int) -> int:
        if not place or not pointer:
            return self._convert.null("pointerSetAttribute")
        value = self._ffi.cast("unsigned int *", place)[0]
        return self._call("pointerSetAttribute", value, attribute, pointer)[0]

    def several(self, count: int, attributes: Any, places: Any, pointer: int) -> int:
        if not count or not attributes or not places:
            return self._convert.null("drvPointerGetAttributes")
        for index in range(count):
            status = self.attribute(places[index], attributes[index], pointer)
            if status:
                return status
        return 0

    # Between processes ------------------------------------------------------------------------

    def get(self, name: str) -> Function:
        def function(place: Any, thing: int) -> int:
            if not place:
                return self._convert.null(name)
            status, handle = self._call(name, thing)
            if not status:
                self._ffi.memmove(place, handle, len(handle))
            return status

        return function

    def open(self, place: Any, handle: Any, flags: int) -> int:
        if not place:
            return self._convert.null("ipcOpenMemHandle")
        status, pointer = self._call("ipcOpenMemHandle", self._bytes(handle), flags)
        if not status:
            place[0] = pointer
        return status

    def open_event(self, place: Any, handle: Any) -> int:
        return int(self._convert.into("ipcOpenEventHandle")(place, self._bytes(handle)))

    def _bytes(self, handle: Any) -> bytes:
        return bytes(self._ffi.buffer(self._ffi.addressof(handle)))


def _copies(convert: Converter) -> dict[str, Function]:
    call = convert.call
    found: dict[str, Function] = {}

    def add_direction(name: str, kind: int) -> None:
        found[name] = lambda target, source, nbytes: call("memcpy", target, source, nbytes, kind)[0]
        found[f"{name}Async"] = lambda target, source, nbytes, stream: call(
            "memcpyAsync", target, source, nbytes, kind, stream
        )[0]

    for name, kind in (("hipMemcpyHtoD", 1), ("hipMemcpyDtoH", 2), ("hipMemcpyDtoD", 3)):
        add_direction(name, kind)
    return {
        **found,
        "hipMemcpy": convert.plain("memcpy"),
        "hipMemcpyAsync": convert.plain("memcpyAsync"),
        "hipMemcpyWithStream": convert.plain("memcpyWithStream"),
        "hipMemcpyPeer": convert.plain("memcpyPeer"),
        "hipMemcpyPeerAsync": convert.plain("memcpyPeerAsync"),
        "hipMemcpy2D": convert.plain("memcpy2D"),
        "hipMemcpy2DAsync": convert.plain("memcpy2DAsync"),
        # The argument is the address of a struct, which the emulation reads itself.
        "hipMemcpy3D": convert.plain("memcpy3D"),
        "hipMemcpy3DAsync": convert.plain("memcpy3DAsync"),
        "hipMemset": convert.plain("memset"),
        "hipMemsetAsync": convert.plain("memsetAsync"),
        "hipMemsetD8": convert.plain("memset"),
        "hipMemsetD8Async": convert.plain("memsetAsync"),
        "hipMemsetD16": convert.plain("memsetD16"),
        "hipMemsetD16Async": convert.plain("memsetD16Async"),
        "hipMemsetD32": convert.plain("memsetD32"),
        "hipMemsetD32Async": convert.plain("memsetD32Async"),
        "hipMemset2D": convert.plain("memset2D"),
        "hipMemset2DAsync": convert.plain("memset2DAsync"),
        **{f"hipMemset3D{end}": _boxed(convert, f"memset3D{end}") for end in ("", "Async", "_spt")},
    }


def _boxed(convert: Converter, name: str) -> Function:
    """Return a function that fills a three-dimensional area of memory.

    Two C structs describe the area: ``place`` is a pitched pointer, and ``extent`` is the size.
    """

    def function(place: Any, value: int, extent: Any, *stream: int) -> int:
        where = place.ptr, place.pitch, place.xsize, place.ysize
        size = extent.width, extent.height, extent.depth
        return convert.call(name, *where, value, *size, *stream)[0]

    return function


def functions(convert: Converter) -> dict[str, Function]:
    """Return a dict of this module's functions. Each key is the name of a C function."""
    memory = _Memory(convert)
    into, plain = convert.into, convert.plain
    return {
        **_copies(convert),
        "hipMalloc": into("malloc"),
        "hipExtMallocWithFlags": into("extMallocWithFlags"),
        "hipMallocPitch": memory.pitched,
        "hipMemAllocPitch": memory.pitched_elements,
        "hipMalloc3D": memory.cubic,
        "hipMallocManaged": into("mallocManaged"),
        "hipFree": plain("free"),
        "hipMemGetInfo": convert.pair("memGetInfo"),
        "hipMemPtrGetInfo": memory.size_of,
        "hipMemGetAddressRange": memory.range_of,
        "hipPointerGetAttributes": memory.attributes,
        "hipPointerGetAttribute": memory.attribute,
        "hipDrvPointerGetAttributes": memory.several,
        "hipPointerSetAttribute": memory.set_attribute,
        # Emulated devices export no dma-buf (their attribute ``dmaBufSupported`` is 0), so this
        # function always fails.
        "hipMemGetHandleForAddressRange": lambda *_arguments: convert.null(
            "memGetHandleForAddressRange"
        ),
        "hipMemAdvise": plain("memAdvise"),
        "hipMemPrefetchAsync": plain("memPrefetchAsync"),
        "hipHostMalloc": memory.host,
        "hipHostAlloc": memory.host,
        "hipExtHostAlloc": memory.host,
        "hipMallocHost": memory.host,
        "hipMemAllocHost": memory.host,
        "hipHostFree": plain("freeHost"),
        "hipFreeHost": plain("freeHost"),
        "hipHostRegister": plain("hostRegister"),
        "hipHostUnregister": plain("hostUnregister"),
        "hipHostGetDevicePointer": into("hostGetDevicePointer"),
        "hipHostGetFlags": into("hostGetFlags"),
        "hipIpcGetMemHandle": memory.get("ipcGetMemHandle"),
        "hipIpcOpenMemHandle": memory.open,
        "hipIpcCloseMemHandle": plain("ipcCloseMemHandle"),
        "hipIpcGetEventHandle": memory.get("ipcGetEventHandle"),
        "hipIpcOpenEventHandle": memory.open_event,
    }
