# SPDX-License-Identifier: Apache-2.0
"""The abilities of a device as data. The conformance kit selects tests by these abilities."""

from dataclasses import dataclass, fields
from math import inf
from typing import Final, Literal, TypeAlias, get_args

from crossmem.guards import check_fields, is_flag, is_name, is_within

__all__ = ["TIMELINE_LEVELS", "Capabilities", "LeaseEnd", "TimelineLevel"]

LeaseEnd: TypeAlias = Literal["process", "process-if-visible", "connection"]
"""The event that ends an unreleased lease; see :attr:`Capabilities.lease_end`."""
TimelineLevel: TypeAlias = Literal["word", "event", "host"]
"""How a timeline orders the work of streams; see :attr:`Capabilities.timeline_levels`."""
TIMELINE_LEVELS: Final[tuple[TimelineLevel, ...]] = get_args(TimelineLevel)
"""All levels of timelines, the strongest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """Abilities and limits of one device with one mechanism, constant for the life of the process.

    Raises
    ------
    ConfigurationError
        A field has the wrong type or is out of range.
    """

    mechanisms: tuple[str, ...]
    """Mechanisms for sharing, the preferred one first. crossmem never substitutes another mechanism
    for a requested one (C25)."""

    granularity_nbytes: int
    """Capacities of allocations are multiples of this many bytes (C2)."""

    max_allocation_nbytes: int
    """Largest size in bytes that an allocation may request (C16)."""

    host_visible: bool
    """The CPU can read and write device addresses, so ``view()`` works.

    A forked child inherits the mappings of the device's memory, and inherited views continue to
    work in the child (C18). The memory of pools is an exception: its mappings are not inherited."""

    readonly_exports: bool
    """``export(access="ro")`` is enforced by the device or the kernel (C23)."""

    readonly_imports: bool
    """``readonly=True`` on import is enforced by the device or the kernel (C23)."""

    peer_access: bool
    """An import can be mapped for a device other than the one that holds the memory (C24)."""

    fork_safe: bool
    """A child that is forked after the first use of the device can import memory (C18)."""

    survives_owner: bool
    """Imported memory stays valid after the exporting process has ended (C20)."""

    raw_handles: bool
    """``export(lease=False)`` can carry the vendor's bytes for programs without crossmem."""

    address_ranges: bool
    """The optional group :class:`crossmem.driver.AddressRanges` works with this mechanism."""

    foreign_memory: bool
    """The optional group :class:`crossmem.driver.ForeignMemory` works with this mechanism."""

    other_users: bool = True
    """If ``Allow(uids=...)`` admits other users, their processes can open the memory (C13)."""

    cuda_array_interface: bool = False
    """Pointers are CUDA or HIP addresses, so CuPy can have arrays at these addresses."""

    dlpack_device_type: int | None = None
    """DLPack's number for the type of device. If it is None, ``__dlpack__`` raises BufferError."""

    timeline_levels: tuple[TimelineLevel, ...] = ("host",)
    """The levels of timelines that the device offers, the strongest first.

    - ``"word"``: streams write a 64-bit word in host memory, and wait until the word has reached a
      value. A device without streams has this level, too, if no call returns before its work is
      complete.
    - ``"event"``: streams record events that processes share, and wait for them.
    - ``"host"``: the host waits in place of the streams. A signal on a stream blocks the host until
      the stream's work is complete. A wait on a stream blocks the host until the value is reached.
    """

    vendor_queues: bool = False
    """The mechanism shares only queues of the vendor, and has no allocations. The driver offers the
    optional group :class:`crossmem.driver.VendorQueues`. The vendor's implementation decides which
    laws of queues (Q1 and the following) hold."""

    lease_end: LeaseEnd = "process"
    """The event that ends a lease if the importer does not release it (C11).

    - ``"process"``: the lease ends with the importer's death.
    - ``"process-if-visible"``: the lease ends with the importer's death, if the importer has a pid
      in the exporter's pid namespace. The lease of any other importer ends with the importer's last
      connection. Kernels older than Linux 6.5 have this value.
    - ``"connection"``: the lease ends with the importer's last connection. Kernels without pidfds
      have this value.

    :func:`crossmem.exports` shows the event of each lease. crossmem sets this field; a backend does
    not."""

    def __post_init__(self) -> None:
        check_fields(self, _RULES)


_SIZE: Final = (lambda value: is_within(value, 1, inf), "a number of bytes, at least 1")
_FLAG: Final = (is_flag, "True or False")
_MAX_DLPACK_TYPE: Final = 2**31 - 1
_RULES: Final = {
    **{field.name: _FLAG for field in fields(Capabilities) if field.type is bool},
    "mechanisms": (
        lambda value: isinstance(value, tuple) and bool(value) and all(map(is_name, value)),
        "a tuple of names: a lower-case letter, then at most 31 of a-z, 0-9, _ and -",
    ),
    "granularity_nbytes": _SIZE,
    "max_allocation_nbytes": _SIZE,
    "dlpack_device_type": (
        lambda value: value is None or is_within(value, 1, _MAX_DLPACK_TYPE),
        f"None or an integer from 1 to {_MAX_DLPACK_TYPE}",
    ),
    "timeline_levels": (
        lambda value: bool(value) and value == tuple(x for x in TIMELINE_LEVELS if x in value),
        f"a tuple of some of {TIMELINE_LEVELS}, in this order",
    ),
    "lease_end": (
        lambda value: value in get_args(LeaseEnd),
        " or ".join(map(repr, get_args(LeaseEnd))),
    ),
}
