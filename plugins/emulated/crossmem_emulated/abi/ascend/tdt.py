# SPDX-License-Identifier: Apache-2.0
"""Converts arguments and results of C functions of ACL's queues (TDT) and memory groups.

This module contains the functions for which the C types do not determine the conversion. The C
functions of TDT in ``FUNCTIONS`` return an object or a number instead of an error code.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

from crossmem_emulated.abi.ascend.records import Caller, text_of

__all__ = ["FUNCTIONS"]


def _create(binding: Caller, name: str, *values: int) -> Any:
    """Make an object and return its handle. Return a null pointer after a failure."""
    outputs, _ = binding.call(name, *values)
    return binding.ffi.cast("void *", outputs[0] if outputs else 0)


def _get_queue_route_num(binding: Caller, name: str, routes: Any) -> int:
    outputs, _ = binding.call(name, int(binding.ffi.cast("uintptr_t", routes)))
    return int(outputs[0]) if outputs else 0


def _mem_grp_create(binding: Caller, name: str, group: Any, _config: Any) -> int:
    if group == binding.ffi.NULL:
        return binding.missing(name)
    return binding.call(name, text_of(binding.ffi, group))[1]


def _mem_grp_add_proc(binding: Caller, name: str, group: Any, pid: int, attributes: Any) -> int:
    if binding.ffi.NULL in {group, attributes}:
        return binding.missing(name)
    rights = int(binding.ffi.cast("uint32_t *", attributes)[0])
    return binding.call(name, text_of(binding.ffi, group), pid, rights)[1]


FUNCTIONS: Final[Mapping[str, Callable[..., Any]]] = {
    "acltdtCreateQueueAttr": _create,
    "acltdtCreateQueueRoute": _create,
    "acltdtCreateQueueRouteList": _create,
    "acltdtCreateQueueRouteQueryInfo": _create,
    "acltdtGetQueueRouteNum": _get_queue_route_num,
    "rtMemGrpCreate": _mem_grp_create,
    "rtMemGrpAddProc": _mem_grp_add_proc,
}
"""The Python function that executes a call of a C function. The key is the C function's name."""
