# SPDX-License-Identifier: Apache-2.0
"""Submits functions of the application as work of a stream, and answers queries about streams."""

from collections.abc import Callable

from crossmem_emulated.hip.calls import Refused, entry
from crossmem_emulated.hip.codes import Status
from crossmem_emulated.hip.process import HipProcess
from crossmem_emulated.hip.streams import find_stream, submit
from crossmem_emulated.queues import Caller, Work

__all__: list[str] = []


@entry("streamAddCallback(intptr_t stream, callback, intptr_t arg, unsigned int flags=0)")
def _stream_add_callback(
    process: HipProcess,
    handle: int,
    callback: Callable[[int, int, int], None],
    argument: int,
    flags: int,
) -> None:
    if flags:
        raise Refused(Status.INVALID_VALUE, f"the flags must be 0, not {flags}")
    stream = find_stream(process, handle)

    def run() -> None:
        callback(handle, 0, argument)

    submit(process, stream, Work("streamAddCallback", (), run, caller=Caller()))


@entry("launchHostFunc(intptr_t stream, callback, intptr_t arg)")
def _launch_host_func(
    process: HipProcess, handle: int, callback: Callable[[int], None], argument: int
) -> None:
    stream = find_stream(process, handle)
    work = Work("launchHostFunc", (), lambda: callback(argument), caller=Caller())
    submit(process, stream, work)


@entry("streamGetFlags(intptr_t stream) -> unsigned int")
def _stream_get_flags(process: HipProcess, handle: int) -> int:
    if not handle and process.profile.is_hip:
        raise Refused(Status.INVALID_VALUE, "AMD's legacy stream has no flags", "HIP-X3")
    return int(not find_stream(process, handle).is_blocking)


@entry("streamGetPriority(intptr_t stream) -> int")
def _stream_get_priority(process: HipProcess, handle: int) -> int:
    return find_stream(process, handle).priority


@entry("streamGetDevice(intptr_t stream) -> int")
def _stream_get_device(process: HipProcess, handle: int) -> int:
    return find_stream(process, handle).device
