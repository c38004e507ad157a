# SPDX-License-Identifier: Apache-2.0
"""Exportable memory for the arrays of a tree: memory of crossmem, an adoption, or a copy."""

import logging
import math
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import cast

from crossmem.arrays import Layout
from crossmem.arrays.adapters import ADAPTERS
from crossmem.arrays.copy_ranges import ALIGNMENT, BLOCK_ALIGNMENT, find_range, pack_ranges
from crossmem.control.records import Allow
from crossmem.driver import CopyKind
from crossmem.errors import CrossmemError, UnsupportedError
from crossmem.guards import clause
from crossmem.models import Access, ShareableHandle
from crossmem.sharing.base.devices import find_device, runtime_in_use
from crossmem.sharing.base.memory import Memory, is_left_to_views, leave_to_views
from crossmem.sharing.base.process import Process
from crossmem.sharing.base.views import maker
from crossmem.sharing.device import Device
from crossmem.sharing.exporter.adoption import Adoption, Neighbours, neighbours_of
from crossmem.sharing.exporter.allocation import Allocation, record_of
from crossmem.sharing.exporter.exporting import export_again
from crossmem.sharing.exporter.record import Allocations
from crossmem.sharing.exporter.share_report import ShareWay, how_can_share
from crossmem.sharing.importer.block_mapping import BlockMapping
from crossmem.sharing.importer.mapping import Mapping
from crossmem.sharing.pools.block import Block, check_own_block
from crossmem.sharing.pools.pool import Pool
from crossmem.trees.leaves import Leaf, Place
from crossmem.trees.pool_blocks import Exportable, refuse_pool_elsewhere, take_block

