# SPDX-License-Identifier: Apache-2.0
"""The Python side of ``libascendcl.so``: C arguments in, calls of the emulation, results out."""

import os
import threading
from collections.abc import Callable, Mapping
from typing import Any, Final

from crossmem_emulated.abi.ascend import records
from crossmem_emulated.acl import Acl
from crossmem_emulated.acl.codes import Code
from crossmem_emulated.options import Options

__all__ = ["AclBinding"]

_PLAIN: Final[Mapping[str, str]] = {
    "aclFinalize": "finalize",
    "aclrtGetVersion": "get_version",
    "aclrtGetRunMode": "rt.get_run_mode",
    "aclrtGetDeviceCount": "rt.get_device_count",
    "aclrtSetDevice": "rt.set_device",
    "aclrtResetDevice": "rt.reset_device",
    "aclrtResetDeviceForce": "rt.reset_device_force",
    "aclrtGetDevice": "rt.get_device",
    "aclrtSynchronizeDevice": "rt.synchronize_device",
    "aclrtSynchronizeDeviceWithTimeout": "rt.synchronize_device_with_timeout",
    "aclrtDeviceGetBareTgid": "rt.device_get_bare_tgid",
    "aclrtGetDeviceInfo": "c.get_device_info",
    "aclrtQueryDeviceStatus": "c.query_device_status",
    "aclrtGetLogicDevIdByUserDevId": "c.get_logic_dev_id_by_user_dev_id",
    "aclrtGetUserDevIdByLogicDevId": "c.get_user_dev_id_by_logic_dev_id",
    "aclrtGetLogicDevIdByPhyDevId": "c.get_logic_dev_id_by_phy_dev_id",
    "aclrtGetPhyDevIdByLogicDevId": "c.get_logic_dev_id_by_phy_dev_id",
    "aclrtDeviceCanAccessPeer": "rt.device_can_access_peer",
    "aclrtDeviceEnablePeerAccess": "rt.device_enable_peer_access",
    "aclrtDeviceDisablePeerAccess": "rt.device_disable_peer_access",
    "aclrtDevicePeerAccessStatus": "rt.device_peer_access_status",
    "aclrtGetDevicesTopo": "c.get_devices_topo",
    "aclrtSetOpWaitTimeout": "rt.set_op_wait_timeout",
    "aclrtSetOpExecuteTimeOut": "rt.set_op_execute_time_out",
    "aclrtCreateContext": "rt.create_context",
    "aclrtDestroyContext": "rt.destroy_context",
    "aclrtSetCurrentContext": "rt.set_context",
    "aclrtGetCurrentContext": "rt.get_context",
    "aclrtCtxGetCurrentDefaultStream": "c.ctx_get_current_default_stream",
    "aclrtCreateStream": "rt.create_stream",
    "aclrtCreateStreamWithConfig": "rt.create_stream_with_config",
    "aclrtDestroyStream": "rt.destroy_stream",
    "aclrtDestroyStreamForce": "rt.destroy_stream_force",
    "aclrtSynchronizeStream": "rt.synchronize_stream",
    "aclrtSynchronizeStreamWithTimeout": "rt.synchronize_stream_with_timeout",
    "aclrtStreamQuery": "rt.stream_query",
    "aclrtStreamGetId": "c.stream_get_id",
    "aclrtStreamGetPriority": "c.stream_get_priority",
    "aclrtStreamGetFlags": "c.stream_get_flags",
    "aclrtDeviceGetStreamPriorityRange": "c.device_get_stream_priority_range",
    "aclrtStreamWaitEvent": "rt.stream_wait_event",
    "aclrtStreamWaitEventWithTimeout": "c.stream_wait_event_with_timeout",
    "aclrtCreateEvent": "rt.create_event",
    "aclrtCreateEventWithFlag": "rt.create_event_with_flag",
    "aclrtCreateEventExWithFlag": "rt.create_event_ex_with_flag",
    "aclrtDestroyEvent": "rt.destroy_event",
    "aclrtRecordEvent": "rt.record_event",
    "aclrtResetEvent": "rt.reset_event",
    "aclrtQueryEvent": "rt.query_event",
    "aclrtQueryEventStatus": "rt.query_event_status",
    "aclrtQueryEventWaitStatus": "rt.query_event_wait_status",
    "aclrtSynchronizeEvent": "rt.synchronize_event",
    "aclrtSynchronizeEventWithTimeout": "rt.synchronize_event_with_timeout",
    "aclrtEventElapsedTime": "rt.event_elapsed_time",
    "aclrtEventGetTimestamp": "rt.event_get_timestamp",
    "aclrtGetEventId": "c.get_event_id",
    "aclrtMalloc": "rt.malloc",
    "aclrtMallocAlign32": "rt.malloc_align32",
    "aclrtMallocCached": "rt.malloc_cached",
    "aclrtFree": "rt.free",
    "aclrtFreeWithDevSync": "c.free_with_dev_sync",
    "aclrtMallocHost": "rt.malloc_host",
    "aclrtFreeHost": "rt.free_host",
    "aclrtFreeHostWithDevSync": "c.free_host_with_dev_sync",
    "aclrtHostRegister": "rt.host_register",
    "aclrtHostRegisterV2": "c.host_register_v2",
    "aclrtHostGetDevicePointer": "c.host_get_device_pointer",
    "aclrtHostUnregister": "rt.host_unregister",
    "aclrtGetMemInfo": "rt.get_mem_info",
    "aclrtMemcpy": "rt.memcpy",
    "aclrtMemcpyAsync": "rt.memcpy_async",
    # Its condition is that it is refused where it would have to wait, which nothing does here.
    "aclrtMemcpyAsyncWithCondition": "rt.memcpy_async",
    "aclrtMemcpy2d": "c.memcpy2d",
    "aclrtMemcpy2dAsync": "c.memcpy2d_async",
    "aclrtMemset": "rt.memset",
    "aclrtMemsetAsync": "rt.memset_async",
    "aclrtMemsetD32": "c.memset_d32",
    "aclrtMemsetD32Async": "c.memset_d32_async",
    "aclrtReserveMemAddress": "rt.reserve_mem_address",
    "aclrtReserveMemAddressNoUCMemory": "c.reserve_mem_address_no_uc_memory",
    "aclrtReleaseMemAddress": "rt.release_mem_address",
    "aclrtFreePhysical": "rt.free_physical",
    "aclrtMapMem": "rt.map_mem",
    "aclrtMemMapNoAccess": "c.mem_map_no_access",
    "aclrtUnmapMem": "rt.unmap_mem",
    "aclrtMemRetainAllocationHandle": "c.mem_retain_allocation_handle",
    "aclrtMemGetAddressRange": "c.mem_get_address_range",
    "aclrtMemExportToShareableHandle": "rt.mem_export_to_shareable_handle",
    "aclrtMemImportFromShareableHandle": "rt.mem_import_from_shareable_handle",
    "aclrtIpcMemImportByKey": "rt.ipc_mem_import_by_key",
    "aclrtIpcMemClose": "rt.ipc_mem_close",
    "aclrtIpcMemSetAttr": "c.ipc_mem_set_attr",
}
"""The emulation's function behind each C function whose parameters tell what they are.

A pointer to a number or to a pointer is an output, in the order of the emulation's; ``char *`` is
text; all else is an input. The functions that need more are in :mod:`.records`.
"""


