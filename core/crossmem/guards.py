# SPDX-License-Identifier: Apache-2.0
"""Argument checks that come before any driver call, and how their errors show a value."""

from typing import Final

from crossmem.errors import ConfigurationError, InvalidSizeError

__all__ = ["check_integer", "check_part", "check_size", "check_timeout", "shorten"]

_MAX_TIMEOUT_S: Final = 86400.0
_MAX_SHOWN: Final = 100


def check_integer(name: str, value: object) -> int:
    """Return ``value`` where it is an integer (``bool`` is none), else raise."""
    if type(value) is int:
        return value
    # Integers of other libraries, such as NumPy's, say through __index__ that they are exact.
    index = getattr(value, "__index__", None)
    if index is None or isinstance(value, bool):
        msg = f"{name} must be a number of bytes, not {value!r}"
        raise InvalidSizeError(msg)
    return int(index())


def check_size(name: str, value: object, *, limit: int) -> int:
    """Return a size in bytes that is at least 1 and at most ``limit``, else raise."""
    size = check_integer(name, value)
    if not 0 < size <= limit:
        msg = f"{name} is {size}; it must be at least 1 and at most {limit} bytes"
        raise InvalidSizeError(msg)
    return size


def check_part(offset: object, nbytes: object, *, limit: int) -> tuple[int, int]:
    """Return offset and length of a part that lies inside ``limit`` bytes, else raise."""
    start, size = check_integer("offset", offset), check_integer("nbytes", nbytes)
    if start < 0 or size < 0 or start + size > limit:
        msg = f"bytes [{start}, {start + size}) do not lie in [0, {limit})"
        raise InvalidSizeError(msg)
    return start, size


def check_timeout(timeout: object, *, default_s: float) -> float:
    """Return a timeout in seconds: the default for None, at most a day for all that is longer."""
    if timeout is None:
        return default_s
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not timeout > 0:
        msg = f"timeout is {timeout!r}; it must be a positive number of seconds"
        raise ConfigurationError(msg)
    return min(float(timeout), _MAX_TIMEOUT_S)


def shorten(value: object) -> str:
    """Return what an error shows of a value that a stranger may have sent."""
    shown = repr(value)
    return shown if len(shown) <= _MAX_SHOWN else f"{shown[:_MAX_SHOWN]}..."
