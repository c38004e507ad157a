# SPDX-License-Identifier: Apache-2.0
"""Messages to an exporter that nobody waits for: ends of leases, and cancelled requests."""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from crossmem.control.link import Deadline, Link
from crossmem.control.threads import start_thread
from crossmem.control.wire import MessageType, pack_ids
from crossmem.driver.recording import call_into
from crossmem.errors import CrossmemError, DriverError
from crossmem.locks import Rank, ordered_lock

__all__ = ["Unsent"]

_MAX_RELEASED: Final = 4096
_SEND_LATER_S: Final = 600.0


class Unsent:
    """The messages that one exporter has not been sent yet.

    Each call of crossmem sends what the exporter takes without waiting; a helping thread sends the
    rest. A message leaves its queue after it was sent: sending one twice is harmless, losing one is
    not.

    Parameters
    ----------
    link_of
        Returns the open connection, None if there is none.
    """

    def __init__(self, link_of: Callable[[], Link | None]) -> None:
        self._link_of = link_of
        self._cancelled: deque[int] = deque()
        """Numbers of requests."""
        self._released: deque[int] = deque()
        """Numbers of leases."""
        self._helper: threading.Thread | None = None
        self._sending = ordered_lock(Rank.CONNECTION)
        """Held by the one thread that sends. No thread waits for it."""

    def __bool__(self) -> bool:
        return bool(self._cancelled or self._released)

    @property
    def has_cancelled(self) -> bool:
        """Whether a cancelled request is among them, which comes before the next request."""
        return bool(self._cancelled)

    def cancel(self, request: int) -> None:
        """Take back what a request was granted, or will be."""
        self._cancelled.append(request)
        self.flush()

    def release(self, leases: Sequence[int]) -> None:
        """End leases. Never waits: if the exporter does not read, a helping thread does."""
        self._released.extend(leases)
        self.flush()
        self._get_help()

    def _get_help(self) -> None:
        """Start a thread that waits for the owner to read, if that is needed."""
        link = self._link_of()
        if not self._released or link is None or link.is_broken or self._helper is not None:
            return
        helper = threading.Thread(target=self._send_later, name="crossmem-release", daemon=True)
        self._helper = helper
        try:
            start_thread(helper)
        except DriverError:
            # No thread can be started: the next call sends it.
            self._helper = None
        except BaseException:
            if helper.ident is None:
                self._helper = None
            raise

    def _send_later(self) -> None:
        """Wait for the owner to read, send what waits, and end."""
        try:
            while self and (link := self._link_of()) is not None:
                link.wait_for_room(Deadline(_SEND_LATER_S))
                self.flush()
        except (EOFError, CrossmemError):
            # It closed the connection, is dead or stays stopped: the next call sees to it.
            self._helper = None
            return
        self._helper = None
        # What was released between the last look and now found a helper that was about to end.
        self._get_help()

    def flush(self) -> None:
        """Send what waits to be sent, in order, as far as that is possible without waiting."""
        while self:
            taken: list[bool] = []
            try:
                # The thread that has it looks again afterwards, for what others queued meanwhile.
                if not call_into(taken, self._sending.acquire, False):  # noqa: FBT003
                    return
                link = self._link_of()
                if link is None or not self._send_next(link):
                    return
            finally:
                if taken and taken[0]:
                    self._sending.release()

    def _send_next(self, link: Link) -> bool:
        if self._cancelled:
            sent = link.send_now(pack_ids(MessageType.CANCEL, self._cancelled[0], ()))
            if sent:
                self._cancelled.popleft()
            return sent
        # Other threads, and finalisers, add to it meanwhile; nobody else removes.
        count = min(len(self._released), _MAX_RELEASED)
        part = [self._released[index] for index in range(count)]
        sent = link.send_now(pack_ids(MessageType.RELEASE, 0, part))
        if sent:
            for _ in part:
                self._released.popleft()
        return sent
