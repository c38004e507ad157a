# SPDX-License-Identifier: Apache-2.0
"""The settings in the environment: the variables ``CROSSMEM_*``."""

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Self

from crossmem.errors import ConfigurationError
from crossmem.guards import check_fields, clause, is_name, is_within, shorten

__all__ = ["VARIABLES", "Settings"]

_MAX_SECONDS: Final = 86400.0
_MAX_RESERVATIONS: Final = 1_000_000
_PAIR: Final = 2

VARIABLES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "device": "CROSSMEM_DEVICE",
        "runtimes": "CROSSMEM_RUNTIME",
        "run_dir": "CROSSMEM_RUN_DIR",
        "timeout_s": "CROSSMEM_TIMEOUT",
        "exit_wait_s": "CROSSMEM_EXIT_WAIT",
        "max_reservations": "CROSSMEM_MAX_RESERVATIONS",
        "barrier": "CROSSMEM_BARRIER",
        "plugins": "CROSSMEM_PLUGINS",
        "disabled_plugins": "CROSSMEM_DISABLE_PLUGINS",
    }
)
"""Maps the name of each field of :class:`Settings` to the name of its environment variable."""


def _split(text: str) -> tuple[str, ...]:
    """Split a list at commas. Blanks around items, and empty items, are dropped."""
    return tuple(item for part in text.split(",") if (item := part.strip()))


def _split_pairs(text: str) -> tuple[tuple[str, str], ...]:
    """Split a list of ``name=value`` at commas; an item without ``=`` has an empty value."""
    pairs = (item.partition("=") for item in _split(text))
    return tuple((name.strip(), value.strip()) for name, _, value in pairs)


def _are_runtimes(value: object) -> bool:
    if not isinstance(value, tuple) or not all(isinstance(one, tuple) for one in value):
        return False
    pairs_of_names = all(len(one) == _PAIR and all(map(is_name, one)) for one in value)
    return pairs_of_names and len(dict(value)) == len(value)


def _are_texts(value: object) -> bool:
    return isinstance(value, tuple) and all(isinstance(one, str) for one in value)


def _is_module(name: str) -> bool:
    return all(part.isidentifier() for part in name.split("."))


def _is_seconds(value: Any) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    # NaN fails every comparison, so NaN is refused, too.
    return is_number and 0 <= value <= _MAX_SECONDS


_READERS: Final[Mapping[str, Callable[[str], Any]]] = MappingProxyType(
    {
        "device": str,
        "runtimes": _split_pairs,
        "run_dir": Path,
        "timeout_s": float,
        "exit_wait_s": float,
        "max_reservations": int,
        "barrier": str,
        "plugins": _split,
        "disabled_plugins": _split,
    }
)
"""Maps the name of each field to a function. The function converts the text of the variable to the
value of the field, or raises a ValueError."""

_RULES: Final[Mapping[str, tuple[Callable[[Any], bool], str]]] = MappingProxyType(
    {
        "device": (
            lambda value: value is None or isinstance(value, str),
            "a device such as 'cuda:0'",
        ),
        "runtimes": (
            _are_runtimes,
            (
                "pairs BACKEND=RUNTIME such as 'cuda=emulated', comma-separated, "
                "at most one for each backend"
            ),
        ),
        # Exporters and importers meet in this folder, so its path must not depend on the working
        # directory.
        "run_dir": (
            lambda value: isinstance(value, Path) and value.is_absolute(),
            "an absolute path",
        ),
        "timeout_s": (
            lambda value: _is_seconds(value) and value > 0,
            f"a number of seconds, more than 0 and at most {_MAX_SECONDS:.0f}",
        ),
        "exit_wait_s": (_is_seconds, f"a number of seconds from 0 to {_MAX_SECONDS:.0f}"),
        "max_reservations": (
            lambda value: is_within(value, 1, _MAX_RESERVATIONS),
            f"a whole number from 1 to {_MAX_RESERVATIONS}",
        ),
        "barrier": (lambda value: value in {"membarrier", "fence"}, "membarrier or fence"),
        "plugins": (
            lambda value: _are_texts(value) and all(map(_is_module, value)),
            "names of importable modules, separated by commas",
        ),
        "disabled_plugins": (
            _are_texts,
            "names of plugins, or distribution:name, separated by commas",
        ),
    }
)


