# SPDX-License-Identifier: Apache-2.0
"""Result codes of HIP and CUDA, and crossmem's error for each code.

Most codes have the same meaning for both vendors, but different names. After some calls, a code has
a special meaning.
"""

from typing import Final, NamedTuple

from crossmem.errors import (
    BusyError,
    CrossmemError,
    DriverError,
    InvalidHandleError,
    OutOfMemoryError,
    StaleHandleError,
    UnsupportedError,
    WrongHostError,
)
from crossmem_hip.codes import CUDA_NAMES, HIP_NAMES
from crossmem_hip.family import Family

__all__ = [
    "CAPTURE",
    "CAPTURE_HINT",
    "INSUFFICIENT_DRIVER",
    "INVALID_DEVICE",
    "INVALID_VALUE",
    "NOT_READY",
    "NO_DEVICE",
    "PEER_ACCESS_ALREADY_ENABLED",
    "SMALLER_ON_CUDA",
    "Meaning",
    "error_for",
    "names_of",
]

INVALID_VALUE: Final = 1
INSUFFICIENT_DRIVER: Final = 35
NO_DEVICE: Final = 100
INVALID_DEVICE: Final = 101
PEER_ACCESS_ALREADY_ENABLED: Final = 704
SMALLER_ON_CUDA: Final = 801
"""CUDA's code for a mapping that is larger than the memory. HIP's code is INVALID_VALUE."""
NOT_READY: Final = 600
"""The code that a query returns while the work is not complete."""

CAPTURE: Final = frozenset(range(900, 909))
"""The vendors' result codes for calls that a capture forbids."""

CAPTURE_HINT: Final = "end the capture first; share and release memory outside of captured work"


class Meaning(NamedTuple):
    """The meaning of a result code."""

    hint: str
    error: type[CrossmemError] = DriverError


_ARGUMENT = Meaning("the runtime refused an argument: this may be a fault in crossmem; report it")
_FOREIGN = Meaning(
    "crossmem's own calls do not cause this error: earlier work of the program or of another "
    "library in this process may have failed"
)
_BROKEN = Meaning(
    "work on the device failed, and every later call of this process fails: start the process "
    "again; see {tool} and the kernel's log"
)
_GONE = Meaning(
    "the runtime is not initialised or is shut down: this process may be a forked child (start it "
    "with spawn instead), or may be exiting"
)
_DEVICE = Meaning("see {tool} for the devices, and {masks} for those visible to this process")
_DRIVER = Meaning("install matching versions of driver and runtime; {tool} shows the driver")
_PEER = Meaning("these devices cannot reach each other's memory: import on the memory's own device")
_IN_USE = Meaning(
    "another process uses the device exclusively: set the device's compute mode to Default, with "
    "`nvidia-smi -c 0`"
)
_SYSTEM = Meaning("the operating system refused; see the kernel's log")
_REFUSED = Meaning("the driver refused without a reason; see {tool} and the kernel's log")
_UNSUPPORTED = Meaning(
    "this device, driver or platform does not offer the call; under WSL there is no legacy IPC",
    UnsupportedError,
)
_CAPTURED = Meaning(CAPTURE_HINT, BusyError)
_MPS = Meaning("the device's MPS server refused or lost this process: see the server's log")

_MEANINGS: Final = {
    1: _ARGUMENT,
    2: Meaning("free some allocations; {tool} shows what other processes use", OutOfMemoryError),
    3: _GONE,
    4: _GONE,
    17: _ARGUMENT,
    21: _ARGUMENT,
    34: _DRIVER,
    35: _DRIVER,
    36: _DRIVER,
    46: _IN_USE,
    98: _FOREIGN,
    100: _DEVICE,
    101: _DEVICE,
    201: _GONE,
    205: Meaning("the driver could not map the memory: the address space may be full"),
    206: Meaning("the driver could not unmap the memory: the end of this process unmaps it"),
    208: Meaning("other code in this process has opened the same memory"),
    214: _BROKEN,
    216: Meaning("another thread or process uses the device exclusively: end that use"),
    217: _PEER,
    220: _BROKEN,
    226: _BROKEN,
    304: _SYSTEM,
    400: _ARGUMENT,
    500: _ARGUMENT,
    700: _BROKEN,
    702: _BROKEN,
    704: Meaning("harmless: access was enabled before"),
    705: _PEER,
    709: Meaning("other code in this process reset the device or destroyed its context"),
    710: _BROKEN,
    711: Meaning(
        "the device has reached its limit of peer devices: import on the memory's own device"
    ),
    714: _BROKEN,
    715: _BROKEN,
    716: _BROKEN,
    717: _BROKEN,
    718: _BROKEN,
    719: _BROKEN,
    800: Meaning("the driver does not permit the call to this user or process"),
    801: _UNSUPPORTED,
    802: _DRIVER,
    803: _DRIVER,
    804: _DRIVER,
    805: _MPS,
    806: _MPS,
    807: _MPS,
    808: _MPS,
    809: _MPS,
    810: _MPS,
    **dict.fromkeys(CAPTURE, _CAPTURED),
    999: _REFUSED,
    1052: _REFUSED,
    1053: _REFUSED,
}
"""The usual meanings. Other codes in the headers come from calls that crossmem never makes."""

