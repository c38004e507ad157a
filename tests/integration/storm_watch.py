# SPDX-License-Identifier: Apache-2.0
"""Measures how long the operations of a process take, and tells which take too long."""

import contextlib
import json
import os
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from typing_extensions import override

from crossmem.conformance.speed import SLOWNESS

ALLOWED_S: Final = 1.0 * SLOWNESS
"""How long an operation may last after its timeout has passed."""

_TICK_S: Final = 0.02
_LATE_S: Final = 0.05
_SAVE_EVERY_S: Final = 1.0


class Tally:
    """The counts of a process, in a file, because the process may be killed at any moment."""

    def __init__(self, board: Path) -> None:
        self.counts: Counter[str] = Counter()
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        self._file = os.open(board / f"tally-{os.getpid()}", flags, 0o600)

    def save(self) -> None:
        """Write the counts. They only grow, so each text covers the one before."""
        os.pwrite(self._file, json.dumps(self.counts).encode(), 0)


class Operation(NamedTuple):
    """A call that a thread is in."""

    name: str
    limit_s: float
    begin_s: float


class Watch(threading.Thread):
    """A clock that stands still while this process cannot run, and reads the operations by it.

    A sleeping thread that is woken up on time proves that the process could run. Where it is woken
    up much too late, the process was stopped or got no CPU, and only the sleep that was asked for
    counts. An operation that blocks one thread delays no other, so it cannot hide itself.

    Parameters
    ----------
    problem
        Called with a text for each operation that takes too long.
    tally
        What to save every second.
    """

    def __init__(self, problem: Callable[[str], None], tally: Tally) -> None:
        super().__init__(name="storm-watch", daemon=True)
        self._problem = problem
        self._tally = tally
        self._operations: dict[int, Operation] = {}
        self._ending = False
        self.fair_s = 0.0
        """The time in which this process could run."""
        self.real_s = 0.0

    def begin(self, name: str, timeout_s: float) -> None:
        """Note that this thread begins an operation that may last so long."""
        limit_s = timeout_s + ALLOWED_S
        self._operations[threading.get_ident()] = Operation(name, limit_s, self.fair_s)

    def end(self) -> None:
        """Note that the operation of this thread has ended, if there was one."""
        self._operations.pop(threading.get_ident(), None)

    def stop(self) -> None:
        """End the thread and save the counts."""
        self._ending = True
        self.join()
        self._tally.save()

    @override
    def run(self) -> None:
        before, saved = time.monotonic(), 0.0
        while not self._ending:
            time.sleep(_TICK_S)
            now = time.monotonic()
            took_s, before = now - before, now
            self.real_s += took_s
            self.fair_s += took_s if took_s < _TICK_S + _LATE_S else _TICK_S
            self._look()
            if now - saved > _SAVE_EVERY_S:
                saved = now
                # Other threads add counts meanwhile.
                with contextlib.suppress(RuntimeError):
                    self._tally.save()

    def _look(self) -> None:
        for thread, one in list(self._operations.items()):
            took_s = self.fair_s - one.begin_s
            if took_s > one.limit_s and self._operations.get(thread) is one:
                del self._operations[thread]
                frame = sys._current_frames().get(thread)
                stack = "".join(traceback.format_stack(frame)) if frame else ""
                self._problem(
                    f"late: {one.name} lasts {took_s:.2f} s, allowed are {one.limit_s:.2f} s\n"
                    + stack
                )
