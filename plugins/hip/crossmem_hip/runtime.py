# SPDX-License-Identifier: Apache-2.0
"""The port: what the driver uses of ``cupy.cuda.runtime``, in that module's own shape.

Pointers and streams are integers, handles are 64 ``bytes``. A function that fails raises
``CUDARuntimeError``, with the vendor's code as its ``status``; on HIP too. CuPy's module and the
emulation both fit.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, Protocol

from crossmem.errors import BackendUnavailableError, CrossmemError
from crossmem_hip.errors import error_for
from crossmem_hip.family import Family

__all__ = ["NEEDED", "Runtime", "Vendor"]

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
"""What a runtime must have."""


class Runtime(Protocol):
    """``cupy.cuda.runtime``, as far as it is used. What is not in `NEEDED` may be missing."""

    @property
    def CUDARuntimeError(self) -> type[Exception]: ...

    # Devices.
    def getDeviceCount(self) -> int: ...
    def getDevice(self) -> int: ...
    def setDevice(self, device: int, /) -> None: ...
    def getDeviceProperties(self, device: int, /) -> dict[str, Any]: ...
    def deviceGetPCIBusId(self, device: int, /) -> str: ...
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

    # Memory that others allocated. CuPy lacks the last two, which :mod:`crossmem_hip.library` adds
    # where the vendor's library is found.
    def pointerGetAttributes(self, pointer: int, /) -> Any: ...
    def memGetAddressRange(self, pointer: int, /) -> tuple[int, int]: ...
    def pointerGetAttribute(self, attribute: int, pointer: int, /) -> int: ...


class Vendor:
    """A runtime whose failures become typed errors.

    Parameters
    ----------
    family
        Whose runtime it is.
    rt
        The runtime.
    streams
        Says which streams the libraries of this process use now, besides the default one.

    Raises
    ------
    BackendUnavailableError
        Where it lacks a function.
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
                f"this CuPy lacks cupy.cuda.runtime.{', '.join(missing)}",
                hint=family.install_hint,
                backend=family.backend,
            )
        self.error: type[Exception] = rt.CUDARuntimeError

    def has(self, function: str) -> bool:
        """Whether the runtime has a function."""
        return hasattr(self.rt, function)

    def refusal(self, function: str, error: Exception) -> CrossmemError:
        """Return the error for what the runtime raised from one of its functions."""
        status: int = error.status  # type: ignore[attr-defined]
        return error_for(self.family, function, status)

    @contextmanager
    def calling(self, function: str) -> Iterator[None]:
        """Turn what the runtime raises from one of its functions into a typed error."""
        try:
            yield
        except self.error as error:
            raise self.refusal(function, error) from error
