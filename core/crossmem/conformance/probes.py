# SPDX-License-Identifier: Apache-2.0
"""Changes to a peer's driver, by which a test observes crossmem's calls or makes them fail.

The functions replace methods of the peer's tracing driver, some of them until the peer ends. A test
may call them only in fresh peers.
"""

from collections.abc import Callable
from typing import Any

from crossmem.conformance import actions
from crossmem.driver import CopyKind
from crossmem.driver.buffers import address_of
from crossmem.errors import DriverError

__all__ = ["fail_once", "issue_work", "journal", "start_journal"]

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
    """Make the next call of a driver method raise ``DriverError`` and do nothing else."""
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
