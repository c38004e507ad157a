# SPDX-License-Identifier: Apache-2.0
"""A queue as one process sees it: its numbers, its segments and its buffers."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from crossmem.control import words
from crossmem.errors import ClosedError, OwnerGoneError
from crossmem.sharing.base.devices import LocalDevice
from crossmem.sharing.base.process import Process
from crossmem.sharing.base.usage import Usage
from crossmem.sharing.queues.layout import END, SESSION, Shape

__all__ = ["CLOSED", "FINISHED", "Delivery", "Opened", "Overflow", "Terms"]

Delivery = Literal["one", "each"]
"""Whether one consumer gets a buffer, or each of them."""
Overflow = Literal["wait", "raise", "drop"]
"""What happens if no buffer is free: wait for one, raise, or drop the oldest entry."""
FINISHED: Final = 1
CLOSED: Final = 2


@dataclass(frozen=True, slots=True)
class Terms:
    """What was declared when the queue was made."""

    identity: int
    depth: int
    nbytes: int
    stride: int
    producers: int
    consumers: int
    prefetch: int
    delivery: Delivery
    overflow: Overflow
    redeliver: bool

    @property
    def shape(self) -> Shape:
        """The places of the words."""
        return Shape(self.depth, self.producers, self.consumers)


class Opened:
    """The segments of a queue, mapped in this process.

    Parameters
    ----------
    process, device
        This process, and the device that uses the buffers here.
    terms
        The numbers of the queue.
    segments
        The words of control, then of each ring, then of each place. Others write them.
    bells
        The eventfds of the rings, then of the places.
    base, usage
        Address of the first buffer here, and the users of the memory.
    tell_owner
        Sends the owner a hint about a producer (true) or consumer and its number.
    is_owner_alive
        Whether the owner still runs.
    kept
        Keeps the segments mapped.
    """

    def __init__(
        self,
        process: Process,
        device: LocalDevice,
        terms: Terms,
        *,
        segments: Sequence[memoryview],
        bells: Sequence[int],
        base: int,
        usage: Usage,
        tell_owner: Callable[[bool, int], None],
        is_owner_alive: Callable[[], bool],
        kept: Any,
    ) -> None:
        self.process = process
        self.device = device
        self.terms = terms
        self.shape = terms.shape
        self.control, *others = segments
        self.rings = others[: terms.producers]
        self.places = others[terms.producers :]
        self.ring_bells = bells[: terms.producers]
        self.place_bells = bells[terms.producers :]
        self.base = base
        self.usage = usage
        self.tell_owner = tell_owner
        self.is_owner_alive = is_owner_alive
        self.kept = kept

    def pointer(self, producer: int, buffer: int) -> int:
        """Return the address of a buffer."""
        return self.base + (producer * self.terms.depth + buffer) * self.terms.stride

    def session_of(self, consumer: int) -> int:
        """Return the session of a consumer that reads the queue, 0 if there is none."""
        session = words.observe(self.places[consumer], SESSION)
        ended = words.load(self.control, self.shape.ended_consumer(consumer))
        return session if session % 2 and session > ended else 0

    @property
    def end(self) -> int:
        """0 while entries may come, else :data:`FINISHED` or :data:`CLOSED`."""
        return words.observe(self.control, END)

    def check_owner(self) -> None:
        """Raise if the queue was closed, or its owner is dead.

        Raises
        ------
        ClosedError, OwnerGoneError
            Nothing can be put any more.
        """
        if self.end == CLOSED:
            msg = "the owner closed this queue"
            raise ClosedError(msg)
        if not self.is_owner_alive():
            msg = "the process that owns this queue is dead"
            raise OwnerGoneError(msg, hint="make a new queue in a living process")
