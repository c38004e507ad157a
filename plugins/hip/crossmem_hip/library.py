# SPDX-License-Identifier: Apache-2.0
"""Calls of the vendor's library through ctypes, with the interface of ``cupy.cuda.runtime``.

:class:`LibraryRuntime` works without CuPy. :class:`CupyRuntime` is CuPy's runtime, but with
functions of the library where CuPy's functions are missing or unsuitable.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Final, cast

from typing_extensions import override

from crossmem.driver.native import Functions, LibraryNotFoundError
from crossmem.errors import BackendUnavailableError
from crossmem_hip.errors import error_for, names_of
from crossmem_hip.family import VIRTUAL, Family
from crossmem_hip.prototypes import CUDA_DRIVER, CUDA_RUNTIME, HIP, hip_prototypes
from crossmem_hip.runtime import Runtime
from crossmem_hip.search import cuda_driver, library_of, runtime_library

__all__ = ["CupyRuntime", "LibraryError", "LibraryRuntime", "extend", "open_runtime"]

_SUCCESS: Final = 0
_NO_CONTEXT: Final = frozenset({3, 201})
"""The result codes of CUDA's driver library if the process or the thread has used no device yet."""
_ADDED: Final = (
    "deviceGetAttribute",
    "deviceGetUuid",
    "hostGetDevicePointer",
    "memGetAddressRange",
    "pointerGetAttribute",
    "streamWaitValue64",
    "streamWriteValue64",
    *VIRTUAL,
)
"""The functions that CuPy lacks, and ``deviceGetAttribute``. CuPy has a ``deviceGetAttribute``, but
on CUDA it knows fewer attributes than the driver library's function."""

_STUBS: Final = ("hostRegister", "hostUnregister", "ipcGetEventHandle", "ipcOpenEventHandle")
"""The functions for which CuPy on HIP has only stubs that return 999."""

_SLOW: Final = ("ipcOpenMemHandle", "ipcCloseMemHandle")
"""Slow functions. During these functions, CuPy holds the GIL, and ctypes does not. On AMD, opening
memory can take ten seconds."""


class LibraryError(RuntimeError):
    """The vendor refused a call. The class has the interface of CuPy's ``CUDARuntimeError``."""

    def __init__(self, status: int, name: str) -> None:
        super().__init__(status, name)
        self.status = status

    @override
    def __str__(self) -> str:
        status, name = self.args
        return f"{name} ({status})"


class _Calls:
    """Functions of a runtime library. ``error`` returns the exception for a result code."""

    def __init__(self, functions: Functions, error: Callable[[int], Exception]) -> None:
        self._functions = functions
        self._error = error

    def __contains__(self, name: str) -> bool:
        return name in self._functions

    def call(self, name: str, *arguments: Any) -> Any:
        """Call a function. Return None, the function's result, or a tuple of several results."""
        *results, code = self._attempt(name, *arguments)
        if code != _SUCCESS:
            raise self._error(code)
        return results[0] if len(results) == 1 else tuple(results) or None

    def _attempt(self, name: str, *arguments: Any) -> tuple[Any, ...]:
        answer = self._functions.call(name, *arguments)
        if answer[-1] != _SUCCESS:
            # The library keeps this failure's code until getLastError clears it. If the application
            # found the code, it would mistake the code for a failure of its own calls.
            self._functions.call("getLastError")
        return answer


class _DriverCalls(_Calls):
    """Functions of CUDA's driver library, which need a context in the calling thread.

    ``make_context`` gives the thread a context, by a call of the runtime library.
    """

    def __init__(
        self,
        functions: Functions,
        error: Callable[[int], Exception],
        make_context: Callable[[], object],
    ) -> None:
        super().__init__(functions, error)
        self._make_context = make_context

    @override
    def _attempt(self, name: str, *arguments: Any) -> tuple[Any, ...]:
        answer = self._functions.call(name, *arguments)
        if answer[-1] in _NO_CONTEXT:
            self._make_context()
            answer = self._functions.call(name, *arguments)
        return answer


class LibraryRuntime:
    """The vendor's libraries with the interface of CuPy's runtime.

    Functions that the libraries do not export are missing in this class too.
    """

    CUDARuntimeError = LibraryError

    def __init__(self, *calls: _Calls) -> None:
        self._calls = calls

    def __getattr__(self, name: str) -> Any:
        for one in self._calls:
            if name in one:
                return partial(one.call, name)
        msg = f"the vendor's library has no {name}"
        raise AttributeError(msg)


class CupyRuntime:
    """CuPy's runtime, in which ``calls`` replaces the functions named in ``added``.

    If ``calls`` lacks a function, CuPy's function stays in use. Failures raise CuPy's
    ``CUDARuntimeError``.
    """

    def __init__(self, module: Any, calls: _Calls, added: tuple[str, ...]) -> None:
        self._module = module
        self._calls = calls
        self._added = frozenset(added)

    def __getattr__(self, name: str) -> Any:
        if name in self._added and name in self._calls:
            return partial(self._calls.call, name)
        return getattr(self._module, name)


def open_runtime(family: Family) -> Runtime:
    """Load the vendor's library, and return it with the interface of CuPy's runtime.

    Raises
    ------
    BackendUnavailableError
        The library cannot be loaded.
    DriverError
        The query of the HIP library's version fails.
    """
    try:
        library = runtime_library(family)
    except LibraryNotFoundError as error:
        raise BackendUnavailableError(
            str(error), hint=family.install_hint, details=error.details, backend=family.backend
        ) from error
    names = names_of(family)

    def refuse(status: int) -> LibraryError:
        return LibraryError(status, names.get(status, "unknown to crossmem"))

    if family.is_hip:
        try:
            version = _Calls(Functions(library, HIP), refuse).call("runtimeGetVersion")
        except LibraryError as error:
            raise error_for(family, "runtimeGetVersion", error.status) from error
        calls = _Calls(Functions(library, hip_prototypes(family, version)), refuse)
        return cast("Runtime", LibraryRuntime(calls))
    calls = _Calls(Functions(library, CUDA_RUNTIME), refuse)
    driver = cuda_driver()
    if driver is None:
        return cast("Runtime", LibraryRuntime(calls))
    make_context = partial(calls.call, "memGetInfo")
    more = _DriverCalls(Functions(driver, CUDA_DRIVER), refuse, make_context)
    return cast("Runtime", LibraryRuntime(calls, more))


def extend(family: Family, module: Any) -> Runtime:
    """Return CuPy's runtime, with the vendor's functions where CuPy's are missing or unsuitable.

    If the vendor's library cannot be used, return CuPy's runtime unchanged.
    """
    calls = _calls_beside_hip(family, module) if family.is_hip else _calls_beside_cuda(module)
    if calls is None:
        return cast("Runtime", module)
    added = (*_ADDED, *_STUBS, *_SLOW) if family.is_hip else _ADDED
    return cast("Runtime", CupyRuntime(module, calls, added))


def _calls_beside_hip(family: Family, module: Any) -> _Calls | None:
    library = library_of(module)
    if library is None:
        return None
    error: type[Exception] = module.CUDARuntimeError
    try:
        version = module.runtimeGetVersion()
    except error:
        # ``Vendor`` queries the version again, and reports the failure.
        return None
    return _Calls(Functions(library, hip_prototypes(family, version)), error)


def _calls_beside_cuda(module: Any) -> _Calls | None:
    library = cuda_driver()
    if library is None:
        return None
    functions = Functions(library, CUDA_DRIVER)
    return _DriverCalls(functions, module.CUDARuntimeError, module.memGetInfo)
