# SPDX-License-Identifier: Apache-2.0
"""Every error that crossmem raises.

Each class also derives from the exceptions of Python that stand in parentheses::

    CrossmemError
    ├── ConfigurationError      (ValueError)
    ├── BackendNotFoundError    (LookupError)
    ├── BackendUnavailableError (RuntimeError)
    ├── DeviceNotFoundError     (LookupError)
    ├── InvalidSizeError        (ValueError)
    ├── OutOfMemoryError        (MemoryError)
    ├── InvalidHandleError      (ValueError)
    ├── StaleHandleError        (LookupError)
    ├── OwnerGoneError          (ConnectionError)
    ├── OwnerUnresponsiveError  (TimeoutError)
    ├── WaitTimeoutError        (TimeoutError)
    ├── QueueFullError          (queue.Full, TimeoutError)
    ├── QueueEmptyError         (queue.Empty, TimeoutError)
    ├── WrongHostError          (RuntimeError)
    ├── AccessDeniedError       (PermissionError)
    ├── BusyError               (RuntimeError)
    ├── ClosedError             (ValueError)
    ├── ForkedProcessError      (RuntimeError)
    ├── UnsupportedError        (NotImplementedError)
    └── DriverError             (RuntimeError)
"""

import os
import queue
from typing import Final

from typing_extensions import override

__all__ = [
    "AccessDeniedError",
    "BackendNotFoundError",
    "BackendUnavailableError",
    "BusyError",
    "ClosedError",
    "ConfigurationError",
    "CrossmemError",
    "DeviceNotFoundError",
    "DriverError",
    "ForkedProcessError",
    "InvalidHandleError",
    "InvalidSizeError",
    "OutOfMemoryError",
    "OwnerGoneError",
    "OwnerUnresponsiveError",
    "QueueEmptyError",
    "QueueFullError",
    "StaleHandleError",
    "UnsupportedError",
    "WaitTimeoutError",
    "WrongHostError",
]

_MAX_TEXT: Final = 200
"""The largest number of characters in a message or a hint."""

_CHECKED: Final = os.environ.get("CROSSMEM_TEST_MESSAGES") == "1"
"""Whether an error checks the form of its message and hint, and raises an AssertionError if one of
them is too long or has several lines. Only test runs set the environment variable."""


class CrossmemError(Exception):
    """Root of all errors raised by crossmem.

    Parameters
    ----------
    message
        What failed, with the wrong value and the allowed values, in one line of at most 200
        characters.
    hint
        What the user can do next, in one line of at most 200 characters.
    details
        Further text, such as one line for each path that was tried. ``str()`` of the error does not
        contain the details.
    operation
        The operation that failed, such as ``"attach"``.
    backend, device
        Backend and device of the failure, if they are known.

    Notes
    -----
    Every error can be pickled and keeps its fields, so a worker can send an error to its parent.
    """

    def __init__(
        self,
        message: str,
        *,
        hint: str | None = None,
        details: str = "",
        operation: str | None = None,
        backend: str | None = None,
        device: str | None = None,
    ) -> None:
        super().__init__(message)
        if _CHECKED:
            _check_text("message", message)
            _check_text("hint", hint or "")
        self.message = message
        self.hint = hint
        self.details = details
        self.operation = operation
        self.backend = backend
        self.device = device

    @override
    def __str__(self) -> str:
        return f"{self.message}\nHint: {self.hint}" if self.hint else self.message


def _check_text(name: str, text: str) -> None:
    if len(text) > _MAX_TEXT or len(text.splitlines()) > 1:
        fault = f"a {name} is one line of at most {_MAX_TEXT} characters, not {len(text)}: {text!r}"
        raise AssertionError(fault)


class ConfigurationError(CrossmemError, ValueError):
    """A setting, device name or argument is invalid."""


class BackendNotFoundError(CrossmemError, LookupError):
    """No plugin offers the named backend."""


class BackendUnavailableError(CrossmemError, RuntimeError):
    """The backend is known but cannot work on this machine; the message says why."""


class DeviceNotFoundError(CrossmemError, LookupError):
    """No device that this process sees has the requested ordinal or identity."""


class InvalidSizeError(CrossmemError, ValueError):
    """A size, offset or length is out of bounds, or is not a number of bytes."""


class OutOfMemoryError(CrossmemError, MemoryError):
    """The device, the machine, a container or a pool has no room; the message says what is full."""


class InvalidHandleError(CrossmemError, ValueError):
    """The bytes are not a handle, or the owner never made a handle with these contents."""


class StaleHandleError(CrossmemError, LookupError):
    """The owner freed the memory of the handle, or withdrew the handle."""


class OwnerGoneError(CrossmemError, ConnectionError):
    """The exporting process is dead, is exiting, or has closed its lease server."""


class OwnerUnresponsiveError(CrossmemError, TimeoutError):
    """The exporting process lives but did not answer in time."""


class WaitTimeoutError(CrossmemError, TimeoutError):
    """An event of another process, such as a timeline's signal, did not occur in time."""


class QueueFullError(CrossmemError, queue.Full, TimeoutError):
    """No buffer of the queue became free in time, or a queue of the vendor stayed full."""


class QueueEmptyError(CrossmemError, queue.Empty, TimeoutError):
    """No buffer arrived in the queue in time."""


class WrongHostError(CrossmemError, RuntimeError):
    """The exporter is on another host, ran before the last boot, or has unreachable namespaces."""


class AccessDeniedError(CrossmemError, PermissionError):
    """The operation is not permitted.

    There are four causes: the exporter does not admit this process, another process uses the
    address of the exporter's lease server, the program writes to a read-only object, or this
    process does not have the necessary role of a queue.
    """


class BusyError(CrossmemError, RuntimeError):
    """The object or memory is in use, for example by leases, mappings, views or a graph capture."""


class ClosedError(CrossmemError, ValueError):
    """The object was closed, unmapped or freed; the queue has ended; or this process is exiting."""


class ForkedProcessError(CrossmemError, RuntimeError):
    """A forked child uses an object of its parent, or a backend that does not work after a fork."""


class UnsupportedError(CrossmemError, NotImplementedError):
    """The operation is not possible with this device, object, array library or exporter."""


class DriverError(CrossmemError, RuntimeError):
    """A vendor call or system call failed.

    Parameters
    ----------
    call
        The vendor function or system call, such as ``"hipIpcOpenMemHandle"`` or ``"mmap"``.
    code
        The number of the error: the vendor's result code, or the errno of a system call.
    name
        The name of that code, such as the vendor's constant or ``"EMFILE"``.
    """

    def __init__(
        self,
        message: str,
        *,
        call: str = "",
        code: int = 0,
        name: str = "",
        hint: str | None = None,
        details: str = "",
        operation: str | None = None,
        backend: str | None = None,
        device: str | None = None,
    ) -> None:
        super().__init__(
            message,
            hint=hint,
            details=details,
            operation=operation,
            backend=backend,
            device=device,
        )
        self.call = call
        self.code = code
        self.name = name

    @override
    def __str__(self) -> str:
        text = super().__str__()
        return f"{text}\n{self.call} failed with {self.name} ({self.code})" if self.call else text
