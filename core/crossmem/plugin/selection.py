# SPDX-License-Identifier: Apache-2.0
"""Which device is meant: what the caller names, else the environment, else the best available."""

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
"""What users most often want where there is no accelerator."""


class Source(StrEnum):
    """What decided about a device."""

    ARGUMENT = "argument"
    """The caller named it."""
    ENVIRONMENT = "environment"
    """``CROSSMEM_DEVICE`` names it."""
    PRIORITY = "priority"
    """Nobody named one; the available backend with the highest priority was taken."""


@dataclass(frozen=True, slots=True)
class DeviceSpec:
    """A device as users write it: ``backend:N``, or ``backend`` for its device 0.

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
        """Read ``text``; ``origin`` names the variable that it came from, for messages.

        Raises
        ------
        ConfigurationError
            If it is no device. Nothing is guessed from what looks like one.
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
    """A device that was chosen, and by what."""

    spec: DeviceSpec
    source: Source


@dataclass(frozen=True, slots=True)
class Candidate:
    """One backend as it was considered.

    Parameters
    ----------
    name
        Name of the backend.
    plugins
        Who offers it.
    priority
        Its priority; None where it is used only when named, or where it must not be used.
    availability
        Whether it can be used here.
    chosen
        Whether it is the one.
    reason
        Why, or why not.
    """

    name: str
    plugins: tuple[str, ...]
    priority: int | None
    availability: Availability
    chosen: bool
    reason: str


@dataclass(frozen=True, slots=True)
class Explanation:
    """What was considered, what was chosen and why; ``str()`` of it is a table for people.

    Parameters
    ----------
    choice
        What was chosen, None where nothing could be.
    problem
        The error that :func:`choose` raises, in words; empty where it raises none.
    candidates
        Every backend that any plugin offers, by name.
    failures, disabled
        Plugins that failed and plugins that a setting keeps out, in words.
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
    """Decide which device is meant.

    What the caller names is taken, or else what ``CROSSMEM_DEVICE`` names; if that cannot be used
    this raises, and nothing else is tried. Only where neither names one, the available backend of
    the highest priority is taken (by name among equals), at device 0. Emulations have no
    priority, so they are used only when they are named.

    Parameters
    ----------
    spec
        A device such as ``"hip:1"``, or None.
    settings
        For ``CROSSMEM_DEVICE``.
    registry
        The backends.
    runtime
        The runtime that will be asked for. It belongs to a backend, so it needs one that is named.

    Raises
    ------
    ConfigurationError
        If the device or runtime that is named has no meaning.
    BackendNotFoundError
        If no plugin offers the backend that is named.
    BackendUnavailableError
        If the backend that is named, or every backend that could be taken, cannot be used here.
    """
    named = _named(spec, settings)
    if named is not None:
        try:
            registry.require(named.spec.backend, runtime=runtime)
        except (BackendNotFoundError, BackendUnavailableError, ConfigurationError) as error:
            if named.source is Source.ARGUMENT:
                raise
            # The caller wrote no name, so the message has to say where this one comes from.
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
    """Return the error for a machine where no backend can be taken without being named."""
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
    """Say what :func:`choose` does with the same arguments, and why. Probes every backend.

    Returns
    -------
    Explanation
        The decision. Where :func:`choose` raises, this does not: the error is part of the answer.
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
                Source.PRIORITY: "highest priority of what is available",
            }[choice.source]
        elif not availability.available:
            reason = availability.reason
        elif named is not None and named.spec.backend == name:
            reason = "named, but not usable as asked"
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
    """Return what the caller or else the environment names, None where neither does."""
    if isinstance(spec, DeviceSpec):
        return Choice(spec, Source.ARGUMENT)
    if spec is not None:
        return Choice(DeviceSpec.parse(spec), Source.ARGUMENT)
    if settings.device is not None:
        named = DeviceSpec.parse(settings.device, origin=VARIABLES["device"])
        return Choice(named, Source.ENVIRONMENT)
    return None


def _ranked(registry: Registry) -> list[Backend]:
    """Return the backends that may be used unnamed, the preferred one first."""
    # An ambiguous name is missing here: it takes part only once the conflict is resolved.
    able = [(one.priority, one) for one in registry.backends() if one.priority is not None]
    return [one for _, one in sorted(able, key=lambda pair: (-pair[0], pair[1].name))]
