# SPDX-License-Identifier: Apache-2.0
"""The profiles of ACL. Each profile is an edition of the documents, or a generation of drivers.

The documents and the drivers' source code contradict each other in some points.
:attr:`Profile.answers` says whether a profile follows the documents or the source code in these
points.
"""

from dataclasses import dataclass, field, replace
from typing import Final, Literal

from crossmem.errors import ConfigurationError
from crossmem.guards import shorten
from crossmem_emulated.acl.codes import Attribute

__all__ = ["PROFILES", "Profile", "profile_named"]

_HOST_ATTRIBUTES: Final = frozenset(
    {
        Attribute.DDR_MEM_HUGE,
        Attribute.DDR_MEM_NORMAL,
        Attribute.DDR_MEM_P2P_HUGE,
        Attribute.DDR_MEM_P2P_NORMAL,
    }
)
_COMMON: Final = _HOST_ATTRIBUTES | {
    Attribute.HBM_MEM_HUGE,
    Attribute.HBM_MEM_NORMAL,
    Attribute.MEM_NORMAL,
    Attribute.MEM_HUGE,
    Attribute.MEM_P2P_NORMAL,
    Attribute.MEM_P2P_HUGE,
}
_ATLAS: Final = _COMMON | {Attribute.MEM_HUGE1G, Attribute.HBM_MEM_HUGE1G}


@dataclass(frozen=True, slots=True)
class Profile:
    """The behaviour of one edition. Each field is a point in which editions differ.

    Parameters
    ----------
    name
        The edition's name.
    answers
        ``"documents"``: the edition refuses each use that the documents forbid. ``"driver"``: the
        edition behaves like the drivers' source code.
    soc
        The result of ``get_soc_name``.
    generation
        Generation of the driver's memory manager: 3 for the product 950, 2 for all other products.
    vmm
        Whether the edition has functions for physical memory and shareable handles.
    keys
        Whether the edition can share memory by key.
    attributes
        Types of physical memory that can be allocated.
    disables_validation
        The effect of flag 1 in the call that exports a shareable handle. ``"yes"``: the call
        exports the handle for all processes. ``"no"``: the call refuses the flag. ``"late"``: the
        call exports the handle with a whitelist, but returns the error 207000.
    newer
        Whether the edition has the functions that were added after CANN 8.0:

        - functions that export and import shareable handles of version 2
        - functions that set and return the access to a mapping
        - functions that return the properties of a handle, or the range of an allocation
        - in pyACL, ``rt.value_write`` and ``rt.value_wait``
    retains
        Whether the edition can return the handle of a mapping.
    fabric
        Whether the product has a fabric, which connects the servers of a super node. With a fabric:

        - a shareable handle can be valid on other servers
        - a key can admit processes of other servers
        - programs can call ``c.ipc_mem_set_attr``, which chooses the link to the memory of another
          device; products of generation 3 have this function without a fabric, too
        - programs can call ``c.reserve_mem_address_no_uc_memory``
    ipc_events
        Whether events can be opened in other processes.
    stream_values
        Whether streams can write values into memory, and wait for values in memory.
    notifies
        The number of notifies that a device has.
    ipc_notifies
        Whether notifies can be shared by key.
    queues
        The largest number of queues that a host process or a memory group can have on a device; 0
        if the driver has no queues. The queues belong to TDT, the part of ACL for the transfer of
        data.
    is_on_device
        Whether programs run on the device's own processor (the vendor's RC form). Only such
        programs can use TDT's buffers, and only they can hand buffers over through queues.
    """

    name: str
    answers: Literal["documents", "driver"] = "documents"
    soc: str = "Ascend910B1"
    generation: Literal[2, 3] = 2
    vmm: bool = True
    keys: bool = True
    attributes: frozenset[Attribute] = field(default=_ATLAS)
    disables_validation: Literal["yes", "no", "late"] = "yes"
    newer: bool = True
    retains: bool = True
    fabric: bool = False
    ipc_events: bool = True
    stream_values: bool = True
    notifies: int = 8192
    ipc_notifies: bool = True
    queues: int = 4096
    is_on_device: bool = False

    @property
    def is_documented(self) -> bool:
        """Whether the edition follows the documents."""
        return self.answers == "documents"


_A2: Final = Profile("a2", answers="driver")
_310B: Final = Profile(
    "310b-rc",
    soc="Ascend310B1",
    vmm=False,
    keys=False,
    ipc_events=False,
    stream_values=False,
    notifies=2048,
    ipc_notifies=False,
    is_on_device=True,
)

PROFILES: Final[dict[str, Profile]] = {
    profile.name: profile
    for profile in (
        Profile("documented", fabric=True),
        Profile(
            "cann8",
            attributes=frozenset({Attribute.HBM_MEM_HUGE, Attribute.HBM_MEM_NORMAL}),
            disables_validation="no",
            newer=False,
            retains=False,
            ipc_events=False,
            stream_values=False,
            ipc_notifies=False,
        ),
        _A2,
        replace(
            _A2,
            name="a3",
            soc="Ascend910_9391",
            attributes=_ATLAS | {Attribute.MEM_P2P_HUGE1G},
            fabric=True,
        ),
        Profile(
            "950",
            answers="driver",
            soc="Ascend950PR",
            generation=3,
            attributes=_COMMON | {Attribute.HBM_MEM_HUGE1G},
            ipc_events=False,
            notifies=65535,
        ),
        _310B,
        replace(_310B, name="310b-rc-driver", answers="driver"),
        replace(
            _A2,
            name="old-driver",
            disables_validation="late",
            retains=False,
            ipc_events=False,
            queues=0,
        ),
    )
}
"""Every profile. The key is the profile's name."""


def profile_named(name: str) -> Profile:
    """Return a profile.

    Raises
    ------
    ConfigurationError
        There is no profile with that name.
    """
    try:
        return PROFILES[name]
    except KeyError:
        msg = f"there is no ACL profile {shorten(name, 50)}; choose from: {', '.join(PROFILES)}"
        raise ConfigurationError(msg) from None
