# SPDX-License-Identifier: Apache-2.0
"""Describes the emulated ``libamdhip64`` of AMD: its types, functions and symbol versions.

``types.h`` and ``functions.h`` declare the emulated functions. ``registration.c`` and ``plain.c``
define functions that need no emulation. ``symbols.txt`` names all exports of AMD's library with
their versions. If no other file names a function, the emulation refuses every call of it.
"""

from importlib import resources
from typing import Final

from crossmem_emulated.abi.hip.binding import HipBinding
from crossmem_emulated.abi.library import Library
from crossmem_emulated.hip.calls import ENTRIES
from crossmem_emulated.hip.profiles import PROFILES

__all__ = ["LIBRARY"]

_NODE: Final = "hip_4.2"


def _text(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text("utf-8")


def _symbols() -> dict[str, str]:
    """Return a dict from the name of each symbol to the symbol's version."""
    found: dict[str, str] = {}
    node = ""
    for line in _text("symbols.txt").splitlines():
        if line.startswith("  "):
            found.update((name, node) for name in line.split())
        elif not line.startswith("#"):
            node = line
    return found


_ENTRIES: Final = {
    "CtxGetDevice": "getDevice",
    "CtxGetSharedMemConfig": "deviceGetSharedMemConfig",
    "CtxSynchronize": "deviceSynchronize",
    "ExtHostAlloc": "hostAlloc",
    "FreeHost": "freeHost",
    "HostFree": "freeHost",
    "HostMalloc": "hostAlloc",
    "Malloc3D": "mallocPitch",
    "MallocHost": "hostAlloc",
    "MemAllocHost": "hostAlloc",
    "MemAllocPitch": "mallocPitch",
    "MemcpyDtoD": "memcpy",
    "MemcpyDtoDAsync": "memcpyAsync",
    "MemcpyDtoH": "memcpy",
    "MemcpyDtoHAsync": "memcpyAsync",
    "MemcpyHtoD": "memcpy",
    "MemcpyHtoDAsync": "memcpyAsync",
    "MemsetD8": "memset",
    "MemsetD8Async": "memsetAsync",
    "StreamGetCaptureInfo_v2": "streamGetCaptureInfo",
}
"""Exceptions to the rule for the names of the emulation's entries. By the rule, the name of an
entry is the C name without the prefix ``hip`` and the suffix ``_spt``, and its first letter is
small. For example, ``malloc`` is the entry for ``hipMalloc``. Each key of this dict is a C name
without prefix and suffix. The value is the name of the entry."""


def _entry_of(name: str) -> str | None:
    """Return the name of the emulation's entry for a C function, None if there is no entry."""
    rest = name.removeprefix("hip")
    for one in (rest, rest.removesuffix("_spt")):
        entry = _ENTRIES.get(one, one[:1].lower() + one[1:])
        if entry in ENTRIES:
            return entry
    return None


def _library() -> Library:
    nodes = _symbols()
    library = Library(
        name="hip",
        sonames=("libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5"),
        links=("libamdhip64.so",),
        types=_text("types.h"),
        prototypes=_text("functions.h"),
        code=_text("registration.c") + _text("plain.c"),
        node=_NODE,
        nodes=nodes,
        unknown=999,
        ended=4,
        profiles=tuple(name for name, profile in PROFILES.items() if profile.is_hip),
        profile_field="hip_profile",
        entry_of=_entry_of,
        fault_hint="hipMalloc=2:3 makes the fourth call of hipMalloc fail with code 2",
        bind=HipBinding,
    )
    rest = sorted(nodes.keys() - set(library.exports()))
    refused = "".join(f"hipError_t {name}(void);\n" for name in rest)
    return library.with_prototypes(refused)


LIBRARY: Final = _library()
