# SPDX-License-Identifier: Apache-2.0
"""The variables ``CROSSMEM_EMULATED_*`` of the environment."""

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Final, Literal, Self, get_args

from crossmem.errors import ConfigurationError
from crossmem.guards import check_fields, field_error, is_flag, is_within, read_flag, shorten

__all__ = ["VARIABLES", "Options", "default_state"]

_SIZE: Final = re.compile(r"(\d+)\s*(?:([KMGT])iB|B)?", re.ASCII | re.IGNORECASE)
_SHIFTS: Final = {"K": 10, "M": 20, "G": 30, "T": 40}
_GRANULARITIES: Final = {"2MiB": 2 << 20, "page": os.sysconf("SC_PAGE_SIZE")}
_MAX_DEVICES: Final = 1024
_LONGEST_GROUP: Final = 31
_LONGEST_RECYCLE_S: Final = 60
_MAX_CAPACITY_NBYTES: Final = 2**62 - 1
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


def _parse_size(text: str) -> int:
    """Convert ``"8GiB"`` to a number of bytes."""
    match = _SIZE.fullmatch(text)
    if match is None:
        msg = "not a size"
        raise ValueError(msg)
    digits, unit = match.groups()
    return int(digits) << (_SHIFTS[unit.upper()] if unit else 0)


def _parse_indices(text: str) -> tuple[int, ...]:
    """Convert ``"1,0"`` to ``(1, 0)``."""
    return tuple(int(item) for item in text.split(","))


def _parse_names(text: str) -> tuple[str, ...]:
    """Convert ``"a,b"`` to ``("a", "b")``."""
    return tuple(item.strip() for item in text.split(","))


def _is_mask(value: object) -> bool:
    """Return whether a value is None, or a tuple of one or more different device numbers."""
    if value is None:
        return True
    if not isinstance(value, tuple) or not all(is_within(one, 0, _MAX_DEVICES) for one in value):
        return False
    return 0 < len(set(value)) == len(value)


def _default_capacity() -> int:
    """Return half of this machine's memory in bytes, as a multiple of every granularity."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    step = max(_GRANULARITIES.values())
    return max(memory // 2 // step, 1) * step


def default_state() -> Path:
    """Return the default folder of the emulated host. All processes of this user share it."""
    # /dev/shm lies in memory, so a reboot deletes the folder together with the processes of the
    # emulated host. A folder in /tmp may survive a reboot.
    shared = Path("/dev/shm")  # noqa: S108 - Machine checks the owner of the folder
    parent = shared if os.access(shared, os.W_OK) else Path("/tmp")  # noqa: S108
    return parent / f"crossmem-emulated-{os.geteuid()}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The configuration of the emulated devices.

    The backend ``emulated`` uses the fields from ``devices`` to ``visible_devices``. The emulations
    of vendors use ``devices``, ``capacity_nbytes``, and the fields from ``state`` on.

    Raises
    ------
    ConfigurationError
        A field has an invalid value.
    """

    devices: int = 2
    """Number of devices of the host (``CROSSMEM_EMULATED_DEVICES``)."""

    granularity: Literal["2MiB", "page"] = "2MiB"
    """The size of an allocation is rounded up to a multiple of the granularity
    (``CROSSMEM_EMULATED_GRANULARITY``)."""

    capacity_nbytes: int = field(default_factory=_default_capacity)
    """Bytes that may be allocated on each device (``CROSSMEM_EMULATED_CAPACITY``).

    The backend ``emulated`` applies the limit to each process separately, and rounds the limit down
    to a multiple of the granularity. The emulations of vendors apply the limit to all processes of
    the emulated host together.
    """

    prefault: bool = False
    """Whether an allocation gets its pages when it is made, and not only when they are first used
    (``CROSSMEM_EMULATED_PREFAULT``)."""

    hugepages: bool = True
    """Whether to request huge pages, if the kernel gives them only on request
    (``CROSSMEM_EMULATED_HUGEPAGES``)."""

    poison: bool = False
    """Whether fresh memory is filled with 0xA5 (``CROSSMEM_EMULATED_POISON``).

    If not, fresh memory is zero. Programs must not rely on the contents of fresh memory (law C2).
    """

    visible_devices: tuple[int, ...] | None = None
    """Host-wide indices of the devices that this process sees; None for all devices
    (``CROSSMEM_EMULATED_VISIBLE_DEVICES``). In this process, the first device of the tuple has
    ordinal 0. The devices keep their identities (law C24)."""

    state: Path = field(default_factory=default_state)
    """Folder of the emulated host. The emulations of all vendors use this folder
    (``CROSSMEM_EMULATED_STATE``)."""

    strict: bool = True
    """Whether vendors' emulations record calls that the vendor forbids or leaves undefined, and
    deny the host access to device addresses (``CROSSMEM_EMULATED_STRICT``)."""

    slow_streams: bool = False
    """Whether streams of vendors' emulations delay their work until a thread waits for the work
    (``CROSSMEM_EMULATED_SLOW_STREAMS``).

    Work for which another process may wait is delayed by at most 50 ms.
    """

    acl_profile: str = "documented"
    """Edition of ACL's rules (``CROSSMEM_EMULATED_ACL_PROFILE``)."""

    acl_group: str = ""
    """Memory group that a process joins at its first call of ACL's queue or buffer functions
    (``CROSSMEM_EMULATED_ACL_GROUP``).

    A process joins only if its profile is ``310b-rc`` or ``310b-rc-driver``, if the variable
    ``SHAREGROUP_PRECONFIG`` is set, and if the process is in no group yet.
    """

    acl_recycle_s: float = 0.2
    """Seconds after which the emulated ACL frees the buffers of a dead process
    (``CROSSMEM_EMULATED_ACL_RECYCLE``)."""

    hip_profile: str = "documented"
    """Edition of HIP's rules (``CROSSMEM_EMULATED_HIP_PROFILE``). The backend ``cuda`` ignores this
    field."""

    hip_peers: bool = True
    """Whether each device of the emulated HIP or CUDA can access the memory of the other devices
    (``CROSSMEM_EMULATED_HIP_PEERS``)."""

    hip_quirks: tuple[_Quirk, ...] = ()
    """Defects and special cases of HIP to emulate (``CROSSMEM_EMULATED_HIP_QUIRKS``)."""

    def __post_init__(self) -> None:
        check_fields(self, _RULES)
        if self.capacity_nbytes < self.granularity_nbytes:
            raise field_error(self, "capacity_nbytes", _RULES["capacity_nbytes"][1])
        if not set(self.visible) <= set(range(self.devices)):
            raise field_error(self, "visible_devices", _RULES["visible_devices"][1])

    @property
    def granularity_nbytes(self) -> int:
        """The granularity in bytes, a power of two."""
        return _GRANULARITIES[self.granularity]

    @property
    def visible(self) -> tuple[int, ...]:
        """Host-wide indices of the visible devices, in the order of their ordinals."""
        if self.visible_devices is None:
            return tuple(range(self.devices))
        return self.visible_devices

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> Self:
        """Return the options that the environment variables set. An empty variable counts as unset.

        Raises
        ------
        ConfigurationError
            A variable has an invalid value.
        """
        options, variables = cls(), {name: variable for variable, name in VARIABLES.items()}
        # The order of the fields matters. The check of the capacity needs the granularity, and the
        # check of the visible devices needs the number of devices.
        for name in (one.name for one in fields(cls)):
            text = environ.get(variables[name], "").strip()
            if not text:
                continue
            try:
                options = replace(options, **{name: _READERS.get(name, str)(text)})
            except ValueError:
                msg = f"{variables[name]} must be {_RULES[name][1]}, not {shorten(text, 40)}"
                raise ConfigurationError(msg, hint=_HINTS.get(name)) from None
        return options


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
    "CROSSMEM_EMULATED_ACL_GROUP": "acl_group",
    "CROSSMEM_EMULATED_ACL_RECYCLE": "acl_recycle_s",
    "CROSSMEM_EMULATED_HIP_PROFILE": "hip_profile",
    "CROSSMEM_EMULATED_HIP_PEERS": "hip_peers",
    "CROSSMEM_EMULATED_HIP_QUIRKS": "hip_quirks",
}
"""The field of :class:`Options` that each variable sets."""

