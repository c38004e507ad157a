# SPDX-License-Identifier: Apache-2.0
"""The device for calls on any thread, put back afterwards (law C19).

The current device belongs to the thread. Reading it makes no context; the vendors make one, the
device's own and the only one that crossmem uses, at the first call that needs it. A device is never
reset: CuPy, PyTorch or the application may be using it.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial

from crossmem.driver.cleanup import in_any_case, on_failure
from crossmem.errors import CrossmemError
from crossmem_hip.capture import refuse_capture
from crossmem_hip.runtime import Vendor

__all__ = ["Current"]


class Current:
    """Which device is current for each thread.

    Parameters
    ----------
    vendor
        The runtime.
    """

    def __init__(self, vendor: Vendor) -> None:
        self._vendor = vendor
        self._thread = threading.local()
        """What each thread is still owed."""

    @contextmanager
    def on(self, ordinal: int) -> Iterator[None]:
        """Make a device current for this thread, and put back what was current before."""
        self._settle()
        previous = self._get()
        if previous == ordinal:
            yield
            return
        # A graph that this thread captures on its own device would break on the other one, too.
        refuse_capture(self._vendor)
        put_back = partial(self._put_back, ordinal, previous)
        # A device that cannot be opened may be current all the same.
        with on_failure(put_back):
            self._set(ordinal)
        with in_any_case(put_back):
            yield

    def _put_back(self, ordinal: int, previous: int) -> None:
        """Put a thread's device back; where that is refused, the thread is owed it."""
        try:
            self._set(previous)
        except CrossmemError:
            self._thread.owed = ordinal, previous
            raise

    def _settle(self) -> None:
        """Put back what this thread is owed, unless the application has chosen another device."""
        owed: tuple[int, int] | None = getattr(self._thread, "owed", None)
        if owed is None:
            return
        ordinal, previous = owed
        with suppress(CrossmemError):
            if self._get() == ordinal:
                self._set(previous)
            self._thread.owed = None

    def _get(self) -> int:
        with self._vendor.calling("getDevice"):
            return self._vendor.rt.getDevice()

    def _set(self, ordinal: int) -> None:
        with self._vendor.calling("setDevice"):
            self._vendor.rt.setDevice(ordinal)
