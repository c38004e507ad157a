# SPDX-License-Identifier: Apache-2.0
"""Describes the emulated ``libascendcl.so``: Huawei's ACL for C and C++ programs.

``types.h`` and ``functions.h`` are this project's own declarations of the emulated functions.
``plain.c`` defines functions that need no device. The functions in ``unsupported.txt`` have no
effect, and return an error code, a null pointer, 0 or nothing.
"""

from importlib import resources
from typing import Any, Final

from crossmem_emulated.abi.ascend.names import CALLED
from crossmem_emulated.abi.library import Binding, Library
from crossmem_emulated.acl.profiles import PROFILES

__all__ = ["LIBRARY", "unsupported"]


def _read(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text("utf-8")


def unsupported() -> dict[str, str]:
    """Return a dict that maps the name of each unsupported function to the C type of its result."""
    found: dict[str, str] = {}
    result = ""
    for line in _read("unsupported.txt").splitlines():
        if line.startswith("["):
            result = line.strip("[]")
        elif not line.startswith("#"):
            found |= dict.fromkeys(line.split(), result)
    return found


def _prototypes() -> str:
    # A function that ignores its arguments need not declare them.
    more = "\n".join(f"{result} {name}(void);" for name, result in unsupported().items())
    return f"{_read('functions.h')}\n{more}\n"


def _bind(ffi: Any, soname: str) -> Binding:
    # This import is not at the top, because the build of the library does not need the emulation.
    from crossmem_emulated.abi.ascend.binding import AclBinding  # noqa: PLC0415

    return AclBinding(ffi, soname)


LIBRARY: Final = Library(
    name="ascend",
    sonames=("libascendcl.so",),
    # Some programs load libascendcl.so.1 if they do not find libascendcl.so. Programs for newer
    # editions of ACL link with libacl_rt.so. Programs that make memory groups link with
    # libruntime.so. All names refer to one file, so that a process has only one emulation.
    links=("libascendcl.so.1", "libacl_rt.so", "libruntime.so"),
    types=_read("types.h"),
    prototypes=_prototypes(),
    code=_read("plain.c"),
    # The vendor's code for an internal error.
    unknown=500000,
    # The vendor's code for "no context". After Python has ended, the process has no contexts.
    ended=107002,
    profiles=tuple(PROFILES),
    profile_field="acl_profile",
    # Faults can be injected only into the functions that CALLED lists. Unsupported functions are
    # not in this list.
    entry_of=CALLED.get,
    fault_hint="aclrtMalloc=207001:3 makes the fourth call of aclrtMalloc fail with code 207001",
    bind=_bind,
)
