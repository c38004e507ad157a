# SPDX-License-Identifier: Apache-2.0
"""Raises an exception from a signal handler, at a chosen place where CPython runs handlers.

CPython runs signal handlers at the entry of a Python function, at a backward jump, and after a call
of C code. The handler of this module is C code that triggers its own signal again, so CPython runs
the handler at each of these places.
"""

import _thread
import signal
import sys
from collections.abc import Callable
from functools import partial
from types import FrameType, TracebackType
from typing import Any, Final, Self

__all__ = ["Interrupted", "Interrupts"]

_SIGNAL: Final = signal.SIGUSR2


class Interrupted(BaseException):
    """The exception that the signal handler raises."""


class _Again:
    """An object whose comparison with a signal's number triggers that signal in C code."""

    __lt__ = _thread.interrupt_main


class Interrupts:
    """Raises :class:`Interrupted` once in its ``with`` block, at the ``number``-th counted place.

    Parameters
    ----------
    number
        Number of the place. The first counted place has the number 1. If the block reaches fewer
        counted places, nothing is raised.
    counts
        A function that is called with the file of each frame on the stack. It returns True for a
        file under test, False for a file whose calls must not be interrupted, and None for other
        files. A place counts if the function returns True for at least one frame, and does not
        return False for any frame.
    innermost
        Whether ``counts`` is called only for the innermost frame. Calls from a file under test into
        other files are then not interrupted.

    Attributes
    ----------
    count
        Number of counted places that were reached so far.
    place
        Description of the place of the exception, for messages; empty before the exception.
    """

    def __init__(
        self, number: int, counts: Callable[[str], bool | None], *, innermost: bool = False
    ) -> None:
        self.count = 0
        self.place = ""
        self._number = number
        self._counts = counts
        self._innermost = innermost
        self._is_over = True
        self._again = _Again()
        self._before: Any = None
        self._tracer: Any = None

    def __enter__(self) -> Self:
        # CPython calls the handler, min(), with the signal's number and the frame. min() calls the
        # function _step() with each of them, and compares the results. If the second result is an
        # ``_Again``, the comparison triggers the next signal. In the handler, only _step() and the
        # functions that it calls are Python code. No signal is pending while _step() runs, so the
        # handler does not interrupt it.
        handler: Any = partial(min, key=self._step)
        # No function is traced in this block, because CPython 3.11 would run the handler for ever
        # at one place of a traced function.
        self._tracer = sys.gettrace()
        sys.settrace(None)
        self._before = signal.signal(_SIGNAL, handler)
        self._is_over = False
        _thread.interrupt_main(_SIGNAL)
        return self

    def __exit__(
        self, kind: object, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._is_over = True
        signal.signal(_SIGNAL, self._before)
        sys.settrace(self._tracer)

    def _step(self, argument: Any) -> Any:
        if isinstance(argument, int):
            return argument
        if self._is_over:
            return 0
        if self._is_counted(argument):
            self.count += 1
            if self.count == self._number:
                self._is_over = True
                self.place = _describe(argument)
                raise Interrupted
        return self._again

    def _is_counted(self, frame: FrameType | None) -> bool:
        is_counted = False
        if self._innermost:
            return frame is not None and self._counts(frame.f_code.co_filename) is True
        while frame is not None:
            counts = self._counts(frame.f_code.co_filename)
            if counts is False:
                return False
            is_counted = is_counted or counts is True
            frame = frame.f_back
        return is_counted


def _describe(frame: FrameType | None) -> str:
    places: list[str] = []
    while frame is not None and len(places) < 5:
        name = frame.f_code.co_filename.rpartition("/")[2]
        places.append(f"{name}:{frame.f_lineno} {frame.f_code.co_name}")
        frame = frame.f_back
    return " < ".join(places)
