# SPDX-License-Identifier: Apache-2.0
"""Calling conventions of pyACL: positional arguments, results that end in the error code.

A function of the emulation is written as Python would have it: it returns its outputs and raises
:class:`Refused`. Binding it gives the function that a program calls.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from crossmem_emulated.acl.codes import Code

__all__ = ["ENTRIES", "Entry", "Refused", "entry", "parse"]

_Function = TypeVar("_Function", bound=Callable[..., Any])


class Refused(Exception):  # noqa: N818 - it is an answer, not a fault of the emulation
    """A function answers with an error code.

    Parameters
    ----------
    code
        What it answers.
    text
        Why, for ``get_recent_err_msg``.
    rule
        Id of the rule that forbids the use, such as ``"ACL-E8"``; it is then a violation. None
        where a lawful program can get this answer too.
    outputs
        What is returned beside the code, where that is not nothing.
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
        Its name with that of its module, such as ``"rt.malloc"``. What pyACL lacks, and C
        programs have, is in the module ``c``.
    codes
        One letter for each argument: ``k`` unsigned long, ``K`` uint64, ``i`` int32, ``I``
        uint32, ``s`` str, ``d`` dict, ``p`` a list of int32, ``o`` what the C interface made and
        passes as it is. Those after ``|`` may be absent; ``*`` stands for anything, which is
        ignored.
    blanks
        What stands in the place of each output in a failure.
    function
        What does the work.
    """

    name: str
    codes: str
    blanks: tuple[Any, ...]
    function: Callable[..., Any]


ENTRIES: Final[dict[str, Entry]] = {}
"""Every function by name."""


def entry(name: str, codes: str, *blanks: Any) -> Callable[[_Function], _Function]:
    """Register a function of the emulation; its first argument is the process's state."""

    def register(function: _Function) -> _Function:
        ENTRIES[name] = Entry(name, codes, blanks, function)
        return function

    return register


def parse(called: Entry, arguments: Sequence[Any]) -> list[Any]:
    """Convert arguments as pyACL's C code does.

    Raises
    ------
    TypeError
        Where there are too few or too many, or one is of the wrong type.
    ValueError, OverflowError
        Where a value cannot be converted.
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
    if code == "i" and not -(1 << 31) <= value < 1 << 31:
        raise OverflowError("signed integer is out of the range of a C int")
    if code in "kK":
        return value & 0xFFFF_FFFF_FFFF_FFFF
    return value & 0xFFFF_FFFF if code == "I" else value
