# SPDX-License-Identifier: Apache-2.0
"""Result codes of ACL, and crossmem's error for each of them.

Each code has the name of its macro in ``acl_base.h`` or ``rt_error_codes.h``. The runtime returns
code 507899 for each error of the vendor's kernel driver that has no code in ACL. Therefore the
meaning of 507899 depends on the call.
"""

from typing import Final, NamedTuple

from crossmem.errors import (
    AccessDeniedError,
    CrossmemError,
    DriverError,
    OutOfMemoryError,
    StaleHandleError,
    UnsupportedError,
)
from crossmem.guards import clause

__all__ = [
    "BACKEND",
    "CODES",
    "CONTEXT_NULL",
    "DRV_INTERNAL_ERROR",
    "FAILURE",
    "FEATURE_NOT_SUPPORT",
    "INVALID_HANDLE",
    "PARAM_INVALID",
    "QUEUE_EMPTY",
    "QUEUE_FULL",
    "REPEAT_INITIALIZE",
    "SUCCESS",
    "Code",
    "error_for",
]

BACKEND: Final = "ascend"

SUCCESS: Final = 0
REPEAT_INITIALIZE: Final = 100002
PARAM_INVALID: Final = 107000
CONTEXT_NULL: Final = 107002
_STREAM_CONTEXT: Final = 107003
INVALID_HANDLE: Final = 107017
FEATURE_NOT_SUPPORT: Final = 207000
_RESOURCE_ALLOC_FAIL: Final = 207005
QUEUE_EMPTY: Final = 207013
QUEUE_FULL: Final = 207014
FAILURE: Final = 500001
DRV_INTERNAL_ERROR: Final = 507899


class Code(NamedTuple):
    """The meaning of a result code."""

    name: str
    hint: str
    error: type[CrossmemError] = DriverError


_ARGUMENT = "ACL refused an argument: this may be a fault in crossmem; report it"
_INIT = "other code finalised or re-initialised ACL: do this only after the last use of crossmem"
_FOREIGN = (
    "crossmem's own calls do not cause this error: earlier work of the program or of another "
    "library in this process may have failed"
)
_TASK = (
    "work on the device failed or hung: see the plog files of CANN (~/ascend/log), and `npu-smi "
    "info` for the device's health"
)
_RESOURCES = "the driver's own resources are used up: release some memory, streams or contexts"
_FEATURE = (
    "this product, driver or virtual NPU does not offer the call: shareable handles need CANN 8.0, "
    "keys need CANN 8.3.RC1 and driver 25.3.RC1; another mechanism may work"
)
_MEMORY = "free some allocations; `npu-smi info` shows how much memory other processes use"
_INSTALL = "check that the versions of CANN, driver and firmware belong together"

