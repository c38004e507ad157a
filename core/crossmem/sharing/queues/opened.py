# SPDX-License-Identifier: Apache-2.0
"""The segments of a queue, mapped in one process, and the bells that wake other processes."""

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from time import monotonic
from typing import Final

from crossmem.control import words
from crossmem.control.barrier import IS_ORDERED
from crossmem.errors import ClosedError, OwnerGoneError
from crossmem.sharing.base.devices import LocalDevice
from crossmem.sharing.base.memory import Memory
from crossmem.sharing.base.process import Process
from crossmem.sharing.base.usage import Usage
from crossmem.sharing.queues.layout import (
    CLOSED,
    END,
    HEADER_WORDS,
    MAX_STAMP,
    SLEEPING,
    TAIL,
    Terms,
)

__all__ = ["LOOK_S", "Opened", "ring"]

LOOK_S: Final = 0.25
"""The longest single sleep of a waiting process, in seconds. Between two sleeps, the process checks
whether the owner is alive, unless the last such check was less than LOOK_S seconds ago."""


def ring(bell: int) -> None:
    """Make an eventfd readable."""
    # If the counter of the eventfd is full, the eventfd is readable already.
    with suppress(BlockingIOError):
        os.eventfd_write(bell, 1)


@dataclass(slots=True, eq=False, weakref_slot=True)
class Opened:
    """The segments of a queue, mapped in this process. Other processes write most segments."""

    process: Process
    device: LocalDevice
    terms: Terms
    control: memoryview
    segments: Sequence[memoryview]
    """The words of each ring, then of each place."""
    owner_bell: int
    bells: Sequence[int]
    """The eventfds of the rings, then of the places."""
    base: int
    usage: Usage
    kept: Sequence[Memory]
    """The memory of the segments and buffers; in the owner, also the memory of the directories."""
    is_owner_alive: Callable[[], bool]
    look_at: float = 0.0
    """Before this monotonic time, :meth:`check_owner` does not check whether the owner is alive."""
    first_stop: int = field(init=False)
    """The result of :meth:`Terms.stop` for the first ring."""

    def __post_init__(self) -> None:
        self.first_stop = self.terms.stop(0)

    def pointer(self, producer: int, buffer: int) -> int:
        """Return the address of a buffer."""
        return self.base + (producer * self.terms.depth + buffer) * self.terms.stride

    def member(self, place: int) -> int:
        """Return the open session of a ring or place; 0 if there is none."""
        found = self.control[HEADER_WORDS + place]
        if not IS_ORDERED:
            words.fence()
        return found if found % 2 else 0

    def consumer(self, index: int) -> int:
        """Return the open session of a consumer; 0 if there is none."""
        return self.member(self.terms.producers + index)

    def tail(self, producer: int) -> int:
        """Return the last stamp that a producer has published. An invalid stamp counts as 0."""
        found = self.segments[producer][TAIL]
        if not IS_ORDERED:
            words.fence()
        # When a session ends, the owner stores the session's last tail in ``stop``. The producer
        # may still write a larger tail afterwards, so ``stop`` limits the result.
        stop = self.control[self.first_stop + producer]
        return min(stop, found) if found <= MAX_STAMP else 0

    def released(self, consumer: int, producer: int, buffer: int) -> int:
        """Return the stamp of the newest entry that this consumer has released for a buffer."""
        place = self.segments[self.terms.producers + consumer]
        return words.observe(place, self.terms.released(producer, buffer))

    @property
    def end(self) -> int:
        """0 while entries may be put, else FINISHED, ENDED or CLOSED."""
        return words.observe(self.control, END)

    def wake(self, place: int) -> None:
        """Wake the process of a ring or place if it sleeps.

        The caller stores its change before this call. So either the process sees the change before
        it sleeps, or this call sees that the process sleeps.
        """
        if self.terms.is_fenced:
            words.fence()
        if self.segments[place][SLEEPING]:
            ring(self.bells[place])

    def wake_consumers(self) -> None:
        """Wake all consumers that sleep."""
        for place in range(self.terms.producers, self.terms.places):
            if self.terms.is_fenced or self.segments[place][SLEEPING]:
                self.wake(place)

    def check_owner(self) -> None:
        """Raise if the queue was closed, or its owner is dead."""
        if self.end == CLOSED:
            msg = "the owner closed this queue"
            raise ClosedError(msg, hint="make a new queue")
        now = monotonic()
        if now >= self.look_at:
            # The check is a system call, so its result is used for LOOK_S seconds.
            if not self.is_owner_alive():
                msg = "the process that owns this queue is dead"
                raise OwnerGoneError(msg, hint="make a new queue in a living process")
            self.look_at = now + LOOK_S
