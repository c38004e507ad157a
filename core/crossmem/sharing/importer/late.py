# SPDX-License-Identifier: Apache-2.0
"""The removal of replies that arrive after their requests have timed out."""

from typing import Final

from typing_extensions import override

from crossmem.control.client import OwnerConnection
from crossmem.sharing.base.deferred import Record
from crossmem.sharing.base.process import Process

__all__ = ["drop_late_replies"]

_DROP_S: Final = 0.1


class _LateReplies(Record):
    """The late replies of one exporter."""

    __slots__ = ("_process", "connection")

    def __init__(self, process: Process, connection: OwnerConnection) -> None:
        super().__init__()
        self._process = process
        self.connection = connection

    @override
    def give_back(self, *, blocking: bool) -> None:
        """Drop the replies that have arrived, without waiting for further replies."""
        # A dead exporter sends no further reply, even if its forked child keeps the socket open.
        may_send = self.connection.is_owner_alive
        self.connection.tend(_DROP_S)
        self.is_done = not (may_send and self.connection.late_replies)
        if self.is_done:
            self._process.deferred.waiting.discard(self)


def drop_late_replies(process: Process, connection: OwnerConnection) -> None:
    """Let the reaper drop replies to requests that have timed out.

    The descriptors in an unread reply keep the memory allocated, even after the exporter has freed
    the memory.
    """
    # Most calls of crossmem work on the records in ``ready``. This record enters ``waiting``, so
    # only the reaper and a few calls, such as crossmem.collect(), spend time on late replies.
    waiting = process.deferred.waiting
    known = [one for one in list(waiting) if isinstance(one, _LateReplies) and not one.is_done]
    if connection.late_replies and all(one.connection is not connection for one in known):
        waiting.add(_LateReplies(process, connection))
        process.deferred.start_reaper()
