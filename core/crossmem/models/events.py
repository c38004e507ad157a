# SPDX-License-Identifier: Apache-2.0
"""Events that observers receive through the hook ``crossmem_event``."""

from dataclasses import dataclass
from enum import StrEnum

__all__ = ["Event", "EventKind"]


class EventKind(StrEnum):
    """What happened."""

    ALLOCATED = "allocated"
    """This process allocated memory."""
    ADOPTED = "adopted"
    """This process adopted memory that someone else allocated."""
    EXPORTED = "exported"
    """An allocation was exported for the first time with these arguments."""
    IMPORTED = "imported"
    """This process opened another process's memory."""
    RELEASED = "released"
    """This process closed what it had imported."""
    LEASED = "leased"
    """The lease server gave another process a lease."""
    LEASE_ENDED = "lease-ended"
    """A holder ended its lease. It is told when the exporter sees that: as it frees or reports."""
    LEASE_LOST = "lease-lost"
    """A lease ended because its holder died, or its connection where there is no pidfd."""
    RESERVED = "reserved"
    """A message reserves this process's memory from now on."""
    RESERVATION_ENDED = "reservation-ended"
    """A message's reservation ended: it was received or discarded."""
    RESERVATION_LOST = "reservation-lost"
    """A message's reservation ended because its sender died, or its connection without a pidfd."""
    RECEIVED = "received"
    """What came with a message of Ray's is the sender's memory."""
    RECEIVED_COPY = "received-copy"
    """What came with a message of Ray's is a copy, because the sender is on another node."""
    WITHDRAWN = "withdrawn"
    """No process imports by a handle of this process for the first time any more."""
    DENIED = "denied"
    """A process asked for memory that it may not have."""
    RECLAIMED = "reclaimed"
    """Freed blocks of a pool can be given out again; the detail says how many."""
    FREED = "freed"
    """The device got memory back."""
    GIVEN_UP = "given-up"
    """Adopted memory was left to its owner again."""


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened to memory, with the values that were known.

    Parameters
    ----------
    kind
        What happened.
    backend, device
        Backend name and device identity, empty where unknown.
    allocation
        Number of the allocation in its owner, 0 where unknown.
    nbytes
        Requested size in bytes, 0 where unknown.
    owner_pid
        Process that allocated the memory.
    peer_pid
        The other process, as its pid here; 0 where it is not visible or there is none.
    detail
        Words for people.
    """

    kind: EventKind
    backend: str = ""
    device: str = ""
    allocation: int = 0
    nbytes: int = 0
    owner_pid: int = 0
    peer_pid: int = 0
    detail: str = ""
