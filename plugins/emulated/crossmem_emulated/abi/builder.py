# SPDX-License-Identifier: Apache-2.0
"""Builds an emulated vendor library with the machine's C compiler.

The user's cache keeps the built library.
"""

import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from crossmem.errors import ConfigurationError
from crossmem.guards import clause, shorten
from crossmem_emulated.abi.cache import cache_folder, kept
from crossmem_emulated.abi.elf import processor_of
from crossmem_emulated.abi.library import TYPES, Library
from crossmem_emulated.abi.sources import declarations, source, stamp, version_script

__all__ = ["build", "compiler", "link"]

_COMPILERS: Final = ("cc", "gcc", "clang")
_OPTIONS: Final = ("-shared", "-fPIC", "-O1", "-std=gnu11", "-w", "-pthread")
# With nodelete, the library stays loaded after a program's dlclose. Without nodelete, the program
# could load the library again at the same address. Python would then leave the new table of
# functions empty, because Python remembers that it has filled a table at this address.
_LINK_OPTIONS: Final = ("-Wl,-z,nodelete", "-Wl,-z,now", "-ldl")
_PACKAGES: Final = (
    "crossmem",
    "crossmem_emulated",
    "pluggy",
    "typing_extensions",
    "_cffi_backend",
)
"""The packages and modules that the emulation imports. If a built library starts a Python
interpreter, this interpreter must find them."""
_TIMEOUT_S: Final = 120
_SHOWN_LINES: Final = 8

_START: Final = """
import sys
try:
    if STARTED:
        # sys.path has only the folders of the standard library. The folders of the packages are
        # appended, so that they hide no module of the standard library.
        sys.path.extend({paths!r})
        # OpenSSL frees its state when the program exits, although threads may still use it. So
        # hashlib must use Python's own hashes.
        try:
            import _blake2, _md5, _sha1
        except ImportError:
            pass
        else:
            sys.modules.setdefault("_hashlib", None)
    try:
        from crossmem_emulated.abi.engine import start
    except ImportError:
        sys.path.extend(path for path in {paths!r} if path not in sys.path)
        from crossmem_emulated.abi.engine import start
    start({name!r}, {soname!r}, {folder!r}, TABLE, READY)
except BaseException as error:
    import traceback
    reason = getattr(error, "message", None)
    if reason is None:
        traceback.print_exc()
    hint = getattr(error, "hint", None)
    sys.stderr.write(
        "crossmem: the emulated " + {soname!r} + " cannot work in this process"
        + (": " + reason if reason else "") + (" (" + hint + ")" if hint else "") + "\\n"
    )
"""
_END: Final = """
import atexit, sys
atexit._run_exitfuncs()
for stream in (sys.stdout, sys.stderr):
    stream and stream.flush()
"""


def compiler(environ: Mapping[str, str] = os.environ) -> list[str]:
    """Return the command of the C compiler: the value of ``CC``, or the first compiler found.

    Raises
    ------
    ConfigurationError
        There is no compiler.
    """
    given = shlex.split(environ.get("CC", ""))
    for command in [given] if given else [[name] for name in _COMPILERS]:
        if shutil.which(command[0], path=environ.get("PATH")):
            return command
    tried = given[0] if given else ", ".join(_COMPILERS)
    raise ConfigurationError(
        f"the emulated libraries need a C compiler, and none was found ({clause(tried)})",
        hint="install a compiler, such as the packages gcc and libc6-dev, or name a compiler in CC",
    )


def _python_libraries() -> list[str]:
    """Return the possible paths of this interpreter's shared library, the most likely first."""
    version = "{}.{}".format(*sys.version_info[:2])
    name = f"libpython{version}{sys.abiflags}.so.1.0"
    folder, system = sysconfig.get_config_var("LIBDIR"), sysconfig.get_config_var("MULTIARCH")
    places = [Path(sys.base_prefix) / "lib", Path(folder or "/usr/lib")]
    places.append(places[-1] / (system or ""))
    found = [str(path) for place in places if (path := place / name).exists()]
    return [*dict.fromkeys(found), name]


def _search_path() -> list[str]:
    """Return the folders from which the packages of ``_PACKAGES`` are imported."""
    folders = []
    for name in _PACKAGES:
        spec = find_spec(name)
        if spec is not None and spec.origin is not None:
            place = Path(spec.origin).parent
            folders.append(str(place.parent if spec.submodule_search_locations else place))
    return list(dict.fromkeys(folders))


