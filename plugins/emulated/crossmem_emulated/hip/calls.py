# SPDX-License-Identifier: Apache-2.0
"""The registration of the emulated functions, and the conversion of their arguments.

An emulated function returns its result, or raises :class:`Refused`. :func:`entry` registers the
function with a signature. As in CuPy's docstrings, the signature has the names of the parameters
and their C types. :func:`parse` converts arguments in the same way as the compiled module
``cupy.cuda.runtime``.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from crossmem_emulated.hip.codes import CONSTANTS, HANDLE_NBYTES

__all__ = ["ENTRIES", "Entry", "Parameter", "Refused", "entry", "parse"]

_Function = TypeVar("_Function", bound=Callable[..., Any])
_SIGNATURE: Final = re.compile(r"(\w+)\((.*)\)(?: -> .+)?")
_PARAMETER: Final = re.compile(r"(?:(.+) )?(\w+?)(?:=(\w+))?")
_PREFIX: Final = "cupy_backends.cuda.api.runtime."

# For each C type: whether it is signed, its number of bits, and Cython's error text for a value
# that does not fit. ``_WIDER`` has the text for a value that does not even fit into a C long.
_INTEGERS: Final[Mapping[str, tuple[bool, int, str]]] = {
    "intptr_t": (True, 64, "Python int too large to convert to C ssize_t"),
    "size_t": (False, 64, "Python int too large to convert to C unsigned long"),
    "int": (True, 32, "value too large to convert to int"),
    "unsigned int": (False, 32, "value too large to convert to unsigned int"),
    "unsigned long long": (False, 64, "Python int too large to convert to C unsigned long"),
}
_WIDER: Final[Mapping[str, str]] = {
    "int": "Python int too large to convert to C long",
    "unsigned int": "Python int too large to convert to C unsigned long",
}
_LONG_BITS: Final = 64


class Refused(Exception):  # noqa: N818 - a result, not a fault of the emulation
    """A function raises this exception to make the program's call fail with an error code.

    Parameters
    ----------
    status
        The error code.
    text
        The reason, for the record of a violation.
    rule
        Id of the violated rule, such as ``"HIP-E6"``. If None, no violation is recorded: the
        program has broken no rule, or the emulation cannot know whether a rule is broken.
    """

    def __init__(self, status: int, text: str, rule: str | None = None) -> None:
        super().__init__(text)
        self.status = status
        self.text = text
        self.rule = rule


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of a function.

    Parameters
    ----------
    name
        The parameter's name, for keyword arguments.
    kind
        The parameter's type in the signature, often a C type; empty if the signature has none.
    default
        The parameter's default; None if an argument is required.
    """

    name: str
    kind: str
    default: int | None


@dataclass(frozen=True, slots=True)
class Entry:
    """One function of the emulation.

    Parameters
    ----------
    name
        The function's name.
    signature
        The function's signature, in the form of the first line of CuPy's docstrings.
    parameters
        The function's parameters.
    function
        The implementation; its first argument is the process's state.
    needs_device
        Whether the function fails if no device is visible. After a process has called a function
        that needs a device, all functions that need a device fail in forked children of the
        process (HIP-E18).
    is_checked
        If True, a Python program gets the function's result, or an exception if the function
        fails. If False, the program gets the function's result code, which is 0 for a success.
    hip_lacks
        The text of the error that CuPy for ROCm raises instead of calling the vendor's function;
        empty if CuPy calls the function.
    hip_answers
        The code of the error that CuPy for ROCm raises without a call of the vendor's function; 0
        if CuPy calls the vendor's function.
    """

    name: str
    signature: str
    parameters: tuple[Parameter, ...]
    function: Callable[..., Any]
    needs_device: bool = True
    is_checked: bool = True
    hip_lacks: str = ""
    hip_answers: int = 0


ENTRIES: Final[dict[str, Entry]] = {}
"""All functions of the emulation. The key is the function's name."""


def _parameters(text: str) -> tuple[Parameter, ...]:
    found = []
    for part in filter(None, text.split(", ")):
        match = _PARAMETER.fullmatch(part)
        assert match is not None, part  # noqa: S101 - our own signatures
        kind, name, default = match.groups()
        value = None
        if default is not None:
            value = int(default) if default.isdecimal() else CONSTANTS[default]
        found.append(Parameter(name, kind or "", value))
    return tuple(found)


