# SPDX-License-Identifier: Apache-2.0
"""A stop of one thread inside a call, while the test does something else."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from crossmem.conformance.speed import SLOWNESS

__all__ = ["DEADLINE_S", "Halt", "inside"]

DEADLINE_S = 20 * SLOWNESS


class Halt:
    """Holds the first other thread that makes a call, before or after the call."""

    def __init__(self) -> None:
        self.reached, self.left = threading.Event(), threading.Event()
        self._first = threading.Lock()
        self._test = threading.get_ident()

    def stop(self) -> None:
        if threading.get_ident() != self._test and self._first.acquire(blocking=False):
            self.reached.set()
            assert self.left.wait(DEADLINE_S)

    def before(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def halted(*arguments: Any, **options: Any) -> Any:
            self.stop()
            return call(*arguments, **options)

        return halted

    def after(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def halted(*arguments: Any, **options: Any) -> Any:
            found = call(*arguments, **options)
            self.stop()
            return found

        return halted


@contextmanager
def inside(
    threads: ThreadPoolExecutor,
    halt: Halt,
    call: Callable[..., Any],
    *arguments: Any,
    **options: Any,
) -> Iterator[Future[Any]]:
    """Make a call in another thread, which waits in the halt during the ``with`` block."""
    made = threads.submit(call, *arguments, **options)
    try:
        assert halt.reached.wait(DEADLINE_S)
        yield made
    finally:
        halt.left.set()
