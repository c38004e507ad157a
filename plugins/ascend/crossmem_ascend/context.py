# SPDX-License-Identifier: Apache-2.0
"""The choice of device and context on any thread, and their restoration afterwards (law C19).

A process opens a device once, in a separate thread, because ``set_device`` changes the context of
the calling thread. If that thread had no context before, only a reset of the device would undo this
change. crossmem never resets a device, because torch_npu or the application may be using it.
"""

import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass

from crossmem.driver.cleanup import noting
from crossmem.driver.recording import call_into
from crossmem.errors import CrossmemError, DriverError
from crossmem.guards import clause
from crossmem_ascend.errors import BACKEND, CONTEXT_NULL, PARAM_INVALID, SUCCESS
from crossmem_ascend.runtime import Vendor

__all__ = ["Contexts"]


@dataclass(frozen=True, slots=True)
class _Debt:
    """A context that must be restored for a thread.

    Parameters
    ----------
    current
        The context that crossmem made current.
    previous
        The thread's previous context, None if it had none.
    """

    current: int
    previous: int | None


class Contexts:
    """The devices that this process has opened."""

    def __init__(self, vendor: Vendor) -> None:
        self._vendor = vendor
        # Reentrant: a signal handler may use the device while the interrupted thread opens it.
        self._lock = threading.RLock()
        self._opened: dict[int, int] = {}
        self._thread = threading.local()
        """For each thread, the contexts that must still be restored."""

    @property
    def opened(self) -> list[int]:
        """The ordinals of the devices that this process has opened."""
        return list(self._opened)

    @contextmanager
    def on(self, ordinal: int) -> Iterator[None]:
        """Make a device current for this thread, and restore the previous context afterwards."""
        entered: list[_Debt | None] = []
        debts = self._debts
        try:
            call_into(entered, self._enter, ordinal)
            yield
        except BaseException as error:
            if entered and entered[0] is not None:
                debts.append(entered[0])
            with noting(error):
                self._pay_all()
            raise
        if entered[0] is not None:
            debts.append(entered[0])
        self._pay_all()

    @property
    def _debts(self) -> list[_Debt]:
        """The debts of this thread, in the order of their restoration: the innermost first."""
        debts: list[_Debt] | None = getattr(self._thread, "debts", None)
        if debts is None:
            debts = self._thread.debts = []
        return debts

    def _pay_all(self) -> None:
        """Restore this thread's context. If the vendor refuses, the thread's next call retries.

        Without the retry, the next call would mistake the current context for the application's
        choice.
        """
        debts = self._debts
        while debts:
            self._pay_first(debts)

    def _pay_first(self, debts: list[_Debt]) -> None:
        """Restore one context and remove the debt; keep the debt if the vendor refuses."""
        rt, debt = self._vendor.rt, debts[0]
        if debt.previous is None:
            # ACL has no call that detaches a context from a thread. Only the destruction of the
            # current context detaches it.
            name, call, context = "rt.destroy_context", rt.destroy_context, debt.current
        else:
            name, call, context = "rt.set_context", rt.set_context, debt.previous
        # No signal handler runs between these two statements, so no context is destroyed twice.
        del debts[0]
        code = call(context)
        if code != SUCCESS:
            debts.insert(0, debt)
        self._vendor.check(name, code)

    def _settle(self) -> None:
        """Pay the debts of earlier calls.

        If the application has chosen another context since, do not restore the previous context. A
        context that crossmem created is destroyed in any case.
        """
        debts = self._debts
        while debts:
            debt = debts[0]
            is_current = self._current() == debt.current
            if not is_current and debt.previous is not None:
                del debts[0]
                continue
            try:
                self._pay_first(debts)
            except CrossmemError as error:
                # PARAM_INVALID: the application has destroyed the context. A context that is not
                # current may have ended with a reset of the device.
                if is_current and not (
                    isinstance(error, DriverError) and error.code == PARAM_INVALID
                ):
                    raise
                del debts[0]

    def _enter(self, ordinal: int) -> _Debt | None:
        """Make a device current. Return the debt, None if the device was current already."""
        vendor, rt = self._vendor, self._vendor.rt
        self._settle()
        opened = self._open(ordinal)
        previous = self._current()
        if previous is None:
            made: list[tuple[int, int]] = []
            try:
                call_into(made, rt.create_context, ordinal)
                return _Debt(vendor.value("rt.create_context", made[0]), None)
            except BaseException:
                if made and not made[0][1]:
                    rt.destroy_context(made[0][0])
                raise
        if vendor.value("rt.get_device", rt.get_device()) == ordinal:
            return None
        codes: list[int] = []
        try:
            vendor.check("rt.set_context", call_into(codes, rt.set_context, opened))
            return _Debt(opened, previous)
        except BaseException:
            if codes and not codes[0]:
                rt.set_context(previous)
            raise

    def _current(self) -> int | None:
        context, code = self._vendor.rt.get_context()
        if code == CONTEXT_NULL:
            return None
        self._vendor.check("rt.get_context", code)
        return context or None

    def _open(self, ordinal: int) -> int:
        """Return the default context of a device. The first call opens the device."""
        context = self._opened.get(ordinal)
        if context is None:
            with self._lock:
                context = self._opened.get(ordinal)
                if context is None:
                    context = self._opened[ordinal] = self._open_elsewhere(ordinal)
        return context

    def _open_elsewhere(self, ordinal: int) -> int:
        """Open a device in a separate thread."""
        answer: Future[int] = Future()
        thread = threading.Thread(target=self._open_here, args=(ordinal, answer))
        try:
            thread.start()
        except RuntimeError as error:
            raise DriverError(
                f"device {ordinal} cannot be opened: {clause(str(error))}",
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