def _default_run_dir(environ: Mapping[str, str]) -> Path:
    # The XDG base directory specification says that a relative XDG_RUNTIME_DIR is ignored, and that
    # the folder belongs to the user. But "sudo -E" keeps the variable of another user, so the owner
    # of the folder is checked.
    runtime_dir = Path(environ.get("XDG_RUNTIME_DIR", ""))
    with suppress(OSError):
        if runtime_dir.is_absolute() and runtime_dir.stat().st_uid == os.geteuid():
            return runtime_dir / "crossmem"
    return Path(f"/tmp/crossmem-{os.geteuid()}")  # noqa: S108 - the lease server checks the owner


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All settings of crossmem in the environment, except the settings of plugins.

    Plugins read their own variables, such as ``CROSSMEM_EMULATED_DEVICES``. An object of this class
    is immutable.

    Raises
    ------
    ConfigurationError
        The value of a field is invalid.
    """

    device: str | None = None
    """The device that ``crossmem.device()`` returns if the call names no device."""

    runtimes: tuple[tuple[str, str], ...] = ()
    """Pairs of a backend and a runtime. ``crossmem.device()`` uses this runtime for this backend if
    the call names no runtime."""

    run_dir: Path = field(default_factory=lambda: _default_run_dir({}))
    """Folder of the lease servers' sockets. The default of :meth:`from_environ` is
    ``$XDG_RUNTIME_DIR/crossmem`` if ``XDG_RUNTIME_DIR`` is the absolute path of a folder that this
    user owns. In all other cases, the default is ``/tmp/crossmem-UID``."""

    timeout_s: float = 30.0
    """Seconds that an operation waits for another process if the call names no timeout."""

    exit_wait_s: float = 2.0
    """Limit, in seconds, of each of two waits at a normal exit. First, crossmem waits for the
    streams that wait for other processes. Then it waits until the leases of other processes have
    ended, and until all messages were received."""

    max_reservations: int = 4096
    """The largest number of this process's exports that the messages of one sending process may
    reserve. This process also counts as a sending process."""

    barrier: str = "membarrier"
    """How processes order their accesses to shared words. With ``"membarrier"``, the exporter makes
    a system call. If the kernel refuses this call, each process uses fences instead. With
    ``"fence"``, each process always uses fences. crossmem does not use this field, because it
    reads the variable when Python imports crossmem. The field exists only so that an invalid value
    raises an error."""

    plugins: tuple[str, ...] = ()
    """Modules to load as plugins in addition to the entry points, in the order of this tuple."""

    disabled_plugins: tuple[str, ...] = ()
    """Plugins that crossmem does not load, each as ``name`` or ``distribution:name``."""

    def __post_init__(self) -> None:
        check_fields(self, _RULES)

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> Self:
        """Read the settings from an environment.

        Parameters
        ----------
        environ
            Usually ``os.environ``. An empty or blank variable counts as not set. Unknown names are
            ignored.

        Raises
        ------
        ConfigurationError
            A variable is invalid. The error names the variable, its value and what is allowed.
        """
        settings, faults = cls(run_dir=_default_run_dir(environ)), []
        for name, variable in VARIABLES.items():
            if not (text := environ.get(variable, "").strip()):
                continue
            try:
                settings = replace(settings, **{name: _READERS[name](text)})
            except ValueError:
                faults.append(f"{variable} must be {_RULES[name][1]}, not {shorten(text, 60)}")
        if faults:
            raise ConfigurationError(clause("; ".join(faults), 200), details="\n".join(faults))
        return settings
