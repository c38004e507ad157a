# SPDX-License-Identifier: Apache-2.0
"""Functions for initialisation, devices, peers and contexts."""

import hashlib
import os
from typing import Final

from crossmem_emulated.acl.calls import Refused, entry
from crossmem_emulated.acl.codes import Code
from crossmem_emulated.acl.process import AclProcess, Again, Context, DeviceState, Stream
from crossmem_emulated.acl.release import release_device
from crossmem_emulated.acl.schema import BARE_TGID_BASE

__all__: list[str] = []

_TOTAL_MEMORY: Final = 301
_PHYSICAL_CHIP: Final = 402
_IS_VIRTUAL: Final = 501
_SWITCHED: Final = 1
"""The type of the connection between any two emulated devices: Huawei's own links (HCCS)."""


@entry("init", "|s")
def _init(process: AclProcess, path: str = "") -> None:
    # For a path that is too long, os.path.isfile() returns False, but Path.is_file() raises.
    if not process.initialized and path and not os.path.isfile(path):  # noqa: PTH113
        raise Refused(Code.INVALID_FILE, f"there is no file {path}")
    process.init_references += 1
    if process.initialized:
        raise Refused(Code.REPEAT_INITIALIZE, "acl is initialized already")
    process.initialized = True


@entry("finalize", "")
def _finalize(process: AclProcess) -> None:
    if not process.initialized:
        raise Refused(Code.REPEAT_FINALIZE, "acl is finalized already, or was never initialized")
    process.initialized = False
    process.init_references = 0


@entry("finalize_reference", "", 0)
def _finalize_reference(process: AclProcess) -> int:
    if not process.initialized:
        raise Refused(Code.REPEAT_FINALIZE, "acl is finalized already, or was never initialized")
    process.init_references -= 1
    process.initialized = process.init_references > 0
    return process.init_references


@entry("get_version", "", 0, 0, 0)
def _get_version(_process: AclProcess) -> tuple[int, int, int]:
    return 1, 17, 0


@entry("rt.get_run_mode", "", 0)
def _get_run_mode(process: AclProcess) -> int:
    return int(not process.profile.is_on_device)


@entry("rt.get_device_count", "", 0)
def _get_device_count(process: AclProcess) -> int:
    return len(process.visible)


@entry("rt.set_device", "i")
def _set_device(process: AclProcess, device: int) -> None:
    process.check_device(device)
    state = process.devices.setdefault(device, DeviceState())
    if state.default is None:
        state.default = _new_context(process, device, is_default=True)
    state.references += 1
    process.thread.context = state.default.handle


@entry("rt.reset_device", "i")
def _reset_device(process: AclProcess, device: int) -> None:
    process.check_device(device)
    state = process.devices.get(device)
    if state is None:
        raise Refused(Code.RT_CONTEXT_NULL, f"device {device} was not set")
    if state.references <= 1:
        _finish_default(process, state)
        release_device(process, device)
    else:
        state.references -= 1


@entry("rt.reset_device_force", "i")
def _reset_device_force(process: AclProcess, device: int) -> None:
    process.check_device(device)
    state = process.devices.get(device)
    if state is None:
        raise Refused(Code.RT_CONTEXT_NULL, f"device {device} was not set")
    _finish_default(process, state)
    release_device(process, device)


def _finish_default(process: AclProcess, state: DeviceState) -> None:
    """Finish the work of the default context. The caller then drops the work of the other contexts.

    If this function has waited, it raises :class:`Again`, because other calls may have changed the
    state during the wait.
    """
    default = state.default
    if default is not None and process.finish(
        *(one for one in process.streams.values() if one.context == default.handle)
    ):
        raise Again


@entry("rt.get_device", "", 0)
def _get_device(process: AclProcess) -> int:
    context = process.context
    if context is None:
        # Programs use this call to find out whether a context is current. So the failure is no
        # violation.
        raise Refused(Code.RT_CONTEXT_NULL, "this thread has no current context")
    return context.device


@entry("rt.device_get_bare_tgid", "", 0)
def _device_get_bare_tgid(_process: AclProcess) -> int:
    return os.getpid() + BARE_TGID_BASE


@entry("rt.device_get_uuid", "i", 0)
def _device_get_uuid(process: AclProcess, device: int) -> dict[str, list[int]]:
    index = process.check_device(device)
    digest = hashlib.blake2b(b"crossmem emulated NPU %d" % index, digest_size=16)
    return {"bytes": list(digest.digest())}


@entry("c.get_logic_dev_id_by_user_dev_id", "i", 0)
def _get_logic_dev_id_by_user_dev_id(process: AclProcess, device: int) -> int:
    return process.check_device(device)


@entry("c.get_user_dev_id_by_logic_dev_id", "i", 0)
def _get_user_dev_id_by_logic_dev_id(process: AclProcess, index: int) -> int:
    device = process.ordinal_of(index)
    if device is None:
        raise Refused(
            Code.RT_INVALID_DEVICEID, f"this process does not see the host's device {index}"
        )
    return device


