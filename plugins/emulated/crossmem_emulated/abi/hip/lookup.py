# SPDX-License-Identifier: Apache-2.0
"""``hipGetProcAddress``: finds functions of the library by their names."""

import ctypes
import os
from typing import Any, Final

from crossmem_emulated.abi.hip.convert import INVALID_VALUE, Converter, Function

__all__ = ["functions"]

_USUAL, _LEGACY, _PER_THREAD = range(3)
_RENAMED: Final = frozenset({"hipGetDeviceProperties", "hipChooseDevice"})
_FIRST_RENAMED: Final = 600
_FOUND, _NOT_FOUND = range(2)


class _Lookup:
    """Finds functions in a library that this process has loaded."""

    def __init__(self, convert: Converter, soname: str) -> None:
        self._convert = convert
        self._ffi = convert.ffi
        self._soname = soname

    def _address(self, name: str) -> int | None:
        library = ctypes.CDLL(self._soname, mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
        try:
            return ctypes.cast(library[name], ctypes.c_void_p).value
        except AttributeError:
            return None

    def find(self, symbol: Any, place: Any, version: int, flags: int, found: Any) -> int:
        if not symbol or not place or flags not in range(_PER_THREAD + 1):
            return self._convert.null("getProcAddress")
        status, _ = self._convert.call("getDevice")
        if status:
            return status
        name = self._ffi.string(symbol).decode("utf-8", "replace")
        wanted = [name]
        if name in _RENAMED:
            wanted = [f"{name}R0600" if version >= _FIRST_RENAMED else name]
        elif flags == _PER_THREAD:
            wanted = [f"{name}_spt", name]
        address = next(filter(None, map(self._address, wanted)), None)
        place[0] = self._ffi.cast("void *", address or 0)
        if found:
            found[0] = _NOT_FOUND if address is None else _FOUND
        if address is None:
            return self._convert.runtime.refuse("getProcAddress", INVALID_VALUE)
        return 0

    def find_for_thread(self, symbol: Any, place: Any, version: int, flags: int, found: Any) -> int:
        wanted = _PER_THREAD if flags == _USUAL else flags
        return self.find(symbol, place, version, wanted, found)


def functions(convert: Converter, soname: str) -> dict[str, Function]:
    """Return a dict from the names of this module's C functions to their implementations."""
    lookup = _Lookup(convert, soname)
    return {
        "hipGetProcAddress": lookup.find,
        "hipGetProcAddress_spt": lookup.find_for_thread,
    }
