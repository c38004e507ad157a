# SPDX-License-Identifier: Apache-2.0
"""What the environment configures: the variables ``CROSSMEM_EMULATED_*``."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final, Literal, Self, get_args

from pydantic import BeforeValidator, Field, ValidationError, ValidationInfo, field_validator

from crossmem.errors import ConfigurationError
from crossmem.models import FrozenModel

__all__ = ["VARIABLES", "Options"]

_SIZE: Final = re.compile(r"(\d+)\s*(?:([KMGT])iB|B)?", re.ASCII | re.IGNORECASE)
_SHIFTS: Final = {"K": 10, "M": 20, "G": 30, "T": 40}
_GRANULARITIES: Final = {"2MiB": 2 << 20, "page": os.sysconf("SC_PAGE_SIZE")}
_MAX_DEVICES: Final = 1024
_Quirk = Literal[
    "fresh-handles",
    "foreign-namespace",
    "ignored-flag",
    "leak-on-close",
    "new-addresses",
    "no-export",
    "pin-after-free",
    "reused-handles",
    "slow-open",
]


def _parse_size(value: object) -> object:
    """Turn ``"8GiB"`` into a number of bytes."""
    if not isinstance(value, str):
        return value
    match = _SIZE.fullmatch(value)
    if match is None:
        msg = "not a size"
        raise ValueError(msg)
    digits, unit = match.groups()
    return int(digits) << (_SHIFTS[unit.upper()] if unit else 0)


def _parse_indices(value: object) -> object:
    """Turn ``"1,0"`` into ``(1, 0)``."""
    if not isinstance(value, str):
        return value
    return tuple(int(item) for item in value.split(","))


def _parse_names(value: object) -> object:
    """Turn ``"a,b"`` into ``("a", "b")``."""
    if not isinstance(value, str):
        return value
    return tuple(item.strip() for item in value.split(","))


def _default_capacity() -> int:
    """Return half of this machine's memory in bytes, a multiple of every granularity."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    step = max(_GRANULARITIES.values())
    return max(memory // 2 // step, 1) * step


def _default_state() -> Path:
    # In memory, and gone with the boot whose processes it speaks of.
    shared = Path("/dev/shm")  # noqa: S108 - the machine checks whose the folder is
    parent = shared if os.access(shared, os.W_OK) else Path("/tmp")  # noqa: S108
    return parent / f"crossmem-emulated-{os.geteuid()}"


class Options(FrozenModel):
    """How the emulated devices look; an empty variable counts as unset."""

    devices: Annotated[int, Field(strict=False, ge=1, le=_MAX_DEVICES)] = 2
    """Number of devices of the host (``CROSSMEM_EMULATED_DEVICES``)."""

    granularity: Literal["2MiB", "page"] = "2MiB"
    """Unit of capacities (``CROSSMEM_EMULATED_GRANULARITY``)."""

    capacity_nbytes: Annotated[int, BeforeValidator(_parse_size), Field(gt=0, lt=2**62)] = Field(
        default_factory=_default_capacity
    )
    """Bytes that one process may allocate on each device (``CROSSMEM_EMULATED_CAPACITY``).

    Rounded down to the granularity.
    """

    prefault: Annotated[bool, Field(strict=False)] = False
    """Whether allocations have all their pages at once (``CROSSMEM_EMULATED_PREFAULT``)."""

    hugepages: Annotated[bool, Field(strict=False)] = True
    """Whether huge pages are asked for where the kernel waits for it
    (``CROSSMEM_EMULATED_HUGEPAGES``)."""

    poison: Annotated[bool, Field(strict=False)] = False
    """Whether fresh memory is filled with 0xA5 (``CROSSMEM_EMULATED_POISON``).

    It is zero otherwise; what programs may rely on is neither (law C2).
    """

    visible_devices: Annotated[
        tuple[int, ...] | None, BeforeValidator(_parse_indices), Field(min_length=1)
    ] = None
    """Devices that this process sees, in its own order; None for all
    (``CROSSMEM_EMULATED_VISIBLE_DEVICES``). Identities stay what they are (law C24)."""

    state: Path = Field(default_factory=_default_state)
    """Folder of the emulated host that vendors' emulations share (``CROSSMEM_EMULATED_STATE``)."""

    strict: Annotated[bool, Field(strict=False)] = True
    """Whether vendors' emulations record what the vendor forbids or leaves undefined
    (``CROSSMEM_EMULATED_STRICT``)."""

    slow_streams: Annotated[bool, Field(strict=False)] = False
    """Whether their streams do their work only when somebody waits for it
    (``CROSSMEM_EMULATED_SLOW_STREAMS``)."""

    acl_profile: str = "documented"
    """Edition of ACL's rules (``CROSSMEM_EMULATED_ACL_PROFILE``)."""

    hip_profile: str = "documented"
    """Edition of HIP's rules (``CROSSMEM_EMULATED_HIP_PROFILE``); ``cuda`` is always its own."""

    hip_peers: Annotated[bool, Field(strict=False)] = True
    """Whether devices can reach each other's memory (``CROSSMEM_EMULATED_HIP_PEERS``)."""

    hip_quirks: Annotated[tuple[_Quirk, ...], BeforeValidator(_parse_names)] = ()
    """What some releases get wrong (``CROSSMEM_EMULATED_HIP_QUIRKS``)."""

    @field_validator("capacity_nbytes")
    @classmethod
    def _check_capacity(cls, value: int, info: ValidationInfo) -> int:
        if value < _GRANULARITIES.get(info.data.get("granularity", ""), 0):
            msg = "less than one unit of the granularity"
            raise ValueError(msg)
        return value

    @field_validator("state", mode="before")
    @classmethod
    def _check_state(cls, value: object) -> object:
        if isinstance(value, str):
            value = Path(value)
        if isinstance(value, Path) and not value.is_absolute():
            msg = "not absolute"
            raise ValueError(msg)
        return value

    @field_validator("visible_devices")
    @classmethod
    def _check_visible(cls, value: tuple[int, ...] | None, info: ValidationInfo) -> object:
        if value is not None:
            known = range(info.data.get("devices", _MAX_DEVICES))
            if len(set(value)) < len(value) or not set(value) <= set(known):
                msg = "a device twice, or one that there is not"
                raise ValueError(msg)
        return value

    @property
    def granularity_nbytes(self) -> int:
        """The unit of capacities in bytes, a power of two."""
        return _GRANULARITIES[self.granularity]

    @property
    def visible(self) -> tuple[int, ...]:
        """Host-wide indices of the visible devices, by ordinal."""
        if self.visible_devices is None:
            return tuple(range(self.devices))
        return self.visible_devices

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> Self:
        """Read the variables.

        Raises
        ------
        ConfigurationError
            Where a value has no meaning; it names the variable, the value and what is allowed.
        """
        values = {
            field: text
            for variable, field in VARIABLES.items()
            if (text := environ.get(variable, "").strip())
        }
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            field = str(error.errors(include_url=False)[0]["loc"][0])
            raise ConfigurationError(_message(field, values[field])) from None


VARIABLES: Final[Mapping[str, str]] = {
    "CROSSMEM_EMULATED_DEVICES": "devices",
    "CROSSMEM_EMULATED_CAPACITY": "capacity_nbytes",
    "CROSSMEM_EMULATED_GRANULARITY": "granularity",
    "CROSSMEM_EMULATED_PREFAULT": "prefault",
    "CROSSMEM_EMULATED_HUGEPAGES": "hugepages",
    "CROSSMEM_EMULATED_POISON": "poison",
    "CROSSMEM_EMULATED_VISIBLE_DEVICES": "visible_devices",
    "CROSSMEM_EMULATED_STATE": "state",
    "CROSSMEM_EMULATED_STRICT": "strict",
    "CROSSMEM_EMULATED_SLOW_STREAMS": "slow_streams",
    "CROSSMEM_EMULATED_ACL_PROFILE": "acl_profile",
    "CROSSMEM_EMULATED_HIP_PROFILE": "hip_profile",
    "CROSSMEM_EMULATED_HIP_PEERS": "hip_peers",
    "CROSSMEM_EMULATED_HIP_QUIRKS": "hip_quirks",
}
"""Field of :class:`Options` that each variable sets."""

_ALLOWED: Final = {
    "devices": f"a number from 1 to {_MAX_DEVICES}",
    "capacity_nbytes": "at least one unit of the granularity and below 4 EiB, "
    "as bytes or with a unit, such as 8GiB (KiB, MiB, GiB, TiB)",
    "granularity": " or ".join(_GRANULARITIES),
    "prefault": "1 or 0",
    "hugepages": "1 or 0",
    "poison": "1 or 0",
    "state": "the absolute path of a folder",
    "strict": "1 or 0",
    "slow_streams": "1 or 0",
    "acl_profile": "the name of a profile, such as documented",
    "hip_profile": "the name of a profile, such as documented",
    "hip_peers": "1 or 0",
    "hip_quirks": f"a comma list of {', '.join(get_args(_Quirk))}",
    "visible_devices": "a comma list of different numbers from 0, such as 1,0, "
    "below the number of devices (CROSSMEM_EMULATED_DEVICES)",
}


def _message(field: str, value: str) -> str:
    variable = next(name for name, target in VARIABLES.items() if target == field)
    return f"{variable} is {value!r}; it must be {_ALLOWED[field]}"
