# SPDX-License-Identifier: Apache-2.0
"""What passes between the command ``crossmem emulate`` and the plugin that has an emulation."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

__all__ = ["Breach", "Emulation", "EmulationReport", "EmulationRequest"]

_LIBRARY_PATH: Final = "LD_LIBRARY_PATH"


@dataclass(frozen=True, slots=True, kw_only=True)
class EmulationRequest:
    """What an emulation is to be like; None for what the environment says, or the default.

    Parameters
    ----------
    profile
        Edition of the vendor's rules.
    devices
        Number of devices.
    capacity
        Memory of each device, such as ``"8GiB"``.
    faults
        Calls that are to fail, each as ``CALL=CODE``, ``CALL=CODE:SKIP`` or
        ``CALL=CODE:SKIP:COUNT``. They end with the emulation, and one that is lasting has none.
    strict
        Whether uses are recorded that the vendor forbids or leaves undefined, and device
        addresses are closed to the host.
    slow_streams
        Whether streams do their work only when somebody waits for it.
    state
        Folder of the emulated host. All that run on one share devices and handles.
    is_lasting
        Whether it is for longer than this process lives. It then has nothing of its own that
        somebody would have to give back: its host is that of the environment, and calls are not
        counted. Otherwise the host is this emulation's own, where no folder is given.
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
    """One use that the vendor forbids or leaves undefined."""

    pid: int
    """Process that did it."""
    call: str
    """The vendor's function."""
    rule: str
    """Id of the rule."""
    text: str
    """What was wrong, with the values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EmulationReport:
    """What an emulation saw.

    Parameters
    ----------
    violations
        In the order in which they happened, of all processes.
    calls
        How often each function was called by processes that ended in order.
    """

    violations: tuple[Breach, ...]
    calls: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Emulation:
    """What a program has to be run with to find an emulation.

    Parameters
    ----------
    library_path
        Folders that the dynamic loader has to search first.
    variables
        Environment variables to set.
    report
        Returns what happened so far.
    close
        Gives back what was made for this emulation alone. Called once, when the program ended.
    """

    library_path: tuple[Path, ...]
    variables: Mapping[str, str] = field(default_factory=dict)
    report: Callable[[], EmulationReport]
    close: Callable[[], None]

    def environment(self, environ: Mapping[str, str]) -> dict[str, str]:
        """Return the variables of a program: those that are given, with the emulation's."""
        folders = [*map(str, self.library_path), *filter(None, [environ.get(_LIBRARY_PATH)])]
        return {**environ, **self.variables, _LIBRARY_PATH: os.pathsep.join(folders)}
