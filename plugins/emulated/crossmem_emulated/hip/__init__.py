# SPDX-License-Identifier: Apache-2.0
"""An emulation of AMD's HIP and NVIDIA's CUDA, with the interface of ``cupy.cuda.runtime``.

Rules, result codes and lifetimes follow the vendors' documents, source code or devices.
docs/reference/hip-rules.md lists the rules and their tests.
"""

import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from typing_extensions import override

from crossmem.errors import CrossmemError
from crossmem_emulated.hip import (
    attributes,
    blocks,
    boxes,
    callbacks,
    captures,
    contexts,
    copies,
    devices,
    events,
    exports,
    fills,
    host,
    limits,
    physical,
    planes,
    pool_shares,
    pools,
    shares,
    streams,
    values,
    virtual,
)
from crossmem_emulated.hip.attributes import PointerAttributes
from crossmem_emulated.hip.calls import ENTRIES, Entry, parse
from crossmem_emulated.hip.codes import CUDARuntimeError, HipBuildRuntimeError, constants_of
from crossmem_emulated.hip.masks import visible_devices
from crossmem_emulated.hip.pools import MemPoolProps
from crossmem_emulated.hip.process import HipProcess, Quirk, Setup
from crossmem_emulated.hip.profiles import PROFILES, profile_named
from crossmem_emulated.journal import Faults, Violation
from crossmem_emulated.machine import Machine, log_fault
from crossmem_emulated.options import Options

__all__ = [
    "PROFILES",
    "CUDARuntimeError",
    "HipBuildRuntimeError",
    "PointerAttributes",
    "Quirk",
    "Runtime",
    "Violation",
]

# The import of each module registers its functions. The tuple marks the imported names as used.
_FAMILIES = (
    attributes,
    blocks,
    boxes,
    callbacks,
    captures,
    contexts,
    copies,
    devices,
    events,
    exports,
    fills,
    host,
    limits,
    physical,
    planes,
    pool_shares,
    pools,
    shares,
    streams,
    values,
    virtual,
)


