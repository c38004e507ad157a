# SPDX-License-Identifier: Apache-2.0
"""The report that says which mechanisms can share memory of another library."""

from dataclasses import dataclass

from typing_extensions import override

from crossmem.errors import ConfigurationError
from crossmem.guards import shorten
from crossmem.sharing.base.devices import LocalDevice, find_device, refuse_foreign_device
from crossmem.sharing.base.process import drain
from crossmem.sharing.exporter.adoption import neighbours_of
from crossmem.sharing.exporter.foreign import check_address, look_at

__all__ = ["ShareReport", "ShareWay", "how_can_share"]


@dataclass(frozen=True, slots=True)
class ShareWay:
    """How one mechanism of a device can share the memory around an address, or why it cannot.

    Parameters
    ----------
    mechanism
        Name of the mechanism, for :meth:`crossmem.Device.for_mechanism`.
    base, nbytes
        Address and size of the vendor's allocation around the address; zeros if there is an
        obstacle.
    exposed_nbytes
        Number of bytes that importers can access if any part of the vendor's allocation is
        exported; 0 if there is an obstacle. If this number exceeds the adopted size, importers can
        also access neighbours.
    obstacle
        The reason why the mechanism cannot share the memory; None if the mechanism can.
    """

    mechanism: str
    base: int
    nbytes: int
    exposed_nbytes: int
    obstacle: str | None


@dataclass(frozen=True, slots=True)
class ShareReport:
    """The result of :func:`crossmem.how_can_share`. ``str()`` returns lines for people.

    Parameters
    ----------
    ptr
        The address whose memory is to be shared.
    device
        Name of the device.
    ways
        One entry for each mechanism of the device, the preferred mechanism first.
    """

    ptr: int
    device: str
    ways: tuple[ShareWay, ...]

    @property
    def mechanisms(self) -> tuple[str, ...]:
        """Names of the mechanisms that can share the memory."""
        return tuple(way.mechanism for way in self.ways if way.obstacle is None)

    @override
    def __str__(self) -> str:
        lines = (f"- {way.mechanism}: {_describe(way)}" for way in self.ways)
        return "\n".join((f"memory at {self.ptr:#x} on {self.device}", *lines))


def _describe(way: ShareWay) -> str:
    if way.obstacle is not None:
        return f"no, it {way.obstacle}"
    text = f"yes, as part of {way.nbytes} bytes at {way.base:#x}"
    around = neighbours_of(way.exposed_nbytes, way.nbytes)
    return text if around is None else f'{text}, with neighbours="expose", because {around}'


def how_can_share(ptr: int, device: LocalDevice | str) -> ShareReport:
    """Report which mechanisms can share memory of another library, and why the others cannot.

    The report predicts the result of :meth:`crossmem.Device.adopt`. This function exports nothing.

    Parameters
    ----------
    ptr
        Any address of device memory.
    device
        The device that holds the memory, or the device's name.

    Raises
    ------
    ConfigurationError
        ``ptr`` is not an address, or ``device`` is neither a device nor the name of one.
    DriverError
        A vendor's call failed.
    """
    process = drain()
    if not isinstance(device, LocalDevice | str):
        msg = f"device must be a crossmem.Device or its name, not {shorten(device)}"
        raise ConfigurationError(msg, operation="how_can_share")
    found = find_device(process, device, None) if isinstance(device, str) else device
    refuse_foreign_device(found)
    pointer = check_address("ptr", ptr)
    ways = []
    for mechanism in found.capabilities.mechanisms:
        foreign = look_at(process, found.for_mechanism(mechanism), pointer)
        usable = foreign.obstacle is None
        ways.append(
            ShareWay(
                mechanism,
                foreign.base if usable else 0,
                foreign.nbytes if usable else 0,
                foreign.exposed_nbytes if usable else 0,
                foreign.obstacle,
            )
        )
    return ShareReport(pointer, found.name, tuple(ways))
