# SPDX-License-Identifier: Apache-2.0
"""A plugin's description of a backend, which crossmem can read without any vendor code."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

from typing_extensions import override

from crossmem.driver import Driver
from crossmem.errors import ConfigurationError
from crossmem.guards import NAME_PATTERN, is_name, shorten

__all__ = ["Availability", "AvailabilityState", "Backend"]

AvailabilityState = Literal["available", "not_installed", "unusable"]
"""Whether this machine can use a backend."""


@dataclass(frozen=True, slots=True)
class Availability:
    """Whether this machine can use a backend, and the reason if it cannot.

    Parameters
    ----------
    state
        ``"available"``; ``"not_installed"`` if a library or package is missing; ``"unusable"`` if
        everything is installed but cannot work, for example because there is no device, or because
        this process may not use the device.
    reason
        The cause of the state, in one clause of at most 120 characters. The clause may be empty
        only if the state is ``"available"``. Messages put the backend's name before the clause.
        crossmem shortens a longer reason, and puts the whole reason at the beginning of
        ``details``.
    details
        Further lines of text, such as a line for each path that was tried.

    Raises
    ------
    ConfigurationError
        The state is not one of the three values above, or a state other than ``"available"`` has
        an empty reason.
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
    """One vendor's memory API, as a plugin offers it through the hook ``crossmem_backends``.

    Parameters
    ----------
    name
        The name of the backend. Names of devices begin with it, as in
        ``crossmem.device("name:0")``.
    summary
        One line that tells users which vendor's memory the backend shares.
    api_version
        Version of the plugin interface that the backend implements. Write the number itself, not
        ``crossmem.plugin.API_VERSION``. That constant is the version of the installed crossmem,
        which may differ from the version for which the plugin was written.
    probe
        Function that returns whether this machine can use the backend. crossmem calls it at most
        once per process, on the first thread that needs the result. The function may search for
        libraries, packages and device files. It must not create a device context, start threads or
        take long. If the function raises an exception, the state is ``"unusable"``.
    load
        Function that makes the driver. The argument is the name of a runtime, or None. With
        None, the function chooses one of the vendor's real runtimes, never an emulation. crossmem
        calls the function once per process for each requested runtime. If the call fails, the next
        request for the runtime repeats the call. crossmem never calls the function on two threads
        at once. The function raises :class:`crossmem.BackendUnavailableError` if the runtime cannot
        work on this machine.
    priority
        If the application names no device, crossmem uses the available backend with the highest
        priority. A backend whose priority is None is used only if the application names it. Every
        emulation has the priority None.
    install_hint
        Text of at most 200 characters that says what the user can do if the backend is not
        available. An example is a ``pip install`` line.
    runtimes
        Names of the runtimes that ``load`` accepts. Empty if ``load`` accepts only None.

    Raises
    ------
    ConfigurationError
        The name is not a valid name of a backend, or an argument other than ``api_version`` has the
        wrong type.
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
        runtimes: object = self.runtimes
        is_right = {
            "summary": isinstance(self.summary, str),
            "probe": callable(self.probe),
            "load": callable(self.load),
            "priority": self.priority is None or type(self.priority) is int,
            "install_hint": isinstance(self.install_hint, str | None),
            "runtimes": isinstance(runtimes, tuple)
            and all(isinstance(one, str) for one in runtimes),
        }
        for field in [name for name, right in is_right.items() if not right]:
            kind = Backend.__annotations__[field]
            value = shorten(getattr(self, field), 60)
            msg = f"{field} of backend {self.name!r} must be of the type {kind}, not {value}"
            raise ConfigurationError(msg)
