# SPDX-License-Identifier: Apache-2.0
"""The choice of a device on any thread, and the restoration of the previous device (law C19).

Each thread has its own current device. crossmem chooses only primary contexts, which the vendor
creates at the first call that needs a context. A query of the current device needs none. crossmem
never resets a device, because CuPy, PyTorch or the application may be using it.
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
    """The current device of each thread."""

    def __init__(self, vendor: Vendor) -> None:
        self._vendor = vendor
        self._thread = threading.local()
        """``owed`` records a failed restoration: the device in use and the device to restore."""

    @contextmanager
    def on(self, ordinal: int) -> Iterator[None]:
        """Make a device current for this thread, and restore the previous device afterwards."""
        self._settle()
        previous = self._get()
        if previous == ordinal:
            yield
            return
        # A switch of devices would also break a capture by this thread on the previous device.
        refuse_capture(self._vendor)
        put_back = partial(self._put_back, ordinal, previous)
        # The device may have become current even if setDevice failed.
        with on_failure(put_back):
            self._set(ordinal)
        with in_any_case(put_back):
            yield

    def _put_back(self, ordinal: int, previous: int) -> None:
        """Restore a thread's device. If the vendor refuses, the thread's next call retries."""
        try:
            self._set(previous)
        except CrossmemError:
            self._thread.owed = ordinal, previous
            raise

    def _settle(self) -> None:
        """Retry a failed restoration, unless the application has since chosen another device."""
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
