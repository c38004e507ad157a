# SPDX-License-Identifier: Apache-2.0
"""Converts arguments of C functions of ACL, if the C types do not determine the conversion.

Most of these functions have a parameter of one of these kinds:

- a structure, a list or a buffer
- a pointer that may be null
"""

from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

from crossmem_emulated.acl.codes import KEY_NBYTES, Code
from crossmem_emulated.acl.extents import Places
from crossmem_emulated.acl.fabric import FABRIC, FABRIC_HANDLE_NBYTES, PLAIN

__all__ = ["FUNCTIONS", "Caller", "text_of"]

_DEVICE_ATTRIBUTE, _MODULE_ATTRIBUTE = 2, 1
_MOST_PIDS: Final = 65535
_MOST_PIDS_OF_KEYS: Final = 31
# The emulation's own limits, which are above the needs of any program.
_MOST_PLACES: Final = 64
_MOST_SERVERS: Final = 1024


class Caller(Protocol):
    """The methods of ``AclBinding`` that the functions of this package use."""

    ffi: Any

    def call(self, name: str, *values: Any) -> tuple[tuple[Any, ...] | None, int]:
        """Do the work of the C function ``name`` in the emulation. Return the outputs and the code.

        The outputs are None if the call leaves the C program's variables unchanged.
        """
        ...

    def missing(self, name: str) -> int:
        """Record that a required argument of a call is null. Return the error code."""
        ...

    def finish(self, name: str, code: int, text: str | None) -> int:
        """Return ``code`` as an integer. Record a code other than 0 as the thread's last error.

        ``text`` is the reason for the failure. If ``text`` is None, the error message keeps the
        reason that the emulation gave.
        """
        ...


def text_of(ffi: Any, pointer: Any) -> str:
    """Return a C string as text in which every byte is one character."""
    return str(ffi.string(pointer).decode("latin-1"))


def _check_count(binding: Caller, name: str, count: int, most: int) -> int:
    """Return an error code if ``count`` is larger than ``most``. Otherwise, return 0.

    The caller reads the list only after this check, because a read with a wrong count could cause a
    page fault.
    """
    if count <= most:
        return 0
    return binding.finish(name, Code.RT_PARAM_INVALID, f"{count} entries exceed the limit {most}")


def _numbers(ffi: Any, pointer: Any, count: int) -> list[int]:
    return [int(one) for one in ffi.unpack(pointer, count)]


def _address(ffi: Any, pointer: Any) -> int:
    return int(ffi.cast("uintptr_t", pointer))


# Whole process ----------------------------------------------------------------------------


def _init(binding: Caller, name: str, path: Any) -> int:
    text = "" if path == binding.ffi.NULL else text_of(binding.ffi, path)
    return binding.call(name, text)[1]


def _finalize_reference(binding: Caller, name: str, count: Any) -> int:
    outputs, code = binding.call(name)
    if count != binding.ffi.NULL:
        count[0] = outputs[0] if outputs else 0
    return code


def _get_primary_ctx_state(binding: Caller, name: str, device: int, flags: Any, active: Any) -> int:
    if active == binding.ffi.NULL:
        return binding.missing(name)
    outputs, code = binding.call(name, device)
    if outputs is not None:
        active[0] = outputs[0]
        if flags != binding.ffi.NULL:
            flags[0] = outputs[1]
    return code


def _device_get_uuid(binding: Caller, name: str, device: int, uuid: Any) -> int:
    if uuid == binding.ffi.NULL:
        return binding.missing(name)
    outputs, code = binding.call(name, device)
    if outputs is not None:
        binding.ffi.memmove(uuid.bytes, bytes(outputs[0]["bytes"]), len(uuid.bytes))
    return code


def _launch_host_func(
    binding: Caller, name: str, stream: Any, function: Any, arguments: Any
) -> int:
    if function == binding.ffi.NULL:
        return binding.missing(name)
    handle = _address(binding.ffi, stream)
    return binding.call(name, handle, lambda: function(arguments))[1]


def _launch_callback(
    binding: Caller, name: str, function: Any, data: Any, kind: int, stream: Any
) -> int:
    if function == binding.ffi.NULL:
        return binding.missing(name)
    handle = _address(binding.ffi, stream)
    return binding.call(name, function, data, int(kind), handle)[1]


def _get_stream_attribute(
    binding: Caller, name: str, stream: Any, attribute: int, value: Any
) -> int:
    if value == binding.ffi.NULL:
        return binding.missing(name)
    outputs, code = binding.call(name, _address(binding.ffi, stream), int(attribute))
    if outputs is not None:
        value.failureMode = outputs[0]
    return code


