# SPDX-License-Identifier: Apache-2.0
"""The limit on the number of exports that the messages of one process may reserve."""

from crossmem.control.leases import Holder
from crossmem.control.wire import Refusal, Status

__all__ = ["refuse_more"]


def refuse_more(holder: Holder, count: int, limit: int, following: int = 0) -> Refusal | None:
    """Return a refusal if ``count`` further reservations would exceed the limit, else None.

    Parameters
    ----------
    holder
        The process whose messages make the reservations.
    limit
        Largest number of exports that the messages of one process may reserve.
    following
        Number of exports that later requests of the same message will reserve.
    """
    if len(holder.messages) + count + following <= limit:
        return None
    if count + following > limit:
        reason = f"one message makes {count + following} reservations; at most {limit} are allowed"
        return Refusal(Status.TOO_MANY, reason)
    who = f"process {holder.pid}" if holder.pid else "a process that is not visible"
    reason = (
        f"messages of {who} reserve {len(holder.messages)} exports already; "
        f"at most {limit} are allowed"
    )
    return Refusal(Status.FULL, reason)
