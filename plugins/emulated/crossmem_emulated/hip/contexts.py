# SPDX-License-Identifier: Apache-2.0
"""Contexts, which are the drivers' and not of CuPy's runtime module, and the reset of a device."""

from crossmem_emulated.hip.blocks import free_piece
from crossmem_emulated.hip.calls import Refused, entry
from crossmem_emulated.hip.codes import Status
from crossmem_emulated.hip.origins import Origin
from crossmem_emulated.hip.process import Context, HipProcess
from crossmem_emulated.hip.shares import close_import
from crossmem_emulated.hip.streams import check_safe, finish_device

__all__: list[str] = []


def _stack(process: HipProcess) -> list[int]:
    """Return the contexts under the current one of this thread, the last on top."""
    stack: list[int] | None = getattr(process.thread, "stack", None)
    if stack is None:
        stack = process.thread.stack = []
    return stack


def _find(process: HipProcess, handle: int) -> Context:
    context = process.contexts.get(handle)
    if context is None:
        raise Refused(Status.INVALID_CONTEXT, f"there is no context {handle:#x}", "HIP-X3")
    return context


def _push(process: HipProcess, context: Context) -> None:
    _stack(process).append(process.current().handle)
    process.thread.context = context.handle


@entry("ctxCreate(unsigned int flags, int device) -> intptr_t")
def _ctx_create(process: HipProcess, _flags: int, device: int) -> int:
    process.check_device(device)
    context = process.new_context(device, is_primary=False)
    _push(process, context)
    return context.handle


@entry("ctxGetCurrent() -> intptr_t")
def _ctx_get_current(process: HipProcess) -> int:
    return process.current().handle


@entry("ctxSetCurrent(intptr_t context)")
def _ctx_set_current(process: HipProcess, handle: int) -> None:
    process.thread.context = _find(process, handle).handle


@entry("ctxPushCurrent(intptr_t context)")
def _ctx_push_current(process: HipProcess, handle: int) -> None:
    _push(process, _find(process, handle))


@entry("ctxPopCurrent() -> intptr_t")
def _ctx_pop_current(process: HipProcess) -> int:
    handle, stack = process.current().handle, _stack(process)
    if not stack:
        raise Refused(Status.INVALID_CONTEXT, "no context was pushed", "HIP-X3")
    process.thread.context = stack.pop()
    return handle


@entry("ctxDestroy(intptr_t context)")
def _ctx_destroy(process: HipProcess, handle: int) -> None:
    context = process.contexts.get(handle)
    if context is None or context.is_primary:
        raise Refused(Status.INVALID_CONTEXT, f"{handle:#x} is no context to destroy", "HIP-X3")
    stack = _stack(process)
    if process.current() is context and stack:
        process.thread.context = stack.pop()
    stack[:] = [one for one in stack if one != handle]
    del process.contexts[handle]


# Each device's own ------------------------------------------------------------------------------


@entry("devicePrimaryCtxRetain(int device) -> intptr_t")
def _device_primary_ctx_retain(process: HipProcess, device: int) -> int:
    process.check_device(device)
    return process.primary_of(device).handle


@entry("devicePrimaryCtxRelease(int device)")
def _device_primary_ctx_release(process: HipProcess, device: int) -> None:
    # The runtime itself holds it too, as long as the process runs.
    process.check_device(device)


@entry("devicePrimaryCtxGetState(int device)")
def _device_primary_ctx_get_state(process: HipProcess, device: int) -> tuple[int, bool]:
    process.check_device(device)
    return 0, device in process.primary


@entry("deviceReset()")
def _device_reset(process: HipProcess) -> None:
    """Give back all that this process has of the current device, as an exit would."""
    check_safe(process)
    device = process.current().device
    finish_device(process, device)
    index = process.setup.visible[device]
    for opened in list(process.imports):
        if opened.context.device == device:
            close_import(process, "deviceReset", opened)
    for piece in list(process.space.pieces.values()):
        if piece.pages.device == index and piece.origin in {Origin.MALLOC, Origin.POOL}:
            free_piece(process, "deviceReset", piece)
