# SPDX-License-Identifier: Apache-2.0
"""The lease server's records of exported memory. They contain no vendor objects."""

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
    "its user has no number of its own in the owner's user namespace; map this user there "
    "(unshare --map-current-user)"
)


@dataclass(frozen=True, slots=True)
class Allow:
    """The processes that may import memory. The default is all processes of the same user.

    Parameters
    ----------
    pids
        The pids of the admitted processes, as this process sees the pids. None: any process.
    uids
        The numbers of the users that are admitted in addition to the exporter's own user. The
        numbers are those of the exporter's user namespace. None: only the exporter's own user. A
        user without a number in that namespace cannot be admitted.
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
        """Return the reason for which a process is refused; None if the process is admitted.

        Parameters
        ----------
        pid, uid
            The process, as the kernel reports it to this process.
        own_uid
            The uid of this process; None if the kernel also reports this uid for unmapped users.
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
    """Exported memory that is retired as a whole.

    A unit is an allocation, an adoption, a pool, or a block that a message reserves.

    Parameters
    ----------
    allocation
        The allocation's number in handles. Adoptions in one allocation of the vendor share the
        number.
    grant
        Puts a peer on the vendor's whitelist for an export; None if there is no whitelist.
    on_idle
        Called without a lock when the last lease of retired memory has ended.
    """

    allocation: int
    grant: "Callable[[Export, Peer], None] | None"
    on_idle: Callable[[], None]
    exports: "dict[int, Export]" = field(default_factory=dict)
    leases: dict[int, Any] = field(default_factory=dict)
    """The leases that are not recorded in a row. The key is the lease's number. Only the lease
    table changes this dict."""
    pins: int = 0
    """Number of grants of the memory whose replies are not sent yet. The owner frees the memory
    only when this number is 0."""
    withdrawn: "set[Export]" = field(default_factory=set)
    """Withdrawn exports that still have a holder or a reservation."""
    is_retired: bool = False
    was_granted: bool = False
    """Whether an export of the memory was ever granted. If so, a row may hold the memory."""
    is_sealed: bool = False
    """Whether the slots of the memory have new generations that no importer knows, so that no new
    hold can begin."""

    @property
    def is_kept(self) -> bool:
        """Whether an unsent reply, or a lease that no row records, keeps the memory."""
        return bool(self.leases or self.pins)


@dataclass(slots=True, weakref_slot=True, eq=False)
class Export:
    """One export of a unit."""

    unit: Unit
    handle: ShareableHandle
    allow: Allow
    exported: Exported
    denied: int = 0
    slot: Slot | None = None
    """The slot of the export; None before the first grant and after the end of the export."""
    rows: dict[Any, memoryview] = field(default_factory=dict)
    """Maps the row of each process that was granted this export to the words of the row."""
    since: dict[Any, float] = field(default_factory=dict)
    """Maps the row of each holder to the time of the grant. The entry is removed when this process
    sees the end of the lease."""
    generations: tuple[int, ...] = ()
    """For a block of a pool: the generations in the handles by which messages have reserved the
    block. Empty for other memory."""
    is_arena: bool = False
    """Whether this is the export of a pool's whole memory. Its importers must be processes whose
    death the kernel reports."""
    is_exclusive: bool = False
    """Whether only one process at a time may hold the export. An example is a ring of a queue."""
    on_death: Callable[[], object] | None = None
    """Called after the death of a process that was granted the export. Any thread may call it, and
    holds no lock during the call."""

    def has(self, generation: int) -> bool:
        """Whether a handle with this generation names this export.

        The generation is 0 in all handles except those of a pool's blocks.
        """
        return generation in (self.generations or (0,))

    def __post_init__(self) -> None:
        payloads, descriptors = self.exported.payloads, self.exported.descriptors
        nbytes = sum(map(len, payloads)) + 4 * len(payloads)
        are_many = len(payloads) > MAX_PAYLOADS or len(descriptors) > MAX_GRANT_DESCRIPTORS
        if are_many or nbytes > MAX_PAYLOAD_NBYTES:
            msg = (
                f"the driver exported more than a lease carries: {len(payloads)} payloads (at "
                f"most {MAX_PAYLOADS}), together {nbytes} bytes (at most {MAX_PAYLOAD_NBYTES}), "
                f"and {len(descriptors)} descriptors (at most {MAX_GRANT_DESCRIPTORS})"
            )
            hint = "allocate less at once, or ask the author of the backend for larger blocks"
            raise UnsupportedError(msg, hint=hint, operation="export")
