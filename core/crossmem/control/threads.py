# SPDX-License-Identifier: Apache-2.0
"""Starting threads and waiting for them, safe against exceptions of signal handlers (law C30)."""

import threading
from _thread import start_new_thread

from crossmem.control.limits import no_thread

__all__ = ["Bell", "start_thread"]


class Bell:
    """Lets one thread wait until another has rung. Rung twice, it has rung once."""

    def __init__(self) -> None:
        self._silence = threading.Lock()
        self._silence.acquire()

    def ring(self) -> None:
        """End the wait, or the next one."""
        try:
            self._silence.release()
        except RuntimeError:
            # It has rung, and nobody has heard it yet.
            return

    def wait(self, timeout_s: float = threading.TIMEOUT_MAX) -> bool:
        """Wait until it has rung; False if the time is over."""
        return self._silence.acquire(timeout=min(timeout_s, threading.TIMEOUT_MAX))


def start_thread(thread: threading.Thread) -> None:
    """Start a thread.

    ``Thread.start`` waits in Python code, where a signal handler may raise and leave a lock held.
    Signal handlers run in the main thread alone, so another thread calls it.

    Raises
    ------
    DriverError
        This process can have no more threads.
    """
    failures: list[RuntimeError] = []
    bell = Bell()

    def start() -> None:
        try:
            thread.start()
        except RuntimeError as error:
            # A call that a signal handler cut short has perhaps started it.
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
