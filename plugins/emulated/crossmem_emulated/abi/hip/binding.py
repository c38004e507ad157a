# SPDX-License-Identifier: Apache-2.0
"""Python functions that implement the functions of ``libamdhip64`` by calls of the emulation."""

import os
from collections.abc import Mapping
from typing import Any, Final

from typing_extensions import override

from crossmem.errors import ConfigurationError
from crossmem.guards import shorten
from crossmem_emulated.abi.hip import devices, lookup, memory, pools, streams, threads, virtual
from crossmem_emulated.abi.hip.convert import Converter, Function
from crossmem_emulated.abi.library import Binding
from crossmem_emulated.hip import Runtime
from crossmem_emulated.hip.errors import ERRORS
from crossmem_emulated.options import Options

__all__ = ["HipBinding"]

_NOT_SUPPORTED: Final = 801
_INTERNAL_ERROR: Final = 11
"""The result of a function of the kernel compiler (hiprtc) that the emulation refuses. The kernel
compiler has no code for "not supported"."""
_UNKNOWN: Final = 999
_PROFILE_VARIABLE: Final = "CROSSMEM_EMULATED_HIP_PROFILE"
_OF_ROCM_5: Final = "libamdhip64.so.5"


def _runtime(soname: str) -> Runtime:
    options = Options.from_environ(os.environ)
    profile = options.hip_profile
    # A program that was linked with the library of ROCm 5 uses the constants of ROCm 5, even if the
    # profile is another edition.
    is_old = soname == _OF_ROCM_5
    if is_old and not os.environ.get(_PROFILE_VARIABLE, "").strip():
        profile = "rocm5"
    runtime = Runtime(profile, options.strict, options=options, has_old_numbers=is_old)
    if not runtime.is_hip:
        msg = f"{soname} is a library of AMD, and {shorten(profile)} is not a profile of AMD"
        raise ConfigurationError(msg, hint=f"set {_PROFILE_VARIABLE} to a profile of AMD")
    return runtime


class HipBinding(Binding):
    """The Python functions that implement the C functions of ``libamdhip64`` in one process."""

    def __init__(self, ffi: Any, soname: str) -> None:
        self._ffi = ffi
        self._soname = soname
        self._runtime = _runtime(soname)
        self._texts: dict[str, Any] = {}

    @override
    def functions(self) -> Mapping[str, Function]:
        convert = Converter(self._ffi, self._runtime)
        usual = {**memory.functions(convert), **streams.functions(convert)}
        return {
            **self._errors(),
            **devices.functions(convert),
            **lookup.functions(convert, self._soname),
            **pools.functions(convert),
            **threads.functions(convert, usual),
            **usual,
            **virtual.functions(convert),
        }

    @override
    def refuse(self, name: str) -> int:
        if name.startswith("hiprtc"):
            # The kernel compiler's results are not recorded as the thread's last error.
            return _INTERNAL_ERROR
        return self._runtime.refuse(name, _NOT_SUPPORTED)

    def _text(self, text: str) -> Any:
        """Return a C string, which stays valid as long as this object lives."""
        if text not in self._texts:
            self._texts[text] = self._ffi.new("char[]", text.encode())
        return self._texts[text]

    def _name_of(self, code: int) -> Any:
        return self._text(ERRORS.get(code, ERRORS[_UNKNOWN])[0])

    def _text_of(self, code: int) -> Any:
        if self._runtime.tells_names:
            return self._name_of(code)
        return self._text(ERRORS.get(code, ERRORS[_UNKNOWN])[1])

    def _errors(self) -> dict[str, Function]:
        def put(function: Function, name: str) -> Function:
            def into(code: int, place: Any) -> int:
                if not place or code not in ERRORS:
                    return self._runtime.refuse(name, 1)
                place[0] = function(code)
                return 0

            return into

        return {
            "hipGetLastError": self._runtime.getLastError,
            "hipExtGetLastError": self._runtime.extGetLastError,
            "hipPeekAtLastError": self._runtime.peekAtLastError,
            "hipGetErrorName": self._name_of,
            "hipGetErrorString": self._text_of,
            "hipDrvGetErrorName": put(self._name_of, "drvGetErrorName"),
            "hipDrvGetErrorString": put(self._text_of, "drvGetErrorString"),
        }
