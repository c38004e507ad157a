# SPDX-License-Identifier: Apache-2.0
"""The editions of the rules: AMD's documents, AMD's runtimes, or NVIDIA's documents.

``documented`` refuses every use that AMD's documents forbid, and returns the error codes of the
runtime's source code. ``clr24`` follows the source code of ROCm 6.3, ``clr26`` that of ROCm 10, and
``rocm5`` that of ROCm 5.2. ``cuda`` follows NVIDIA's documents. If they name no code, it follows an
H200 with driver 580.
"""

from dataclasses import dataclass
from typing import Final

from crossmem.errors import ConfigurationError
from crossmem.guards import shorten
from crossmem_emulated.hip.codes import CUDARuntimeError, HipBuildRuntimeError, Status

__all__ = ["PROFILES", "Profile", "profile_named"]


@dataclass(frozen=True, slots=True)
class Profile:
    """The behaviour of one edition. The editions differ in these fields.

    Parameters
    ----------
    name
        The edition's name.
    version
        The result of ``runtimeGetVersion`` and of ``driverGetVersion``.
    is_hip
        Whether the edition is AMD's.
    is_documented
        Whether the edition follows documents, rather than the source code of a runtime.
    stale
        The code with which an open fails if the memory never existed or was freed, or if the handle
        was changed.
    dead
        The code with which an open fails if the exporter is dead.
    foreign
        The code with which an open fails in another pid namespace.
    not_descriptor
        The code with which an import fails if its descriptor is not physical memory.
    unreachable
        The code with which an open fails if the device cannot access the memory.
    no_device
        The code with which calls fail if no device is visible. In every edition,
        ``getDeviceCount`` then fails with ``NO_DEVICE``, and ``runtimeGetVersion`` and
        ``driverGetVersion`` do not fail.
    knows_own_pid
        Whether a handle contains the exporter's pid, by which the edition recognises a handle that
        the calling process itself exported.
    looks_first
        Whether the open of a handle that is already open returns without a query of the exporter.
    keeps_ordinals
        Whether a handle contains the device's number in the exporter. If so, an importer that has
        no device with this number refuses the handle.
    closes_inside
        Whether a close accepts any address inside the opened memory, not only the first address.
    refuses_null
        Whether the edition refuses a query of the null address. Otherwise, the query returns the
        attributes of unregistered memory. Editions before ROCm 6 refuse all unknown addresses.
    has_contexts
        Whether a device can have several contexts; otherwise a context is the device itself.
    knows_exportable
        Whether the edition can report whether memory can be exported.
    has_virtual
        Whether the edition has virtual memory.
    no_such_device
        The code with which the creation of physical memory fails if the device does not exist.
    takes_descriptors
        Whether an import takes the descriptor itself and not its address. This is so in AMD's
        runtimes since ROCm 7.1, and in NVIDIA's driver. Descriptor 0 is then refused.
    keeps_not_ready
        Whether the code "not ready" becomes the thread's last error.
    frees_null
        Whether the null address can be freed in a stream, as in HIP 7.
    has_uncached
        Whether physical memory without caching can be created.
    flags_of_write
        The accepted flags of the call by which a stream writes a value, None if the flags are
        ignored.
    is_before_6
        Whether the edition is a ROCm before 6.
    has_old_numbers
        Whether constants have the numbers of AMD's headers before ROCm 6. These numbers differ
        from CUDA's.
    """

    name: str
    version: int
    is_hip: bool = True
    is_documented: bool = False
    stale: Status = Status.INVALID_DEVICE_POINTER
    dead: Status = Status.INVALID_DEVICE_POINTER
    foreign: Status = Status.INVALID_DEVICE_POINTER
    not_descriptor: Status = Status.INVALID_VALUE
    unreachable: Status = Status.INVALID_DEVICE_POINTER
    no_device: Status = Status.NO_DEVICE
    knows_own_pid: bool = True
    looks_first: bool = False
    keeps_ordinals: bool = False
    closes_inside: bool = False
    refuses_null: bool = False
    has_contexts: bool = False
    knows_exportable: bool = True
    has_virtual: bool = True
    no_such_device: Status = Status.INVALID_VALUE
    takes_descriptors: bool = False
    keeps_not_ready: bool = True
    frees_null: bool = False
    has_uncached: bool = False
    flags_of_write: frozenset[int] | None = None
    is_before_6: bool = False
    has_old_numbers: bool = False

    @property
    def lazy_flag(self) -> int | None:
        """The only value that an open accepts as its flags. None: an open accepts any odd value."""
        return int(not self.has_old_numbers) if self.is_hip else None

    @property
    def error(self) -> type[CUDARuntimeError]:
        """The class of the edition's errors."""
        return HipBuildRuntimeError if self.is_hip else CUDARuntimeError


PROFILES: Final[dict[str, Profile]] = {
    profile.name: profile
    for profile in (
        Profile(
            "documented",
            version=7_00_51831,
            is_documented=True,
            has_contexts=True,
            knows_exportable=False,
            keeps_not_ready=False,
            frees_null=True,
            has_uncached=True,
        ),
        Profile("clr24", version=6_03_42131, knows_exportable=False, refuses_null=True),
        Profile(
            "clr26",
            version=10_02_00000,
            looks_first=True,
            keeps_ordinals=True,
            closes_inside=True,
            no_such_device=Status.INVALID_DEVICE,
            takes_descriptors=True,
            keeps_not_ready=False,
            frees_null=True,
            has_uncached=True,
            flags_of_write=frozenset({0}),
        ),
        Profile(
            "rocm5",
            version=5_02_21153,
            no_device=Status.INVALID_DEVICE,
            knows_own_pid=False,
            knows_exportable=False,
            has_virtual=False,
            is_before_6=True,
            has_old_numbers=True,
        ),
        Profile(
            "cuda",
            version=13020,
            is_hip=False,
            is_documented=True,
            stale=Status.INVALID_VALUE,
            dead=Status.INVALID_HANDLE,
            foreign=Status.OPERATING_SYSTEM,
            not_descriptor=Status.UNKNOWN,
            takes_descriptors=True,
            unreachable=Status.PEER_ACCESS_UNSUPPORTED,
            no_such_device=Status.INVALID_DEVICE,
            looks_first=True,
            has_contexts=True,
            flags_of_write=frozenset({0, 1}),
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
        msg = f"there is no HIP profile {shorten(name, 50)}; there are: {', '.join(PROFILES)}"
        raise ConfigurationError(msg) from None
