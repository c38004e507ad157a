# SPDX-License-Identifier: Apache-2.0
"""What the lease server knows of exported memory: no vendor's objects, only what it answers."""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from crossmem.control.processes import is_anybody
from crossmem.control.slots import Slot
from crossmem.control.wire import MAX_GRANT_DESCRIPTORS, MAX_PAYLOAD_NBYTES, MAX_PAYLOADS
from crossmem.driver import Exported, Peer
from crossmem.errors import ConfigurationError, UnsupportedError
from crossmem.guards import shorten
from crossmem.models import ShareableHandle

__all__ = ["Allow", "Export", "Unit"]

_ALIKE: Final = (
    "its user has no number of its own in the owner's user namespace; map the users that share "
    "(unshare --map-current-user)"
)


@dataclass(frozen=True, slots=True)
class Allow:
    """Which processes may import, where the default, the same user, is not what is wanted.

    Parameters
    ----------
    pids
        Only these processes, as this process sees their pids. None: any.
    uids
        These users as well as the exporter's own, as the exporter's user namespace numbers them.
        None: the exporter's own alone. Who has no number there cannot be named.
    """

    pids: Collection[int] | None = None
    uids: Collection[int] | None = None

    def __post_init__(self) -> None:
        for name in ("pids", "uids"):
            value = getattr(self, name)
            if value is None:
                continue
            if not isinstance(value, Iterable) or not all(type(one) is int for one in value):
                msg = f"{name} must be a collection of integers or None, not {shorten(value)}"
                raise ConfigurationError(msg, operation="export")
            object.__setattr__(self, name, frozenset(value))

    def refuses(self, pid: int, uid: int, own_uid: int | None) -> str | None:
        """Return why a process is refused, None where it is admitted.

        Parameters
        ----------
        pid, uid
            The process, as the kernel shows it here.
        own_uid
            The exporter's user; None where the kernel shows others like it.
        """
        if uid != own_uid and uid not in (self.uids or ()):
            return _ALIKE if own_uid is None else f"user {uid} is not admitted"
        if uid != own_uid and is_anybody(uid):
            return _ALIKE
        if self.pids is not None and pid not in self.pids:
            return (
                f"process {pid} is not admitted"
                if pid
                else "this process is not visible to the owner"
            )
        return None


@dataclass(slots=True, eq=False)
class Unit:
    """Exported memory that is retired as one: an allocation, or one adoption of a vendor's.

    Parameters
    ----------
    allocation
        Number of the vendor's allocation in handles. The adoptions of one share it.
    grant
        Puts peers on the vendor's whitelist for an export; None if there is no whitelist.
    on_idle
        Called, with no lock held, when the last lease of retired memory has ended.
    """

    allocation: int
    grant: "Callable[[Export, Peer], None] | None"
    on_idle: Callable[[], None]
    exports: "dict[int, Export]" = field(default_factory=dict)
    leases: dict[int, Any] = field(default_factory=dict)
    """What this process itself and messages hold, by number; only the lease table changes it."""
    pins: int = 0
    """How many requests the lease server is answering with its exports."""
    withdrawn: "set[Export]" = field(default_factory=set)
    """Exports that were withdrawn, and that somebody still has."""
    is_retired: bool = False
    was_granted: bool = False
    """Whether a row may ever have held it."""
    is_sealed: bool = False
    """Whether nothing was granted since its slots moved on to generations that nobody knows."""


@dataclass(slots=True, weakref_slot=True, eq=False)
class Export:
    """One way in which memory was exported."""

    unit: Unit
    handle: ShareableHandle
    allow: Allow
    exported: Exported
    denied: int = 0
    slot: Slot | None = None
    """Its words in shared memory, from its first lease on."""
    rows: dict[Any, memoryview] = field(default_factory=dict)
    """The rows of those that were ever given a lease, and their words."""
    since: dict[Any, float] = field(default_factory=dict)
    """When each of those leases began that were not seen to have ended."""
    is_arena: bool = False
    """Whether it is a pool's memory: only processes whose death can be seen may import it."""

    def __post_init__(self) -> None:
        payloads, descriptors = self.exported.payloads, self.exported.descriptors
        nbytes = sum(map(len, payloads)) + 4 * len(payloads)
        are_many = len(payloads) > MAX_PAYLOADS or len(descriptors) > MAX_GRANT_DESCRIPTORS
        if are_many or nbytes > MAX_PAYLOAD_NBYTES:
            msg = (
                f"the driver exported {len(payloads)} payloads of {nbytes} bytes and "
                f"{len(descriptors)} descriptors; a lease carries {MAX_PAYLOADS}, "
                f"{MAX_PAYLOAD_NBYTES} and {MAX_GRANT_DESCRIPTORS}"
            )
            hint = "allocate less at once, or ask the author of the backend for larger blocks"
            raise UnsupportedError(msg, hint=hint, operation="export")
