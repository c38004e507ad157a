# SPDX-License-Identifier: Apache-2.0
"""Dicts with the prototypes of ACL's C functions. The keys are the functions' names in pyACL.

The prototypes follow ``acl/acl_rt.h``, ``acl/acl.h`` and ``acl/acl_tdt_queue.h`` of ACL 1.17.0
(CANN of 2026).
"""

import ctypes
from collections.abc import Iterator, Sequence
from typing import Any, Final

from typing_extensions import override

from crossmem.driver.native import Array, Fixed, In, Out, Parameter, Prototype

__all__ = ["ACL", "RT", "TDT"]

_FABRIC_NBYTES: Final = 128
_UUID_NBYTES: Final = 16


# Structures -------------------------------------------------------------------------------


class _PhysicalMemProp(ctypes.Structure):
    """``aclrtPhysicalMemProp``."""

    _fields_ = (
        ("handleType", ctypes.c_int),
        ("allocationType", ctypes.c_int),
        ("memAttr", ctypes.c_int),
        ("location_id", ctypes.c_uint32),
        ("location_type", ctypes.c_int),
        ("reserve", ctypes.c_uint64),
    )


class _MemAccessDesc(ctypes.Structure):
    """``aclrtMemAccessDesc``."""

    _fields_ = (
        ("flags", ctypes.c_int),
        ("location_id", ctypes.c_uint32),
        ("location_type", ctypes.c_int),
        ("rsv", ctypes.c_uint8 * 12),
    )


class _Properties(Parameter):
    """The address of an ``aclrtPhysicalMemProp``. The caller gives the dict that pyACL takes."""

    kinds = (ctypes.POINTER(_PhysicalMemProp),)

    @override
    def passed(self, given: Iterator[Any]) -> Sequence[Any]:
        fields = dict(next(given))
        location = fields.pop("location", {})
        nested = {f"location_{name}": value for name, value in location.items()}
        return (ctypes.byref(_PhysicalMemProp(**fields, **nested)),)


class _Text(Parameter):
    """The address of a C string. The caller gives the text as ``str`` or ``bytes``."""

    kinds = (ctypes.c_char_p,)

    @override
    def passed(self, given: Iterator[Any]) -> Sequence[Any]:
        text = next(given)
        return (text.encode() if isinstance(text, str) else text,)


class _Share(Parameter):
    """The address of a shareable handle.

    The caller gives a fabric handle as bytes, and every other handle as a number.
    """

    kinds = (ctypes.c_void_p,)

    @override
    def passed(self, given: Iterator[Any]) -> Sequence[Any]:
        share = next(given)
        if isinstance(share, int):
            return (ctypes.byref(ctypes.c_uint64(share)),)
        return ((ctypes.c_uint8 * _FABRIC_NBYTES).from_buffer_copy(share),)


# Functions --------------------------------------------------------------------------------

_INT: Final = In(ctypes.c_int32)
_UINT: Final = In(ctypes.c_uint32)
_SIZE: Final = In(ctypes.c_size_t)
_U64: Final = In(ctypes.c_uint64)
_POINTER: Final = In(ctypes.c_void_p)
"""An address. Most of the vendor's handles, such as streams, are addresses too."""

_INT_OUT: Final = Out(ctypes.c_int32)
_UINT_OUT: Final = Out(ctypes.c_uint32)
_SIZE_OUT: Final = Out(ctypes.c_size_t)
_POINTER_OUT: Final = Out(ctypes.c_void_p)
_TEXT: Final = _Text()
_PIDS: Final = Array(ctypes.c_int32)
_PROPERTIES: Final = _Properties()
_SHARE: Final = _Share()

ACL: Final = {
    "get_recent_err_msg": Prototype("aclGetRecentErrMsg", restype=ctypes.c_char_p),
    "get_soc_name": Prototype("aclrtGetSocName", restype=ctypes.c_char_p),
    "init": Prototype("aclInit", Fixed(ctypes.c_char_p, None)),
}
"""Functions of the module ``acl``."""

