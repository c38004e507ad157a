# SPDX-License-Identifier: Apache-2.0
"""Makes a device current for a thread, and restores the previous device (law C19).

Each thread has its own current device. crossmem uses only primary contexts, which the vendor
creates at the first call that needs a context. A query of the current device needs no context.
crossmem never resets a device, because CuPy, PyTorch or the application may be using it.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from crossmem.driver.cleanup import noting
from crossmem.errors import CrossmemError
from crossmem_hip.capture import refuse_capture
from crossmem_hip.runtime import Vendor

__all__ = ["Current"]


class Current:
    """The current device of each thread."""

    def __init__(self, vendor: Vendor) -> None:
        self._vendor = vendor
        self._thread = threading.local()
        """While a restoration is due or has failed, the attribute ``owed`` is a pair: the device in
        use, and the device to restore. At other times, the attribute is None or missing."""

    @contextmanager
    def on(self, ordinal: int) -> Iterator[None]:
        """Make a device current for this thread, and restore the previous device afterwards."""
        self._settle()
        previous = self._get()
        if previous == ordinal:
            yield
            return
        # If this thread is capturing a graph on the previous device, a switch of devices would
        # break the capture.
        refuse_capture(self._vendor)
        # CPython runs no signal handler between the `try` block and the statements that set `owed`.
        # So no exception of a handler can skip these statements.
        try:
            # The device may have become current even if setDevice failed. So this call is inside
            # the `try` block.
            self._set(ordinal)
            yield
        except BaseException as error:
            self._thread.owed = ordinal, previous
            with noting(error):
                self._pay()
            raise
        self._thread.owed = ordinal, previous
        self._pay()

    def _pay(self) -> None:
        """Restore the previous device. If that fails, the next `on` of this thread tries again."""
        owed: tuple[int, int] | None = self._thread.owed
        # If a signal handler has used crossmem, that use has restored the device already.
        if owed is not None:
            self._set(owed[1])
            self._thread.owed = None

    def _settle(self) -> None:
        """Retry a failed or interrupted restoration.

        If the application has chosen another device after the failure or interruption, keep that
        device.
        """
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
