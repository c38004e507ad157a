# SPDX-License-Identifier: Apache-2.0
"""The interface of a runtime, which follows the example of ``cupy.cuda.runtime``.

Pointers and streams are integers. IPC handles are ``bytes`` of length 64. A function that fails
raises ``CUDARuntimeError``, on HIP too. The exception's ``status`` is the vendor's code. CuPy's
module, the vendors' libraries in :mod:`crossmem_hip.library`, and the emulation have this
interface. CuPy's module lacks the calls for virtual memory, which :mod:`crossmem_hip.library` adds.
These calls take each member of a struct as a separate argument.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, Protocol

from crossmem.errors import BackendUnavailableError, CrossmemError
from crossmem.guards import clause
from crossmem_hip.errors import error_for
from crossmem_hip.family import STREAM_VALUES, VIRTUAL, Family

__all__ = ["NEEDED", "VIRTUAL", "Runtime", "StreamValues", "Vendor", "VirtualMemory"]

NEEDED: Final = (
    "CUDARuntimeError",
    "deviceCanAccessPeer",
    "deviceEnablePeerAccess",
    "deviceGetPCIBusId",
    "deviceSynchronize",
    "free",
    "getDevice",
    "getDeviceCount",
    "getDeviceProperties",
    "ipcCloseMemHandle",
    "ipcGetMemHandle",
    "ipcOpenMemHandle",
    "malloc",
    "memcpy",
    "runtimeGetVersion",
    "setDevice",
    "streamSynchronize",
)
"""The functions that a runtime must have, and the class of its exceptions."""


class VirtualMemory(Protocol):
    """The vendors' virtual memory management: ``hipMem*``, and ``cuMem*`` of CUDA's driver.

    Handles and addresses are plain integers. A location has a type and an id: type 1 is a device,
    and its id is the device's number in this process. A handle type is a bit mask: 0 for memory
    that is never exported, 1 for a file descriptor.
    """

    # Physical memory. `kind` is the allocation type: 1 for pinned memory, the usual type.
    def memGetAllocationGranularity(
        self, kind: int, handle_type: int, location_type: int, location_id: int, option: int, /
    ) -> int:
        """Return the granularity in bytes. Option 0: the minimum. Option 1: the recommended one."""
        ...

    def memCreate(
        self,
        size: int,
        kind: int,
        handle_type: int,
        location_type: int,
        location_id: int,
        flags: int,
        /,
    ) -> int:
        """Allocate physical memory, and return its handle."""
        ...

    def memRelease(self, handle: int, /) -> None: ...
    def memRetainAllocationHandle(self, pointer: int, /) -> int:
        """Return a handle of the memory that is mapped at an address.

        The caller releases the handle once for each call.
        """
        ...

    def memGetAllocationPropertiesFromHandle(self, handle: int, /) -> tuple[int, int, int, int]:
        """Return allocation type, requested handle type, location type and location id."""
        ...

    # Address 0 means any address. Alignment 0 means the vendor's default.
    def memAddressReserve(self, size: int, alignment: int, address: int, flags: int, /) -> int: ...
    def memAddressFree(self, pointer: int, size: int, /) -> None: ...
    def memMap(self, pointer: int, size: int, offset: int, handle: int, flags: int, /) -> None: ...
    def memUnmap(self, pointer: int, size: int, /) -> None: ...

    # Access: 0 for none, 1 for read, 3 for read and write.
    def memSetAccess(
        self, pointer: int, size: int, access: Sequence[tuple[int, int, int]], /
    ) -> None:
        """Set the access of devices to mapped memory.

        Each item of ``access`` is for one device: location type, location id and access.
        """
        ...

    def memGetAccess(self, location_type: int, location_id: int, pointer: int, /) -> int: ...

    # Sharing.
    def memExportToShareableHandle(self, handle: int, handle_type: int, flags: int, /) -> int:
        """Return a new descriptor. The caller closes it."""
        ...

    def memImportFromShareableHandle(self, descriptor: int, handle_type: int, /) -> int:
        """Return a handle, which stays valid after the caller has closed the descriptor."""
        ...


class StreamValues(Protocol):
    """Functions for host memory that devices access.

    Streams write values in this memory, and wait for values in it.
    """

    def hostRegister(self, pointer: int, size: int, flags: int, /) -> None:
        """Pin memory of the program.

        With flags 1 and 2 together, every device can access this memory.
        """
        ...

    def hostUnregister(self, pointer: int, /) -> None: ...
    def hostGetDevicePointer(self, pointer: int, flags: int, /) -> int:
        """Return the address at which devices access registered memory. The flags are 0."""
        ...

    def streamWriteValue64(self, stream: int, pointer: int, value: int, flags: int, /) -> None:
        """Let a stream write a value after its earlier work. The flags are 0."""
        ...

    def streamWaitValue64(self, stream: int, pointer: int, value: int, flags: int, /) -> None:
        """Let a stream's later work wait until a word is at least the value (flags 0).

        CUDA compares signed differences, HIP compares unsigned numbers. Both comparisons have the
        same result for values up to 2**63 - 1.
        """
        ...

    def deviceGetAttribute(self, attribute: int, device: int, /) -> int:
        """Return an attribute of a device.

        ``attribute`` is the attribute's number in HIP or in CUDA's driver library.
        """
        ...


class Runtime(VirtualMemory, StreamValues, Protocol):
    """The functions that the driver uses. Those that `NEEDED` does not list may be missing."""

    @property
    def CUDARuntimeError(self) -> type[Exception]: ...

    # Devices. CuPy lacks deviceGetUuid.
    def getDeviceCount(self) -> int: ...
    def getDevice(self) -> int: ...
    def setDevice(self, device: int, /) -> None: ...
    def getDeviceProperties(self, device: int, /) -> dict[str, Any]: ...
    def deviceGetPCIBusId(self, device: int, /) -> str: ...
    def deviceGetUuid(self, device: int, /) -> bytes: ...
    def deviceCanAccessPeer(self, device: int, peer: int, /) -> int: ...
    def deviceEnablePeerAccess(self, peer: int, /) -> None: ...
    def deviceSynchronize(self) -> None: ...
    def runtimeGetVersion(self) -> int: ...

    # Memory.
    def malloc(self, size: int, /) -> int: ...
    def free(self, pointer: int, /) -> None: ...
    def memcpy(self, target: int, source: int, size: int, kind: int, /) -> None: ...
    def streamSynchronize(self, stream: int, /) -> None: ...
    def streamIsCapturing(self, stream: int, /) -> bool: ...

    # Sharing.
    def ipcGetMemHandle(self, pointer: int, /) -> bytes: ...
    def ipcOpenMemHandle(self, handle: bytes, flags: int, /) -> int: ...
    def ipcCloseMemHandle(self, pointer: int, /) -> None: ...

    # Events that processes share.
    def eventCreateWithFlags(self, flags: int, /) -> int: ...
    def eventDestroy(self, event: int, /) -> None: ...
    def eventRecord(self, event: int, stream: int, /) -> None: ...
    def eventQuery(self, event: int, /) -> int | None:
        """Return 0 or None if the event's work is complete.

        Otherwise, return the vendor's code, or raise an exception with the code. Code 600 means
        that the work is not complete. Each other code means that the call failed.
        """
        ...

    def streamWaitEvent(self, stream: int, event: int, flags: int, /) -> None: ...
    def ipcGetEventHandle(self, event: int, /) -> bytes: ...
    def ipcOpenEventHandle(self, handle: bytes, /) -> int: ...

    # Streams and their work, for the conformance kit. A stream with flag 1 is not ordered with the
    # default stream.
    def streamCreateWithFlags(self, flags: int, /) -> int: ...
    def streamDestroy(self, stream: int, /) -> None: ...
    def memcpyAsync(
        self, target: int, source: int, size: int, kind: int, stream: int, /
    ) -> None: ...

    # Memory of other libraries. CuPy lacks memGetAddressRange and pointerGetAttribute, which
    # :mod:`crossmem_hip.library` adds.
    def pointerGetAttributes(self, pointer: int, /) -> Any: ...
    def memGetAddressRange(self, pointer: int, /) -> tuple[int, int]: ...
    def memGetInfo(self) -> tuple[int, int]: ...
    def pointerGetAttribute(self, attribute: int, pointer: int, /) -> int: ...


class Vendor:
    """A runtime whose failures become typed errors.

    ``streams`` returns the streams that CuPy and PyTorch use in the calling thread.

    Raises
    ------
    BackendUnavailableError
        The runtime lacks a function.
    DriverError
        The runtime does not report its version.

    Attributes
    ----------
    error
        The exception class of the runtime's functions.
    version
        The runtime's version, in the vendor's numbering.
    """

    def __init__(
        self, family: Family, rt: Runtime, streams: Callable[[], tuple[int, ...]] = tuple
    ) -> None:
        self.family = family
        self.rt = rt
        self.streams = streams
        missing = [name for name in NEEDED if not self.has(name)]
        if missing:
            raise BackendUnavailableError(
                f"this runtime lacks {clause(', '.join(missing))} of cupy.cuda.runtime",
                hint=family.install_hint,
                details="\n".join(missing),
                backend=family.backend,
            )
        self.error: type[Exception] = rt.CUDARuntimeError
        with self.calling("runtimeGetVersion"):
            self.version = rt.runtimeGetVersion()

    def has(self, function: str) -> bool:
        """Whether the runtime has a function."""
        return hasattr(self.rt, function)

    def can_wait_for_values(self, ordinal: int) -> bool:
        """Whether streams of a device can write and wait for 64-bit values in host memory.

        Raises
        ------
        DriverError
            The vendor refused the query.
        """
        if not all(map(self.has, STREAM_VALUES)):
            return False
        with self.calling("deviceGetAttribute"):
            return bool(self.rt.deviceGetAttribute(self.family.stream_values, ordinal))

    def refusal(self, function: str, error: Exception) -> CrossmemError:
        """Return the error for an exception of one of the runtime's functions.

        If the runtime is an emulation, and the emulation itself has failed, return the error that
        the emulation's function ``crossmem_fault`` returns.
        """
        told: Callable[[], CrossmemError | None] | None = getattr(self.rt, "crossmem_fault", None)
        fault = told() if told is not None else None
        if fault is not None:
            return fault
        status: int = error.status  # type: ignore[attr-defined]
        return error_for(self.family, function, status)

    @contextmanager
    def calling(self, function: str) -> Iterator[None]:
        """Turn an exception of one of the runtime's functions into a typed error."""
        try:
            yield
        except self.error as error:
            raise self.refusal(function, error) from error
