# SPDX-License-Identifier: Apache-2.0
"""``libascendcl`` through ctypes, with the interface of pyACL.

This binding needs no pyACL, and releases the GIL during calls. It has functions that pyACL lacks:
those for access to mappings, for handles of mapped memory, for version 2 of shareable handles, and
for queues.
"""

import ctypes
import os
from collections.abc import Callable, Mapping
from functools import partial
from types import ModuleType
from typing import Any, Final, cast

from crossmem.driver.native import Functions, LibraryNotFoundError, open_library
from crossmem.errors import BackendUnavailableError
from crossmem_ascend.errors import BACKEND, FEATURE_NOT_SUPPORT
from crossmem_ascend.prototypes import ACL, RT, TDT
from crossmem_ascend.pyacl import INSTALL_HINT
from crossmem_ascend.runtime import Acl

__all__ = ["LibraryAcl", "acl_library", "beside", "folders", "open_acl", "open_tdt"]

_STEM: Final = "libascendcl.so"
_NAMES: Final = (_STEM, f"{_STEM}.1")
_ROOTS: Final = ("/usr/local/Ascend/ascend-toolkit/latest", "/usr/local/Ascend/nnae/latest")
_FABRIC: Final = 2
"""The type of shareable handles that are bytes. Handles of all other types are numbers."""

_NUMBER_NBYTES: Final = 8


class _Module:
    """A module of ``acl``, such as ``acl.rt``. Its attributes are functions of the library."""

    def __init__(self, name: str, functions: Functions) -> None:
        self._name = name
        self._functions = functions
        self._others: dict[str, Callable[..., Any]] = {}

    def __getattr__(self, name: str) -> Any:
        if name not in self._functions:
            msg = f"{_STEM} has no function for acl.{self._name}.{name}"
            raise AttributeError(msg)
        return self._others.get(name) or partial(self._call, name)

    def _call(self, name: str, *arguments: Any) -> Any:
        answer = self._functions.call(name, *arguments)
        return answer if len(answer) > 1 else answer[0]


class _Rt(_Module):
    """``acl.rt``. For some functions, this class converts the arguments or the result."""

    def __init__(self, functions: Functions) -> None:
        super().__init__("rt", functions)
        self._others = {
            "ipc_mem_get_export_key": self._get_export_key,
            "mem_export_to_shareable_handle_v2": self._export_v2,
            "notify_get_export_key": self._get_notify_key,
        }

    def _get_export_key(self, pointer: int, size: int, length: int, flags: int) -> tuple[str, int]:
        key = ctypes.create_string_buffer(length)
        (code,) = self._functions.call("ipc_mem_get_export_key", pointer, size, key, length, flags)
        try:
            return key.value.decode("ascii"), code
        except UnicodeDecodeError:
            # Ascend 950 is said to have keys that are not text. This interface, like pyACL, cannot
            # return them.
            self._functions.call("ipc_mem_close", key.value)
            return "", FEATURE_NOT_SUPPORT

    def _get_notify_key(self, notify: int, length: int, flags: int) -> tuple[str, int]:
        key = ctypes.create_string_buffer(length)
        (code,) = self._functions.call("notify_get_export_key", notify, key, length, flags)
        try:
            return key.value.decode("ascii"), code
        except UnicodeDecodeError:
            # This interface, like pyACL, cannot return a key that is not text. The key need not be
            # closed, because the export ends when the notify is destroyed.
            return "", FEATURE_NOT_SUPPORT

    def _export_v2(self, handle: int, flags: int, kind: int) -> tuple[int | bytes, int]:
        share, code = self._functions.call("mem_export_to_shareable_handle_v2", handle, flags, kind)
        if kind == _FABRIC:
            return share, code
        return int.from_bytes(share[:_NUMBER_NBYTES], "little"), code


class LibraryAcl:
    """Huawei's library with the interface of the module ``acl``."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._functions = Functions(library, ACL)
        self.rt = _Rt(Functions(library, RT))
        self.tdt = _Module("tdt", Functions(library, TDT))

    def init(self) -> int:
        """Initialise ACL, and return the result code."""
        code: int = self._functions.call("init")[-1]
        return code

    def get_soc_name(self) -> str | None:
        """Return the name of the device type, or None if the library does not know it."""
        return self._text("get_soc_name") or None

    def get_recent_err_msg(self) -> str:
        """Return the library's text about this thread's last failure."""
        return self._text("get_recent_err_msg")

    def _text(self, name: str) -> str:
        if name not in self._functions:
            return ""
        text: bytes | None = self._functions.call(name)[-1]
        return (text or b"").decode(errors="replace")


def acl_library() -> ctypes.CDLL:
    """Load Huawei's library.

    Raises
    ------
    LibraryNotFoundError
        No copy of the library can be loaded.
    """
    return open_library(_NAMES, folders(os.environ), _STEM)


def folders(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the library folders of all places where CANN may be installed."""
    variables = ("ASCEND_TOOLKIT_HOME", "ASCEND_HOME_PATH")
    roots = [environ[name] for name in variables if environ.get(name)]
    return tuple(f"{root}/lib64" for root in (*roots, *_ROOTS))


def open_acl() -> Acl:
    """Return Huawei's library with the interface of pyACL.

    Raises
    ------
    BackendUnavailableError
        The library cannot be loaded.
    """
    try:
        library = acl_library()
    except LibraryNotFoundError as error:
        raise BackendUnavailableError(
            str(error), hint=INSTALL_HINT, details=error.details, backend=BACKEND
        ) from error
    return cast("Acl", LibraryAcl(library))


def beside(acl: Acl) -> Any:
    """Return a binding that has the functions that pyACL lacks.

    The binding uses the library that pyACL has loaded. If ``acl`` is not pyACL, or if the library
    is not found, return ``acl`` itself.
    """
    if not isinstance(acl, ModuleType):
        return acl
    try:
        return LibraryAcl(acl_library())
    except LibraryNotFoundError:
        return acl


def open_tdt(acl: Acl) -> object | None:
    """Return a runtime's functions for queues and buffers, or None if there are none."""
    return getattr(acl if hasattr(acl, "tdt") else beside(acl), "tdt", None)