_READERS: Final[Mapping[str, Callable[[str], Any]]] = {
    "devices": int,
    "capacity_nbytes": _parse_size,
    "prefault": read_flag,
    "hugepages": read_flag,
    "poison": read_flag,
    "visible_devices": _parse_indices,
    "state": Path,
    "strict": read_flag,
    "slow_streams": read_flag,
    "acl_recycle_s": float,
    "hip_peers": read_flag,
    "hip_quirks": _parse_names,
}
"""For each field, the function that converts the text of the variable, or raises ValueError. The
value of a field without a function is the text itself."""

_HINTS: Final = {"hip_quirks": f"quirks: {', '.join(get_args(_Quirk))}"}

_SWITCH: Final = (is_flag, "1 or 0")
_PROFILE: Final = (
    lambda value: isinstance(value, str),
    "the name of a profile, such as documented",
)
_RULES: Final[Mapping[str, tuple[Callable[[Any], bool], str]]] = {
    "devices": (
        lambda value: is_within(value, 1, _MAX_DEVICES),
        f"a number from 1 to {_MAX_DEVICES}",
    ),
    "granularity": (lambda value: value in _GRANULARITIES, " or ".join(_GRANULARITIES)),
    "capacity_nbytes": (
        lambda value: is_within(value, 1, _MAX_CAPACITY_NBYTES),
        (
            "at least the granularity and below 4 EiB, as a number of bytes or with a unit, "
            "such as 8GiB"
        ),
    ),
    "prefault": _SWITCH,
    "hugepages": _SWITCH,
    "poison": _SWITCH,
    "visible_devices": (
        _is_mask,
        (
            "a comma-separated list of different numbers below CROSSMEM_EMULATED_DEVICES "
            "(example: 1,0)"
        ),
    ),
    "state": (
        lambda value: isinstance(value, Path) and value.is_absolute(),
        "the absolute path of a folder",
    ),
    "strict": _SWITCH,
    "slow_streams": _SWITCH,
    "acl_profile": _PROFILE,
    "acl_group": (
        lambda value: isinstance(value, str) and len(value) <= _LONGEST_GROUP,
        f"a name of at most {_LONGEST_GROUP} characters",
    ),
    "acl_recycle_s": (
        lambda value: isinstance(value, int | float) and 0 <= value <= _LONGEST_RECYCLE_S,
        f"a number of seconds from 0 to {_LONGEST_RECYCLE_S}",
    ),
    "hip_profile": _PROFILE,
    "hip_peers": _SWITCH,
    "hip_quirks": (
        lambda value: isinstance(value, tuple) and all(one in get_args(_Quirk) for one in value),
        "a comma-separated list of names of quirks",
    ),
}
