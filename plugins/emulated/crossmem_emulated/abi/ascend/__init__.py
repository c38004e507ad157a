# SPDX-License-Identifier: Apache-2.0
"""``libascendcl.so``: Huawei's ACL for C and C++ programs.

``types.h`` and ``functions.h`` are this project's own declarations of what is emulated, and what
``plain.c`` defines needs no device. What ``unsupported.txt`` names can be linked and called, and
answers that it is not supported.
"""

from importlib import resources
from typing import Any, Final, NamedTuple

from crossmem_emulated.abi.ascend.names import CALLED
from crossmem_emulated.abi.library import Binding, Library
from crossmem_emulated.acl.profiles import PROFILES

__all__ = ["LIBRARY", "Unsupported", "unsupported"]


def _read(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text("utf-8")


class Unsupported(NamedTuple):
    """A function that is not emulated."""

    result: str
    """Its C type."""
    code: int | None
    """What it answers, None for the code of all that are not emulated."""


def unsupported() -> dict[str, Unsupported]:
    """Return the functions that are not emulated, by their names."""
    found: dict[str, Unsupported] = {}
    one = Unsupported("", None)
    for line in _read("unsupported.txt").splitlines():
        if line.startswith("["):
            result, _, code = line.strip("[]").partition(": ")
            one = Unsupported(result, int(code) if code else None)
        elif not line.startswith("#"):
            found |= dict.fromkeys(line.split(), one)
    return found


def _prototypes() -> str:
    # What ignores its arguments need not declare them.
    more = "\n".join(f"{result} {name}(void);" for name, (result, _) in unsupported().items())
    return f"{_read('functions.h')}\n{more}\n"


def _bind(ffi: Any, soname: str) -> Binding:
    # The emulation is loaded where it is used, and not where the library is built.
    from crossmem_emulated.abi.ascend.binding import AclBinding  # noqa: PLC0415

    return AclBinding(ffi, soname)


LIBRARY: Final = Library(
    name="ascend",
    sonames=("libascendcl.so",),
    # The name that loaders fall back to, and what newer editions link. One file, so that a
    # program with both has one device.
    links=("libascendcl.so.1", "libacl_rt.so"),
    types=_read("types.h"),
    prototypes=_prototypes(),
    code=_read("plain.c"),
    # The vendor's "internal error".
    unknown=500000,
    # "No context": nothing is set any more.
    ended=107002,
    profiles=tuple(PROFILES),
    profile_field="acl_profile",
    # What is not emulated cannot fail in another way.
    entry_of=CALLED.get,
    bind=_bind,
)
