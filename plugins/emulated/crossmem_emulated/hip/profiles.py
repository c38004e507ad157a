# SPDX-License-Identifier: Apache-2.0
"""The editions of the rules. An edition follows a vendor's documents or a runtime of AMD.

``documented`` follows AMD's documents, with the error codes of the runtime's source code. ``rocm5``
follows the source code of ROCm 5.2, ``clr24`` that of ROCm 6.3, and ``clr26`` that of ROCm 10.
``cuda`` follows NVIDIA's documents. If the documents name no error code, ``cuda`` returns the code
of an H200 with driver 580.
"""

from dataclasses import dataclass
from typing import Final

from crossmem.errors import ConfigurationError
from crossmem.guards import shorten
from crossmem_emulated.hip.codes import CUDARuntimeError, HipBuildRuntimeError, Status

__all__ = ["PROFILES", "Profile", "profile_named"]


@dataclass(frozen=True, slots=True)
class Profile:
    """The behaviour of one edition.

    In the texts below, "an open" means a call of ``ipcOpenMemHandle``.

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
        The error code of an open if the memory never existed or was freed, or if the handle was
        changed.
    dead
        The error code of an open if the exporter is dead.
    foreign
        The error code of an open if the exporter is in another pid namespace.
    not_descriptor
        The error code of an import of physical memory if no export made the descriptor.
    unreachable
        The error code of an open if the current device cannot access the memory's device.
    no_device
        The error code of most calls if no device is visible. In every edition, ``getDeviceCount``
        then fails with ``NO_DEVICE``, and ``runtimeGetVersion`` and ``driverGetVersion`` succeed.
    knows_own_pid
        Whether a handle contains the exporter's pid. By this pid, the edition recognises a handle
        that the calling process itself exported.
    looks_first
        Whether a process that has the memory open can open the memory again after the exporter has
        freed the memory or has died.
    keeps_ordinals
        Whether a handle contains the device's number in the exporter. If so, an importer that has
        no device with this number refuses the handle.
    closes_inside
        Whether ``ipcCloseMemHandle`` accepts every address inside the opened memory.
    refuses_null
        Whether ``pointerGetAttributes`` refuses the null address. Editions before ROCm 6 refuse
        every unknown address, so they do not need this field.
    has_contexts
        Whether a device can have several contexts. If not, its primary context is the only one.
    knows_exportable
        Whether the edition supports the attribute that says if memory can be exported.
    has_virtual
        Whether the edition supports the functions for virtual memory.
    no_such_device
        The error code of a call that creates physical memory if the device does not exist.
    takes_descriptors
        Whether a C program that imports physical memory passes the number of the descriptor, as
        with ROCm since 7.1 and with NVIDIA's driver. These editions refuse descriptor 0. With the
        other editions, the program passes a pointer to the number.
    keeps_not_ready
        Whether the code "not ready" becomes the thread's last error.
    frees_null
        Whether the null address can be freed in a stream, as in HIP 7.
    has_uncached
        Whether uncached physical memory can be created.
    flags_of_write
        The flags that ``streamWriteValue32`` and ``streamWriteValue64`` accept; None if these
        functions ignore the flags.
    is_before_6
        Whether the edition follows a version of ROCm before 6.
    has_old_numbers
        Whether constants have the numbers of AMD's headers before ROCm 6.
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
        """The only value of ``flags`` that an open accepts; None if all odd values are accepted."""
        return int(not self.has_old_numbers) if self.is_hip else None

    @property
    def error(self) -> type[CUDARuntimeError]:
        """The class of the exceptions that a Python program gets."""
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


def profile_named(name: str) -> Profile:
    """Return the profile with a name.

    Raises
    ------
    ConfigurationError
        There is no profile with this name.
    """
    try:
        return PROFILES[name]
    except KeyError:
        msg = f"there is no HIP profile {shorten(name, 50)}; choose from: {', '.join(PROFILES)}"
        raise ConfigurationError(msg) from None