class Runtime:
    """An emulation of ``cupy.cuda.runtime`` for this process.

    Its functions have the arguments and exceptions of CuPy's functions. The folder in ``options``
    stands for one emulated host. Processes whose ``Runtime`` objects have the same folder use the
    same devices, and can open each other's handles.

    The emulation also has functions that CuPy lacks:

    - ``memGetAddressRange(ptr)``, which returns base and size;
    - ``pointerGetAttribute(attribute, ptr)``, ``hostGetDevicePointer(ptr, flags)`` and
      ``deviceReset()``;
    - ``streamWriteValue64`` and ``streamWaitValue64``;
    - the contexts of the vendors' driver APIs: ``ctxCreate`` and related functions;
    - virtual memory: ``memCreate``, ``memAddressReserve``, ``memMap`` and so on;
    - further functions that C programs call.

    The docstring of each function is its signature. If CuPy lacks a function and the vendor's
    function has a struct as an argument, the emulation's function has one argument for each field.
    If the vendor's function has a list of structs, the emulation's function has a list of tuples.

    Parameters
    ----------
    profile
        Edition of the rules, one of ``PROFILES``.
    strict
        Whether the emulation records calls that the vendor forbids or leaves undefined. A strict
        emulation also denies the CPU access to device addresses.
    options
        The emulated host's folder and devices. If None, they are read from the environment.
    has_old_numbers
        Whether the C program that makes the calls was compiled with headers of ROCm 5, in which
        some constants have different numbers.
    is_cupy
        Whether the functions that always fail in CuPy on ROCm also fail in this emulation. If
        False, they work as in AMD's library. crossmem's driver sets False, because it calls some of
        these functions.

    Attributes
    ----------
    is_hip
        Whether the object emulates AMD's runtime; otherwise, NVIDIA's.
    CUDARuntimeError
        The exception class that the functions raise; its ``status`` is the vendor's code.
    faults
        The injected faults. For example, after ``faults.add("ipcOpenMemHandle", 17)``, the next
        call of this function on the emulated host fails with code 17.
    machine
        The emulated host's database, which all processes of the host share.

    Raises
    ------
    ConfigurationError
        There is no such profile, an environment variable is invalid, or the host's folder cannot
        be used.
    """

    MemPoolProps = MemPoolProps
    PointerAttributes = PointerAttributes

    def __init__(
        self,
        profile: str = "documented",
        strict: bool = True,  # noqa: FBT001, FBT002 - callers pass it by position
        *,
        options: Options | None = None,
        has_old_numbers: bool = False,
        is_cupy: bool = True,
    ) -> None:
        options = options or Options.from_environ(os.environ)
        edition = profile_named(profile)
        if has_old_numbers:
            edition = replace(edition, has_old_numbers=True)
        self._process = HipProcess(
            Setup(
                profile=edition,
                strict=strict,
                folder=options.state,
                visible=visible_devices(options.devices, os.environ, is_hip=edition.is_hip),
                capacity_nbytes=options.capacity_nbytes,
                slow_streams=options.slow_streams,
                has_peers=options.hip_peers,
                quirks=frozenset(options.hip_quirks),
            )
        )
        self.is_hip = edition.is_hip
        self._is_cupy_on_hip = is_cupy and edition.is_hip
        self.CUDARuntimeError: type[CUDARuntimeError] = edition.error
        self.faults: Faults = self._process.faults
        self.machine: Machine = self._process.machine
        vars(self).update(constants_of(is_hip=edition.is_hip))
        for name, called in ENTRIES.items():
            vars(self)[name] = self._bind(called)

    def _bind(self, called: Entry) -> Callable[..., Any]:
        """Return the method of this object that calls a function of the emulation."""

        def function(*arguments: Any, **named: Any) -> Any:
            values = parse(called, arguments, named)
            if called.hip_lacks and self._is_cupy_on_hip:
                raise RuntimeError(called.hip_lacks)
            if called.hip_answers and self._is_cupy_on_hip:
                self.check_status(self.refuse(called.name, called.hip_answers))
            status, value = self._process.call(called, values)
            if not called.is_checked:
                return status
            self.check_status(status)
            return value

        function.__name__ = function.__qualname__ = called.name
        function.__doc__ = called.signature
        return function

    def __getattr__(self, name: str) -> Any:
        # Python calls this method only for missing names. The type checker cannot know the
        # functions that __init__ adds, and accepts any name because this method exists.
        raise AttributeError(f"the emulation of cupy.cuda.runtime has no {name!r}")

    @override
    def __repr__(self) -> str:
        kind = "strict" if self._process.setup.strict else "lax"
        return f"<Runtime {self._process.profile.name} {kind} on {self.machine.folder}>"

    @property
    def violations(self) -> list[Violation]:
        """The recorded calls that the vendor forbids or leaves undefined.

        The list includes the calls of all processes of this emulated host.
        """
        return self._process.journal.read()

    @property
    def space(self) -> Any:
        """The device addresses that this process has reserved or mapped, for tests."""
        return self._process.space

    @property
    def tells_names(self) -> bool:
        """Whether ``hipGetErrorString`` returns the name of a code, as in ROCm 5."""
        return self._process.profile.is_before_6

    @property
    def has_virtual_memory(self) -> bool:
        """Whether the emulated runtime implements the functions of virtual memory."""
        return self._process.profile.has_virtual

    @property
    def shares_pools(self) -> bool:
        """Whether processes can share pools."""
        return not self._process.profile.is_before_6

    def check_status(self, status: int) -> None:
        """If ``status`` is not 0, clear the thread's last error and raise, as CuPy does."""
        if status:
            self._process.last_error(is_cleared=True)
            raise self.CUDARuntimeError(status)

    def call(self, name: str, *arguments: Any, **named: Any) -> tuple[int, Any]:
        """Call a function as C does. Return its error code, and its result if the code is 0.

        The code of a failure becomes the thread's last error. In some editions, the code "not
        ready" is an exception: it does not become the last error.
        """
        called = ENTRIES[name]
        status, value = self._process.call(called, parse(called, arguments, named))
        if status:
            log_fault(self._process.fault)
        return status, value

    def crossmem_fault(self) -> CrossmemError | None:
        """Return the emulation's own error in this thread's last failed call, or None.

        The vendor has no code for such an error, so the call returned the code "unknown error".
        """
        return self._process.fault

    def refuse(self, name: str, status: int) -> int:
        """Emulate a failed call of the function ``name``, and return the code of the failure.

        As in every call, the emulation first makes its common checks, such as the check for a
        visible device. If a check fails, the result is the code of this check. If no check fails,
        the result is ``status``.
        """
        return self._process.refuse(name, status)

    def getLastError(self) -> int:  # noqa: N802 - the vendor's name
        """Return the code of this thread's last failure, or 0, and forget the code."""
        return self._process.last_error(is_cleared=True)

    def peekAtLastError(self) -> int:  # noqa: N802
        """Return the code of this thread's last failure, or 0, and keep the code."""
        return self._process.last_error(is_cleared=False)

    def extGetLastError(self) -> int:  # noqa: N802
        """Return the code of this thread's last call, which may be 0, and forget the code."""
        return self._process.last_status()
