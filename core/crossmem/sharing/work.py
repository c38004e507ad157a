# SPDX-License-Identifier: Apache-2.0
"""Waiting for a device's running work, before memory that it may use is taken away (law C9)."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from crossmem.errors import BusyError, CrossmemError

if TYPE_CHECKING:
    from crossmem.sharing.device import Device

__all__ = ["after_work"]


@contextmanager
def after_work(device: "Device") -> Iterator[None]:
    """Run a block after the work that a device has to do.

    Raises
    ------
    BusyError
        Where the work cannot be waited for now, as while a graph is captured. The block has not
        run then.
    CrossmemError
        What the vendor says of the work. The block has run: work that failed is over, too.
    """
    failure = None
    try:
        device.driver.synchronize(device.ordinal)
    except BusyError:
        raise
    except CrossmemError as error:
        failure = error
    yield
    if failure is not None:
        raise failure