CODES: Final = {
    100000: Code("ACL_ERROR_INVALID_PARAM", _ARGUMENT),
    100001: Code("ACL_ERROR_UNINITIALIZE", _INIT),
    100002: Code("ACL_ERROR_REPEAT_INITIALIZE", "harmless: ACL was initialised before"),
    100003: Code("ACL_ERROR_INVALID_FILE", _FOREIGN),
    100032: Code("ACL_ERROR_INVALID_QUEUE_ID", _FOREIGN),
    100037: Code("ACL_ERROR_REPEAT_FINALIZE", _INIT),
    100039: Code(
        "ACL_ERROR_COMPILING_STUB_MODE",
        "the stub library of the toolkit was loaded: in LD_LIBRARY_PATH, put the driver's lib64 "
        "folder before the folder of the stub library",
    ),
    148051: Code("ACL_ERROR_RELATIVE_RESOURCE_NOT_CLEARED", _FOREIGN),
    200000: Code("ACL_ERROR_BAD_ALLOC", "the host is out of memory"),
    200001: Code("ACL_ERROR_API_NOT_SUPPORT", _FEATURE, UnsupportedError),
    200002: Code("ACL_ERROR_INVALID_DEVICE", "see `npu-smi info` for the devices of this machine"),
    200003: Code("ACL_ERROR_MEMORY_ADDRESS_UNALIGNED", _ARGUMENT),
    200004: Code("ACL_ERROR_RESOURCE_NOT_MATCH", _ARGUMENT),
    200005: Code("ACL_ERROR_INVALID_RESOURCE_HANDLE", _ARGUMENT),
    200006: Code("ACL_ERROR_FEATURE_UNSUPPORTED", _FEATURE, UnsupportedError),
    200007: Code("ACL_ERROR_PROF_MODULES_UNSUPPORTED", _FOREIGN),
    300000: Code("ACL_ERROR_STORAGE_OVER_LIMIT", _RESOURCES),
    500000: Code("ACL_ERROR_INTERNAL_ERROR", _TASK),
    500001: Code("ACL_ERROR_FAILURE", _TASK),
    500002: Code("ACL_ERROR_GE_FAILURE", _FOREIGN),
    500003: Code("ACL_ERROR_RT_FAILURE", _TASK),
    500004: Code("ACL_ERROR_DRV_FAILURE", _TASK),
    500005: Code("ACL_ERROR_PROFILING_FAILURE", _FOREIGN),
    107000: Code("ACL_ERROR_RT_PARAM_INVALID", _ARGUMENT),
    107001: Code(
        "ACL_ERROR_RT_INVALID_DEVICEID",
        "see `npu-smi info` for the devices, and ASCEND_RT_VISIBLE_DEVICES for those of this "
        "process",
    ),
    107002: Code(
        "ACL_ERROR_RT_CONTEXT_NULL",
        "the device or its context is gone: other code in this process reset the device, or this "
        "process is a forked child; start children with the method spawn",
    ),
    107003: Code(
        "ACL_ERROR_RT_STREAM_CONTEXT",
        "the stream belongs to another context: other code in this process destroyed a context "
        "that is in use",
    ),
    107006: Code("ACL_ERROR_RT_EVENT_TIMESTAMP_INVALID", _FOREIGN),
    107007: Code("ACL_ERROR_RT_EVENT_TIMESTAMP_REVERSAL", _FOREIGN),
    107008: Code("ACL_ERROR_RT_ADDR_UNALIGNED", _ARGUMENT),
    107011: Code("ACL_ERROR_RT_STREAM_SUBSCRIBE", _FOREIGN),
    107012: Code("ACL_ERROR_RT_THREAD_SUBSCRIBE", _FOREIGN),
    107015: Code("ACL_ERROR_RT_STREAM_NO_CB_REG", _FOREIGN),
    107016: Code("ACL_ERROR_RT_INVALID_MEMORY_TYPE", _ARGUMENT),
    107017: Code(
        "ACL_ERROR_RT_INVALID_HANDLE",
        "the memory behind the handle is gone, or other code in this process reset the device",
    ),
    107018: Code("ACL_ERROR_RT_INVALID_MALLOC_TYPE", _ARGUMENT),
    107019: Code("ACL_ERROR_RT_WAIT_TIMEOUT", _TASK),
    107020: Code("ACL_ERROR_RT_TASK_TIMEOUT", _TASK),
    107022: Code("ACL_ERROR_RT_DEVICE_TASK_ABORT", _TASK),
    107039: Code("ACL_ERROR_RT_INSUFFICIENT_INPUT_ARRAY", _ARGUMENT),
    207000: Code("ACL_ERROR_RT_FEATURE_NOT_SUPPORT", _FEATURE, UnsupportedError),
    207001: Code("ACL_ERROR_RT_MEMORY_ALLOCATION", _MEMORY, OutOfMemoryError),
    207002: Code(
        "ACL_ERROR_RT_MEMORY_FREE",
        "the driver could not free the memory: the memory is freed when this process ends",
    ),
    207004: Code(
        "ACL_ERROR_RT_NO_DEVICE",
        "see `npu-smi info`; a container needs the device files (/dev/davinci*)",
    ),
    207005: Code("ACL_ERROR_RT_RESOURCE_ALLOC_FAIL", _RESOURCES),
    207006: Code(
        "ACL_ERROR_RT_NO_PERMISSION",
        "the driver does not permit this call: perhaps another user owns the device's files, or "
        "the call adds a process to a whitelist but the export has no whitelist",
        AccessDeniedError,
    ),
    207007: Code("ACL_ERROR_RT_NO_EVENT_RESOURCE", _RESOURCES),
    207008: Code("ACL_ERROR_RT_NO_STREAM_RESOURCE", _RESOURCES),
    207009: Code("ACL_ERROR_RT_NO_NOTIFY_RESOURCE", _RESOURCES),
    207012: Code("ACL_ERROR_RT_OVER_LIMIT", _RESOURCES),
    207013: Code("ACL_ERROR_RT_QUEUE_EMPTY", _FOREIGN),
    207014: Code("ACL_ERROR_RT_QUEUE_FULL", _FOREIGN),
    207015: Code("ACL_ERROR_RT_REPEATED_INIT", _INIT),
    207018: Code("ACL_ERROR_RT_DEVICE_OOM", _MEMORY, OutOfMemoryError),
    207020: Code("ACL_ERROR_RT_TIMEOUT", _TASK),
    207021: Code(
        "ACL_ERROR_RT_LINK_TYPE_NOT_SUPPORTED",
        "the link between the devices does not support this call: import the memory on its own "
        "device",
    ),
    507000: Code("ACL_ERROR_RT_INTERNAL_ERROR", _TASK),
    507006: Code("ACL_ERROR_RT_EVENT_NOT_COMPLETE", _FOREIGN),
    507007: Code("ACL_ERROR_RT_CONTEXT_RELEASE_ERROR", _TASK),
    507012: Code("ACL_ERROR_RT_REPORT_TIMEOUT", _TASK),
    507022: Code("ACL_ERROR_RT_IPC_ERROR", _TASK),
    507033: Code("ACL_ERROR_RT_DEV_SETUP_ERROR", _INSTALL),
    507046: Code("ACL_ERROR_RT_STREAM_SYNC_TIMEOUT", _TASK),
    507047: Code("ACL_ERROR_RT_EVENT_SYNC_TIMEOUT", _TASK),
    507051: Code("ACL_ERROR_RT_SEND_MSG", _TASK),
    507052: Code("ACL_ERROR_RT_COPY_DATA", _TASK),
    507053: Code("ACL_ERROR_RT_DEVICE_MEM_ERROR", _TASK),
    507899: Code(
        "ACL_ERROR_RT_DRV_INTERNAL_ERROR",
        "the driver gave no reason: see the plog files of CANN (~/ascend/log); after a fault on "
        "the device, every call can return this code",
    ),
    507901: Code("ACL_ERROR_RT_SOCKET_CLOSE", _TASK),
    507910: Code("ACL_ERROR_RT_HOST_MEMORY_ALREADY_REGISTERED", _FOREIGN),
    507911: Code("ACL_ERROR_RT_HOST_MEMORY_NOT_REGISTERED", _FOREIGN),
}
"""The codes that ACL's headers name for devices, memory, streams, events, notifies and queues."""