class AclBinding:
    """What the C functions of one process call.

    Parameters
    ----------
    ffi
        The declarations.
    _soname
        What the program loaded; there is one edition.
    """

    def __init__(self, ffi: Any, _soname: str) -> None:
        options = Options.from_environ(os.environ)
        self.ffi = ffi
        self.acl = Acl(options.acl_profile, options.strict, options=options)
        self._thread = threading.local()
        self._soc = ffi.new("char[]", self.acl.get_soc_name().encode())
        self._shapes = dict(ffi.typeof("struct cm_table").fields)

    def functions(self) -> Mapping[str, Callable[..., Any]]:
        """Return what is called for each C function, by its name."""
        found = {name: self._convert(name, called) for name, called in _PLAIN.items()}
        found |= {name: self._bound(name, function) for name, function in records.FUNCTIONS.items()}
        return found | {
            "aclGetRecentErrMsg": self._get_recent_err_msg,
            "aclrtGetSocName": lambda: self._soc,
            "aclrtGetLastError": self._get_last_error,
            "aclrtPeekAtLastError": self._peek_at_last_error,
        }

    def refuse(self, name: str) -> Any:
        """Return what a function answers that is not emulated."""
        result = self._shapes[name].type.result
        if result.kind == "pointer":
            return self.ffi.NULL
        if result.cname != "int":
            return None if result.kind == "void" else 0
        text = "it is not emulated"
        return self.finish(name, Code.RT_FEATURE_NOT_SUPPORT, text)

    # Calls ------------------------------------------------------------------------------------

    def call(self, name: str, called: str, *values: Any) -> tuple[tuple[Any, ...] | None, int]:
        """Call the emulation for a C function; return outputs to be written, and the code."""
        outputs, code = self.acl.answer(called, *values)
        return outputs, self.finish(name, code, None)

    def missing(self, name: str) -> int:
        """Return the code for an argument that must not be null and is."""
        return self.finish(name, Code.INVALID_PARAM, "an argument is null")

    def finish(self, name: str, code: int, text: str | None) -> int:
        """Note how a call ended, for who asks later, and return its code."""
        if code:
            self._thread.last = int(code)
            self.acl.rename_error(name, text)
        return int(code)

    def _bound(self, name: str, function: Callable[..., int]) -> Callable[..., int]:
        return lambda *arguments: function(self, name, *arguments)

    def _convert(self, name: str, called: str) -> Callable[..., int]:
        """Return the function that is called for a C function of plain parameters."""
        ffi = self.ffi
        shapes = self._shapes[name].type.args
        kinds = [_kind(one) for one in shapes]

        def function(*arguments: Any) -> int:
            values: list[Any] = []
            places = []
            for kind, shape, argument in zip(kinds, shapes, arguments, strict=True):
                if kind is _NUMBER:
                    values.append(argument)
                elif kind is _POINTER:
                    values.append(int(ffi.cast("uintptr_t", argument)))
                elif argument == ffi.NULL:
                    return self.missing(name)
                elif kind is _TEXT:
                    values.append(records.text_of(ffi, argument))
                else:
                    places.append((argument, shape.item))
            outputs, code = self.call(name, called, *values)
            if outputs is not None:
                for (place, target), value in zip(places, outputs, strict=True):
                    place[0] = ffi.cast(target, value) if target.kind == "pointer" else value
            return code

        return function

    # What went wrong --------------------------------------------------------------------------

    def _get_recent_err_msg(self) -> Any:
        text = self.acl.get_recent_err_msg()
        if not text:
            return self.ffi.NULL
        # It is the caller's until it asks again.
        self._thread.text = self.ffi.new("char[]", text.encode())
        return self._thread.text

    def _get_last_error(self, level: int) -> int:
        code = self._peek_at_last_error(level)
        self._thread.last = 0
        return code

    def _peek_at_last_error(self, level: int) -> int:
        if level:
            return int(Code.RT_PARAM_INVALID)
        last: int = getattr(self._thread, "last", 0)
        return last


_NUMBER, _POINTER, _TEXT, _OUTPUT = "number", "pointer", "text", "output"


def _kind(shape: Any) -> str:
    """Return what a parameter is, by its C type."""
    if shape.kind != "pointer":
        return _NUMBER
    if shape.item.cname == "char":
        return _TEXT
    return _OUTPUT if shape.item.kind in {"enum", "pointer", "primitive"} else _POINTER
