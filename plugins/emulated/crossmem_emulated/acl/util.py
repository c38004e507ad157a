# SPDX-License-Identifier: Apache-2.0
"""``acl.util``: functions that return the addresses of Python objects, or bytes at an address."""

import ctypes
from typing import Any, Final

from crossmem.driver.buffers import address_of
from crossmem_emulated.acl.addresses import device_of
from crossmem_emulated.acl.process import AclProcess
from crossmem_emulated.pages import HOST

__all__ = ["Util"]

_POISON: Final = b"\xa5"


class Util:
    """The emulated functions of ``acl.util``."""

    def __init__(self, process: AclProcess) -> None:
        self._process = process

    def bytes_to_ptr(self, data: Any, /) -> int:
        """Return the address of the contents of ``data``. The caller must keep ``data`` alive."""
        if not isinstance(data, bytes):
            raise TypeError("acl.util.bytes_to_ptr args parse failed")
        with address_of(data) as (pointer, _nbytes):
            address: int = pointer
        return address

    def ptr_to_bytes(self, pointer: Any, size: Any, /) -> bytes:
        """Return ``size`` bytes of host memory, from the address ``pointer`` on.

        On a real host, a read at a device address returns unrelated bytes or causes a page fault.
        For such a read, a strict emulation records a violation and returns bytes of the value 0xA5.
        """
        if not isinstance(pointer, int) or not isinstance(size, int):
            raise TypeError("acl.util.ptr_to_bytes args parse failed")
        process = self._process
        is_device_s = process.space.region_of(pointer) is not None and not any(
            one.is_host_visible or device_of(one) == HOST
            for one in process.space.overlapping(pointer, 1)
        )
        if process.strict and is_device_s:
            text = f"the host reads {size} bytes at the device address {pointer:#x}"
            process.violate("util.ptr_to_bytes", "ACL-E29", text)
            return _POISON * size
        return ctypes.string_at(pointer, size)

    def numpy_to_ptr(self, array: Any, /) -> int:
        """Return the address of an array's first element; the caller must keep the array alive."""
        address: int = array.__array_interface__["data"][0]
        return address
