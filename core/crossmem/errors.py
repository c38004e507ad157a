# SPDX-License-Identifier: Apache-2.0
"""Every error that crossmem raises.

Each class also derives from the builtin exception that a Python programmer expects::

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
"""Whether a message or hint that is too long or has several lines raises an AssertionError. Only
test runs set the variable."""


class CrossmemError(Exception):
    """Root of all errors raised by crossmem.

    Parameters
    ----------
    message
        What failed, with the value and what was allowed: one line of at most 200 characters.
    hint
        What the reader can do next, in at most 200 characters.
    details
        Further text, such as every path that was tried, one per line. ``str()`` leaves it out.
    operation
        The public operation that failed, such as ``"attach"``.
    backend, device
        Backend and device of the failure, if they are known.

    Notes
    -----
    All errors survive pickling with their fields, so a worker can send an error to its parent.
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
    """No device that this process can see has that ordinal or identity."""


class InvalidSizeError(CrossmemError, ValueError):
    """A size, offset or length is out of bounds, or is not a number of bytes."""


class OutOfMemoryError(CrossmemError, MemoryError):
    """The device, the machine, a container or a pool has no room; the message says what is full."""


class InvalidHandleError(CrossmemError, ValueError):
    """The bytes are not a handle, or no export made this handle."""


class StaleHandleError(CrossmemError, LookupError):
    """The allocation behind the handle was freed, or the handle was withdrawn."""


class OwnerGoneError(CrossmemError, ConnectionError):
    """The exporting process is dead, is exiting, or has closed its lease server."""


class OwnerUnresponsiveError(CrossmemError, TimeoutError):
    """The exporting process lives but did not answer in time."""


class WaitTimeoutError(CrossmemError, TimeoutError):
    """Another process did not act within the time that this process waited."""


class QueueFullError(CrossmemError, queue.Full, TimeoutError):
    """No buffer of the queue became free in time, or a queue of the vendor stayed full."""


class QueueEmptyError(CrossmemError, queue.Empty, TimeoutError):
    """No buffer arrived in the queue in time."""


class WrongHostError(CrossmemError, RuntimeError):
    """The exporter is on another host or boot, or in namespaces that this process cannot reach."""


class AccessDeniedError(CrossmemError, PermissionError):
    """The exporter does not admit this process.

    Also raised if another process uses the address of the exporter's lease server.
    """


class BusyError(CrossmemError, RuntimeError):
    """The object or memory is in use, for example by leases, mappings, views or a graph capture."""


class ClosedError(CrossmemError, ValueError):
    """The object was closed, unmapped or freed, a queue has ended, or this process is exiting."""


class ForkedProcessError(CrossmemError, RuntimeError):
    """The object was inherited through fork and belongs to the parent process."""


class UnsupportedError(CrossmemError, NotImplementedError):
    """The operation is not possible with this device, object, array library or exporter."""


class DriverError(CrossmemError, RuntimeError):
    """A vendor call or system call failed.

    Parameters
    ----------
    call
        The vendor function or system call, such as ``"hipIpcOpenMemHandle"`` or ``"mmap"``.
    code
        The numeric result of the call.
    name
        The vendor's name of that code.
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
