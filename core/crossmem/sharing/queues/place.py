# SPDX-License-Identifier: Apache-2.0
"""The place of a process in a queue: its session, its words, and the sleep of the process.

A process takes a place by an exclusive import of the place's segment. With the word WISH of the
segment, the process asks the owner for a session. The owner opens and ends sessions in the control
segment. A session ends when the process withdraws its wish, when the process dies, or when the
owner calls :meth:`crossmem.Queue.revoke`. Before the owner opens the next session of the place, the
owner decides what happens to the unreleased entries of the previous session.

Before a process sleeps on its eventfd, it sets SLEEPING, executes the barrier, and reads the queue
once more. A peer first stores a change, such as a new entry, and then reads SLEEPING. If SLEEPING
is set, the peer writes to the eventfd. So no wake-up is lost, and a peer makes no system call for a
process that does not sleep.
"""

import os
import select
import time
from collections.abc import Callable
from contextlib import suppress
from time import monotonic
from typing import Any, Final, TypeVar, cast

from crossmem.control import words
from crossmem.control.barrier import IS_ORDERED
from crossmem.driver import Streams, StreamWords, stream_words_of
from crossmem.errors import (
    AccessDeniedError,
    ClosedError,
    CrossmemError,
    OwnerUnresponsiveError,
)
from crossmem.locks import Rank, ordered_lock
from crossmem.sharing.base.devices import wait_for_work
from crossmem.sharing.queues.joining import is_open
from crossmem.sharing.queues.layout import END, SLEEPING, WISH
from crossmem.sharing.queues.opened import LOOK_S, Opened, ring
from crossmem.sharing.timelines.memory import PAGE_NBYTES, Registrations

__all__ = ["PAUSE_S", "Place"]

_T = TypeVar("_T")

_SPIN_S: Final = 100e-6
"""The longest time, in seconds, for which a process polls before it sleeps. This time is longer
than the wake-up of a sleeping peer, which takes some 50 microseconds. So a process that has woken a
peer can see the peer's answer without sleeping."""
PAUSE_S: Final = 1e-3
"""Seconds between two reads of the words, if the process does not wait for an eventfd."""