__all__ = ["TreeMemory", "home_of"]

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class TreeMemory:
    """The memory that holds the arrays of one tree.

    Parameters
    ----------
    allow, access
        The processes that may import the exports, and whether they may write. None: all processes
        of the same user may import, and they may write. For blocks of a pool, None means the
        settings of the pool.
    neighbours
        Whether importers may reach the neighbours of the arrays. None: an array that has neighbours
        is copied or refused.
    copy
        Whether arrays that cannot be shared in place may be copied.
    host
        A function that returns the device to which host memory is copied.
    pool
        The pool whose blocks hold the copies. None: allocations hold the copies.
    """

    process: Process
    allow: Allow | None
    access: Access | None
    neighbours: Neighbours | None
    copy: bool
    host: Callable[[], Device]
    pool: Pool | None = None
    owned: list[Exportable] = field(default_factory=list)
    """Adoptions and copies. The tree's ``Shared``, or :meth:`give_up`, frees them."""
    devices: set[Device] = field(default_factory=set)
    """Devices that hold memory of the tree."""
    copied_nbytes: int = 0
    _near: dict[str, ShareWay] = field(default_factory=dict)
    """The vendor's allocation that was found last on each device. The key is the device's name."""

    def find(self, leaves: list[Leaf]) -> list[Place]:
        """Return the :class:`Place` of each array, in the order of ``leaves``.

        Adopt or copy memory that crossmem cannot export as it is.

        Raises
        ------
        UnsupportedError
            Memory cannot be shared and must not be copied; the message says why.
        CrossmemError
            A vendor's call failed.
        """
        places: dict[int, Place] = {}
        foreign: dict[tuple[str, int], tuple[ShareWay, list[int]]] = {}
        to_copy: dict[str | None, list[int]] = {}
        # Consecutive arrays often lie in the same memory, so the last result is tried first.
        near: tuple[int, int, ShareableHandle, int] | None = None
        for number, leaf in enumerate(leaves):
            low, high = leaf.bounds
            if near is not None and near[0] <= low and high <= near[1]:
                places[number] = leaf.place(near[2], near[3])
                continue
            memory = self._memory_at(low, high)
            is_orphan = isinstance(memory, Mapping) and not memory.owner_alive
            if isinstance(memory, Allocation | Block | Mapping) and not is_orphan:
                handle, origin = self.export(memory)
                near = memory.ptr, memory.ptr + memory.nbytes, handle, origin
                places[number] = leaf.place(handle, origin)
                continue
            where = leaf.found.device
            way, reason, details = None, "it is ordinary host memory", ""
            if is_orphan:
                reason = "the owner of its memory is dead"
            elif memory is not None:
                reason = (
                    "it lies in an address range; instead, share the memory that is mapped there"
                )
            elif where is not None:
                way, reason, details = self._way(where, low, high)
                if way is not None:
                    foreign.setdefault((where, way.base), (way, []))[1].append(number)
                    continue
            self._refuse_unless_copied(leaf, reason, "make it with crossmem.empty()", details)
            to_copy.setdefault(where, []).append(number)
        for (where, _base), (way, numbers) in foreign.items():
            group = [leaves[one] for one in numbers]
            low, high = _span(group)
            around = neighbours_of(way.exposed_nbytes, high - low)
            if around is not None and self.neighbours is None:
                self._refuse_unless_copied(group[0], around, 'pass neighbours="expose"')
                to_copy.setdefault(where, []).extend(numbers)
                continue
            handle, origin = self.export(self._adopt(way, home_of(self.process, where), group))
            for one in numbers:
                places[one] = leaves[one].place(handle, origin)
        for where, numbers in to_copy.items():
            copies = self._copy(where, [leaves[one] for one in numbers])
            places.update(zip(numbers, copies, strict=True))
        return [places[number] for number in range(len(leaves))]

    def give_up(self) -> None:
        """After an error in sharing a tree, end the tree's adoptions and free the tree's copies.

        Memory that the error's traceback keeps in use is freed when the traceback is deleted. If
        the vendor refuses to free memory, a later call of crossmem tries again.
        """
        while self.owned:
            with suppress(CrossmemError):
                self.owned.pop().free()

    def _memory_at(self, low: int, high: int) -> Memory | None:
        """Return the memory of crossmem that contains the addresses; None if there is none."""
        memory = cast("Memory | None", self.process.arrays.find(low, high - low))
        # An adoption that was made for another tree ends with that tree. So this tree needs its own
        # adoption.
        return None if isinstance(memory, Adoption) and is_left_to_views(memory) else memory

    def export(self, memory: Allocation | Block | Mapping) -> tuple[ShareableHandle, int]:
        """Return a handle, and the local address at which the handle's memory begins."""
        origin = memory.ptr
        if isinstance(memory, Mapping):
            handle = memory.handle
            owned = None
            if handle.owner == self.process.identity:
                owned = self.process.part(Allocations).find(handle)
            if owned is not None and not owned.is_retired:
                # This process owns the memory, so the settings of this tree decide which processes
                # may import the memory.
                origin -= handle.offset
                handle = export_again(owned, self.allow, self.access or "rw")
                origin += handle.offset
            elif handle.owner == self.process.identity and isinstance(memory, BlockMapping):
                check_own_block(self.process, handle, self.allow, self.access)
        elif isinstance(memory, Block):
            handle = memory.export(allow=self.allow, access=self.access)
        else:
            handle = memory.export(allow=self.allow, access=self.access or "rw")
        self.devices.add(cast("Device", memory.device))
        return handle, origin

    def _adopt(self, way: ShareWay, home: Device, leaves: list[Leaf]) -> Allocation:
        low, high = _span(leaves)
        owner = tuple(leaf.value for leaf in leaves)
        chosen = home.for_mechanism(way.mechanism)
        adoption = chosen.adopt(low, high - low, owner=owner, neighbours=self.neighbours)
        leave_to_views(adoption)
        self.owned.append(adoption)
        return adoption

    def _way(self, where: str, low: int, high: int) -> tuple[ShareWay | None, str, str]:
        """Return a way to share the memory at these addresses, and two empty texts.

        If no mechanism can share the memory, return None, the reason and details.
        """
        near = self._near.get(where)
        if near is not None and _is_within(low, high, near):
            # What the vendor reported about one array is true for all arrays in the allocation.
            return near, "", ""
        report = how_can_share(low, home_of(self.process, where))
        for way in report.ways:
            if way.obstacle is None and _is_within(low, high, way):
                self._near[where] = way
                return way, "", ""
        if report.mechanisms:
            # A large tensor in one of PyTorch's expandable segments spans several allocations.
            return None, "it spans several allocations of the vendor", str(report)
        return None, f"it {report.ways[0].obstacle}", str(report)

    def _refuse_unless_copied(self, leaf: Leaf, reason: str, hint: str, details: str = "") -> None:
        if not self.copy:
            raise UnsupportedError(
                f"{leaf.where()} cannot be shared without a copy: {clause(reason, 105)}",
                hint=f"{hint}, or pass copy=True",
                details=details,
                operation="share",
            )

    def _copy(self, where: str | None, leaves: list[Leaf]) -> list[Place]:
        """Copy each byte of the arrays once, into one allocation or block.

        Return the :class:`Place` of each array.

        A gap is memory between the elements of an array: if the array is one column of a matrix,
        the other columns are gaps. In host memory, gaps are not copied, because the user did not
        share them. But arrays whose address ranges overlap, such as two columns of one matrix, are
        copied with their gaps. On a device, all gaps are copied, because only a kernel can omit
        them.
        """
        home = self.host() if where is None else home_of(self.process, where)
        alignment = ALIGNMENT if self.pool is None else BLOCK_ALIGNMENT
        ranges = pack_ranges((leaf.bounds for leaf in leaves), alignment)
        numbers = [find_range(ranges, leaf.bounds[0]) for leaf in leaves]
        memory = self._allocate(home, ranges[-1].end, leaves[0])
        self.owned.append(memory)
        if where is not None:
            # Kernels that write the arrays may still be running.
            home.synchronize()
        alone = _with_gaps(leaves, numbers) if where is None else {}
        nbytes = 0
        for number, (low, high, start) in enumerate(ranges):
            found = alone.get(number)
            if found is None:
                if where is None and isinstance(memory, Allocation):
                    block = record_of(memory).memory.block
                    home.driver.fill(block, start, low, high - low)
                else:
                    # fill() needs memory that was never written, but a pool reuses its blocks.
                    kind = CopyKind.HOST_TO_DEVICE if where is None else CopyKind.DEVICE_TO_DEVICE
                    home.driver.copy(home.ordinal, memory.ptr + start, low, high - low, kind)
                nbytes += high - low
            else:
                layout = found.found.layout.at(start + found.found.pointer - low)
                library = found.found.kind
                # A stride of zero repeats an element. Each such element is written once, because
                # PyTorch refuses to write to repeated elements.
                once = tuple([slice(1) if step == 0 else slice(None) for step in layout.strides])
                array = maker(memory, library)(layout)[once]
                ADAPTERS[library].copy_to(array, found.value[once])
                nbytes += _distinct_nbytes(layout)
        self.copied_nbytes += nbytes
        _log.info("copied %d bytes to %s, to share them from there", nbytes, home.name)
        # The export waits until the device has finished the copy.
        handle, origin = self.export(memory)
        places = []
        for leaf, number in zip(leaves, numbers, strict=True):
            shift = memory.ptr + ranges[number].start - ranges[number].low
            places.append(leaf.place(handle, origin - shift, memory))
        return places

    def _allocate(self, home: Device, nbytes: int, leaf: Leaf) -> Exportable:
        """Return memory for copies.

        The memory is freed when the tree is closed and all arrays in the memory are deleted.
        """
        if self.pool is not None:
            refuse_pool_elsewhere(self.pool, leaf.where(), home.name)
            return take_block(self.pool, nbytes, "the copies need", "share")
        allocation = home.allocate(nbytes)
        leave_to_views(allocation)
        return allocation


