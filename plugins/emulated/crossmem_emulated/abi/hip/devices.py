# SPDX-License-Identifier: Apache-2.0
"""HIP's C functions for initialisation, versions, devices, peers and contexts."""

from typing import Any

from crossmem_emulated.abi.hip.convert import INVALID_VALUE, Converter, Function
from crossmem_emulated.abi.hip.facts import ATTRIBUTES, FACTS, POINTERS

__all__ = ["functions"]

_INVALID_DEVICE = 101


class _Devices:
    """The functions that need code of their own. :class:`Converter` makes all other functions."""

    def __init__(self, convert: Converter) -> None:
        self._convert = convert
        self._ffi = convert.ffi
        self._call = convert.call

    def _describe(self, device: int) -> tuple[int, dict[str, Any]]:
        """Return the query's status. If the status is 0, also return the device's properties."""
        status, found = self._call("getDeviceProperties", device)
        if status:
            return status, {}
        _, uuid = self._call("deviceGetUuid", device)
        runtime = self._convert.runtime
        more = {
            "virtualMemoryManagementSupported": runtime.has_virtual_memory,
            # A bit mask of the supported types of handles. Bit 0 stands for file descriptors, the
            # only type that the emulation has.
            "memoryPoolSupportedHandleTypes": int(runtime.shares_pools),
        }
        return 0, {**FACTS, **found, **more, "uuid": {"bytes": uuid}}

    def count(self, place: Any) -> int:
        status = int(self._convert.into("getDeviceCount")(place))
        if place and status:
            place[0] = 0
        return status

    def properties(self, place: Any, device: int) -> int:
        if not place:
            return self._convert.null("getDeviceProperties")
        status, facts = self._describe(device)
        if status:
            return status
        self._ffi.memmove(place, bytes(self._ffi.sizeof(place[0])), self._ffi.sizeof(place[0]))
        for name, _ in self._ffi.typeof(place[0]).fields:
            if name in facts:
                setattr(place[0], name, facts[name])
        return 0

    def attribute(self, place: Any, number: int, device: int) -> int:
        if not place:
            return self._convert.null("deviceGetAttribute")
        status, facts = self._describe(device)
        if status:
            return status
        field = ATTRIBUTES.get(number)
        if field is None:
            return self._convert.null("deviceGetAttribute")
        name, _, index = field.partition(".")
        value = facts.get(name, 0)
        if name in POINTERS:
            self._ffi.cast("void **", place)[0] = self._ffi.cast("void *", value)
        else:
            place[0] = min(value[int(index)] if index and value else value, 2**31 - 1)
        return 0

    def ordinal(self, place: Any, device: int) -> int:
        status = self._convert.null("deviceGet") if not place else self._describe(device)[0]
        if not status:
            place[0] = device
        return status

    def name(self, place: Any, room: int, device: int) -> int:
        if not place or room <= 0:
            return self._convert.null("deviceGetName")
        status, facts = self._describe(device)
        if not status:
            self._write(place, room, facts["name"])
        return status

    def bus_id(self, place: Any, room: int, device: int) -> int:
        if not place or room <= 0:
            return self._convert.null("deviceGetPCIBusId")
        status, text = self._call("deviceGetPCIBusId", device)
        if status:
            return status
        self._write(place, room, text.encode())
        if len(text) < room:
            return 0
        return self._convert.runtime.refuse("deviceGetPCIBusId", INVALID_VALUE)

    def _write(self, place: Any, room: int, text: bytes) -> None:
        """Write a text and a terminating zero. If ``room`` bytes are too few, cut the text."""
        cut = text[: room - 1] + b"\0"
        self._ffi.memmove(place, cut, len(cut))

    def by_bus_id(self, place: Any, text: Any) -> int:
        if not place or not text:
            return self._convert.null("deviceGetByPCIBusId")
        given = self._ffi.string(text).decode("utf-8", "replace")
        return int(self._convert.into("deviceGetByPCIBusId")(place, given))

    def uuid(self, place: Any, device: int) -> int:
        if not place:
            return self._convert.null("deviceGetUuid")
        status, value = self._call("deviceGetUuid", device)
        if not status:
            self._ffi.memmove(place, value, len(value))
        return status

    def total(self, place: Any, device: int) -> int:
        if not place:
            return self._convert.null("deviceTotalMem")
        status, facts = self._describe(device)
        if not status:
            place[0] = facts["totalGlobalMem"]
        return status

    def capability(self, major: Any, minor: Any, device: int) -> int:
        if not major or not minor:
            return self._convert.null("deviceComputeCapability")
        status, facts = self._describe(device)
        if not status:
            major[0], minor[0] = facts["major"], facts["minor"]
        return status

    def peer_attribute(self, place: Any, attribute: int, source: int, target: int) -> int:
        _rank, access, atomics, arrays = range(4)
        if not place or attribute not in range(arrays + 1):
            return self._convert.null("deviceGetP2PAttribute")
        status, can = self._call("deviceCanAccessPeer", source, target)
        if not status and source == target:
            status = self._convert.runtime.refuse("deviceGetP2PAttribute", _INVALID_DEVICE)
        if not status:
            place[0] = int(can and attribute in {access, atomics})
        return status

    def enable_peer(self, peer: int, flags: int) -> int:
        if flags:
            return self._convert.runtime.refuse("deviceEnablePeerAccess", INVALID_VALUE)
        return self._call("deviceEnablePeerAccess", peer)[0]

    def priorities(self, least: Any, greatest: Any) -> int:
        """Write the least and the greatest priority of streams. Each pointer may be null."""
        status, found = self._call("deviceGetStreamPriorityRange")
        if not status:
            self._put((least, greatest), found)
        return status

    def _put(self, places: tuple[Any, Any], values: tuple[Any, Any]) -> None:
        for place, value in zip(places, values, strict=True):
            if place:
                place[0] = value

    def create_context(self, place: Any, flags: int, device: int) -> int:
        return int(self._convert.into("ctxCreate")(place, flags, device))

    def pop_context(self, place: Any) -> int:
        """Pop the current context, and write its handle. The pointer may be null."""
        status, handle = self._call("ctxPopCurrent")
        if place and not status:
            place[0] = handle
        return status

    def context_state(self, device: int, flags: Any, active: Any) -> int:
        """Write the flags of a device's primary context, and whether the context is active.

        Each pointer may be null.
        """
        status, found = self._call("devicePrimaryCtxGetState", device)
        if not status:
            self._put((flags, active), found)
        return status


