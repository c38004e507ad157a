# SPDX-License-Identifier: Apache-2.0
"""The barrier of ``membarrier(2)``: what one process pays, so that the others need no fence.

A process that registers lets any other order its memory accesses. Registering takes 10 ms where
a second thread runs, so it is done when crossmem is imported. Fork inherits it and exec clears it.
"""

import ctypes
import os
from collections.abc import Mapping
from typing import Final

__all__ = ["IS_ORDERED", "IS_REGISTERED", "WHY_NOT", "is_registered", "membarrier"]

_GLOBAL_EXPEDITED: Final = 1 << 1
_REGISTER_GLOBAL_EXPEDITED: Final = 1 << 2
_GET_REGISTRATIONS: Final = 1 << 9

_MACHINE: Final = os.uname().machine
_NUMBER: Final = {"x86_64": 324, "aarch64": 283}.get(_MACHINE, -1)
"""Of the system call; the kernel refuses that of an architecture which was not looked at."""

IS_ORDERED: Final = _MACHINE == "x86_64"
"""Whether stores become visible in the order in which a process makes them, and loads too."""

_syscall = ctypes.CDLL(None, use_errno=True).syscall
_syscall.argtypes = [ctypes.c_long] * 4
_syscall.restype = ctypes.c_long


def _register(environ: Mapping[str, str]) -> str:
    """Register this process; return why it is not registered, else nothing."""
    if environ.get("CROSSMEM_BARRIER", "").strip() == "fence":
        return "CROSSMEM_BARRIER=fence"
    if _syscall(_NUMBER, _REGISTER_GLOBAL_EXPEDITED, 0, 0) < 0:
        return f"membarrier: {os.strerror(ctypes.get_errno())}"
    return ""


def is_registered() -> bool | None:
    """Whether the kernel says that this process is registered; None if it does not say (6.3)."""
    found: int = _syscall(_NUMBER, _GET_REGISTRATIONS, 0, 0)
    return None if found < 0 else bool(found & _REGISTER_GLOBAL_EXPEDITED)


def membarrier() -> None:
    """Order the accesses of every registered process: each executes a full fence before this ends.

    Raises
    ------
    DriverError
        The kernel forbids now what it allowed when crossmem was imported.
    """
    if _syscall(_NUMBER, _GLOBAL_EXPEDITED, 0, 0) < 0:
        code = ctypes.get_errno()
        # Not with this module, which each import of crossmem imports.
        from crossmem.errors import DriverError  # noqa: PLC0415

        raise DriverError(
            "the kernel refuses the barrier that it allowed before",
            call="membarrier",
            code=code,
            name=os.strerror(code),
            backend="host",
            hint="set CROSSMEM_BARRIER=fence before the process starts",
        )


WHY_NOT: Final = _register(os.environ)
"""Why this process is not registered; empty if it is."""

IS_REGISTERED: Final = not WHY_NOT
"""Whether this process is registered, and may itself use the barrier."""