_LOST = Meaning("no such memory: other code in this process freed it, or reset the device")

_AFTER: Final = {
    ("ipcGetMemHandle", 1): Meaning(
        "the driver cannot export this memory; on AMD, try HSA_ENABLE_IPC_MODE_LEGACY=0 in every "
        "process, because legacy mode (=1) needs AMD's own kernel driver"
    ),
    ("ipcOpenMemHandle", 1): Meaning(
        "perhaps this process does not see the exporter's device; or, on AMD, the processes have "
        "different values of HSA_ENABLE_IPC_MODE_LEGACY"
    ),
    ("ipcOpenMemHandle", 17): Meaning(
        "the exporter freed the memory or is dead; or, on AMD, the exporter is in another pid or "
        "network namespace",
        StaleHandleError,
    ),
    ("ipcOpenMemHandle", 201): Meaning(
        "a process cannot open its own export; if the exporter is another process with the same "
        "pid in another pid namespace, run both processes in one pid namespace",
        WrongHostError,
    ),
    ("ipcOpenMemHandle", 400): Meaning(
        "the exporter is dead; or another context of this process has opened the memory; or this "
        "is WSL, which has no legacy IPC"
    ),
    ("ipcCloseMemHandle", 1): Meaning(
        "the memory is not open: other code in this process closed it, or reset the device"
    ),
    ("free", 1): Meaning(
        "no such memory: other code in this process freed it, or reset the device"
    ),
    ("free", 17): Meaning(
        "no such memory: other code in this process freed it, or reset the device"
    ),
    ("memCreate", 801): Meaning(
        "this device, driver or platform has no memory that can be shared by descriptor: use "
        "mechanism 'legacy'",
        UnsupportedError,
    ),
    ("memImportFromShareableHandle", 1): Meaning(
        "the exporter sent a descriptor that is not an export of this vendor's memory",
        InvalidHandleError,
    ),
    ("memImportFromShareableHandle", 801): Meaning(
        "perhaps this process does not see the memory's device",
        UnsupportedError,
    ),
    ("memRetainAllocationHandle", 1): Meaning(
        "the memory is not mapped any more: its owner unmapped it", StaleHandleError
    ),
    # In these calls, the stream is the argument stream= of the application. If the application has
    # destroyed the stream, CUDA returns 400, and HIP returns 709.
    **{
        (function, code): Meaning(
            "stream= is not a living stream of this device: pass a stream that still exists"
        )
        for function in (
            *("streamIsCapturing", "streamSynchronize", "streamWaitEvent", "streamWaitValue64"),
            *("streamWriteValue64", "eventRecord"),
        )
        for code in (400, 709)
    },
    ("streamWaitEvent", 1): Meaning(
        "in AMD's releases before 2026, streams cannot wait for an event that was recorded more "
        "than 32 times: use level 'word' or 'host'"
    ),
    ("streamWaitValue64", 1): Meaning(
        "on AMD, GPU_STREAMOPS_CP_WAIT=1 forbids waits for ordinary memory: unset this variable"
    ),
    ("memSetAccess", 1): Meaning(
        "the memory may be smaller than its exporter claims; or this is a release of ROCm 7 whose "
        "address ranges accept only pieces of one size"
    ),
    ("memUnmap", 1): _LOST,
    ("memRelease", 1): _LOST,
    ("memAddressFree", 1): _LOST,
}
"""The special meanings of codes after some calls."""

_AFTER_ON_CUDA: Final = {
    ("ipcOpenMemHandle", 1): Meaning(
        "the exporter freed the memory, or the handle is not an export of CUDA", StaleHandleError
    ),
    ("ipcOpenMemHandle", 304): Meaning(
        "/proc may belong to another pid namespace: give both processes one pid namespace, and "
        "mount its /proc",
        WrongHostError,
    ),
    ("memImportFromShareableHandle", 999): Meaning(
        "the exporter sent a descriptor that is not an export of this vendor's memory",
        InvalidHandleError,
    ),
    ("memMap", SMALLER_ON_CUDA): Meaning("the memory is smaller than the size to be mapped"),
}
"""The special meanings of codes after some calls, on CUDA only."""


def names_of(family: Family) -> dict[int, str]:
    """Return the vendor's name of every result code."""
    return HIP_NAMES if family.is_hip else CUDA_NAMES


def error_for(family: Family, function: str, status: int) -> CrossmemError:
    """Return crossmem's error for a result code of the vendor.

    ``function`` is a name in ``cupy.cuda.runtime``, such as ``"ipcOpenMemHandle"``.
    """
    name = names_of(family).get(status)
    after = None if family.is_hip else _AFTER_ON_CUDA.get((function, status))
    after = after or _AFTER.get((function, status))
    hint, kind = after or _MEANINGS.get(status, _FOREIGN)
    if name is None:
        name, hint = "unknown to crossmem", "look the number up in the vendor's headers"
    hint = hint.format(tool=family.tool, masks=" and ".join(family.masks))
    call = family.function(function)
    if kind is DriverError:
        return DriverError(
            f"{family.vendor}'s runtime refused {call}",
            call=call,
            code=status,
            name=name,
            hint=hint,
            backend=family.backend,
        )
    return kind(f"{call} failed with {name} ({status})", hint=hint, backend=family.backend)