def functions(convert: Converter) -> dict[str, Function]:
    """Return a dict from the name of each C function to the function that implements it."""
    devices = _Devices(convert)
    into, plain = convert.into, convert.plain
    return {
        "hipInit": plain("init"),
        "hipDriverGetVersion": into("driverGetVersion"),
        "hipRuntimeGetVersion": into("runtimeGetVersion"),
        "hipGetDeviceCount": devices.count,
        "hipGetDevice": into("getDevice"),
        "hipSetDevice": plain("setDevice"),
        "hipDeviceGet": devices.ordinal,
        "hipDeviceGetAttribute": devices.attribute,
        "hipDeviceGetName": devices.name,
        "hipDeviceGetUuid": devices.uuid,
        "hipDeviceTotalMem": devices.total,
        "hipDeviceComputeCapability": devices.capability,
        "hipDeviceGetPCIBusId": devices.bus_id,
        "hipDeviceGetByPCIBusId": devices.by_bus_id,
        "hipDeviceGetP2PAttribute": devices.peer_attribute,
        "hipDeviceGetStreamPriorityRange": devices.priorities,
        "hipGetDeviceProperties": devices.properties,
        "hipGetDevicePropertiesR0000": devices.properties,
        "hipGetDevicePropertiesR0600": devices.properties,
        "hipDeviceSynchronize": plain("deviceSynchronize"),
        "hipDeviceReset": plain("deviceReset"),
        "hipSetDeviceFlags": plain("setDeviceFlags"),
        "hipGetDeviceFlags": into("getDeviceFlags"),
        "hipDeviceGetLimit": into("deviceGetLimit"),
        "hipDeviceSetLimit": plain("deviceSetLimit"),
        "hipDeviceGetCacheConfig": into("deviceGetCacheConfig"),
        "hipDeviceSetCacheConfig": plain("deviceSetCacheConfig"),
        "hipDeviceGetSharedMemConfig": into("deviceGetSharedMemConfig"),
        "hipDeviceSetSharedMemConfig": plain("deviceSetSharedMemConfig"),
        "hipCtxGetSharedMemConfig": into("deviceGetSharedMemConfig"),
        "hipDeviceCanAccessPeer": into("deviceCanAccessPeer"),
        "hipDeviceEnablePeerAccess": devices.enable_peer,
        "hipDeviceDisablePeerAccess": plain("deviceDisablePeerAccess"),
        "hipCtxCreate": devices.create_context,
        "hipCtxDestroy": plain("ctxDestroy"),
        "hipCtxPushCurrent": plain("ctxPushCurrent"),
        "hipCtxPopCurrent": devices.pop_context,
        "hipCtxSetCurrent": plain("ctxSetCurrent"),
        "hipCtxGetCurrent": into("ctxGetCurrent"),
        "hipCtxGetDevice": into("getDevice"),
        "hipCtxSynchronize": plain("deviceSynchronize"),
        "hipDevicePrimaryCtxGetState": devices.context_state,
        "hipDevicePrimaryCtxRetain": into("devicePrimaryCtxRetain"),
        "hipDevicePrimaryCtxRelease": plain("devicePrimaryCtxRelease"),
        "hipDevicePrimaryCtxReset": plain("devicePrimaryCtxReset"),
        "hipDevicePrimaryCtxSetFlags": plain("devicePrimaryCtxSetFlags"),
    }