RT: Final = {
    # Devices and contexts.
    "create_context": Prototype("aclrtCreateContext", _POINTER_OUT, _INT),
    "destroy_context": Prototype("aclrtDestroyContext", _POINTER),
    "device_can_access_peer": Prototype("aclrtDeviceCanAccessPeer", _INT_OUT, _INT, _INT),
    "device_enable_peer_access": Prototype("aclrtDeviceEnablePeerAccess", _INT, _UINT),
    "device_get_bare_tgid": Prototype("aclrtDeviceGetBareTgid", _INT_OUT),
    "device_get_uuid": Prototype(
        "aclrtDeviceGetUuid", _INT, Out(ctypes.c_uint8 * _UUID_NBYTES, lambda u: {"bytes": [*u]})
    ),
    "device_peer_access_status": Prototype("aclrtDevicePeerAccessStatus", _INT, _INT, _INT_OUT),
    "get_context": Prototype("aclrtGetCurrentContext", _POINTER_OUT),
    "get_device": Prototype("aclrtGetDevice", _INT_OUT),
    "get_run_mode": Prototype("aclrtGetRunMode", _INT_OUT),
    "get_device_count": Prototype("aclrtGetDeviceCount", Out(ctypes.c_uint32)),
    "set_context": Prototype("aclrtSetCurrentContext", _POINTER),
    "set_device": Prototype("aclrtSetDevice", _INT),
    "synchronize_device": Prototype("aclrtSynchronizeDevice"),
    # Copies.
    "create_stream": Prototype("aclrtCreateStream", _POINTER_OUT),
    "destroy_stream": Prototype("aclrtDestroyStream", _POINTER),
    "memcpy": Prototype("aclrtMemcpy", _POINTER, _SIZE, _POINTER, _SIZE, _INT),
    "memcpy_async": Prototype("aclrtMemcpyAsync", _POINTER, _SIZE, _POINTER, _SIZE, _INT, _POINTER),
    "synchronize_stream": Prototype("aclrtSynchronizeStream", _POINTER),
    # Shareable handles.
    "free_physical": Prototype("aclrtFreePhysical", _POINTER),
    "malloc_physical": Prototype("aclrtMallocPhysical", _POINTER_OUT, _SIZE, _PROPERTIES, _U64),
    "map_mem": Prototype("aclrtMapMem", _POINTER, _SIZE, _SIZE, _POINTER, _U64),
    "mem_export_to_shareable_handle": Prototype(
        "aclrtMemExportToShareableHandle", _POINTER, _INT, _U64, Out(ctypes.c_uint64)
    ),
    "mem_get_allocation_granularity": Prototype(
        "aclrtMemGetAllocationGranularity", _PROPERTIES, _INT, Out(ctypes.c_size_t)
    ),
    "mem_import_from_shareable_handle": Prototype(
        "aclrtMemImportFromShareableHandle", _U64, _INT, _POINTER_OUT
    ),
    "mem_set_pid_to_shareable_handle": Prototype("aclrtMemSetPidToShareableHandle", _U64, _PIDS),
    "release_mem_address": Prototype("aclrtReleaseMemAddress", _POINTER),
    "reserve_mem_address": Prototype(
        "aclrtReserveMemAddress", _POINTER_OUT, _SIZE, _SIZE, _POINTER, _U64
    ),
    "unmap_mem": Prototype("aclrtUnmapMem", _POINTER),
    # Keys.
    "free": Prototype("aclrtFree", _POINTER),
    "ipc_mem_close": Prototype("aclrtIpcMemClose", _TEXT),
    "ipc_mem_get_export_key": Prototype(
        "aclrtIpcMemGetExportKey", _POINTER, _SIZE, In(ctypes.c_char_p), _SIZE, _U64
    ),
    "ipc_mem_import_by_key": Prototype("aclrtIpcMemImportByKey", _POINTER_OUT, _TEXT, _U64),
    "ipc_mem_set_import_pid": Prototype("aclrtIpcMemSetImportPid", _TEXT, _PIDS),
    "malloc": Prototype("aclrtMalloc", _POINTER_OUT, _SIZE, _INT),
    # Values in host memory that is registered for devices, and ACL's notify objects.
    "create_notify": Prototype("aclrtCreateNotify", _POINTER_OUT, _U64),
    "destroy_notify": Prototype("aclrtDestroyNotify", _POINTER),
    "host_register": Prototype("aclrtHostRegister", _POINTER, _U64, _INT, _POINTER_OUT),
    "host_unregister": Prototype("aclrtHostUnregister", _POINTER),
    "notify_get_export_key": Prototype(
        "aclrtNotifyGetExportKey", _POINTER, In(ctypes.c_char_p), _SIZE, _U64
    ),
    "notify_import_by_key": Prototype("aclrtNotifyImportByKey", _POINTER_OUT, _TEXT, _U64),
    "notify_set_import_pid": Prototype("aclrtNotifySetImportPid", _POINTER, _PIDS),
    "record_notify": Prototype("aclrtRecordNotify", _POINTER, _POINTER),
    "value_wait": Prototype("aclrtValueWait", _POINTER, _U64, _UINT, _POINTER),
    "value_write": Prototype("aclrtValueWrite", _POINTER, _U64, _UINT, _POINTER),
    "wait_and_reset_notify": Prototype("aclrtWaitAndResetNotify", _POINTER, _POINTER, _UINT),
    # Functions that pyACL lacks, with names in pyACL's style. mem_set_access takes one tuple for
    # each device: flags, device number, type of location. The vendor's driver assigns the device
    # numbers, and ASCEND_RT_VISIBLE_DEVICES does not change them.
    "mem_export_to_shareable_handle_v2": Prototype(
        "aclrtMemExportToShareableHandleV2",
        _POINTER,
        _U64,
        _INT,
        Out(ctypes.c_uint8 * _FABRIC_NBYTES, bytes),
    ),
    "mem_import_from_shareable_handle_v2": Prototype(
        "aclrtMemImportFromShareableHandleV2", _SHARE, _INT, _U64, _POINTER_OUT
    ),
    "mem_retain_allocation_handle": Prototype(
        "aclrtMemRetainAllocationHandle", _POINTER, _POINTER_OUT
    ),
    "mem_set_access": Prototype("aclrtMemSetAccess", _POINTER, _SIZE, Array(_MemAccessDesc)),
    "mem_set_pid_to_shareable_handle_v2": Prototype(
        "aclrtMemSetPidToShareableHandleV2", _SHARE, _INT, _PIDS
    ),
}
"""Functions of the module ``acl.rt``."""

