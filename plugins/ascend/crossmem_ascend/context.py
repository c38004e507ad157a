# SPDX-License-Identifier: Apache-2.0
"""Makes a device current on a thread, and restores the thread's context afterwards (law C19).

crossmem opens a device once in a process, by a call of ``set_device``. The call changes the context
of the calling thread. If that thread had no context before, only a reset of the device undoes the
change. crossmem never resets a device, because torch_npu or the application may be using it. So
crossmem calls ``set_device`` in a separate thread, which then ends.
"""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager
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
        The thread's previous context, or None if the thread had no context. With None, the context
        ``current`` is destroyed, which leaves the thread without a context again.
    """

    current: int
    previous: int | None


class Contexts:
    """Opens devices, and makes them current for the duration of a call."""

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

    def on(self, ordinal: int) -> AbstractContextManager[bool]:
        """Make a device current for this thread, and restore the previous context afterwards.

        If the device is current already, the thread keeps its own context. In all other cases, the
        thread gets the device's default context, to which the streams of torch_npu and of most
        programs belong. The value that the ``with`` statement binds is true if the context was
        replaced.
        """
        return self._switched(self._enter, ordinal)

    def on_default(self, ordinal: int) -> AbstractContextManager[bool]:
        """Make a device's default context current, inside a ``with`` block of :meth:`on`."""
        return self._switched(self._enter_default, ordinal)

    @contextmanager
    def _switched(self, enter: Callable[[int], list[_Debt]], ordinal: int) -> Iterator[bool]:
        entered: list[list[_Debt]] = []
        debts = self._debts
        try:
            yield bool(call_into(entered, enter, ordinal))
        except BaseException as error:
            debts += entered[0] if entered else ()
            with noting(error):
                self._pay_all()
            raise
        debts += entered[0]
        self._pay_all()

    @property
    def _debts(self) -> list[_Debt]:
        """The debts of this thread, in the order in which they are paid: the innermost first."""
        debts: list[_Debt] | None = getattr(self._thread, "debts", None)
        if debts is None:
            debts = self._thread.debts = []
        return debts

    def _pay_all(self) -> None:
        """Restore this thread's context. If the vendor refuses, raise, and keep the debt.

        :meth:`_settle` retries at the thread's next use of a device. Without the retry, the
        context that crossmem chose would stay current. At the next use, crossmem would assume that
        the application chose this context.
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
        # No signal handler runs between the removal of the debt and the call, so no context is
        # destroyed twice.
        del debts[0]
        code = call(context)
        if code != SUCCESS:
            debts.insert(0, debt)
        self._vendor.check(name, code)

    def _settle(self) -> None:
        """Pay the debts of earlier calls.

        If the application has chosen another context in the meantime, do not restore the previous
        context. A context that crossmem created is destroyed in any case.
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
                # The debt is dropped in two cases. If the code is PARAM_INVALID, the application
                # has destroyed the context. If `debt.current` is not current, a reset of the device
                # may have destroyed that context.
                if is_current and not (
                    isinstance(error, DriverError) and error.code == PARAM_INVALID
                ):
                    raise
                del debts[0]

    def _enter(self, ordinal: int) -> list[_Debt]:
        """Make a device current. Return the debts: none if the device was current already."""
        vendor, rt = self._vendor, self._vendor.rt
        self._settle()
        opened = self._open(ordinal)
        previous = self._current()
        if previous is not None:
            is_current = vendor.value("rt.get_device", rt.get_device()) == ordinal
            return [] if is_current else self._exchange(previous, opened)
        # The thread has no context, and no call of ACL detaches the default context from it. So
        # this method creates a context. When the debts are paid, the created context first replaces
        # the default context, and is then destroyed.
        made: list[tuple[int, int]] = []
        try:
            call_into(made, rt.create_context, ordinal)
            own = vendor.value("rt.create_context", made[0])
            return [*self._exchange(own, opened), _Debt(own, None)]
        except BaseException:
            if made and not made[0][1]:
                rt.set_context(made[0][0])
                rt.destroy_context(made[0][0])
            raise

    def _enter_default(self, ordinal: int) -> list[_Debt]:
        """Make a device's default context current. Return the debts."""
        opened, previous = self._open(ordinal), self._current()
        return [] if previous in {None, opened} else self._exchange(previous, opened)

    def _exchange(self, previous: int, chosen: int) -> list[_Debt]:
        """Replace this thread's context. Return the debt."""
        rt, codes = self._vendor.rt, list[int]()
        try:
            code = call_into(codes, rt.set_context, chosen)
            self._vendor.check("rt.set_context", code)
            return [_Debt(chosen, previous)]
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
                hint="use the device before the program exits, or raise the limit on threads",
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
