# SPDX-License-Identifier: Apache-2.0
"""How threads start and wait. An exception from a signal handler does no harm here (law C30)."""

import logging
import threading
import time
from _thread import start_new_thread
from collections.abc import Callable
from typing import Final

from crossmem.control.limits import no_thread
from crossmem.driver.recording import call_into

__all__ = ["LOOK_AGAIN_S", "Bell", "PassingThread", "Waiters", "start_thread"]

LOOK_AGAIN_S: Final = 0.5
"""After this time, a waiting thread checks its condition again, because a hint can be lost. A
:class:`PassingThread` pauses for the same time after a fault."""
_STOP_S: Final = 5.0
_log = logging.getLogger(__name__)


class Bell:
    """Lets one thread wait until another thread rings. Two rings before a wait count as one."""

    def __init__(self) -> None:
        self._silence = threading.Lock()
        self._silence.acquire()

    def ring(self) -> None:
        """End the current wait, or the next one."""
        try:
            self._silence.release()
        except RuntimeError:
            # The bell has rung already, and no thread has waited since.
            return

    def wait(self, timeout_s: float = threading.TIMEOUT_MAX) -> bool:
        """Wait until the bell rings. Return False if it does not ring in time."""
        return self._silence.acquire(timeout=min(timeout_s, threading.TIMEOUT_MAX))


class PassingThread:
    """A daemon thread that exists only while there is work.

    Parameters
    ----------
    turn
        A function that does a part of the work, and may wait on :attr:`bell`. The thread calls the
        function as long as there is work.
    is_needed
        A function that returns whether there is work.
    """

    def __init__(self, turn: Callable[[], None], is_needed: Callable[[], bool]) -> None:
        self._turn = turn
        self._is_needed = is_needed
        self._running = threading.Lock()
        """This lock is held as long as the thread runs, so that only one thread is started."""
        self._is_stopping = False
        self.bell = Bell()
        """Wakes the thread."""

    def start(self) -> bool:
        """Start the thread, unless it runs or :meth:`stop` was called.

        Return False if this process can start no more threads.
        """
        taken: list[bool] = []
        started: list[int] = []
        try:
            call_into(taken, self._running.acquire, False)  # noqa: FBT003
            if taken[0] and not self._is_stopping:
                # Thread.start() waits in Python code, where a signal handler may raise. A finaliser
                # that starts a PassingThread must not wait. start_new_thread() does not wait.
                call_into(started, start_new_thread, self._run, ())
        except RuntimeError:
            return False
        finally:
            if taken and taken[0] and not started:
                self._running.release()
        return True

    def _must_run(self) -> bool:
        return self._is_needed() and not self._is_stopping

    def _run(self) -> None:
        while True:
            while self._must_run():
                try:
                    self._turn()
                except BaseException:  # noqa: BLE001 - logged with its traceback
                    # Work is left, so a fault must not end the thread. No signal handler has caused
                    # the fault, because signal handlers run only in the main thread.
                    _log.exception("a fault in a thread of crossmem; the thread continues")
                    self.bell.wait(LOOK_AGAIN_S)
            self._running.release()
            # A caller that added work just before this release could not start a new thread. So
            # this thread checks again whether there is work.
            if not (self._must_run() and self._running.acquire(blocking=False)):
                return

    def stop(self) -> None:
        """End the thread, and wait at most 5 seconds for its end. Used at the process's exit."""
        self._is_stopping = True
        self.bell.ring()
        if self._running.acquire(timeout=_STOP_S):
            self._running.release()


class Waiters:
    """Threads that wait until a condition becomes true.

    Parameters
    ----------
    lock
        Held while a condition is evaluated.
    """

    def __init__(self, lock: "threading.RLock") -> None:
        self._lock = lock
        self._bells: set[Bell] = set()

    def ring(self) -> None:
        """Make all waiting threads evaluate their conditions again."""
        for bell in list(self._bells):
            self._bells.discard(bell)
            bell.ring()

    def wait(self, is_over: Callable[[], bool], timeout_s: float) -> bool:
        """Wait until a condition is true; return False if it is not true in time.

        The condition is evaluated at the start, at each :meth:`ring`, every half second and at the
        time limit. Once the condition was true, this call does not evaluate it again.
        """
        end = time.monotonic() + timeout_s
        while True:
            bell = Bell()
            try:
                with self._lock:
                    if is_over():
                        return True
                    self._bells.add(bell)
                left_s = end - time.monotonic()
                if left_s <= 0:
                    return False
                bell.wait(min(left_s, LOOK_AGAIN_S))
            finally:
                self._bells.discard(bell)


def start_thread(thread: threading.Thread) -> None:
    """Start a thread.

    ``Thread.start`` waits in Python code, where a signal handler may raise and leave a lock held.
    Signal handlers run only in the main thread, so another thread calls ``Thread.start``.

    Raises
    ------
    DriverError
        This process can start no more threads.
    """
    failures: list[RuntimeError] = []
    bell = Bell()

    def start() -> None:
        try:
            thread.start()
        except RuntimeError as error:
            # An earlier call of start_thread() can have started the thread before a signal handler
            # interrupted that call. In that case, thread.start() raises, but the thread has an
            # ident, so this is no failure.
            if thread.ident is None:
                failures.append(error)
        finally:
            bell.ring()

    try:
        start_new_thread(start, ())
    except RuntimeError as error:
        raise no_thread(thread.name) from error
    bell.wait()
    if failures:
        raise no_thread(thread.name) from failures[0]