def entry(
    signature: str,
    *,
    needs_device: bool = True,
    is_checked: bool = True,
    hip_lacks: str = "",
    hip_answers: int = 0,
) -> Callable[[_Function], _Function]:
    """Return a decorator that registers a function; see :class:`Entry` for the arguments."""
    match = _SIGNATURE.fullmatch(signature)
    assert match is not None, signature  # noqa: S101
    name, parameters = match.groups()

    def register(function: _Function) -> _Function:
        ENTRIES[name] = Entry(
            name,
            signature,
            _parameters(parameters),
            function,
            needs_device,
            is_checked,
            hip_lacks,
            hip_answers,
        )
        return function

    return register


def parse(called: Entry, arguments: Sequence[Any], named: Mapping[str, Any]) -> list[Any]:
    """Convert arguments as Cython does. The errors have Cython's messages.

    Raises
    ------
    TypeError
        There are too few or too many arguments, or one has the wrong type.
    OverflowError
        A number does not fit its C type.
    IndexError
        A handle has the wrong length.
    AttributeError
        A string argument is None.
    """
    given = _bind(called, arguments, named)
    pairs = list(zip(called.parameters, given, strict=True))
    values = [_number(kind, value) if (kind := one.kind) else value for one, value in pairs]
    for one, value in pairs:
        _check_object(one, value)
    return values


def _bind(called: Entry, arguments: Sequence[Any], named: Mapping[str, Any]) -> list[Any]:
    name, parameters = called.name, called.parameters
    if not parameters and arguments:
        raise TypeError(f"{_PREFIX}{name}() takes no arguments ({len(arguments)} given)")
    if not parameters and named:
        raise TypeError(f"{_PREFIX}{name}() takes no keyword arguments")
    least = sum(one.default is None for one in parameters)
    known = {one.name for one in parameters}
    for wrong in named:
        if wrong not in known:
            raise TypeError(f"{name}() got an unexpected keyword argument '{wrong}'")
        if wrong in {one.name for one in parameters[: len(arguments)]}:
            raise TypeError(f"{name}() got multiple values for keyword argument '{wrong}'")
    values = list(arguments)
    for one in parameters[len(arguments) :]:
        if one.name not in named and one.default is None:
            break
        values.append(named.get(one.name, one.default))
    if len(values) != len(parameters):
        is_exact = least == len(parameters)
        word = "exactly" if is_exact else "at least" if len(values) < least else "at most"
        count = least if len(values) < least else len(parameters)
        plural = "s" if count > 1 else ""
        raise TypeError(
            f"{name}() takes {word} {count} positional argument{plural} ({len(values)} given)"
        )
    return values


def _number(kind: str, value: Any) -> Any:
    if kind not in _INTEGERS:
        return value
    is_signed, bits, too_large = _INTEGERS[kind]
    # Cython generated the code of CuPy's wheel. This code calls __int__, not __index__, so the
    # wheel accepts a float for most types. For an address (intptr_t), the wheel accepts an int, but
    # refuses an integer of NumPy.
    if not isinstance(value, int):
        if kind == "intptr_t" or not hasattr(value, "__int__"):
            raise TypeError("an integer is required")
        value = int(value)
    if value < 0 and not is_signed:
        raise OverflowError(f"can't convert negative value to {kind}")
    lowest, above = (-(1 << (bits - 1)), 1 << (bits - 1)) if is_signed else (0, 1 << bits)
    if not lowest <= value < above:
        span = 1 << (_LONG_BITS - 1 if is_signed else _LONG_BITS)
        is_long = -span <= value < span
        raise OverflowError(too_large if is_long else _WIDER.get(kind, too_large))
    return int(value)


def _check_object(parameter: Parameter, value: Any) -> None:
    wanted = {"bytes": bytes, "str": str}.get(parameter.kind)
    if wanted is None:
        return
    if value is not None and type(value) is not wanted:
        raise TypeError(
            f"Argument '{parameter.name}' has incorrect type "
            f"(expected {parameter.kind}, got {type(value).__name__})"
        )
    if value is None:
        # Cython accepts None, and then fails when it uses the value.
        if wanted is str:
            raise AttributeError("'NoneType' object has no attribute 'encode'")
        raise TypeError("'NoneType' object is not iterable")
    if wanted is bytes and len(value) < HANDLE_NBYTES:
        raise IndexError(
            "not enough values found during array assignment, "
            f"expected {HANDLE_NBYTES}, got {len(value)}"
        )
    if wanted is bytes and len(value) > HANDLE_NBYTES:
        raise IndexError(f"too many values found during array assignment, expected {HANDLE_NBYTES}")
