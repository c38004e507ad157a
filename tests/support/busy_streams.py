# SPDX-License-Identifier: Apache-2.0
"""Streams of an emulated GPU with work that lasts until a test ends it."""

import threading
from collections.abc import Callable
from typing import Any

import crossmem

__all__ = ["LONG_S", "Streams", "is_prompt"]

LONG_S = 10.0


class Streams:
    """Streams of the device, and work that lasts until the test ends it."""

    def __init__(self) -> None:
        self.device = crossmem.device("hip:0", runtime="emulated")
        self.rt: Any = getattr(self.device.driver, "_vendor").rt  # noqa: B009 - of the plugin
        self._ends: list[threading.Event] = []

    def new(self) -> int:
        return int(self.rt.streamCreateWithFlags(1))

    def busy(self) -> tuple[int, Callable[[], None]]:
        """Return a stream with work, and the function that ends the work."""
        stream, end = self.new(), threading.Event()
        self._ends.append(end)
        self.rt.launchHostFunc(stream, lambda _: end.wait(), 0)
        return stream, end.set

    def close(self) -> None:
        for end in self._ends:
            end.set()
        self.device.synchronize()


def is_prompt(call: Callable[[], object], *, within: float = LONG_S / 2) -> bool:
    """Return whether another thread makes a call soon, though work is running."""
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(within)
    return not thread.is_alive()
