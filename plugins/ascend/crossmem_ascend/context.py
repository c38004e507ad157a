# SPDX-License-Identifier: Apache-2.0
"""Device and context for calls on any thread, and both put back afterwards (law C19).

A device is opened once for each process, in a thread of its own, because ``set_device`` changes the
thread that calls it and cannot be taken back without closing the device for others. It is never
reset: torch_npu or the application may be using it.
"""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from functools import partial

from crossmem.errors import CrossmemError, DriverError
from crossmem_ascend.cleanup import in_any_case
from crossmem_ascend.errors import BACKEND, CONTEXT_NULL
from crossmem_ascend.runtime import Vendor

__all__ = ["Contexts"]


class Contexts:
    """The devices that this process has opened.

    Parameters
    ----------
    vendor
        The runtime.
    """

    def __init__(self, vendor: Vendor) -> None:
        self._vendor = vendor
        self._lock = threading.Lock()
        self._opened: dict[int, int] = {}
        self._thread = threading.local()
        """What each thread is still owed."""

    @property
    def opened(self) -> list[int]:
        """The devices that this process uses."""
        return list(self._opened)

    @contextmanager
    def on(self, ordinal: int) -> Iterator[None]:
        """Make a device current for this thread, and put back what was current before."""
        put_back = self._enter(ordinal)
        if put_back is None:
            yield
        else:
            with in_any_case(partial(self._put_back, put_back)):
                yield

    def _put_back(self, step: Callable[[], None]) -> None:
        """Put a thread's context back; where that is refused, the thread is owed it."""
        try:
            step()
        except CrossmemError:
            self._thread.owed = self._current(), step
            raise

    def _settle(self) -> None:
        """Put back what this thread is owed, unless the application has chosen another context."""
        owed: tuple[int | None, Callable[[], None]] | None = getattr(self._thread, "owed", None)
        if owed is None:
            return
        ours, step = owed
        with suppress(CrossmemError):
            if self._current() == ours:
                step()
            self._thread.owed = None

    def _enter(self, ordinal: int) -> Callable[[], None] | None:
        """Make a device current; return how to undo that, None where it was current already."""
        vendor, rt = self._vendor, self._vendor.rt
        self._settle()
        opened = self._open(ordinal)
        previous = self._current()
        if previous is None:
            # No call takes a context away from a thread, but destroying the current one does.
            own = vendor.value("rt.create_context", rt.create_context(ordinal))
            return partial(self._destroy, own)
        if vendor.value("rt.get_device", rt.get_device()) == ordinal:
            return None
        vendor.check("rt.set_context", rt.set_context(opened))
        return partial(self._set, previous)

    def _current(self) -> int | None:
        context, code = self._vendor.rt.get_context()
        if code == CONTEXT_NULL:
            return None
        self._vendor.check("rt.get_context", code)
        return context or None

    def _set(self, context: int) -> None:
        self._vendor.check("rt.set_context", self._vendor.rt.set_context(context))

    def _destroy(self, context: int) -> None:
        self._vendor.check("rt.destroy_context", self._vendor.rt.destroy_context(context))

    def _open(self, ordinal: int) -> int:
        """Return the default context of a device, opening it at the first call."""
        context = self._opened.get(ordinal)
        if context is None:
            with self._lock:
                context = self._opened.get(ordinal)
                if context is None:
                    context = self._opened[ordinal] = self._open_elsewhere(ordinal)
        return context

    def _open_elsewhere(self, ordinal: int) -> int:
        """Open a device in a thread of its own."""
        answer: Future[int] = Future()
        thread = threading.Thread(target=self._open_here, args=(ordinal, answer))
        try:
            thread.start()
        except RuntimeError as error:
            raise DriverError(
                f"device {ordinal} cannot be opened: {error}",
                hint="use the device once before the program exits",
                backend=BACKEND,
            ) from error
        thread.join()
        return answer.result()

    def _open_here(self, ordinal: int, answer: Future[int]) -> None:
        vendor, rt = self._vendor, self._vendor.rt
        try:
            vendor.check("rt.set_device", rt.set_device(ordinal))
            answer.set_result(vendor.value("rt.get_context", rt.get_context()))
        except BaseException as error:  # noqa: BLE001 - raised in the thread that waits
            answer.set_exception(error)
