# SPDX-License-Identifier: Apache-2.0
"""What a device can do, as data: the kit selects its tests from it, and errors quote it."""

from typing import Annotated, Literal

from pydantic import Field

from crossmem.models.base import FrozenModel

__all__ = ["Capabilities"]

_Mechanism = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_-]{0,31}$")]


class Capabilities(FrozenModel):
    """Abilities and limits of one device, constant for the life of the process."""

    mechanisms: Annotated[tuple[_Mechanism, ...], Field(min_length=1)]
    """Ways to share, the preferred one first. One is used as asked for or not at all (C25)."""

    granularity_nbytes: Annotated[int, Field(gt=0)]
    """Capacities are multiples of this many bytes (C2)."""

    max_allocation_nbytes: Annotated[int, Field(gt=0)]
    """Largest request that can succeed, in bytes (C16)."""

    host_visible: bool
    """The CPU can read and write device addresses, so ``view()`` works."""

    readonly_exports: bool
    """``export(access="ro")`` is enforced by the device or the kernel (C23)."""

    readonly_imports: bool
    """``readonly=True`` on import is enforced by the device or the kernel (C23)."""

    peer_access: bool
    """Imports can be mapped for another device than the one that holds the memory (C24)."""

    fork_safe: bool
    """A forked child of a process that used the device may import on its own (C18)."""

    survives_owner: bool
    """Importers keep valid memory after the exporting process is gone (C20)."""

    raw_handles: bool
    """``export(lease=False)`` can carry the vendor's bytes for programs without crossmem."""

    address_ranges: bool
    """The optional group :class:`crossmem.driver.AddressRanges` is implemented."""

    foreign_memory: bool
    """The optional group :class:`crossmem.driver.ForeignMemory` is implemented."""

    cuda_array_interface: bool = False
    """Pointers are those of CUDA or HIP, so CuPy has arrays there."""

    dlpack_device_type: Annotated[int, Field(ge=1, le=2**31 - 1)] | None = None
    """DLPack's number for the kind of device; None where it has none."""

    lease_end: Literal["process", "connection"] = "process"
    """What ends a lease that was not released: the importer's death, or, where this kernel has
    no pidfd, the end of its connection (C11). Set by crossmem, not by the backend."""
