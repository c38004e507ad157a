# SPDX-License-Identifier: Apache-2.0
"""The backend ``emulated``: simulated devices with a fixed capacity, in host memory."""

import errno
import threading
from typing import Final

from typing_extensions import override

from crossmem.driver import Block
from crossmem.errors import OutOfMemoryError
from crossmem.models import DeviceInfo
from crossmem_emulated import memory
from crossmem_emulated.memfd import MemfdDriver
from crossmem_emulated.memory import SystemCallError
from crossmem_emulated.options import Options

__all__ = ["EmulatedDriver"]

_POISON: Final = 0xA5


class _Account:
    """One device, and the part of its capacity that this process can still allocate."""

    __slots__ = ("free_nbytes", "info", "lock")

    def __init__(self, info: DeviceInfo, nbytes: int) -> None:
        self.info = info
        self.free_nbytes = nbytes
        # Reentrant: a signal handler may allocate while the interrupted thread holds this lock.
        self.lock = threading.RLock()


class EmulatedDriver(MemfdDriver):
    """Simulated devices. Each process can allocate the full capacity of each device.

    With the option ``prefault``, new memory gets all its pages at once. With the option ``poison``,
    new memory is filled with 0xA5.

    Raises
    ------
    DriverError
        This kernel cannot create memfds.
    """

    backend = "emulated"

    def __init__(self, options: Options) -> None:
        capacity = options.capacity_nbytes & -options.granularity_nbytes
        devices = tuple(
            DeviceInfo(
                ordinal=ordinal,
                identity=f"host:{index}",
                name=f"Emulated device {index}, in host memory",
                total_nbytes=capacity,
            )
            for ordinal, index in enumerate(options.visible)
        )
        super().__init__(
            devices,
            granularity_nbytes=options.granularity_nbytes,
            max_allocation_nbytes=capacity,
            peer_access=True,
            hugepages=options.hugepages,
        )
        self._accounts = tuple(_Account(info, capacity) for info in devices)
        self._prefault = options.prefault
        self._poison = options.poison
        self._prepares = self._prepares or self._prefault or self._poison

    @override
    def _charge(self, block: Block, capacity: int) -> None:
        account = self._accounts[block.ordinal]
        with account.lock:
            if capacity > account.free_nbytes:
                raise self._full(account)
            account.free_nbytes -= capacity
            block.capacity = capacity

    @override
    def _refund(self, block: Block) -> None:
        account = self._accounts[block.ordinal]
        with account.lock:
            account.free_nbytes += block.capacity
            block.capacity = 0

    @override
    def _prepare(self, block: Block) -> None:
        super()._prepare(block)
        if self._prefault:
            memory.populate(block.pointer, block.capacity)
        if self._poison:
            memory.fill(block.pointer, block.capacity, _POISON)

    def _full(self, account: _Account) -> OutOfMemoryError:
        info = account.info
        return OutOfMemoryError(
            f"the device has no room: {account.free_nbytes} of {info.total_nbytes} bytes are free",
            hint="free some allocations, or raise CROSSMEM_EMULATED_CAPACITY",
            operation="allocate",
            backend=self.backend,
            device=info.identity,
        )

    @override
    def _hint(self, error: SystemCallError) -> str | None:
        if error.code == errno.EINVAL and "POPULATE" in error.call:
            return "CROSSMEM_EMULATED_PREFAULT needs Linux 5.14"
        return super()._hint(error)
