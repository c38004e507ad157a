# SPDX-License-Identifier: Apache-2.0
"""Context functions of the vendors' driver APIs, and the reset of a device.

The context functions are CUDA's ``cuCtx...`` and HIP's ``hipCtx...``. C programs call
them. ``cupy.cuda.runtime`` does not have them.
"""

from crossmem_emulated.hip.blocks import HostBlock, free_piece, release_host
from crossmem_emulated.hip.calls import Refused, entry
from crossmem_emulated.hip.codes import Status
from crossmem_emulated.hip.events import destroy_event
from crossmem_emulated.hip.limits import forget_limits
from crossmem_emulated.hip.origins import Origin
from crossmem_emulated.hip.pools import forget_pools
from crossmem_emulated.hip.process import Context, HipProcess
from crossmem_emulated.hip.shares import close_import
from crossmem_emulated.hip.streams import check_safe, destroy_stream, finish_device

__all__: list[str] = []


def _find(process: HipProcess, handle: int) -> Context:
    context = process.contexts.get(handle)
    if context is None:
        raise Refused(Status.INVALID_CONTEXT, f"there is no context {handle:#x}", "HIP-X3")
    return context


def _choose(process: HipProcess, context: Context) -> None:
    """Make a context's device the current device of the thread.

    In profiles in which a device can have several contexts, do nothing: the top of the context
    stack determines the device. In the other profiles, a later pop of the context does not restore
    the earlier device.
    """
    if not process.profile.has_contexts:
        process.thread.context = context.handle


@entry("ctxCreate(unsigned int flags, int device) -> intptr_t")
def _ctx_create(process: HipProcess, _flags: int, device: int) -> int:
    if process.profile.is_hip and not 0 <= device < len(process.setup.visible):
        raise Refused(Status.INVALID_VALUE, f"there is no device {device}")
    process.check_device(device)
    if process.profile.has_contexts:
        context = process.new_context(device, is_primary=False)
    else:
        # In these profiles, a device has only one context. ctxCreate returns this context and
        # pushes it on the stack. The thread's current device stays the same.
        context = process.primary_of(device)
    process.stack().append(context.handle)
    return context.handle


@entry("ctxGetCurrent() -> intptr_t")
def _ctx_get_current(process: HipProcess) -> int:
    return process.current().handle


@entry("ctxSetCurrent(intptr_t context)")
def _ctx_set_current(process: HipProcess, handle: int) -> None:
    context = _find(process, handle) if handle else None
    # The context replaces the top of the stack. The null context only removes the top.
    del process.stack()[-1:]
    if context is not None:
        process.stack().append(handle)
        _choose(process, context)


@entry("ctxPushCurrent(intptr_t context)")
def _ctx_push_current(process: HipProcess, handle: int) -> None:
    context = _find(process, handle)
    process.stack().append(handle)
    _choose(process, context)


@entry("ctxPopCurrent() -> intptr_t")
def _ctx_pop_current(process: HipProcess) -> int:
    stack = process.stack()
    if not stack:
        raise Refused(Status.INVALID_CONTEXT, "no context was pushed", "HIP-X3")
    return stack.pop()


@entry("ctxDestroy(intptr_t context)")
def _ctx_destroy(process: HipProcess, handle: int) -> None:
    stack, context = process.stack(), process.contexts.get(handle)
    if not handle and process.profile.is_hip:
        raise Refused(Status.INVALID_VALUE, "the context is null", "HIP-X3")
    if process.profile.has_contexts and (context is None or context.is_primary):
        raise Refused(
            Status.INVALID_CONTEXT, f"{handle:#x} is no context, or is a primary context", "HIP-X3"
        )
    if stack and stack[-1] == handle:
        stack.pop()
    if process.profile.has_contexts:
        del process.contexts[handle]


# Primary contexts -------------------------------------------------------------------------------


@entry("devicePrimaryCtxRetain(int device) -> intptr_t")
def _device_primary_ctx_retain(process: HipProcess, device: int) -> int:
    process.check_device(device)
    return process.primary_of(device).handle


@entry("devicePrimaryCtxRelease(int device)")
def _device_primary_ctx_release(process: HipProcess, device: int) -> None:
    # The call releases nothing, because the runtime holds the context until the process ends.
    process.check_device(device)


@entry("devicePrimaryCtxGetState(int device)")
def _device_primary_ctx_get_state(process: HipProcess, device: int) -> tuple[int, bool]:
    process.check_device(device)
    return 0, device in process.primary


@entry("devicePrimaryCtxSetFlags(int device, unsigned int flags)")
def _device_primary_ctx_set_flags(process: HipProcess, device: int, flags: int) -> None:
    process.check_device(device)
    if process.profile.is_hip:
        text = f"flags {flags} cannot be set: the primary context is always in use"
        raise Refused(Status.CONTEXT_ALREADY_IN_USE, text)


@entry("devicePrimaryCtxReset(int device)")
def _device_primary_ctx_reset(process: HipProcess, device: int) -> None:
    if process.profile.is_documented:
        check_safe(process)
        process.check_device(device)
        _reset(process, "devicePrimaryCtxReset", device)
    # The other profiles follow the source code of AMD's library, not its documents. In those
    # profiles, this call does nothing and accepts any device number.


@entry("deviceReset()")
def _device_reset(process: HipProcess) -> None:
    check_safe(process)
    _reset(process, "deviceReset", process.current().device)


def _reset(process: HipProcess, call: str, device: int) -> None:
    """Release this process's allocations, imports, streams and pools on a device.

    Also reset the device's limits and flags, and release the host memory that :func:`_is_reset`
    selects. In profiles that follow the vendor's documents, also destroy the device's events.
    Memory of the virtual memory functions, such as ``memCreate``, stays allocated and mapped.
    """
    finish_device(process, device)
    index = process.setup.visible[device]
    for opened in list(process.imports):
        if opened.context.device == device:
            close_import(process, call, opened)
    for piece in list(process.space.pieces.values()):
        if piece.pages.device == index and piece.origin in {Origin.MALLOC, Origin.POOL}:
            free_piece(process, call, piece)
    for block in list(process.host_blocks.values()):
        if _is_reset(process, block, device):
            release_host(process, block)
    for stream in [one for one in process.streams.values() if one.device == device]:
        destroy_stream(process, stream)
    forget_pools(process, device)
    forget_limits(process, device)
    if process.profile.is_documented:
        for event in [one for one in process.events.values() if one.device == device]:
            destroy_event(process, event)


def _is_reset(process: HipProcess, block: HostBlock, device: int) -> bool:
    """Whether the reset of a device releases a block of host memory.

    In a profile that follows the vendor's documents, the reset releases the block if this device
    was current when the block was allocated or pinned. In AMD's runtime, host memory belongs to all
    devices. So a reset releases host memory only if the process sees exactly one device.
    """
    if process.profile.is_documented:
        return block.device == device
    return len(process.setup.visible) == 1