@entry("c.get_logic_dev_id_by_phy_dev_id", "i", 0)
def _get_logic_dev_id_by_phy_dev_id(process: AclProcess, index: int) -> int:
    # In this emulation, the driver's numbers of devices equal the numbers of the chips.
    _get_user_dev_id_by_logic_dev_id(process, index)
    return index


@entry("c.get_device_info", "Ii", 0)
def _get_device_info(process: AclProcess, device: int, attribute: int) -> int:
    index = process.check_device(device)
    values = {
        _TOTAL_MEMORY: process.store.capacity_nbytes,
        _PHYSICAL_CHIP: index,
        _IS_VIRTUAL: 0,
    }
    if attribute not in values:
        raise Refused(Code.RT_FEATURE_NOT_SUPPORT, f"attribute {attribute} is not emulated")
    return values[attribute]


@entry("rt.set_op_wait_timeout", "I")
@entry("rt.set_op_execute_time_out", "I")
def _set_time_out(process: AclProcess, _timeout: int) -> None:
    # Neither timeout has an effect in the emulation.
    process.current()


@entry("c.query_device_status", "i", 0)
def _query_device_status(process: AclProcess, device: int) -> int:
    process.check_device(device)
    return 0


# Peers ------------------------------------------------------------------------------------


def _check_pair(process: AclProcess, device: int, peer: int) -> None:
    process.check_device(device)
    process.check_device(peer)
    if device == peer:
        raise Refused(Code.INVALID_PARAM, f"device {device} cannot be a peer of itself")


@entry("rt.device_can_access_peer", "ii", 0)
def _device_can_access_peer(process: AclProcess, device: int, peer: int) -> int:
    _check_pair(process, device, peer)
    return 1


@entry("rt.device_enable_peer_access", "iI")
def _device_enable_peer_access(process: AclProcess, peer: int, flags: int) -> None:
    if flags:
        raise Refused(Code.FEATURE_UNSUPPORTED, f"flags must be 0, not {flags}")
    context = process.current()
    _check_pair(process, context.device, peer)
    process.devices[context.device].peers.add(peer)


@entry("rt.device_disable_peer_access", "i")
def _device_disable_peer_access(process: AclProcess, peer: int) -> None:
    context = process.current()
    _check_pair(process, context.device, peer)
    process.devices[context.device].peers.discard(peer)


@entry("c.get_devices_topo", "II", 0)
def _get_devices_topo(process: AclProcess, device: int, other: int) -> int:
    _check_pair(process, device, other)
    return _SWITCHED


@entry("rt.device_peer_access_status", "ii", 0)
def _device_peer_access_status(process: AclProcess, device: int, peer: int) -> int:
    _check_pair(process, device, peer)
    return int(peer in process.devices.get(device, DeviceState()).peers)


# Contexts ---------------------------------------------------------------------------------


def _new_context(process: AclProcess, device: int, *, is_default: bool) -> Context:
    handle = next(process.handles)
    stream = Stream(next(process.handles), device, handle)
    process.streams[stream.handle] = stream
    context = process.contexts[handle] = Context(handle, device, stream, is_default)
    return context


@entry("rt.create_context", "i", 0)
def _create_context(process: AclProcess, device: int) -> int:
    process.check_device(device)
    process.devices.setdefault(device, DeviceState())
    context = _new_context(process, device, is_default=False)
    process.thread.context = context.handle
    return context.handle


@entry("rt.destroy_context", "k")
def _destroy_context(process: AclProcess, handle: int) -> None:
    context = _find_context(process, handle)
    if context.is_default:
        raise Refused(
            Code.RT_PARAM_INVALID,
            "a program cannot destroy the default context of a device",
            "ACL-X3",
        )
    streams = [one for one in process.streams.values() if one.context == handle]
    if process.finish(*streams):
        raise Again
    for stream in streams:
        del process.streams[stream.handle]
    del process.contexts[handle]


@entry("rt.set_context", "k")
def _set_context(process: AclProcess, handle: int) -> None:
    process.thread.context = _find_context(process, handle).handle


def _find_context(process: AclProcess, handle: int) -> Context:
    if not handle:
        raise Refused(Code.INVALID_PARAM, "the context is null")
    context = process.contexts.get(handle)
    if context is None:
        raise Refused(Code.RT_PARAM_INVALID, f"there is no context {handle:#x}", "ACL-X3")
    return context


@entry("rt.get_context", "*", 0)
def _get_context(process: AclProcess) -> int:
    context = process.context
    if context is None:
        raise Refused(Code.RT_CONTEXT_NULL, "this thread has no current context")
    return context.handle


@entry("rt.get_primary_ctx_state", "i", 0, 0)
def _get_primary_ctx_state(process: AclProcess, device: int) -> tuple[int, int]:
    process.check_device(device)
    state = process.devices.get(device)
    return int(state is not None and state.default is not None), 0
