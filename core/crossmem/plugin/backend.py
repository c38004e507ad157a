# SPDX-License-Identifier: Apache-2.0
"""What a plugin says about a backend before anything of the vendor's is loaded."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

from typing_extensions import override

from crossmem.driver import Driver
from crossmem.errors import ConfigurationError
from crossmem.guards import NAME_PATTERN, is_name, shorten

__all__ = ["Availability", "AvailabilityState", "Backend"]

AvailabilityState = Literal["available", "not_installed", "unusable"]
"""The three answers to "can this backend be used here?"."""


@dataclass(frozen=True, slots=True)
class Availability:
    """Whether a backend can be used on this machine, and why not.

    Parameters
    ----------
    state
        ``"available"``; ``"not_installed"`` where a library or package is missing;
        ``"unusable"`` where everything is installed but cannot work here, for example because
        there is no device or no permission to use it.
    reason
        Why not, in one clause of at most 120 characters: a message puts the backend's name before
        it. A longer one is cut there, and kept whole in the details. Only ``"available"`` may do
        without.
    details
        What does not fit there, such as every path that was tried, one per line.

    Raises
    ------
    ConfigurationError
        If the state is none of the three, or a reason is missing.
    """

    state: AvailabilityState
    reason: str = ""
    details: str = ""

    def __post_init__(self) -> None:
        states = get_args(AvailabilityState)
        if self.state not in states:
            known = ", ".join(map(repr, states))
            msg = f"availability {shorten(self.state, 60)} must be one of {known}"
            raise ConfigurationError(msg)
        if not self.available and not self.reason:
            known = ", ".join(map(repr, states))
            msg = f"availability {self.state!r} needs a reason"
            raise ConfigurationError(msg)

    @property
    def available(self) -> bool:
        """Whether the backend can be used."""
        return self.state == "available"

    @override
    def __str__(self) -> str:
        words = self.state.replace("_", " ")
        return f"{words}: {self.reason}" if self.reason else words


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """One vendor memory API, as a plugin offers it through ``crossmem_backends``.

    Parameters
    ----------
    name
        Name by which users ask for it, as in ``crossmem.device("name:0")``.
    summary
        One line for people: whose memory this is.
    api_version
        Version of the plugin interface for which it was written. Write the number, not
        ``crossmem.plugin.API_VERSION``: a constant that follows the installed crossmem says
        nothing.
    probe
        Says whether the backend can be used here. Called at most once per process, on the
        thread of whoever first asks. It may look for libraries, packages and device files; it
        must not create a device context, start threads or take longer than a moment. What it
        raises counts as ``"unusable"``.
    load
        Makes the driver. Called with the name of a runtime, or None for the backend's own
        choice among the vendor's real runtimes, which must never be an emulation. Called once
        per process for each runtime that is asked for, and again only after it raised; never
        on two threads at once. Raise :class:`crossmem.BackendUnavailableError` where the
        runtime cannot work here.
    priority
        Preference where no device is named: the highest number that is available is taken.
        None for what is used only when it is named; every emulation says None.
    install_hint
        What to do if it is not available, such as a ``pip install`` line: at most 200 characters.
    runtimes
        Names that ``load`` understands. Empty where there is no choice.

    Raises
    ------
    ConfigurationError
        If the name cannot stand in a handle.
    """

    name: str
    summary: str
    api_version: int
    probe: Callable[[], Availability]
    load: Callable[[str | None], Driver]
    priority: int | None = None
    install_hint: str | None = None
    runtimes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not is_name(self.name):
            msg = f"backend name {shorten(self.name)} does not match {NAME_PATTERN}"
            raise ConfigurationError(msg)