_IMPORTS: Final = frozenset({"rt.mem_import_from_shareable_handle", "rt.ipc_mem_import_by_key"})

_REFUSALS: Final = {
    "rt.mem_import_from_shareable_handle": "the whitelist does not name this process, or "
    "names an earlier process with this pid; this process is the exporter; or the exporter is "
    "freeing the memory",
    "rt.ipc_mem_import_by_key": "the exporter closed the key or is dead, this process is not on "
    "the whitelist, or the whitelist names an earlier process with this pid",
    "rt.mem_export_to_shareable_handle": "other code has already exported the memory, or the "
    "memory was imported",
    "rt.ipc_mem_get_export_key": "the memory does not begin at a page boundary, or was imported "
    "from another process",
    "rt.mem_set_pid_to_shareable_handle": "no process has this pid",
    "rt.ipc_mem_set_import_pid": "no process has this pid",
    "rt.map_mem": "these addresses are already mapped; the addresses were used for another device; "
    "or the imported memory is smaller than its exporter says",
    "rt.unmap_mem": "no memory is mapped at this address, or a key of the memory is still open",
    "rt.release_mem_address": "memory is still mapped at these addresses",
    "tdt.attach_queue": "the queue was destroyed, or belongs to another memory group",
    "tdt.grant_queue": "the queue was destroyed",
    "tdt.enqueue": "another process died during a put, or the queue was destroyed",
    "tdt.dequeue": "another process died during a get, or the queue was destroyed",
}
"""The usual causes of code 507899. Each key of this dict names the call that returned the code."""