def home_of(process: Process, where: str) -> Device:
    """Return a device by its name.

    If this process uses exactly one runtime of the backend, that runtime provides the device.
    """
    runtime = runtime_in_use(process, where.partition(":")[0])
    return cast("Device", find_device(process, where, runtime))


def _is_within(low: int, high: int, way: ShareWay) -> bool:
    return way.base <= low and high <= way.base + way.nbytes


def _with_gaps(leaves: list[Leaf], numbers: list[int]) -> dict[int, Leaf]:
    """Return each array that has gaps and is the only array in its range.

    ``numbers`` has the index of each array's range. The key of the result is this index.
    """
    counts = Counter(numbers)
    found = {}
    for leaf, number in zip(leaves, numbers, strict=True):
        low, high = leaf.bounds
        if counts[number] == 1 and high - low > _distinct_nbytes(leaf.found.layout):
            found[number] = leaf
    return found


def _distinct_nbytes(layout: Layout) -> int:
    """Return the size of the elements. An element that a stride of zero repeats is counted once."""
    sizes = [size for size, step in zip(layout.shape, layout.strides, strict=True) if step]
    return math.prod(sizes) * layout.dtype.itemsize


def _span(leaves: list[Leaf]) -> tuple[int, int]:
    """Return the lowest address in any of the arrays, and the address after their last byte."""
    bounds = [leaf.bounds for leaf in leaves]
    return min(low for low, _ in bounds), max(high for _, high in bounds)