def _ipc_get_event_handle(binding: Caller, name: str, event: Any, handle: Any) -> int:
    if handle == binding.ffi.NULL:
        return binding.missing(name)
    outputs, code = binding.call(name, _address(binding.ffi, event))
    if outputs is not None:
        binding.ffi.memmove(handle, outputs[0], len(outputs[0]))
    return code


def _ipc_open_event_handle(binding: Caller, name: str, handle: Any, event: Any) -> int:
    if event == binding.ffi.NULL:
        return binding.missing(name)
    token = bytes(binding.ffi.buffer(handle.reserved))
    outputs, code = binding.call(name, token)
    if outputs is not None:
        event[0] = binding.ffi.cast("void *", outputs[0])
    return code


# Plain memory -----------------------------------------------------------------------------


def _config(binding: Caller, config: Any) -> dict[str, Any] | None:
    """Return a configuration as the dict that pyACL takes.

    Return None if the pointer to the attributes is null but their number is not 0.
    """
    if config == binding.ffi.NULL or not config.numAttrs:
        return {}
    if config.attrs == binding.ffi.NULL:
        return None
    attributes = [config.attrs[number] for number in range(config.numAttrs)]
    values = {_MODULE_ATTRIBUTE: "moduleId", _DEVICE_ATTRIBUTE: "deviceId"}
    return {
        "attrs": [
            {
                "attr": int(one.attr),
                "value": getattr(one.value, values.get(int(one.attr), "vaFlag")),
            }
            for one in attributes
        ]
    }


def _malloc_with_cfg(
    binding: Caller, name: str, pointer: Any, size: int, policy: int, config: Any
) -> int:
    given = _config(binding, config)
    if pointer == binding.ffi.NULL or given is None:
        return binding.missing(name)
    outputs, code = binding.call(name, size, policy, given)
    if outputs is not None:
        pointer[0] = binding.ffi.cast("void *", outputs[0])
    return code


def _malloc_host_with_cfg(binding: Caller, name: str, pointer: Any, size: int, config: Any) -> int:
    given = _config(binding, config)
    if pointer == binding.ffi.NULL or given is None:
        return binding.missing(name)
    outputs, code = binding.call(name, size, given)
    if outputs is not None:
        pointer[0] = binding.ffi.cast("void *", outputs[0])
    return code


def _pointer_get_attributes(binding: Caller, name: str, pointer: Any, attributes: Any) -> int:
    if attributes == binding.ffi.NULL:
        return binding.missing(name)
    outputs, code = binding.call(name, _address(binding.ffi, pointer))
    if outputs is not None:
        found = outputs[0]
        attributes.location.id = found["location"]["id"]
        attributes.location.type = found["location"]["type"]
        attributes.pageSize = found["page_size"]
        attributes.rsv = found["rsv"]
    return code


def _memcpy_batch(binding: Caller, name: str, *arguments: Any) -> int:
    """Copy in a batch.

    If ``name`` does not end with ``V2``, the ninth of the ``arguments`` is a pointer. The call
    stores the index of the failed copy there. The last argument of an asynchronous function is the
    stream.
    """
    ffi = binding.ffi
    *lists, count, attributes, indexes, number = arguments[:8]
    places = arguments[8:]
    if any(one == ffi.NULL for one in (*lists, attributes, indexes)):
        return binding.missing(name)
    fail = None if name.endswith("V2") else places[0]
    if fail == ffi.NULL:
        return binding.missing(name)
    targets, rooms, sources, sizes = (ffi.unpack(one, count) for one in lists)
    copies = [
        (_address(ffi, to), room, _address(ffi, start), size)
        for to, room, start, size in zip(targets, rooms, sources, sizes, strict=True)
    ]
    # The emulation refuses a batch with more attributes than copies. The first superfluous
    # attribute already causes the refusal, so at most count + 1 attributes are read.
    listed = [
        Places(
            int(indexes[one]),
            (int(attributes[one].dstLoc.id), int(attributes[one].dstLoc.type)),
            (int(attributes[one].srcLoc.id), int(attributes[one].srcLoc.type)),
            is_reserved_used=any(ffi.buffer(attributes[one].rsv)[:]),
        )
        for one in range(min(number, count + 1))
    ]
    stream = [_address(ffi, places[-1])] if "Async" in name else []
    outputs, code = binding.call(name, copies, listed, *stream)
    if fail is not None:
        # The output is SIZE_MAX after a success, and after a failure that names no copy.
        fail[0] = outputs[0] if code and outputs else int(ffi.cast("size_t", -1))
    return code


# Physical memory --------------------------------------------------------------------------


def _properties(prop: Any) -> dict[str, Any]:
    return {
        "handleType": int(prop.handleType),
        "allocationType": int(prop.allocationType),
        "memAttr": int(prop.memAttr),
        "location": {"id": int(prop.location.id), "type": int(prop.location.type)},
        "reserve": int(prop.reserve),
    }