_DEVICE_MEM_ERROR: Final = 507053
_LOST: Final = (
    "the process that allocated the buffer ended before a consumer received it: keep producers "
    "alive until consumers have received the buffers"
)
_NO_GROUP: Final = (
    "the usual cause is that this process is in no memory group: another process must add it to a "
    "group; the emulation adds each process to the group that CROSSMEM_EMULATED_ACL_GROUP names"
)
_OTHER_CONTEXT: Final = (
    "stream= belongs to another context: in this thread, first call acl.rt.set_context with the "
    "stream's context"
)
_STREAM: Final = (
    "stream= is not an existing stream of this process: pass a stream of the timeline's or queue's "
    "device"
)
_MEMORY_GONE: Final = (
    "with mechanism 'key', the owner is dead, or the owner closed the key (see owner_alive): "
    "attach memory of a living owner; with other mechanisms, see `npu-smi info` for the device's "
    "health"
)

_HINTS: Final = {
    ("tdt.dequeue", _RESOURCE_ALLOC_FAIL): _LOST,
    ("tdt.create_queue", FAILURE): _NO_GROUP,
    ("tdt.attach_queue", FAILURE): _NO_GROUP,
    # The stream is the only argument of these calls that the application chooses, so a wrong
    # stream is the usual cause of these codes.
    **{
        (f"rt.{function}", code): hint
        for function in ("synchronize_stream", "value_wait", "value_write")
        for code, hint in ((PARAM_INVALID, _STREAM), (_STREAM_CONTEXT, _OTHER_CONTEXT))
    },
    **{
        (f"rt.{function}", _DEVICE_MEM_ERROR): _MEMORY_GONE
        for function in ("memcpy", "memcpy_async", "synchronize_device", "synchronize_stream")
    },
}
"""Hints for single calls. Each key of this dict is a call and a code. If this call returns this
code, this hint replaces the usual hint of the code."""


def error_for(call: str, code: int, detail: str = "") -> CrossmemError:
    """Return the error for a result of ACL.

    Parameters
    ----------
    call
        Name of the function in the module ``acl``, such as ``"rt.map_mem"``.
    code
        The result code.
    detail
        CANN's text about the failure; empty if CANN has no text.
    """
    known = CODES.get(code)
    name, hint, kind = known or Code(
        "unknown to crossmem", "look the number up in acl_base.h and rt_error_codes.h of CANN"
    )
    if code == INVALID_HANDLE and call in _IMPORTS:
        kind = StaleHandleError
        hint = "the exporter freed the memory, or is dead"
    if code == DRV_INTERNAL_ERROR and call in _REFUSALS:
        hint = f"{_REFUSALS[call]}; see also the plog files of CANN (~/ascend/log)"
    hint = _HINTS.get((call, code), hint)
    said = f"; CANN says: {clause(detail, 80)}" if detail else ""
    if kind is DriverError:
        message = f"ACL refused {call}{said}"
        return DriverError(
            message,
            call=f"acl.{call}",
            code=code,
            name=name,
            hint=hint,
            details=detail,
            backend=BACKEND,
        )
    message = f"acl.{call} failed with {name} ({code}){said}"
    return kind(message, hint=hint, details=detail, backend=BACKEND)
