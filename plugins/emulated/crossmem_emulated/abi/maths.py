# SPDX-License-Identifier: Apache-2.0
"""Builds stand-ins for the ROCm libraries with which CuPy is linked, so that CuPy can be imported.

The import of CuPy loads the libraries for linear algebra, Fourier transforms and so on, even if the
program does not use them. The needed symbols are read from CuPy's own files. Each function of a
stand-in returns an error code, and writes a line to stderr at its first call.
"""

import ctypes.util
import os
import re
from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from crossmem_emulated.abi.builder import compiler, link
from crossmem_emulated.abi.cache import kept
from crossmem_emulated.abi.elf import Needs, needs_of

__all__ = ["build_stand_ins", "installed_users"]

_PACKAGES: Final = ("cupy", "cupy_backends", "cupyx")
_SONAME: Final = re.compile(r"lib([a-z]+)\w*\.so[.\d]*")
_OTHER_PREFIXES: Final = {"rccl": "nccl"}
_LIBRARIES: Final[Mapping[str, int]] = {
    "hipblas": 7,
    "hipfft": 16,
    "hiprand": 1000,
    "hipsolver": 7,
    "hipsparse": 10,
    "rccl": 5,
    "rocblas": 2,
    "rocfft": 1,
    "rocsolver": 2,
    "roctracer": -1,
    "roctx": -1,
}
"""Each library's code for "not supported", or the nearest code that the library has. The key is the
library's name."""

_PRELUDE: Final = """
#include <stdio.h>
static void tell(int *told, const char *name)
{
    if (!*told) {
        *told = 1;
        fprintf(stderr, "crossmem: %s stands in for ROCm, and has no %s\\n", LIBRARY, name);
    }
}
"""


def _stem(soname: str) -> str:
    match = _SONAME.fullmatch(soname)
    return match.group(1) if match else ""


def installed_users() -> list[Path]:
    """Return the files of CuPy's compiled modules, without importing them.

    If CuPy is not installed, the list is empty.
    """
    found: list[Path] = []
    for name in _PACKAGES:
        spec = find_spec(name)
        for folder in spec.submodule_search_locations or () if spec else ():
            found += sorted(Path(folder).rglob("*.so"))
    return found


def _is_installed(soname: str, environ: Mapping[str, str]) -> bool:
    """Whether this machine has the real library ``soname``, which no stand-in may replace."""
    folders = environ.get("LD_LIBRARY_PATH", "").split(os.pathsep)
    for variable in ("ROCM_PATH", "ROCM_HOME"):
        folders += [os.path.join(environ[variable], "lib")] if environ.get(variable) else []  # noqa: PTH118
    folders += [str(path / "lib") for path in Path("/opt").glob("rocm*")]
    # If this user cannot read a folder, the library counts as missing there.
    if any(folder and os.path.exists(f"{folder}/{soname}") for folder in folders):  # noqa: PTH110
        return True
    stem = soname.removeprefix("lib").partition(".so")[0]
    return ctypes.util.find_library(stem) == soname


def _wanted(needs: Iterable[Needs], environ: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """Return the needed symbols of each missing library.

    The key is the library's name. The value is a dict from a symbol's name to its version.
    """
    found: dict[str, dict[str, str]] = {}
    for one in needs:
        missing = {
            library
            for library in one.libraries
            if _stem(library) in _LIBRARIES
            and (library in found or not _is_installed(library, environ))
        }
        for library in missing:
            stem = _stem(library)
            prefix = _OTHER_PREFIXES.get(stem, stem)
            symbols = found.setdefault(library, {})
            for name, home, version in one.symbols:
                if home == library or (not home and name.startswith(prefix)):
                    symbols[name] = version
    return found


def _source(soname: str, names: Iterable[str]) -> str:
    code = _LIBRARIES[_stem(soname)]
    functions = "".join(
        f'int {name}(void) {{ static int told; tell(&told, "{name}"); return {code}; }}\n'
        for name in sorted(names)
    )
    return f'#define LIBRARY "{soname}"{_PRELUDE}{functions}'


def _script(symbols: Mapping[str, str]) -> str:
    nodes: dict[str, list[str]] = {}
    for name, version in sorted(symbols.items()):
        nodes.setdefault(version, []).append(f"{name};")
    if "" in nodes and len(nodes) > 1:
        # A version script of the linker cannot mix symbols with and without a version, so each
        # symbol gets a version. If CuPy asks for no version, the loader accepts any version.
        nodes.setdefault(next(filter(None, nodes)), []).extend(nodes.pop(""))
    if not nodes:
        return "{ local: *; };\n"
    return "\n".join(f"{node} {{ global: {' '.join(names)} }};" for node, names in nodes.items())


def build_stand_ins(users: Iterable[Path], environ: Mapping[str, str] = os.environ) -> Path | None:
    """Return a folder with stand-ins for needed libraries that this machine does not have.

    Parameters
    ----------
    users
        The compiled modules that need the libraries.
    environ
        Environment variables. They name the folders of real libraries, the folder of the cache, and
        the compiler.

    Returns
    -------
    Path or None
        The folder, or None if this machine has all needed libraries.

    Raises
    ------
    ConfigurationError
        A file is damaged or unreadable, there is no C compiler, the compiler fails, or the cache
        cannot be used.
    """
    wanted = _wanted(filter(None, map(needs_of, users)), environ)
    if not wanted:
        return None
    texts = {name: (_source(name, symbols), _script(symbols)) for name, symbols in wanted.items()}

    def make(work: Path, _folder: Path) -> None:
        command = compiler(environ)
        for soname, (source, script) in texts.items():
            link(command, work, soname, source, script)

    parts = [part for name in sorted(texts) for part in (name, *texts[name])]
    return kept("maths", parts, make, stamp="", environ=environ)
