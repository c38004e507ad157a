# SPDX-License-Identifier: Apache-2.0
"""The choice of a device: by the caller, by the environment, or by priority."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Self

from typing_extensions import override

from crossmem.errors import (
    BackendNotFoundError,
    BackendUnavailableError,
    ConfigurationError,
    CrossmemError,
)
from crossmem.guards import NAME_PATTERN, clause, shorten
from crossmem.plugin.backend import Availability, Backend
from crossmem.plugin.registry import Registry
from crossmem.settings import VARIABLES, Settings

__all__ = ["Candidate", "Choice", "DeviceSpec", "Explanation", "Source", "choose", "explain"]

_SPEC: Final = re.compile(rf"({NAME_PATTERN})(?::(0|[1-9][0-9]{{0,4}}))?")
_MAX_ORDINAL: Final = 65535
_HOST: Final = "host"
"""The device that errors recommend if there is no accelerator."""


class Source(StrEnum):
    """The source of the choice of a device."""

    ARGUMENT = "argument"
    """The caller named the device."""
    ENVIRONMENT = "environment"
    """``CROSSMEM_DEVICE`` names the device."""
    PRIORITY = "priority"
    """No device was named; the available backend with the highest priority was used."""


@dataclass(frozen=True, slots=True)
class DeviceSpec:
    """A device name: ``backend:N``, or ``backend`` for its device 0.

    Parameters
    ----------
    backend
        Name of the backend.
    ordinal
        Number of the device in this process.
    """

    backend: str
    ordinal: int = 0

    @classmethod
    def parse(cls, text: object, *, origin: str = "") -> Self:
        """Return the device that ``text`` names.

        ``origin`` is the environment variable that contains the text. An error names the variable.

        Raises
        ------
        ConfigurationError
            ``text`` is not a device name.
        """
        match = _SPEC.fullmatch(text) if isinstance(text, str) else None
        ordinal = int(match[2] or 0) if match else 0
        if match is None or ordinal > _MAX_ORDINAL:
            got = f"{origin}={shorten(text)}" if origin else shorten(text)
            msg = f"expected a device name such as 'cuda:0', got {got}"
            hint = f"write BACKEND:N with a number from 0 to {_MAX_ORDINAL}, or BACKEND"
            raise ConfigurationError(msg, hint=hint)
        return cls(match[1], ordinal)

    @override
    def __str__(self) -> str:
        return f"{self.backend}:{self.ordinal}"


@dataclass(frozen=True, slots=True)
class Choice:
    """A chosen device, and the source of the choice."""

    spec: DeviceSpec
    source: Source


@dataclass(frozen=True, slots=True)
class Candidate:
    """One backend that the choice considered.

    Parameters
    ----------
    name
        Name of the backend.
    plugins
        The plugins that offer the backend.
    priority
        Priority of the backend. None if the backend is used only when it is named, or if a
        plugin's fault makes the backend unusable.
    availability
        Whether the backend can be used on this machine.
    chosen
        Whether the backend was chosen.
    reason
        Why the backend was chosen, or why not.
    """

    name: str
    plugins: tuple[str, ...]
    priority: int | None
    availability: Availability
    chosen: bool
    reason: str


@dataclass(frozen=True, slots=True)
class Explanation:
    """The considered backends, the choice and the reason; ``str()`` returns a table.

    Parameters
    ----------
    choice
        The chosen device, or None if there is none.
    problem
        The text of the error that :func:`choose` raises; empty if it raises none.
    candidates
        Every backend that any plugin offers, sorted by name.
    failures, disabled
        Plugins that failed and plugins that are disabled, as text.
    """

    choice: Choice | None
    problem: str
    candidates: tuple[Candidate, ...]
    failures: tuple[str, ...]
    disabled: tuple[str, ...]

    @override
    def __str__(self) -> str:
        rows = [("", "backend", "priority", "state", "why")]
        rows += [
            (
                "*" if one.chosen else "",
                one.name,
                "by name only" if one.priority is None else str(one.priority),
                one.availability.state.replace("_", " "),
                one.reason,
            )
            for one in self.candidates
        ]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = [
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
            for row in rows
        ]
        if self.choice:
            lines.append(f"chosen: {self.choice.spec}, by {self.choice.source}")
        if self.problem:
            lines.append(f"nothing chosen: {self.problem}")
        lines += [f"failed: {failure}" for failure in self.failures]
        lines += [f"disabled: {plugin}" for plugin in self.disabled]
        return "\n".join(lines)


def choose(
    spec: str | DeviceSpec | None,
    settings: Settings,
    registry: Registry,
    *,
    runtime: str | None = None,
) -> Choice:
    """Choose a device.

    The device that the caller names comes first, then the device in ``CROSSMEM_DEVICE``. If the
    backend of the named device cannot be used, the function raises an error. The function does not
    check whether the device exists. If no device is named, the function chooses device 0 of the
    available backend with the highest priority. Between equal priorities, the first name in
    alphabetical order wins. A backend without a priority, such as ``emulated``, must be named.

    Parameters
    ----------
    spec
        A device such as ``"hip:1"``, or None.
    settings
        The settings with the value of ``CROSSMEM_DEVICE``.
    registry
        The backends.
    runtime
        The runtime for the device, or None. A runtime is allowed only if ``spec`` or
        ``CROSSMEM_DEVICE`` names the device.

    Raises
    ------
    ConfigurationError
        The named device or runtime is invalid, or a runtime is named without a device.
    BackendNotFoundError
        No plugin offers the named backend.
    BackendUnavailableError
        The named backend, or every backend with a priority, is unusable on this machine.
    """
    named = _named(spec, settings)
    if named is not None:
        try:
            registry.require(named.spec.backend, runtime=runtime)
        except (BackendNotFoundError, BackendUnavailableError, ConfigurationError) as error:
            if named.source is Source.ARGUMENT:
                raise
            # The caller did not name the device, so the message names the variable and its value.
            msg = f"{VARIABLES['device']}={settings.device!r}: {clause(error.message, 140)}"
            raise type(error)(
                msg,
                hint=error.hint,
                details=error.details or error.message,
                backend=error.backend,
            ) from error
        return named
    if runtime is not None:
        msg = f"runtime {shorten(runtime)} was named without a backend"
        raise ConfigurationError(msg, hint="name the device too, such as 'hip:0'")
    ranked = _ranked(registry)
    for backend in ranked:
        if registry.availability(backend.name).available:
            return Choice(DeviceSpec(backend.name), Source.PRIORITY)
    raise _nothing_found(ranked, registry)


def _nothing_found(ranked: Sequence[Backend], registry: Registry) -> BackendUnavailableError:
    """Return the error for a machine on which no backend with a priority is available."""
    lines = []
    for one in ranked:
        availability = registry.availability(one.name)
        lines.append(f"{one.name}: {availability}")
        lines += [f"  {line}" for line in availability.details.splitlines()]
    lines += [f"plugin {one}" for one in registry.failures]
    hint = "`crossmem devices -v` says why each backend is missing"
    if any(one.name == _HOST for one in registry.backends()):
        hint = f"for host memory use crossmem.device({_HOST!r}); {hint}"
    return BackendUnavailableError("no GPU or NPU found", hint=hint, details="\n".join(lines))


def explain(
    spec: str | DeviceSpec | None,
    settings: Settings,
    registry: Registry,
    *,
    runtime: str | None = None,
) -> Explanation:
    """Explain the decision of :func:`choose` for the same arguments, or the error that it raises.

    The function probes every backend, except backends with a runtime in ``CROSSMEM_RUNTIME``.
    """
    named = choice = None
    problem = ""
    try:
        named = _named(spec, settings)
        choice = choose(spec, settings, registry, runtime=runtime)
    except CrossmemError as error:
        problem = str(error)
    by_priority = spec is None and settings.device is None
    backends = {backend.name: backend for backend in registry.backends()}
    candidates = []
    for name in registry.names():
        backend = backends.get(name)
        availability = registry.availability(name)
        chosen = choice is not None and choice.spec.backend == name
        if choice is not None and chosen:
            reason = {
                Source.ARGUMENT: "named by the caller",
                Source.ENVIRONMENT: f"named by {VARIABLES['device']}",
                Source.PRIORITY: "highest priority of the available backends",
            }[choice.source]
        elif not availability.available:
            reason = availability.reason
        elif named is not None and named.spec.backend == name:
            reason = "named, but has no such runtime"
        elif not by_priority:
            reason = "another device is named"
        elif backend is None or backend.priority is None:
            reason = "used only when named"
        else:
            reason = "lower priority" if choice else "not considered"
        candidates.append(
            Candidate(
                name,
                tuple(map(str, registry.offered_by(name))),
                backend.priority if backend else None,
                availability,
                chosen,
                reason,
            )
        )
    return Explanation(
        choice,
        problem,
        tuple(candidates),
        tuple(map(str, registry.failures)),
        tuple(map(str, registry.disabled)),
    )


def _named(spec: str | DeviceSpec | None, settings: Settings) -> Choice | None:
    """Return the device that the caller, or else the environment, names; None if neither does."""
    if isinstance(spec, DeviceSpec):
        return Choice(spec, Source.ARGUMENT)
    if spec is not None:
        return Choice(DeviceSpec.parse(spec), Source.ARGUMENT)
    if settings.device is not None:
        named = DeviceSpec.parse(settings.device, origin=VARIABLES["device"])
        return Choice(named, Source.ENVIRONMENT)
    return None


def _ranked(registry: Registry) -> list[Backend]:
    """Return the backends with a priority, in order of preference."""
    # Registry.backends() leaves out a name that several plugins offer.
    able = [(one.priority, one) for one in registry.backends() if one.priority is not None]
    return [one for _, one in sorted(able, key=lambda pair: (-pair[0], pair[1].name))]
