# SPDX-License-Identifier: Apache-2.0
"""Calls that make, query and destroy streams, or that wait for the work of streams."""

from typing import Final

from crossmem_emulated.acl.calls import Refused, entry
from crossmem_emulated.acl.codes import Code
from crossmem_emulated.acl.process import AclProcess, Again, Stream

__all__ = ["check_timeout", "find_stream"]

_FOREVER: Final = -1
_ALL_FLAGS: Final = 0x3F
_LEAST_PRIORITY: Final = 7
_STOP_ON_FAILURE: Final = 1
_FAILURE_MODE: Final = 1
"""The number of a stream's attribute "failure mode". No other attribute is emulated."""


def find_stream(process: AclProcess, handle: int) -> Stream:
    """Return a stream, or refuse. Handle 0 means the default stream of the current context."""
    if not handle:
        return process.current().stream
    stream = process.streams.get(handle)
    if stream is None:
        raise Refused(Code.RT_PARAM_INVALID, f"there is no stream {handle:#x}", "ACL-X3")
    return stream


def check_timeout(timeout_ms: int) -> None:
    """Refuse a timeout that is neither -1 (wait forever) nor positive."""
    if timeout_ms < _FOREVER or not timeout_ms:
        raise Refused(
            Code.RT_PARAM_INVALID, f"a timeout must be -1 or positive, not {timeout_ms}", "ACL-E40"
        )


@entry("rt.create_stream", "", 0)
def _create_stream(process: AclProcess) -> int:
    return _create_stream_with_config(process, 0, 0)


@entry("rt.create_stream_with_config", "II", 0)
def _create_stream_with_config(process: AclProcess, priority: int, flags: int) -> int:
    context = process.current()
    if priority > _LEAST_PRIORITY or flags & ~_ALL_FLAGS:
        raise Refused(
            Code.RT_PARAM_INVALID, f"priority {priority} or flags {flags} are invalid", "ACL-X3"
        )
    stream = Stream(next(process.handles), context.device, context.handle, priority, flags)
    process.streams[stream.handle] = stream
    return stream.handle


def _check_own(process: AclProcess, stream: Stream) -> None:
    if stream is process.contexts[stream.context].stream:
        raise Refused(
            Code.RT_PARAM_INVALID,
            "a program cannot destroy the default stream of a context",
            "ACL-X3",
        )


@entry("rt.destroy_stream", "k")
def _destroy_stream(process: AclProcess, handle: int) -> None:
    stream = find_stream(process, handle)
    _check_own(process, stream)
    if process.finish(stream):
        raise Again
    del process.streams[handle]


@entry("rt.destroy_stream_force", "k")
def _destroy_stream_force(process: AclProcess, handle: int) -> None:
    stream = find_stream(process, handle)
    _check_own(process, stream)
    process.queues.drop(stream)
    del process.streams[handle]
    process.queues.changed.notify_all()


@entry("rt.synchronize_stream", "k")
def _synchronize_stream(process: AclProcess, handle: int) -> None:
    process.finish(find_stream(process, handle))


@entry("rt.synchronize_stream_with_timeout", "ki")
def _synchronize_stream_with_timeout(process: AclProcess, handle: int, timeout_ms: int) -> None:
    check_timeout(timeout_ms)
    process.finish(find_stream(process, handle), timeout_ms=timeout_ms)


@entry("rt.synchronize_device", "")
def _synchronize_device(process: AclProcess) -> None:
    _synchronize_device_with_timeout(process, _FOREVER)


@entry("rt.synchronize_device_with_timeout", "i")
def _synchronize_device_with_timeout(process: AclProcess, timeout_ms: int) -> None:
    check_timeout(timeout_ms)
    context = process.current().handle
    streams = (one for one in process.streams.values() if one.context == context)
    process.finish(*streams, timeout_ms=timeout_ms)


@entry("rt.stream_query", "k", 0)
def _stream_query(process: AclProcess, handle: int) -> int:
    return int(bool(find_stream(process, handle).queue))


@entry("c.ctx_get_current_default_stream", "", 0)
def _ctx_get_current_default_stream(process: AclProcess) -> int:
    return process.current().stream.handle


@entry("c.stream_get_id", "k", 0)
def _stream_get_id(process: AclProcess, handle: int) -> int:
    return list(process.streams.values()).index(find_stream(process, handle))


@entry("c.stream_get_priority", "k", 0)
def _stream_get_priority(process: AclProcess, handle: int) -> int:
    return find_stream(process, handle).priority


@entry("c.stream_get_flags", "k", 0)
def _stream_get_flags(process: AclProcess, handle: int) -> int:
    return find_stream(process, handle).flags


@entry("rt.set_stream_failure_mode", "kK")
def _set_stream_failure_mode(process: AclProcess, handle: int, mode: int) -> None:
    stream = find_stream(process, handle)
    if mode > _STOP_ON_FAILURE:
        raise Refused(Code.RT_PARAM_INVALID, f"there is no failure mode {mode}", "ACL-X3")
    stream.failure_mode = mode


@entry("c.get_stream_attribute", "kI", 0)
def _get_stream_attribute(process: AclProcess, handle: int, attribute: int) -> int:
    stream = find_stream(process, handle)
    if attribute != _FAILURE_MODE:
        raise Refused(Code.RT_FEATURE_NOT_SUPPORT, f"attribute {attribute} is not emulated")
    return stream.failure_mode


@entry("c.device_get_stream_priority_range", "", 0, 0)
def _device_get_stream_priority_range(process: AclProcess) -> tuple[int, int]:
    process.current()
    return _LEAST_PRIORITY, 0
