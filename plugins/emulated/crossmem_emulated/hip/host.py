# SPDX-License-Identifier: Apache-2.0
"""Registered host memory, the device addresses of host memory, and managed memory."""

from crossmem_emulated import memory
from crossmem_emulated.hip.blocks import HostBlock, find_host_block, release_host
from crossmem_emulated.hip.calls import Refused, entry
from crossmem_emulated.hip.codes import MemoryType, Status
from crossmem_emulated.hip.process import HipProcess
from crossmem_emulated.hip.streams import check_safe, find_stream

__all__: list[str] = []


def _found(process: HipProcess, pointer: int) -> HostBlock:
    block = find_host_block(process, pointer)
    if block is None:
        raise Refused(
            Status.INVALID_VALUE, f"{pointer:#x} is not in host memory that devices can access"
        )
    return block


@entry("hostRegister(intptr_t ptr, size_t size, unsigned int flags)", hip_answers=Status.UNKNOWN)
def _host_register(process: HipProcess, pointer: int, nbytes: int, flags: int) -> None:
    check_safe(process)
    is_device = process.space.region_of(pointer) is not None
    if not pointer or not nbytes or is_device or not memory.is_mapped(pointer, nbytes):
        text = f"{nbytes} bytes at {pointer:#x} are not host memory of this process"
        raise Refused(Status.INVALID_VALUE, text, "HIP-X4")
    for block in process.host_blocks.values():
        if block.start < pointer + nbytes and pointer < block.start + block.nbytes:
            text = f"devices can already access some of the {nbytes} bytes at {pointer:#x}"
            raise Refused(Status.HOST_MEMORY_ALREADY_REGISTERED, text)
    process.host_blocks[pointer] = HostBlock(
        pointer, nbytes, process.current().device, flags=flags, is_registered=True
    )


@entry("hostUnregister(intptr_t ptr)", hip_answers=Status.UNKNOWN)
def _host_unregister(process: HipProcess, pointer: int) -> None:
    check_safe(process)
    if not pointer:
        raise Refused(Status.INVALID_VALUE, "the address is null", "HIP-X4")
    block = process.host_blocks.get(pointer)
    if block is None or not block.is_registered:
        text = f"{pointer:#x} was not registered"
        raise Refused(Status.HOST_MEMORY_NOT_REGISTERED, text, "HIP-X4")
    release_host(process, block)


@entry("hostGetDevicePointer(intptr_t ptr, unsigned int flags) -> intptr_t")
def _host_get_device_pointer(process: HipProcess, pointer: int, flags: int) -> int:
    if flags:
        raise Refused(Status.INVALID_VALUE, f"the flags must be 0, not {flags}")
    _found(process, pointer)
    # The memory has the same address for the host and for devices.
    return pointer


@entry("hostGetFlags(intptr_t ptr) -> unsigned int")
def _host_get_flags(process: HipProcess, pointer: int) -> int:
    return _found(process, pointer).flags


# Managed memory -----------------------------------------------------------------------------


def _check_managed(process: HipProcess, pointer: int, nbytes: int) -> None:
    block = _found(process, pointer)
    if block.kind is not MemoryType.MANAGED or pointer + nbytes > block.start + block.nbytes:
        raise Refused(
            Status.INVALID_VALUE,
            f"some of the {nbytes} bytes at {pointer:#x} are not managed memory",
        )


@entry("memAdvise(intptr_t devPtr, size_t count, int advice, int device)")
def _mem_advise(process: HipProcess, pointer: int, nbytes: int, _advice: int, device: int) -> None:
    if device >= 0:
        process.check_device(device)
    _check_managed(process, pointer, nbytes)


@entry("memPrefetchAsync(intptr_t devPtr, size_t count, int dstDevice, intptr_t stream)")
def _mem_prefetch_async(
    process: HipProcess, pointer: int, nbytes: int, device: int, stream: int
) -> None:
    if device >= 0:
        process.check_device(device)
    find_stream(process, stream)
    _check_managed(process, pointer, nbytes)
