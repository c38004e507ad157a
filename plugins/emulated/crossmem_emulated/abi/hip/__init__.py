# SPDX-License-Identifier: Apache-2.0
"""AMD's ``libamdhip64``: its types, functions and symbol versions, and the emulation behind it.

The facts are in files beside this one: ``types.h`` and ``functions.h`` declare what is emulated,
``registration.c`` defines what needs no emulation, and ``symbols.txt`` names everything that
AMD's library exports, with the version of each symbol. What is named there only is refused.
"""

from importlib import resources
from typing import Any, Final

from crossmem_emulated.abi.library import Binding, Library
from crossmem_emulated.hip.profiles import PROFILES

__all__ = ["LIBRARY"]

_NODE: Final = "hip_4.2"


def _text(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text("utf-8")


def _symbols() -> dict[str, str]:
    """Return the version of each symbol, by its name."""
    found: dict[str, str] = {}
    node = ""
    for line in _text("symbols.txt").splitlines():
        if line.startswith("  "):
            found.update((name, node) for name in line.split())
        elif not line.startswith("#"):
            node = line
    return found


def _entry_of(name: str) -> str:
    """Return CuPy's name of a function: without HIP's beginning."""
    rest = name.removeprefix("hip")
    return {"HostMalloc": "hostAlloc", "HostFree": "freeHost"}.get(
        rest, rest[:1].lower() + rest[1:]
    )


def _bind(ffi: Any, soname: str) -> Binding:
    # The emulation is loaded where it is used, and not where the library is built.
    from crossmem_emulated.abi.hip.binding import HipBinding  # noqa: PLC0415

    return HipBinding(ffi, soname)


def _library() -> Library:
    nodes = _symbols()
    library = Library(
        name="hip",
        sonames=("libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5"),
        links=("libamdhip64.so",),
        types=_text("types.h"),
        prototypes=_text("functions.h"),
        code=_text("registration.c"),
        node=_NODE,
        nodes=nodes,
        unknown=999,
        profiles=tuple(name for name, profile in PROFILES.items() if profile.is_hip),
        profile_field="hip_profile",
        entry_of=_entry_of,
        bind=_bind,
    )
    rest = sorted(nodes.keys() - set(library.exports()))
    refused = "".join(f"hipError_t {name}(void);\n" for name in rest)
    return library.with_prototypes(refused)


LIBRARY: Final = _library()