def _malloc_physical(
    binding: Caller, name: str, handle: Any, size: int, prop: Any, flags: int
) -> int:
    if binding.ffi.NULL in {handle, prop}:
        return binding.missing(name)
    outputs, code = binding.call(name, size, _properties(prop), flags)
    if outputs is not None:
        handle[0] = binding.ffi.cast("void *", outputs[0])
    return code


def _mem_get_allocation_granularity(
    binding: Caller, name: str, prop: Any, option: int, granularity: Any
) -> int:
    if binding.ffi.NULL in {prop, granularity}:
        return binding.missing(name)
    outputs, code = binding.call(name, _properties(prop), option)
    if outputs is not None:
        granularity[0] = outputs[0]
    return code


def _mem_get_allocation_properties_from_handle(
    binding: Caller, name: str, handle: Any, prop: Any
) -> int:
    if prop == binding.ffi.NULL:
        return binding.missing(name)
    outputs, code = binding.call(name, _address(binding.ffi, handle))
    if outputs is not None:
        prop[0] = outputs[0]
    return code


def _mem_set_access(
    binding: Caller, name: str, pointer: Any, size: int, wanted: Any, count: int
) -> int:
    if code := _check_count(binding, name, count, _MOST_PLACES):
        return code
    places = [] if wanted == binding.ffi.NULL else [wanted[number] for number in range(count)]
    return binding.call(
        name,
        _address(binding.ffi, pointer),
        size,
        [(int(one.flags), int(one.location.id), int(one.location.type)) for one in places],
    )[1]


def _mem_get_access(binding: Caller, name: str, pointer: Any, location: Any, flag: Any) -> int:
    if binding.ffi.NULL in {location, flag}:
        return binding.missing(name)
    place = int(location.id), int(location.type)
    outputs, code = binding.call(name, _address(binding.ffi, pointer), *place)
    if outputs is not None:
        flag[0] = outputs[0]
    return code


# Shareable handles ------------------------------------------------------------------------


def _mem_set_pid_to_shareable_handle(
    binding: Caller, name: str, share: int, pids: Any, count: int
) -> int:
    if pids == binding.ffi.NULL or not count:
        return binding.missing(name)
    if code := _check_count(binding, name, count, _MOST_PIDS):
        return code
    listed = _numbers(binding.ffi, pids, count)
    return binding.call(name, share, listed)[1]


def _share_of(ffi: Any, share: Any, kind: int) -> int | bytes:
    """Return the shareable handle at ``share``.

    For an unknown kind, return 0. The emulation then refuses the call because of the unknown kind.
    """
    if kind == PLAIN:
        return int(ffi.cast("uint64_t *", share)[0])
    return bytes(ffi.buffer(share, FABRIC_HANDLE_NBYTES)) if kind == FABRIC else 0


def _mem_export_to_shareable_handle_v2(
    binding: Caller, name: str, handle: Any, flags: int, kind: int, share: Any
) -> int:
    if share == binding.ffi.NULL:
        return binding.missing(name)
    outputs, code = binding.call(name, _address(binding.ffi, handle), flags, int(kind))
    if outputs is not None:
        (value,) = outputs
        if isinstance(value, bytes):
            binding.ffi.memmove(share, value, len(value))
        else:
            binding.ffi.cast("uint64_t *", share)[0] = value
    return code


def _mem_set_pid_to_shareable_handle_v2(
    binding: Caller, name: str, share: Any, kind: int, pids: Any, count: int
) -> int:
    if binding.ffi.NULL in {share, pids} or not count:
        return binding.missing(name)
    if code := _check_count(binding, name, count, _MOST_PIDS):
        return code
    value, listed = _share_of(binding.ffi, share, kind), _numbers(binding.ffi, pids, count)
    return binding.call(name, value, int(kind), listed)[1]


def _mem_import_from_shareable_handle_v2(
    binding: Caller, name: str, share: Any, kind: int, flags: int, handle: Any
) -> int:
    if binding.ffi.NULL in {share, handle}:
        return binding.missing(name)
    value = _share_of(binding.ffi, share, kind)
    outputs, code = binding.call(name, value, int(kind), flags)
    if outputs is not None:
        handle[0] = binding.ffi.cast("void *", outputs[0])
    return code


# Keys -------------------------------------------------------------------------------------


def _ipc_mem_get_export_key(  # noqa: PLR0917 - the vendor's order
    binding: Caller, name: str, pointer: Any, size: int, key: Any, length: int, flags: int
) -> int:
    return _export_key(binding, name, (_address(binding.ffi, pointer), size), key, length, flags)


def _notify_get_export_key(
    binding: Caller, name: str, notify: Any, key: Any, length: int, flags: int
) -> int:
    return _export_key(binding, name, (_address(binding.ffi, notify),), key, length, flags)