class Place:
    """The ring or place that this process writes, and the session in it.

    Parameters
    ----------
    opened, place
        The queue, and the number of the ring or place.
    view, pointer
        The mapped segment and its address.
    """

    def __init__(self, opened: Opened, place: int, view: memoryview, pointer: int) -> None:
        self.opened = opened
        self.place = place
        self.words = view.cast("Q")
        self.lock = ordered_lock(Rank.ALLOCATION)
        self.session = 0
        is_fenced = opened.terms.is_fenced or not IS_ORDERED
        self.is_plain = opened.device.capabilities.host_visible and not is_fenced
        """Whether hand-overs need neither a fence nor a wait for the work of the device."""
        self._member = opened.terms.member(place)
        self.is_armed = False
        """Whether :meth:`fileno` was called, so that a selector may watch the eventfd."""
        self._pointer = pointer
        self._pages: set[int] = set()
        """Pages with words that streams write."""
        self.sleepers = 0
        """Number of threads and tasks that wait."""
        self.turns: dict[Any, Any] = {}
        """For each event loop, the lock that its waiting tasks take in turn; see
        :func:`waiting.repeat`."""
        self._bell = opened.bells[place]

    # The session --------------------------------------------------------------------------

    def join(self, timeout_s: float) -> None:
        """Begin a session in this ring or place, after the end of the previous session.

        Parameters
        ----------
        timeout_s
            Time limit in seconds. It applies to the wait for the end of the previous session, and
            then anew to the wait for the new session.

        Raises
        ------
        AccessDeniedError, ClosedError, OwnerGoneError, OwnerUnresponsiveError
            The owner has not opened a session.
        """
        control, at = self.opened.control, self.opened.terms.member(self.place)
        # The wish of a dead process may still be in the segment.
        words.store(self.words, WISH, 0)
        self._await_owner(lambda: words.observe(control, at) % 2 == 0 or None, timeout_s)
        self.begin()
        words.release()
        wish = words.load(control, at) + 1
        words.store(self.words, WISH, wish)

        end, check = monotonic() + timeout_s, self._check_joining
        self._await_owner(lambda: is_open(control, at, wish, end, check), timeout_s)
        self.session = wish

    def begin(self) -> None:
        """Write the words of a new session."""
        raise NotImplementedError

    def _await_owner(self, look: Callable[[], bool | None], timeout_s: float) -> None:
        ring(self.opened.owner_bell)
        try:
            if self.wait(look, self._check_joining, timeout_s, polls=lambda: False) is None:
                msg = f"the owner of the queue did not reply within {timeout_s:g} s"
                hint = "pass a longer timeout=; the owner may be stopped"
                raise OwnerUnresponsiveError(msg, operation="open_queue", hint=hint)
        except BaseException:
            words.store(self.words, WISH, 0)
            raise

    def _check_joining(self) -> None:
        opened, wish = self.opened, words.load(self.words, WISH)
        opened.check_owner()
        if opened.end and self.place < opened.terms.producers:
            raise self._finished()
        control, terms = opened.control, opened.terms
        # If the member word is larger than the wish, the session has already begun and ended.
        if wish and (control[terms.denied(self.place)] == wish or control[self._member] > wish):
            raise self._revoked()

    def is_open(self) -> bool:
        """Whether the session and the queue are open, and no new check of the owner is due."""
        opened = self.opened
        control = opened.control
        is_mine = control[self._member] == self.session
        return is_mine and not control[END] and monotonic() < opened.look_at

    def check(self) -> None:
        """Raise if this process cannot use the ring or place any more.

        Raises
        ------
        ClosedError, OwnerGoneError, AccessDeniedError
            The session has ended, or the owner has closed the queue or is dead. A producer
            also gets ClosedError if the queue has ended.
        """
        opened = self.opened
        if not self.session:
            raise self._no_session()
        opened.check_owner()
        if opened.member(self.place) != self.session:
            raise self._revoked()
        if opened.end and self.place < opened.terms.producers:
            raise self._finished()

    def _no_session(self) -> ClosedError:
        msg = "this process has finished or closed the queue"
        return ClosedError(msg, hint="open its handle again, or make a new queue")

    def _finished(self) -> ClosedError:
        msg = "the queue has ended: its owner called finish(), or all its producers have left"
        return ClosedError(msg, hint="make the queue with more producers, or finish it later")

    def _revoked(self) -> AccessDeniedError:
        msg = "the owner of the queue has revoked the roles of this process"
        return AccessDeniedError(msg, hint="ask the owner of the queue")

    def leave(self) -> None:
        """End the session. A second call changes nothing."""
        self.leave_pages()
        self.session = 0
        words.release()
        words.store(self.words, WISH, 0)
        ring(self.opened.owner_bell)

    def leave_pages(self) -> None:
        """Wait until no stream writes words of this process. Unregister the pages of the words."""
        driver = stream_words_of(self.opened.device.driver)
        if self._pages and driver is not None:
            wait_for_work(self.opened.device)
            self.opened.process.part(Registrations).leave_all(driver, self._pages, self)

    # Streams ------------------------------------------------------------------------------

    def write_on(self, stream: int, driver: StreamWords, at: int, value: int) -> None:
        """Let a stream write a word of this process, after the stream's earlier work."""
        pointer = self._pointer + 8 * at
        self._pages.add(pointer - pointer % PAGE_NBYTES)
        ordinal = self.opened.device.ordinal
        pages = self.opened.process.part(Registrations)
        driver.write_value(ordinal, pages.enter(driver, ordinal, pointer, self), value, stream)

    def words_driver(self, stream: int) -> StreamWords | None:
        """Return the driver if streams can write words.

        If streams cannot write words, wait for the stream and return None.
        """
        device = self.opened.device
        if "word" in device.capabilities.timeline_levels:
            return cast("StreamWords", device.driver)
        self.finish_stream(stream)
        return None

    def finish_stream(self, stream: int) -> None:
        """Wait for the work that was issued on a stream."""
        device = self.opened.device
        cast("Streams", device.driver).synchronize_stream(device.ordinal, stream)

    def finish_work(self, stream: int | None) -> CrossmemError | None:
        """If ``stream`` is None and the device is a GPU or NPU, wait for the device's work.

        Return the vendor's error if the work failed, else None.
        """
        if stream is None and not self.opened.device.capabilities.host_visible:
            return wait_for_work(self.opened.device)
        return None

    def waits_for_streams(self) -> bool:
        """Whether this process must poll, because it waits for a word that a stream writes."""
        raise NotImplementedError

    # Sleep --------------------------------------------------------------------------------

    def fileno(self) -> int:
        """Return the eventfd. It becomes readable when the queue may have changed."""
        self.is_armed = True
        return self._bell

    def _sleep(self, timeout_s: float, *, polls: bool) -> None:
        """Sleep until the bell rings, or until the shorter of LOOK_S and ``timeout_s`` is over.

        With ``polls``, ignore the bell, and sleep for the shorter of PAUSE_S and ``timeout_s``.
        """
        if polls:
            time.sleep(min(timeout_s, PAUSE_S))
        else:
            poller = select.poll()
            poller.register(self._bell, select.POLLIN)
            poller.poll(1000 * min(timeout_s, LOOK_S))

    def wait(
        self,
        look: Callable[[], _T | None],
        check: Callable[[], None],
        timeout_s: float,
        *,
        polls: Callable[[], bool],
    ) -> _T | None:
        """Call ``look`` until it returns a value. Return the value, or None after the time limit.

        Parameters
        ----------
        look
            Reads the words of the queue. None means that the process must wait.
        check
            Raises if a further wait is useless.
        timeout_s
            The longest wait in seconds. 0 means no wait.
        polls
            Returns whether a stream will write the words. A stream rings no bell, so the process
            then polls.
        """
        began = monotonic()
        end, spin_s = began + timeout_s, min(timeout_s, _SPIN_S)
        while (found := look()) is None and monotonic() < began + spin_s:
            pass
        if found is not None:
            return found
        # drain() releases the buffers whose objects the application has dropped.
        self.opened.process.drain()
        self.sleepers += 1
        try:
            try:
                while True:
                    with suppress(BlockingIOError):
                        os.eventfd_read(self._bell)
                    words.store(self.words, SLEEPING, 1)
                    words.barrier()
                    if (found := look()) is not None:
                        return found
                    try:
                        check()
                    except CrossmemError:
                        # Entries that were published before the error can still be read.
                        if (found := look()) is not None:
                            return found
                        raise
                    left_s = end - monotonic()
                    if left_s <= 0:
                        return None
                    self._sleep(left_s, polls=polls())
                    # If this call of look() finds a value, the loop ends without another barrier.
                    if (found := look()) is not None:
                        return found
            finally:
                self.sleepers -= 1
                if found is not None and (self.sleepers or self.is_armed):
                    # This thread may have consumed the wake-up of another thread or of a selector.
                    ring(self._bell)
                elif not (self.sleepers or self.is_armed):
                    words.store(self.words, SLEEPING, 0)
        except BaseException:
            self.keep(found)
            raise

    def keep(self, found: object) -> None:
        """Wake another waiter. The caller raises an exception, so it does not return ``found``.

        The override in :class:`Receiver` also keeps ``found`` for a later call.
        """
        del found
        if self.sleepers or self.is_armed:
            # As in wait(), this thread may have consumed the wake-up.
            ring(self._bell)
