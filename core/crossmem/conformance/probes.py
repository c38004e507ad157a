# SPDX-License-Identifier: Apache-2.0
"""Changes to a peer's driver. With these changes, a test records driver calls, or makes them fail.

The functions of this module replace methods of the peer's tracing driver. Some replacements stay
until the peer ends, so a test may call these functions only in fresh peers.
"""

import os
from collections.abc import Callable
from typing import Any, Final

from crossmem.conformance import actions
from crossmem.driver import CopyKind, Exported
from crossmem.driver.buffers import address_of
from crossmem.errors import DriverError, InvalidHandleError

__all__ = ["CHANGES", "change_export", "fail_once", "issue_work", "journal", "start_journal"]

_METHODS = (
    "allocate",
    "export",
    "release_export",
    "free",
    "import_",
    "map",
    "unmap",
    "close",
    "synchronize",
    "copy",
    "reserve",
    "release",
    "map_at",
    "unmap_at",
)

_journal: list[str] = []

CHANGES: Final = (
    "no payload",
    "an extra payload",
    "an empty payload",
    "a longer payload",
    "no descriptor",
    "an extra descriptor",
    "a pipe for a descriptor",
    "a larger capacity",
)
"""The valid arguments of :func:`change_export`."""


def start_journal() -> None:
    """Start to record the calls of the driver methods in ``_METHODS``, in order."""
    driver = actions.tracer()

    def noting(name: str, inner: Callable[..., Any]) -> Callable[..., Any]:
        def method(*args: Any, **kwargs: Any) -> Any:
            _journal.append(name)
            return inner(*args, **kwargs)

        return method

    for name in _METHODS:
        # The driver may lack optional methods.
        if not hasattr(driver, name):
            continue
        setattr(driver, name, noting(name, getattr(driver, name)))


def journal() -> list[str]:
    """Return the driver calls that were recorded since the last call of this function."""
    entries = list(_journal)
    _journal.clear()
    return entries


def fail_once(method: str) -> None:
    """Make the next call of a driver method raise ``DriverError`` before it reaches the driver."""
    driver = actions.tracer()
    inner = getattr(driver, method)

    def failing(*args: Any, **kwargs: Any) -> Any:
        setattr(driver, method, inner)
        raise DriverError(f"{method} was made to fail", call=method, code=5, name="EIO")

    setattr(driver, method, failing)


def issue_work(name: str, data: bytes) -> None:
    """Simulate device work: the next synchronisation writes ``data`` to a named allocation."""
    driver = actions.tracer()
    allocation = actions.objects[name]
    inner = driver.synchronize

    def synchronize(ordinal: int) -> None:
        with address_of(data) as (source, nbytes):
            driver.copy(ordinal, allocation.ptr, source, nbytes, CopyKind.HOST_TO_DEVICE)
        driver.synchronize = inner  # type: ignore[method-assign]
        inner(ordinal)

    driver.synchronize = synchronize  # type: ignore[method-assign]


def change_export(change: str) -> None:
    """Change the export that the next call of ``import_`` gets, as an untrusted exporter can.

    If the change does not apply to the driver's exports, this call of ``import_`` raises
    ``InvalidHandleError`` before it reaches the driver.
    """
    driver = actions.tracer()
    inner = driver.import_

    def import_(ordinal: int, exported: Exported, *, capacity: int, **options: Any) -> Any:
        driver.import_ = inner  # type: ignore[method-assign]
        payloads, descriptors = exported.payloads, exported.descriptors
        if change == "a larger capacity":
            capacity *= 2
        elif "payload" in change:
            exported.payloads = _PAYLOADS[change](payloads)
        else:
            exported.descriptors = _DESCRIPTORS[change](descriptors)
            for one in set(descriptors).difference(exported.descriptors):
                os.close(one)
        if (payloads, descriptors) == (exported.payloads, exported.descriptors) and (
            change != "a larger capacity"
        ):
            raise InvalidHandleError(f"the export cannot have {change}", backend=driver.backend)
        return inner(ordinal, exported, capacity=capacity, **options)

    driver.import_ = import_  # type: ignore[method-assign]


def _pipe() -> int:
    reading, writing = os.pipe()
    os.close(writing)
    return reading


_PAYLOADS: Final[dict[str, Callable[[tuple[bytes, ...]], tuple[bytes, ...]]]] = {
    "no payload": lambda _found: (),
    "an extra payload": lambda found: (*found, b"extra"),
    "an empty payload": lambda found: (b"", *found[1:]) if found else (),
    "a longer payload": lambda found: (found[0] + b"\0", *found[1:]) if found else (),
}
_DESCRIPTORS: Final[dict[str, Callable[[tuple[int, ...]], tuple[int, ...]]]] = {
    "no descriptor": lambda _found: (),
    "an extra descriptor": lambda found: (*found, _pipe()),
    "a pipe for a descriptor": lambda found: (_pipe(), *found[1:]) if found else (),
}