def _export_key(
    binding: Caller, name: str, exported: tuple[int, ...], key: Any, length: int, flags: int
) -> int:
    if key == binding.ffi.NULL:
        return binding.missing(name)
    # The emulation follows pyACL, which refuses a buffer that is longer than a key. The C function
    # accepts such a buffer. So the emulation gets the length of a key if the buffer is longer.
    room = min(length, KEY_NBYTES)
    outputs, code = binding.call(name, *exported, room, flags)
    if outputs is not None:
        binding.ffi.memmove(key, outputs[0].encode("ascii") + b"\0", KEY_NBYTES)
    return code


def _ipc_mem_set_import_pid(binding: Caller, name: str, key: Any, pids: Any, count: int) -> int:
    if binding.ffi.NULL in {key, pids}:
        return binding.missing(name)
    if not count:
        return binding.finish(name, Code.RT_PARAM_INVALID, "there are no pids")
    if code := _check_count(binding, name, count, _MOST_PIDS_OF_KEYS):
        return code
    listed = _numbers(binding.ffi, pids, count)
    return binding.call(name, text_of(binding.ffi, key), listed)[1]


def _ipc_mem_import_pid_inter_server(
    binding: Caller, name: str, key: Any, servers: Any, count: int
) -> int:
    ffi = binding.ffi
    if ffi.NULL in {key, servers}:
        return binding.missing(name)
    if code := _check_count(binding, name, count, _MOST_SERVERS):
        return code
    listed = [
        (int(one.sdid), [] if one.pid == ffi.NULL else _numbers(ffi, one.pid, one.num))
        for one in (servers[number] for number in range(count))
    ]
    return binding.call(name, text_of(ffi, key), listed)[1]


# Notifies ---------------------------------------------------------------------------------


def _notify_set_import_pid(binding: Caller, name: str, notify: Any, pids: Any, count: int) -> int:
    if pids == binding.ffi.NULL:
        return binding.missing(name)
    if not count:
        return binding.finish(name, Code.RT_PARAM_INVALID, "there are no pids")
    if code := _check_count(binding, name, count, _MOST_PIDS_OF_KEYS):
        return code
    listed = _numbers(binding.ffi, pids, count)
    return binding.call(name, _address(binding.ffi, notify), listed)[1]


FUNCTIONS: Final[Mapping[str, Callable[..., int]]] = {
    "aclInit": _init,
    "aclFinalizeReference": _finalize_reference,
    "aclrtGetPrimaryCtxState": _get_primary_ctx_state,
    "aclrtDeviceGetUuid": _device_get_uuid,
    "aclrtLaunchHostFunc": _launch_host_func,
    "aclrtLaunchCallback": _launch_callback,
    "aclrtGetStreamAttribute": _get_stream_attribute,
    "aclrtIpcGetEventHandle": _ipc_get_event_handle,
    "aclrtIpcOpenEventHandle": _ipc_open_event_handle,
    "aclrtMallocWithCfg": _malloc_with_cfg,
    "aclrtMallocForTaskScheduler": _malloc_with_cfg,
    "aclrtMallocHostWithCfg": _malloc_host_with_cfg,
    "aclrtPointerGetAttributes": _pointer_get_attributes,
    "aclrtMemcpyBatch": _memcpy_batch,
    "aclrtMemcpyBatchV2": _memcpy_batch,
    "aclrtMemcpyBatchAsync": _memcpy_batch,
    "aclrtMemcpyBatchAsyncV2": _memcpy_batch,
    "aclrtMallocPhysical": _malloc_physical,
    "aclrtMemGetAllocationGranularity": _mem_get_allocation_granularity,
    "aclrtMemGetAllocationPropertiesFromHandle": _mem_get_allocation_properties_from_handle,
    "aclrtMemSetAccess": _mem_set_access,
    "aclrtMemGetAccess": _mem_get_access,
    "aclrtMemSetPidToShareableHandle": _mem_set_pid_to_shareable_handle,
    "aclrtMemExportToShareableHandleV2": _mem_export_to_shareable_handle_v2,
    "aclrtMemSetPidToShareableHandleV2": _mem_set_pid_to_shareable_handle_v2,
    "aclrtMemImportFromShareableHandleV2": _mem_import_from_shareable_handle_v2,
    "aclrtIpcMemGetExportKey": _ipc_mem_get_export_key,
    "aclrtIpcMemSetImportPid": _ipc_mem_set_import_pid,
    "aclrtNotifyGetExportKey": _notify_get_export_key,
    "aclrtNotifySetImportPid": _notify_set_import_pid,
    "aclrtIpcMemImportPidInterServer": _ipc_mem_import_pid_inter_server,
}
"""For each C function, the Python function that converts the arguments. The key is the C name."""
