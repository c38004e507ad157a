# SPDX-License-Identifier: Apache-2.0
"""What the environment configures: the variables ``CROSSMEM_*``."""

import os
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Final, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from crossmem.errors import ConfigurationError

__all__ = ["VARIABLES", "Settings"]

_MAX_SECONDS: Final = 86400.0
_MAX_HOLDS: Final = 1_000_000

VARIABLES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "device": "CROSSMEM_DEVICE",
        "run_dir": "CROSSMEM_RUN_DIR",
        "timeout_s": "CROSSMEM_TIMEOUT",
        "exit_wait_s": "CROSSMEM_EXIT_WAIT",
        "max_holds": "CROSSMEM_MAX_HOLDS",
        "reaper": "CROSSMEM_REAPER",
        "plugins": "CROSSMEM_PLUGINS",
        "disabled_plugins": "CROSSMEM_DISABLE_PLUGINS",
    }
)
"""The variable from which each field of :class:`Settings` is read."""

_ALLOWED: Final[Mapping[str, str]] = MappingProxyType(
    {
        "device": "a device such as 'emulated:0'",
        "run_dir": "an absolute path",
        "timeout_s": f"seconds, more than 0 and at most {_MAX_SECONDS:.0f}",
        "exit_wait_s": f"seconds, from 0 to {_MAX_SECONDS:.0f}",
        "max_holds": f"a whole number, from 1 to {_MAX_HOLDS}",
        "reaper": "one of 1, true, yes, on, 0, false, no, off",
        "plugins": "names of importable modules, separated by commas",
        "disabled_plugins": "names of plugins, or distribution:name, separated by commas",
    }
)


def _split(value: object) -> object:
    """Split a comma list, in which blanks and empty items mean nothing."""
    if isinstance(value, str):
        return tuple(item for part in value.split(",") if (item := part.strip()))
    return value


def _check_module(name: str) -> str:
    if not all(part.isidentifier() for part in name.split(".")):
        msg = "not the name of a module"
        raise ValueError(msg)
    return name


def _check_absolute(path: Path) -> Path:
    # Exporters and importers meet at this path, so it must not depend on where a process
    # happens to have been started.
    if not path.is_absolute():
        msg = "not absolute"
        raise ValueError(msg)
    return path


def _default_run_dir(environ: Mapping[str, str]) -> Path:
    # A relative XDG_RUNTIME_DIR is to be ignored, says the XDG base directory specification.
    runtime_dir = Path(environ.get("XDG_RUNTIME_DIR", ""))
    if runtime_dir.is_absolute():
        return runtime_dir / "crossmem"
    return Path(f"/tmp/crossmem-{os.geteuid()}")  # noqa: S108 - the lease server checks its owner


class Settings(BaseModel):
    """Everything that the environment can change in core; immutable.

    Plugins read variables of their own, such as ``CROSSMEM_EMULATED_DEVICES``; core knows
    nothing of those and leaves them alone.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(
        frozen=True,
        extra="forbid",
        # Importing crossmem should not take the time to build what only its first use needs.
        defer_build=True,
    )

    device: str | None = None
    """Device that ``crossmem.device()`` gives where none is named."""

    run_dir: Annotated[Path, AfterValidator(_check_absolute)] = Field(
        default_factory=lambda: _default_run_dir({})
    )
    """Folder of the lease sockets: ``$XDG_RUNTIME_DIR/crossmem``, or a folder of this user's own
    in ``/tmp`` where that variable is not set."""

    timeout_s: Annotated[float, Field(gt=0, le=_MAX_SECONDS, allow_inf_nan=False)] = 30.0
    """Seconds that an operation waits for another process where the call does not say."""

    exit_wait_s: Annotated[float, Field(ge=0, le=_MAX_SECONDS, allow_inf_nan=False)] = 2.0
    """Seconds that a normal exit waits for the leases of other processes and for messages."""

    max_holds: Annotated[int, Field(ge=1, le=_MAX_HOLDS)] = 4096
    """How many allocations of this process the messages of one sender may hold."""

    reaper: bool = False
    """Whether a thread drains deferred frees by itself."""

    plugins: Annotated[
        tuple[Annotated[str, AfterValidator(_check_module)], ...], BeforeValidator(_split)
    ] = ()
    """Modules to load as plugins beside the entry points, in this order."""

    disabled_plugins: Annotated[tuple[str, ...], BeforeValidator(_split)] = ()
    """Plugins not to load, each as ``name`` or ``distribution:name``."""

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> Self:
        """Read the settings from an environment.

        Parameters
        ----------
        environ
            Usually ``os.environ``. A variable that is empty or blank counts as not set; names
            that core does not know are ignored.

        Returns
        -------
        Settings
            The settings, with defaults for all that is not set.

        Raises
        ------
        ConfigurationError
            If a variable has no meaning. It names the variable, its value and what is allowed.
        """
        texts = {field: environ.get(variable, "").strip() for field, variable in VARIABLES.items()}
        values: dict[str, Any] = {field: text for field, text in texts.items() if text}
        values.setdefault("run_dir", _default_run_dir(environ))
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            # One message for each variable, however many items of a list are wrong.
            fields = dict.fromkeys(str(fault["loc"][0]) for fault in error.errors())
            msg = "; ".join(
                f"{VARIABLES[field]}={texts[field]!r} has no meaning: it takes {_ALLOWED[field]}"
                for field in fields
            )
            raise ConfigurationError(msg) from None
