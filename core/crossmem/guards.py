# SPDX-License-Identifier: Apache-2.0
"""Checks of arguments, and the formatting of values in error messages."""

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from numbers import Real
from typing import Any, Final

from crossmem.errors import ConfigurationError, InvalidSizeError

__all__ = [
    "NAME_PATTERN",
    "check_choice",
    "check_fields",
    "check_flag",
    "check_integer",
    "check_part",
    "check_size",
    "check_timeout",
    "check_wait",
    "clause",
    "field_error",
    "is_flag",
    "is_identity",
    "is_name",
    "is_number",
    "is_within",
    "plain_integer",
    "read_flag",
    "shorten",
]

NAME_PATTERN: Final = r"[a-z][a-z0-9_-]{0,31}"
"""The pattern of the names of backends and mechanisms: lower case, at most 32 characters."""

_MAX_TIMEOUT_S: Final = 86400.0
_FOREVER_S: Final = 1e9
_MAX_SHOWN: Final = 100
_MAX_CLAUSE: Final = 120
_MAX_IDENTITY: Final = 128
_TRUE: Final = frozenset({"1", "true", "t", "yes", "y", "on"})
_FALSE: Final = frozenset({"0", "false", "f", "no", "n", "off"})


def is_name(value: object) -> bool:
    """Return whether a value is a valid name for a backend or a mechanism."""
    return isinstance(value, str) and re.fullmatch(NAME_PATTERN, value) is not None


def is_identity(value: object) -> bool:
    """Return whether a value is a valid identity for a device."""
    if not isinstance(value, str) or not 0 < len(value) <= _MAX_IDENTITY:
        return False
    return value.isascii() and value.isprintable() and " " not in value


def is_flag(value: object) -> bool:
    """Return whether a value is True or False. Numbers are not accepted."""
    return type(value) is bool


def is_number(value: object) -> bool:
    """Return whether a value is a real number. NumPy's numbers are accepted, ``bool`` is not."""
    return isinstance(value, Real) and not isinstance(value, bool)


def is_within(value: object, first: int, last: float) -> bool:
    """Return whether a value is an integer, other than a ``bool``, from ``first`` to ``last``."""
    return isinstance(value, int) and not isinstance(value, bool) and first <= value <= last


def read_flag(text: str) -> bool:
    """Return True for texts like ``Yes``, False for texts like ``off``.

    Raise ``ValueError`` for other texts.
    """
    word = text.lower()
    if word not in _TRUE | _FALSE:
        msg = f"{shorten(text)} is neither on nor off"
        raise ValueError(msg)
    return word in _TRUE


def check_fields(value: object, rules: Mapping[str, tuple[Callable[[Any], bool], str]]) -> None:
    """Check the fields of a dataclass.

    Parameters
    ----------
    value
        The instance to check. Its ``__post_init__`` calls this function.
    rules
        Maps the name of each field to a test of the field's value, and to a text that describes
        the allowed values.

    Raises
    ------
    ConfigurationError
        A field fails its test. The error names the field, the value and the allowed values.
    """
    for name, (is_right, allowed) in rules.items():
        if not is_right(getattr(value, name)):
            raise field_error(value, name, allowed)


def field_error(value: object, name: str, allowed: str) -> ConfigurationError:
    """Return the error for a wrong value in a field of a dataclass."""
    found = shorten(getattr(value, name), 60)
    return ConfigurationError(f"{type(value).__name__}.{name} is {found}; it must be {allowed}")


def check_choice(name: str, value: object, allowed: Sequence[str], operation: str) -> None:
    """Raise ``ConfigurationError`` if a value is not one of the allowed words."""
    if not isinstance(value, str) or value not in allowed:
        words = " or ".join(f'"{word}"' for word in allowed)
        msg = f"{name} must be {words}, not {shorten(value)}"
        raise ConfigurationError(msg, operation=operation)


def check_flag(name: str, value: object, operation: str) -> None:
    """Raise ``ConfigurationError`` if a value is neither True nor False."""
    if not is_flag(value):
        msg = f"{name} must be True or False, not {shorten(value)}"
        raise ConfigurationError(msg, operation=operation)


def plain_integer(value: Any) -> Any:
    """Convert an integer of another type, for example a NumPy integer, to an ``int``.

    Return any other value unchanged.
    """
    if type(value) is int or isinstance(value, bool):
        return value
    # Every NumPy array has __index__ too, so only the call shows whether the value is an integer.
    try:
        return operator.index(value)
    except TypeError:
        return value


def check_integer(name: str, value: object) -> int:
    """Return an integer as an ``int``. Raise ``InvalidSizeError`` for other types and ``bool``."""
    found = plain_integer(value)
    if type(found) is not int:
        msg = f"{name} must be a number of bytes, not {shorten(value)}"
        raise InvalidSizeError(msg)
    return found


def check_size(name: str, value: object, *, limit: int) -> int:
    """Return a size from 1 to ``limit`` bytes. Raise ``InvalidSizeError`` for other values."""
    size = check_integer(name, value)
    if not 0 < size <= limit:
        msg = f"{name} is {shorten(size)}; it must be at least 1 and at most {limit} bytes"
        raise InvalidSizeError(msg)
    return size


def check_part(offset: object, nbytes: object, *, limit: int) -> tuple[int, int]:
    """Return the offset and the length of a part, in bytes.

    Raise ``InvalidSizeError`` if the part does not lie within ``limit`` bytes.
    """
    start, size = check_integer("offset", offset), check_integer("nbytes", nbytes)
    if start < 0 or size < 0 or start + size > limit:
        msg = (
            f"bytes [{shorten(start, 60)}, {shorten(start + size, 60)}) do not lie in [0, {limit})"
        )
        raise InvalidSizeError(msg)
    return start, size


def check_timeout(timeout: Any, *, default_s: float) -> float:
    """Return a timeout in seconds, limited to one day. ``None`` means ``default_s``.

    Raise ``ConfigurationError`` if the value is not a positive number.
    """
    if timeout is None:
        return default_s
    if not is_number(timeout) or not timeout > 0:
        msg = f"timeout is {shorten(timeout)}; it must be a positive number of seconds"
        raise ConfigurationError(msg)
    return float(min(timeout, _MAX_TIMEOUT_S))


def check_wait(timeout: Any, *, default_s: float) -> float:
    """Return a time limit in seconds. 0 means no wait, and ``None`` means ``default_s``.

    Raise ``ConfigurationError`` if the value is not a number or is negative.
    """
    if timeout is None:
        return default_s
    if not is_number(timeout) or not timeout >= 0:
        msg = f"timeout is {shorten(timeout)}; it must be None or at least 0 seconds"
        raise ConfigurationError(msg, hint="pass 0 to return at once")
    # min() comes first, because an integer can be too large for a float.
    return float(min(timeout, _FOREVER_S))


def clause(text: str, most: int = _MAX_CLAUSE) -> str:
    """Return an untrusted text as one line of at most ``most`` characters."""
    return _cut(" ".join(text.split()), most)


def shorten(value: object, most: int = _MAX_SHOWN) -> str:
    """Return at most ``most`` characters of the ``repr`` of an untrusted value."""
    if isinstance(value, str | bytes):
        # A long text is cut before repr(), which would otherwise process the whole text.
        value = value[: most + 1]
    try:
        shown = repr(value)
    except Exception:  # noqa: BLE001 - any type may define __repr__, and int has a digit limit
        shown = f"<{type(value).__name__}>"
    return _cut(shown if shown.isprintable() else " ".join(shown.split()), most)


def _cut(line: str, most: int) -> str:
    return line if len(line) <= most else f"{line[: most - 3]}..."
