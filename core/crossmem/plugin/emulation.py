# SPDX-License-Identifier: Apache-2.0
"""The data that crossmem's commands and the plugin of an emulation exchange."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

__all__ = ["Breach", "Emulation", "EmulationReport", "EmulationRequest"]

_LIBRARY_PATH: Final = "LD_LIBRARY_PATH"


@dataclass(frozen=True, slots=True, kw_only=True)
class EmulationRequest:
    """The requested emulation.

    A field that is None takes its value from the environment, or else has the default.

    Parameters
    ----------
    profile
        Edition of the vendor's rules.
    devices
        Number of devices.
    capacity
        Memory of each device, such as ``"8GiB"``.
    faults
        Calls that shall fail, each as ``CALL=CODE``, ``CALL=CODE:SKIP`` or
        ``CALL=CODE:SKIP:COUNT``: after SKIP calls (default 0), COUNT calls (default 1) of the
        function CALL fail with CODE. The faults end with the emulation. A lasting emulation must
        have no faults.
    strict
        Whether the emulation records calls that the vendor forbids or leaves undefined. A strict
        emulation also refuses the host's accesses to device addresses.
    slow_streams
        Whether streams execute their work only when a thread waits for it.
    state
        Folder of the emulated host. Emulations with the same folder share devices and handles.
    is_lasting
        Whether the emulation outlives this process. A lasting emulation counts no calls. An
        emulation that does not last gets a new emulated host, unless ``state`` or the environment
        names a folder.
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
    """What is wrong with the call, with the values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EmulationReport:
    """The observations of an emulation.

    Parameters
    ----------
    violations
        The breaches of all processes of the emulated host since this emulation was prepared, in
        order of time.
    calls
        Number of calls of each function by processes that ended normally. The key is the function.
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
        Returns the report so far.
    segfault_note
        One line for the user of a program that SIGSEGV ended, if the emulation may be the reason.
    close
        Releases the resources of this emulation. Called once: after the program has ended, or,
        for a lasting emulation, after its environment was printed.
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
