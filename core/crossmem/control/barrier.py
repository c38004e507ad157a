# SPDX-License-Identifier: Apache-2.0
"""The memory barrier of ``membarrier(2)``, which runs a fence in every registered process.

A process that has registered takes part in the barriers of all other processes. The registration
takes 10 ms if a second thread runs. So the process registers when Python imports this module,
before crossmem starts a thread. A forked child is registered, too; exec ends the registration.
"""

import ctypes
import errno
import os
from collections.abc import Mapping
from typing import Final

__all__ = ["IS_ORDERED", "IS_REGISTERED", "WHY_NOT", "is_registered", "membarrier"]

_GLOBAL_EXPEDITED: Final = 1 << 1
_REGISTER_GLOBAL_EXPEDITED: Final = 1 << 2
_GET_REGISTRATIONS: Final = 1 << 9

_MACHINE: Final = os.uname().machine
_NUMBER: Final = {"x86_64": 324, "aarch64": 283}.get(_MACHINE, -1)
"""The number of the system call. On other architectures it is -1, which the kernel refuses."""

IS_ORDERED: Final = _MACHINE == "x86_64"
"""Whether this processor keeps stores in program order, and loads in program order."""

_syscall = ctypes.CDLL(None, use_errno=True).syscall
_syscall.argtypes = [ctypes.c_long] * 4
_syscall.restype = ctypes.c_long


def _register(environ: Mapping[str, str]) -> str:
    """Register this process; return the reason if it is not registered, else an empty string."""
    if environ.get("CROSSMEM_BARRIER", "").strip() == "fence":
        return "CROSSMEM_BARRIER=fence"
    if _syscall(_NUMBER, _REGISTER_GLOBAL_EXPEDITED, 0, 0) < 0:
        return f"membarrier: {os.strerror(ctypes.get_errno())}"
    return ""


def is_registered() -> bool | None:
    """Whether the kernel reports this process as registered; None if the kernel gives no report.

    Kernels before Linux 6.3 give no report.
    """
    found: int = _syscall(_NUMBER, _GET_REGISTRATIONS, 0, 0)
    return None if found < 0 else bool(found & _REGISTER_GLOBAL_EXPEDITED)


def membarrier() -> None:
    """Order the accesses of all registered processes: each runs a full fence during this call.

    Raises
    ------
    DriverError
        The kernel refuses the barrier, although it registered this process.
    """
    if _syscall(_NUMBER, _GLOBAL_EXPEDITED, 0, 0) < 0:
        code = ctypes.get_errno()
        # Only this rare failure needs the import.
        from crossmem.errors import DriverError  # noqa: PLC0415

        raise DriverError(
            "the kernel refuses the barrier that it allowed before",
            call="membarrier",
            code=code,
            name=errno.errorcode[code],
            backend="host",
            hint="set CROSSMEM_BARRIER=fence before the process starts",
        )


WHY_NOT: Final = _register(os.environ)
"""The reason why this process is not registered; empty if it is registered."""

IS_REGISTERED: Final = not WHY_NOT
"""Whether this process is registered. If not, it uses fences instead of the barrier."""
