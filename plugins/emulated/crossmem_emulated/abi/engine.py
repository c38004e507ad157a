# SPDX-License-Identifier: Apache-2.0
"""Fills the table of an emulated library with callbacks, in the process that uses the library.

Each C function of the library calls its callback through the table.
"""

import ctypes
import logging
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from crossmem.errors import ConfigurationError
from crossmem.guards import shorten
from crossmem_emulated.abi.cache import stamp_of
from crossmem_emulated.abi.calls import Calls
from crossmem_emulated.abi.library import TYPES, Library, library_named
from crossmem_emulated.abi.sources import stamp

__all__ = ["start"]

_log = logging.getLogger(__name__)
_lock = threading.RLock()
_kept: Final[dict[int, object]] = {}
"""Each key is the address of a table. The value is the objects that the table's callbacks need."""


def _declared(library: Library, folder: Path) -> Any:
    """Return the FFI object with a library's declarations."""
    if stamp_of(folder) != stamp(library):
        # `crossmem emulate --print-env` prints the folder of a built library. A program may still
        # use this folder after an upgrade of crossmem.
        raise ConfigurationError(
            f"another version of crossmem built the library, or {shorten(str(folder))} is damaged",
            hint=f"run `crossmem emulate {library.name} --print-env` again for a new environment, "
            f"or `crossmem emulate {library.name} -- COMMAND`",
        )
    path = folder / f"{TYPES}.py"
    found: dict[str, Any] = {}
    # The file is not imported, because Python would write bytecode into the folder. The folder
    # would then count as damaged.
    exec(compile(path.read_bytes(), path, "exec"), found)  # noqa: S102 - what cffi wrote
    return found["ffi"]


def start(name: str, soname: str, folder: str, table: int, ready: int) -> None:
    """Fill a library's table. At the program's first call, the library calls this function.

    Parameters
    ----------
    name
        Name of the emulation.
    soname
        Name of the file that the program loaded.
    folder
        The folder of the built library.
    table, ready
        Address of the table, and address of the number that says whether the table is filled.
    """
    with _lock:
        if table in _kept:
            return
        library = library_named(name)
        ffi = _declared(library, Path(folder))
        _kept[table] = _fill(library, soname, ffi, ffi.cast("struct cm_table *", table))
        ctypes.c_int.from_address(ready).value = 1


def _fill(library: Library, soname: str, ffi: Any, table: Any) -> list[object]:
    binding = library.bind(ffi, soname)
    known = dict(binding.functions())
    calls = Calls(library.name)
    kept: list[object] = [binding, ffi]
    for field, shape in ffi.typeof("struct cm_table").fields:
        kind = shape.type.result.kind
        is_number = kind in {"primitive", "enum"}
        # An error code is an enum, an int or an int32_t. A number of another type is a result, such
        # as a count.
        has_code = kind == "enum" or shape.type.result.cname in {"int", "int32_t"}
        function = known.pop(field, None)
        if function is None:
            nothing = ffi.NULL if kind == "pointer" else None
            refuse = binding.refuse if is_number else lambda _name, nothing=nothing: nothing
            function = _refusing(soname, field, refuse)
        callback = ffi.callback(
            shape.type,
            calls.counted(field, function),
            error=library.unknown if has_code else None,
            onerror=_logging(soname, field, library.unknown),
        )
        setattr(table, field, callback)
        kept.append(callback)
    assert not known, f"{library.name}: not declared: {sorted(known)}"  # noqa: S101
    return kept


def _refusing(soname: str, name: str, refuse: Callable[[str], Any]) -> Callable[..., Any]:
    """Return a substitute for a function that is not emulated.

    Each call of the substitute returns the result of ``refuse``. The first call logs a warning.
    """
    told = False

    def function(*_arguments: Any) -> Any:
        nonlocal told
        if not told:
            told = True
            _log.warning("%s does not emulate %s: the call has no effect", soname, name)
        return refuse(name)

    return function


_Exception = type[BaseException]


def _logging(
    soname: str, name: str, unknown: int
) -> Callable[[_Exception, BaseException, TracebackType], None]:
    """Return a function that logs an exception of a callback. No exception may reach C code."""

    def on_error(kind: _Exception, error: BaseException, trace: TracebackType) -> None:
        try:
            _log.error(
                "%s: the emulation failed in %s; the error code of this call (if any) is %d",
                soname,
                name,
                unknown,
                exc_info=(kind, error, trace),
            )
        except BaseException:  # noqa: BLE001 - a log handler of the program failed
            sys.stderr.write(f"{soname}: the emulation failed in {name}: {error!r}\n")

    return on_error
