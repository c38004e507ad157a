# SPDX-License-Identifier: Apache-2.0
"""Optional groups of driver methods. A driver implements all of a group or none of it."""

from typing import Protocol, cast

from crossmem.driver.base import Block, Driver, Imported

__all__ = ["AddressRanges", "ForeignMemory", "ReadonlyAlias", "check_groups", "readonly_alias_of"]


class ReadonlyAlias(Protocol):
    """A second, read-only mapping of memory that this process owns (law C8)."""

    def map_readonly(self, block: Block) -> int:
        """Map a block read-only and return the address."""
        ...

    def unmap_readonly(self, block: Block, pointer: int) -> None:
        """Take that address away again."""
        ...


class AddressRanges(Protocol):
    """Addresses reserved first and given memory later."""

    def reserve(self, ordinal: int, nbytes: int) -> int:
        """Reserve consecutive addresses, without memory, and return the first."""
        ...

    def release(self, pointer: int, nbytes: int) -> None:
        """Give reserved addresses back."""
        ...

    def map_at(self, memory: Block | Imported, pointer: int) -> None:
        """Map memory at reserved addresses."""
        ...

    def unmap_at(self, memory: Block | Imported, pointer: int) -> None:
        """Take memory away from reserved addresses, which stay reserved."""
        ...


class ForeignMemory(Protocol):
    """Memory that someone else allocated through the same vendor."""

    def address_range(self, pointer: int) -> tuple[int, int]:
        """Return base and size in bytes of the allocation around an address."""
        ...


_GROUPS: tuple[type, ...] = (ReadonlyAlias, AddressRanges, ForeignMemory)


def _methods(group: type) -> list[str]:
    return sorted(name for name in vars(group) if not name.startswith("_"))


def _offers(driver: Driver, group: type) -> bool:
    return all(callable(getattr(driver, name, None)) for name in _methods(group))


def readonly_alias_of(driver: Driver) -> ReadonlyAlias | None:
    """Return the driver as a :class:`ReadonlyAlias`, None where it does not offer the group."""
    return cast("ReadonlyAlias", driver) if _offers(driver, ReadonlyAlias) else None


def check_groups(driver: Driver) -> list[str]:
    """Return what is wrong with a driver's optional groups, one line for each fault.

    A group is wrong where a driver has some of its methods but not all, and where the group's
    capability says something else than the driver.
    """
    faults = []
    for group in _GROUPS:
        methods = _methods(group)
        missing = [name for name in methods if not callable(getattr(driver, name, None))]
        if missing and len(missing) < len(methods):
            faults.append(f"{group.__name__} is incomplete: {', '.join(missing)} missing")
    for device in driver.devices():
        capabilities = driver.capabilities(device.ordinal)
        for says, group in (
            (capabilities.address_ranges, AddressRanges),
            (capabilities.foreign_memory, ForeignMemory),
        ):
            if says != _offers(driver, group):
                faults.append(
                    f"capabilities of device {device.ordinal} contradict {group.__name__}"
                )
    return faults
