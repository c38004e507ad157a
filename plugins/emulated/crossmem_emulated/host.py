# SPDX-License-Identifier: Apache-2.0
"""The backend ``host``: the host's own memory as one device."""

from time import monotonic
from typing import Final

from typing_extensions import override

from crossmem.driver import Block
from crossmem.driver.memory import Limit, Limits
from crossmem.errors import OutOfMemoryError
from crossmem.models import DeviceInfo
from crossmem_emulated.memfd import MemfdDriver
from crossmem_emulated.memory import PAGE_NBYTES

__all__ = ["CHECKED_NBYTES", "HostDriver"]

CHECKED_NBYTES: Final = 64 << 20
"""The smallest size in bytes of an allocation for which the driver reads the limits. Smaller
allocations are frequent, and a reading takes much longer than such an allocation."""

_FRESH_S: Final = 0.1
"""The time in seconds for which one reading of the limits is valid."""

_MAX_ALLOCATION_NBYTES: Final = 1 << 46
"""The largest request in bytes: half of the address space of a process on x86-64."""

_MAX_NAME: Final = 50
"""The largest number of characters of a limit's name in an error message, which has one line."""


class HostDriver(MemfdDriver):
    """The host's memory as one device, within the limits of the machine and the process's cgroups.

    Raises
    ------
    DriverError
        This kernel cannot create memfds.
    """

    backend = "host"

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        # The bytes that one reading of the limits still permits, and the time at which the reading
        # expires. If two threads allocate at once, an update of these fields may be lost, so the
        # fields may permit the same bytes to both threads. This is harmless, because the fields
        # permit at most half of the free memory.
        self._spare_nbytes = 0
        self._fresh_until_s = 0.0
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
            peer_access=False,
            hugepages=True,
        )

    @override
    def _charge(self, block: Block, capacity: int) -> None:
        if capacity >= CHECKED_NBYTES:
            self._check(capacity)
        block.capacity = capacity

    def _check(self, capacity: int) -> None:
        """Raise ``OutOfMemoryError`` if the limits leave too little memory for a capacity.

        A reading of the limits takes as long as ten allocations, so several allocations share one
        reading. A reading permits an allocation without a new reading if both are true:

        - The reading has not expired.
        - All allocations that share the reading together take at most half of the memory that was
          free at the time of the reading.
        """
        if capacity <= self._spare_nbytes and monotonic() < self._fresh_until_s:
            self._spare_nbytes -= capacity
            return
        limit = self._limits.tightest()
        if limit is None:
            return
        if capacity > limit.free_nbytes:
            raise self._exceeded(limit)
        self._spare_nbytes = limit.free_nbytes // 2 - capacity
        self._fresh_until_s = monotonic() + _FRESH_S

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
