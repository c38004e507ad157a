# SPDX-License-Identifier: Apache-2.0
"""The data that crossmem's commands exchange with the plugin of an emulation."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

__all__ = ["Breach", "Emulation", "EmulationReport", "EmulationRequest"]

_LIBRARY_PATH: Final = "LD_LIBRARY_PATH"


@dataclass(frozen=True, slots=True, kw_only=True)
class EmulationRequest:
    """The settings of a requested emulation.

    If a field is None, the environment variable of the setting decides. If the variable is not set
    either, the emulation uses the setting's default.

    Parameters
    ----------
    profile
        Edition of the vendor's rules.
    devices
        Number of devices.
    capacity
        Memory of each device, such as ``"8GiB"``.
    faults
        Calls that fail, each as ``CALL=CODE``, ``CALL=CODE:SKIP`` or ``CALL=CODE:SKIP:COUNT``.
        After SKIP calls of the function CALL, the next COUNT calls of the function fail with CODE.
        By default, SKIP is 0 and COUNT is 1. :attr:`Emulation.close` removes the faults. A lasting
        emulation cannot have faults.
    strict
        Whether the emulation records calls that the vendor forbids, and calls whose behaviour the
        vendor leaves undefined. A strict emulation also ends the program if the CPU accesses a
        device address.
    slow_streams
        Whether streams delay their work until a thread waits for the work. If another process may
        wait for the work, the delay is short.
    state
        Folder with the state of the emulated host. Emulations with the same folder share devices
        and handles.
    is_lasting
        Whether the emulation outlives this process. A lasting emulation does not count calls. If
        the emulation is not lasting, and neither ``state`` nor the environment names a folder, the
        emulation gets a new emulated host.
    """

    profile: str | None = None
    devices: int | None = None
    capacity: str | None = None
    faults: tuple[str, ...] = ()
    strict: bool | None = None
    slow_streams: bool | None = None
    state: Path | None = None
    is_lasting: bool = False


class Breach(NamedTuple):
    """One call that breaks a rule of the vendor or has undefined behaviour."""

    pid: int
    """The process that made the call."""
    call: str
    """The vendor's function."""
    rule: str
    """Id of the rule."""
    text: str
    """What is wrong with the call, including the relevant values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EmulationReport:
    """The observations of an emulation.

    Parameters
    ----------
    violations
        The breaches of all processes of the emulated host since this emulation was prepared, in
        order of time.
    calls
        How often each function was called. The key is the function's name. Only the calls by
        processes that ended normally are counted.
    """

    violations: tuple[Breach, ...]
    calls: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Emulation:
    """The environment that a program needs to find an emulation.

    Parameters
    ----------
    library_path
        Folders that the dynamic loader must search first.
    variables
        Environment variables to set.
    report
        Function that returns the report on the calls so far.
    segfault_note
        A line that crossmem shows to the user if SIGSEGV ends the program. The line says how the
        emulation may have caused the signal. None if the emulation cannot cause the signal.
    close
        Function that releases the resources of this emulation. crossmem calls the function once:
        after the program has ended or, for a lasting emulation, after the environment was printed.
    """

    library_path: tuple[Path, ...]
    variables: Mapping[str, str] = field(default_factory=dict)
    report: Callable[[], EmulationReport]
    segfault_note: str | None = None
    close: Callable[[], None]

    def environment(self, environ: Mapping[str, str]) -> dict[str, str]:
        """Return the environment of a program: ``environ``, changed for the emulation."""
        folders = [*map(str, self.library_path), *filter(None, [environ.get(_LIBRARY_PATH)])]
        return {**environ, **self.variables, _LIBRARY_PATH: os.pathsep.join(folders)}
