# SPDX-License-Identifier: Apache-2.0
"""Starting threads, safe against exceptions of signal handlers (law C30)."""

import threading
from _thread import start_new_thread

from crossmem.control.limits import no_thread

__all__ = ["start_thread"]


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
    bell = threading.Lock()
    bell.acquire()

    def start() -> None:
        try:
            thread.start()
        except RuntimeError as error:
            # A call that a signal handler cut short has perhaps started it.
            if thread.ident is None:
                failures.append(error)
        finally:
            bell.release()

    try:
        start_new_thread(start, ())
    except RuntimeError as error:
        raise no_thread(thread.name) from error
    bell.acquire()
    if failures:
        raise no_thread(thread.name) from failures[0]