TDT: Final = {
    # Queues. The permissions are bits: manage 1, dequeue 2, enqueue 4. Timeouts are milliseconds.
    "attach_queue": Prototype("acltdtAttachQueue", _UINT, _INT, _UINT_OUT),
    "create_queue": Prototype("acltdtCreateQueue", _POINTER, _UINT_OUT),
    "create_queue_attr": Prototype("acltdtCreateQueueAttr", restype=ctypes.c_void_p),
    "dequeue": Prototype("acltdtDequeue", _UINT, _POINTER_OUT, _INT),
    "destroy_queue": Prototype("acltdtDestroyQueue", _UINT),
    "destroy_queue_attr": Prototype("acltdtDestroyQueueAttr", _POINTER),
    "enqueue": Prototype("acltdtEnqueue", _UINT, _POINTER, _INT),
    "grant_queue": Prototype("acltdtGrantQueue", _UINT, _INT, _UINT, _INT),
    "set_queue_attr": Prototype("acltdtSetQueueAttr", _POINTER, _INT, _SIZE, _POINTER),
    # Buffers.
    "alloc_buf": Prototype("acltdtAllocBuf", _SIZE, _UINT, _POINTER_OUT),
    "free_buf": Prototype("acltdtFreeBuf", _POINTER),
    "get_buf_data": Prototype("acltdtGetBufData", _POINTER, _POINTER_OUT, _SIZE_OUT),
    "get_buf_data_len": Prototype("acltdtGetBufDataLen", _POINTER, _SIZE_OUT),
    "get_buf_user_data": Prototype("acltdtGetBufUserData", _POINTER, _POINTER, _SIZE, _SIZE),
    "set_buf_data_len": Prototype("acltdtSetBufDataLen", _POINTER, _SIZE),
    "set_buf_user_data": Prototype("acltdtSetBufUserData", _POINTER, _POINTER, _SIZE, _SIZE),
}
"""Functions for queues and buffers. pyACL lacks these functions, so the name of their module,
``acl.tdt``, is crossmem's own."""
