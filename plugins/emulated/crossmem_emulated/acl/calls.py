# SPDX-License-Identifier: Apache-2.0
"""Calling conventions of pyACL: positional arguments, and results that end with the error code.

A function of the emulation follows the conventions of Python: it returns its outputs, or raises
:class:`Refused`. :meth:`AclProcess.bind` converts it to the function that a program calls.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from crossmem_emulated.acl.codes import Code

__all__ = ["ENTRIES", "Entry", "Refused", "entry", "parse"]

_Function = TypeVar("_Function", bound=Callable[..., Any])


class Refused(Exception):  # noqa: N818 - a result, not a fault of the emulation
    """A function raises this exception to make the program's call return an error code.

    Parameters
    ----------
    code
        The error code.
    text
        The reason, for ``get_recent_err_msg``.
    rule
        Id of the violated rule, such as ``"ACL-E8"``. If a program can get this code without a
        violation, the rule is None, and no violation is recorded.
    outputs
        Outputs that the call returns with the code. If None, a Python program gets the blanks of
        the function's :class:`Entry`, and a C program's variables stay unchanged.
    """

    def __init__(
        self,
        code: Code,
        text: str,
        rule: str | None = None,
        outputs: tuple[Any, ...] | None = None,
    ) -> None:
        super().__init__(text)
        self.code = code
        self.text = text
        self.rule = rule
        self.outputs = outputs


@dataclass(frozen=True, slots=True)
class Entry:
    """One function of the emulation.

    Parameters
    ----------
    name
        The name of the function with its module, such as ``"rt.malloc"``. The modules ``c`` and
        ``tdt`` contain the functions that exist in C but not in pyACL.
    codes
        One letter for each argument: ``k`` unsigned long, ``K`` uint64, ``L`` int64, ``i`` int32,
        ``I`` uint32, ``s`` str, ``d`` dict, ``p`` a list of int32, ``o`` any object, which is
        passed unchanged. Arguments after ``|`` are optional. If ``codes`` is ``*``, all arguments
        are ignored.
    blanks
        For each output, the value that a Python program gets if the function fails, unless
        :class:`Refused` has outputs.
    function
        The implementation. Its first argument is the :class:`AclProcess`.
    has_code
        Whether the function returns a code. If not, it returns its only output.
    is_exclusive
        Whether calls of the function must not overlap with calls of any exclusive function,
        including the function itself.
    """

    name: str
    codes: str
    blanks: tuple[Any, ...]
    function: Callable[..., Any]
    has_code: bool = True
    is_exclusive: bool = False


ENTRIES: Final[dict[str, Entry]] = {}
"""All functions of the emulation. The key is :attr:`Entry.name`."""


def entry(
    name: str, codes: str, *blanks: Any, has_code: bool = True, is_exclusive: bool = False
) -> Callable[[_Function], _Function]:
    """Return a decorator that registers a function; see :class:`Entry` for the arguments."""

    def register(function: _Function) -> _Function:
        ENTRIES[name] = Entry(name, codes, blanks, function, has_code, is_exclusive)
        return function

    return register


def parse(called: Entry, arguments: Sequence[Any]) -> list[Any]:
    """Return a call's arguments, converted as pyACL's C code converts them.

    Raises
    ------
    TypeError
        There are too few or too many arguments, or an argument has the wrong type.
    ValueError, OverflowError
        A value cannot be converted.
    """
    if called.codes == "*":
        return []
    required, _, optional = called.codes.partition("|")
    if not len(required) <= len(arguments) <= len(required + optional):
        raise TypeError(f"acl.{called.name} args parse failed")
    codes = (required + optional)[: len(arguments)]
    return [_convert(called, code, value) for code, value in zip(codes, arguments, strict=True)]


def _convert(called: Entry, code: str, value: Any) -> Any:
    if code == "o":
        return value
    if code == "p":
        if not isinstance(value, list):
            raise ValueError(f"acl.{called.name}: only support the format of list")
        return [_convert(called, "i", one) for one in value]
    wanted = {"s": str, "d": dict}.get(code, int)
    if not isinstance(value, wanted):
        raise TypeError(f"acl.{called.name} args parse failed")
    if not isinstance(value, int):
        if isinstance(value, str) and "\0" in value:
            raise ValueError("embedded null character")
        return value
    if code == "L" and not -(1 << 63) <= value < 1 << 63:
        raise OverflowError("Python int too large to convert to C long long")
    if code == "i" and not -(1 << 31) <= value < 1 << 31:
        raise OverflowError("signed integer is out of the range of a C int")
    if code in "kK":
        return value & 0xFFFF_FFFF_FFFF_FFFF
    return value & 0xFFFF_FFFF if code == "I" else value
