# SPDX-License-Identifier: Apache-2.0
"""The backend ``host``: the host's own memory as one device."""

from typing import Final

from typing_extensions import override

from crossmem.driver import Block
from crossmem.errors import OutOfMemoryError
from crossmem.models import DeviceInfo
from crossmem_emulated.limits import Limit, Limits
from crossmem_emulated.memfd import MemfdDriver
from crossmem_emulated.memory import PAGE_NBYTES

__all__ = ["CHECKED_NBYTES", "HostDriver"]

CHECKED_NBYTES: Final = 64 << 20
"""Capacity from which an allocation reads the limits first; smaller ones are too frequent."""

_MAX_ALLOCATION_NBYTES: Final = 1 << 46
"""Half of the addresses that a process of x86-64 has. The limits decide below that."""

_MAX_NAME: Final = 50
"""Characters of a limit's name that fit into one line with the numbers."""


class HostDriver(MemfdDriver):
    """The host's memory in pages, up to what the machine and the process's cgroups allow.

    Parameters
    ----------
    limits
        What is read before a large allocation.

    Raises
    ------
    DriverError
        If this kernel gives no memfds.
    """

    backend = "host"

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        device = DeviceInfo(
            ordinal=0,
            identity="host",
            name="Host memory",
            total_nbytes=limits.total_nbytes(),
        )
        super().__init__(
            (device,),
            granularity_nbytes=PAGE_NBYTES,
            max_allocation_nbytes=_MAX_ALLOCATION_NBYTES,
            hugepages=True,
        )

    @override
    def _charge(self, block: Block, capacity: int) -> None:
        if capacity >= CHECKED_NBYTES:
            limit = self._limits.tightest()
            if limit is not None and capacity > limit.free_nbytes:
                raise self._exceeded(limit)
        block.capacity = capacity

    def _exceeded(self, limit: Limit) -> OutOfMemoryError:
        name = limit.name if len(limit.name) <= _MAX_NAME else f"...{limit.name[3 - _MAX_NAME :]}"
        return OutOfMemoryError(
            f"{name} leaves {limit.free_nbytes} bytes",
            hint=limit.remedy,
            details=f"{limit.name}: {limit.total_nbytes} bytes, {limit.free_nbytes} of them free",
            operation="allocate",
            backend=self.backend,
            device="host",
        )
