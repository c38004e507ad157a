# SPDX-License-Identifier: Apache-2.0
"""The Python functions behind ``libascendcl.so``. They call the emulation of ACL."""

import os
import threading
from collections.abc import Callable, Mapping
from typing import Any

from crossmem_emulated.abi.ascend import records, tdt
from crossmem_emulated.abi.ascend.names import CALLED
from crossmem_emulated.acl import Acl
from crossmem_emulated.acl.codes import Code
from crossmem_emulated.options import Options

__all__ = ["AclBinding"]


class AclBinding:
    """The Python functions that implement the C functions in one process.

    The profile chooses the edition of ACL, so the binding ignores the name of the loaded library.
    """

    def __init__(self, ffi: Any, _soname: str) -> None:
        options = Options.from_environ(os.environ)
        self.ffi = ffi
        self.acl = Acl(options.acl_profile, options.strict, options=options)
        self._thread = threading.local()
        self._soc = ffi.new("char[]", self.acl.get_soc_name().encode())
        self._shapes = dict(ffi.typeof("struct cm_table").fields)

    def functions(self) -> Mapping[str, Callable[..., Any]]:
        """Return the Python function that implements each C function. The key is the C name."""
        special = {**records.FUNCTIONS, **tdt.FUNCTIONS}
        found = {name: self._convert(name) for name in CALLED.keys() - special.keys()}
        found |= {name: self._bound(name, function) for name, function in special.items()}
        return found | {
            "aclGetRecentErrMsg": self._get_recent_err_msg,
            "aclrtGetSocName": lambda: self._soc,
            "aclrtGetLastError": self._get_last_error,
            "aclrtPeekAtLastError": self._peek_at_last_error,
        }

    def refuse(self, name: str) -> Any:
        """Return the result of a C function that is not emulated.

        If the result is an error code, record it as the thread's last error.
        """
        result = self._shapes[name].type.result
        if result.kind == "pointer":
            return self.ffi.NULL
        if result.cname != "int":
            return None if result.kind == "void" else 0
        return self.finish(name, Code.RT_FEATURE_NOT_SUPPORT, "it is not emulated")

    # Calls ------------------------------------------------------------------------------------

    def call(self, name: str, *values: Any) -> tuple[tuple[Any, ...] | None, int]:
        """Do the work of the C function ``name`` in the emulation. Return the outputs and the code.

        The outputs are None if the call leaves the C program's variables unchanged.
        """
        outputs, code = self.acl.answer(CALLED[name], *values)
        return outputs, self.finish(name, code, None)

    def missing(self, name: str) -> int:
        """Record that a required argument of a call is null. Return the error code."""
        return self.finish(name, Code.INVALID_PARAM, "an argument is null")

    def finish(self, name: str, code: int, text: str | None) -> int:
        """Return ``code`` as an integer. Record a code other than 0 as the thread's last error.

        ``text`` is the reason for the failure. If ``text`` is None, the error message keeps the
        reason that the emulation gave.
        """
        if code:
            self._thread.last = int(code)
            self.acl.rename_error(name, text)
        return int(code)

    def _bound(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *arguments: function(self, name, *arguments)

    def _convert(self, name: str) -> Callable[..., int]:
        """Return the Python function for a C function. The C types determine the conversions.

        - A number: the emulation gets the number.
        - ``char *``: the emulation gets the text.
        - A pointer to a number that is not a ``char``, or a pointer to a pointer: the function
          stores the next output of the emulation at the pointer's address.
        - A pointer to anything else: the emulation gets the address.
        """
        ffi = self.ffi
        shapes = self._shapes[name].type.args
        kinds = [_kind(one) for one in shapes]

        def function(*arguments: Any) -> int:
            values: list[Any] = []
            places = []
            for kind, shape, argument in zip(kinds, shapes, arguments, strict=True):
                if kind is _NUMBER:
                    values.append(argument)
                elif kind is _POINTER:
                    values.append(int(ffi.cast("uintptr_t", argument)))
                elif argument == ffi.NULL:
                    return self.missing(name)
                elif kind is _TEXT:
                    values.append(records.text_of(ffi, argument))
                else:
                    places.append((argument, shape.item))
            outputs, code = self.call(name, *values)
            if outputs is not None:
                for (place, target), value in zip(places, outputs, strict=True):
                    place[0] = ffi.cast(target, value) if target.kind == "pointer" else value
            return code

        return function

    # The last error ---------------------------------------------------------------------------

    def _get_recent_err_msg(self) -> Any:
        text = self.acl.get_recent_err_msg()
        if not text:
            return self.ffi.NULL
        # The text must stay valid until the thread's next call of this function.
        self._thread.text = self.ffi.new("char[]", text.encode())
        return self._thread.text

    def _get_last_error(self, level: int) -> int:
        code = self._peek_at_last_error(level)
        self._thread.last = 0
        return code

    def _peek_at_last_error(self, level: int) -> int:
        if level:
            return int(Code.RT_PARAM_INVALID)
        last: int = getattr(self._thread, "last", 0)
        return last


_NUMBER, _POINTER, _TEXT, _OUTPUT = "number", "pointer", "text", "output"


def _kind(shape: Any) -> str:
    """Return the kind of conversion for a parameter of a C type."""
    if shape.kind != "pointer":
        return _NUMBER
    if shape.item.cname == "char":
        return _TEXT
    return _OUTPUT if shape.item.kind in {"enum", "pointer", "primitive"} else _POINTER
