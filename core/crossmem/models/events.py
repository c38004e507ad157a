# SPDX-License-Identifier: Apache-2.0
"""Events that observers receive through the hook ``crossmem_event``."""

from dataclasses import dataclass
from enum import StrEnum

__all__ = ["Event", "EventKind"]


class EventKind(StrEnum):
    """The kind of an event."""

    ALLOCATED = "allocated"
    """This process allocated memory."""
    ADOPTED = "adopted"
    """This process adopted memory of another library."""
    EXPORTED = "exported"
    """An allocation was exported. A repeated export with the same arguments emits no event."""
    IMPORTED = "imported"
    """This process opened another process's memory."""
    RELEASED = "released"
    """This process closed memory that it had imported."""
    LEASED = "leased"
    """The lease server granted a lease to another process."""
    LEASE_ENDED = "lease-ended"
    """A holder ended its lease. The exporter emits the event later, in one of these cases:

    - The exporter releases the memory.
    - The exporter releases an export that was withdrawn.
    - The exporter lists its exports.
    - The exporter notices that the former holder has died.
    """
    LEASE_LOST = "lease-lost"
    """A lease ended because its holder died. If the exporter has no pidfd of the holder, the end of
    the holder's last connection counts as the holder's death."""
    RESERVED = "reserved"
    """A message has reserved memory of this process."""
    RESERVATION_ENDED = "reservation-ended"
    """A message's reservation ended, because the message was received or discarded."""
    RESERVATION_LOST = "reservation-lost"
    """A message's reservation ended because the process to which it belonged died. The reservation
    belongs to the sender until a receiver requests the memory, and then to this receiver. If the
    exporter has no pidfd of the process, the end of the process's last connection counts as the
    death."""
    RECEIVED = "received"
    """In a message of Ray, this process received the handle of an object. The object lies in the
    exporter's memory."""
    RECEIVED_COPY = "received-copy"
    """In a message of Ray, this process received a copy of an object, because the sender is on
    another node."""
    WITHDRAWN = "withdrawn"
    """An export of this process was withdrawn. Further processes can import the memory only from
    messages that were sent before the withdrawal."""
    DENIED = "denied"
    """A process requested memory that it may not import."""
    RECLAIMED = "reclaimed"
    """Freed blocks of a pool became available for new allocations. ``detail`` says how many."""
    FREED = "freed"
    """The driver has freed an allocation of this process."""
    GIVEN_UP = "given-up"
    """An adoption has ended. The memory still belongs to the library that allocated it."""


@dataclass(frozen=True, slots=True)
class Event:
    """One event. Each unknown field is empty or 0.

    Parameters
    ----------
    kind
        The kind of the event.
    backend, device
        Backend name and device identity.
    allocation
        The number that the owner gave the allocation.
    nbytes
        Requested size in bytes.
    owner_pid
        Pid of the process that allocated the memory.
    peer_pid
        Pid of the other process that takes part in the event, as this process sees the pid. It is 0
        if no other process takes part, or if the other process has no pid in the pid namespace of
        this process.
    detail
        A text for people.
    """

    kind: EventKind
    backend: str = ""
    device: str = ""
    allocation: int = 0
    nbytes: int = 0
    owner_pid: int = 0
    peer_pid: int = 0
    detail: str = ""