def _run(command: Sequence[str], what: str) -> None:
    try:
        done = subprocess.run(  # noqa: S603 - the user's own compiler
            command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        msg = f"{what} could not be built: {clause(str(error))}"
        hint = "check the compiler that CC names"
        raise ConfigurationError(msg, hint=hint, details=str(error)) from None
    if done.returncode:
        text = "\n".join((done.stderr or done.stdout).strip().splitlines()[:_SHOWN_LINES])
        # The output begins with the name of the compiler's temporary file. The message omits it.
        fault = text[text.find("error:") :] if "error:" in text else text
        raise ConfigurationError(
            f"{what} could not be built; {shorten(command[0], 50)} says: {clause(fault, 90)}",
            hint="install the headers of the C library if they are missing (Debian: libc6-dev)",
            details=text,
        )


def link(
    command: Sequence[str], folder: Path, soname: str, text: str, script: str, *more: str
) -> None:
    """Compile the C source ``text`` into the shared library ``soname`` in a folder.

    ``command`` is the compiler's command, ``script`` is the linker's version script, and ``more``
    are further arguments for the compiler.

    Raises
    ------
    ConfigurationError
        The compiler fails, or builds a library for another processor.
    """
    place, versions = folder / f"{soname}.c", folder / f"{soname}.map"
    place.write_text(text, "utf-8")
    versions.write_text(script, "utf-8")
    wanted = [f"-Wl,-soname,{soname}", f"-Wl,--version-script={versions}", str(place)]
    _run([*command, *_OPTIONS, *wanted, "-o", str(folder / soname), *more], soname)
    made = folder / soname
    if not made.is_file() or processor_of(made) != processor_of(Path("/proc/self/exe")):
        msg = f"{clause(shlex.join(command))} did not build {soname} for this processor"
        raise ConfigurationError(msg, hint="set CC to a compiler for this machine")


def _write_types(library: Library, folder: Path) -> None:
    try:
        import cffi  # noqa: PLC0415 - optional; a built library needs only _cffi_backend
    except ImportError:
        raise ConfigurationError(
            "the emulated libraries need the package cffi, which is not installed",
            hint="pip install 'crossmem[emulate]'",
        ) from None
    ffi = cffi.FFI()
    ffi.cdef(declarations(library))
    ffi.set_source(TYPES, None)
    ffi.compile(str(folder))


def _cffi_version() -> str:
    try:
        return metadata.version("cffi")
    except metadata.PackageNotFoundError:
        return "none"


def build(library: Library, environ: Mapping[str, str] = os.environ) -> Path:
    """Return the folder with a library. If the cache does not have the library, build it.

    Parameters
    ----------
    library
        The library to build.
    environ
        Environment variables. ``XDG_CACHE_HOME`` names the cache, and ``CC`` names the compiler.

    Returns
    -------
    Path
        A folder of the cache. It contains the library under all its names, and no other library.

    Raises
    ------
    ConfigurationError
        There is no compiler or no cffi, the build fails, or the cache cannot be used.
    """
    script = version_script(library)

    def text(folder: Path, soname: str) -> str:
        start = _START.format(
            paths=_search_path(), name=library.name, folder=str(folder), soname=soname
        )
        return source(
            library,
            soname,
            executable=sys.executable,
            python_libraries=_python_libraries(),
            start="(lambda table, ready, started: "
            f"exec({start!r}, {{'TABLE': table, 'READY': ready, 'STARTED': started}}))",
            end=f"exec({_END!r}, {{}})",
        )

    def make(work: Path, folder: Path) -> None:
        command = compiler(environ)
        _write_types(library, work)
        for soname in library.sonames:
            link(command, work, soname, text(folder, soname), script, *_LINK_OPTIONS)
        for name in library.links:
            (work / name).symlink_to(library.sonames[0])
        # Some programs look for the library in the subfolder lib of the vendor's installation. With
        # this link, such a program can use the built folder as the installation.
        (work / "lib").symlink_to(".")

    names = [*library.sonames, *library.links]
    # The compiler is not part of the cache's key, because all compilers make equivalent libraries.
    parts = [sys.version, _cffi_version(), text(cache_folder(environ), ""), script, *names]
    name = f"{library.name}-{sys.implementation.cache_tag}"
    return kept(name, parts, make, stamp=stamp(library), environ=environ)
