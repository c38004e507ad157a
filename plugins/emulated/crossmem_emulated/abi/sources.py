# SPDX-License-Identifier: Apache-2.0
"""Generates the C source and the version script of a library from its declarations."""

import hashlib
import json
from collections.abc import Iterable
from importlib import resources
from typing import Final

from crossmem import __version__
from crossmem_emulated.abi.library import Library, Prototype

__all__ = ["declarations", "source", "stamp", "version_script"]

_TABLE: Final = "struct cm_table"


def declarations(library: Library) -> str:
    """Return the C declarations that the library and Python share.

    They declare the types, and a table with a pointer to the implementation of each function.
    """
    fields = "\n".join(
        f"    {one.result} (*{one.name})({one.parameters});" for one in library.functions()
    )
    return f"{library.types}\n{_TABLE} {{\n{fields}\n}};\n"


def stamp(library: Library) -> str:
    """Return a digest of crossmem's version and of the declarations.

    A built library is used only if it was built with the same digest.
    """
    text = f"{__version__}\0{declarations(library)}"
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _forwarder(one: Prototype, library: Library) -> str:
    call = f"cm_table.{one.name}({', '.join(one.names)})"
    if one.result == "void":
        return _function(one, f"if (state > 0)\n        {call};", "")
    if one.result == "const char *":
        # Programs print such a result, so it must not be null.
        failure = '"unknown error"'
    elif one.result.endswith("*"):
        failure = "NULL"
    elif one.result == "size_t":
        failure = "0"
    else:
        failure = f"state ? {library.ended} : {library.unknown}"
    work = f"{one.result} result = state > 0 ? {call} : ({one.result})({failure});"
    return _function(one, work, " result")


def _function(one: Prototype, work: str, result: str) -> str:
    return (
        f"EXPORTED {one.result} {one.name}({one.parameters})\n{{\n"
        f"    int before = cm_shield(), state = cm_enter();\n"
        f"    {work}\n    cm_unshield(before);\n    return{result};\n}}\n"
    )


def _text(value: str) -> str:
    """Return a C string literal."""
    # JSON's escapes are valid in C, except \u. Non-ASCII characters stay as they are, so JSON uses
    # \u only for rare control characters.
    return json.dumps(value, ensure_ascii=False)


def source(
    library: Library,
    soname: str,
    *,
    executable: str,
    python_libraries: Iterable[str],
    start: str,
    end: str,
) -> str:
    """Return the C source of a library.

    Parameters
    ----------
    soname
        The name of the library's file.
    executable
        Path of a Python interpreter. If the library starts Python, Python finds its standard
        library by this path.
    python_libraries
        Possible paths of that interpreter's shared library, in the order in which they are tried.
    start
        A Python expression for a function that fills the table of :func:`declarations`. The
        function gets the address of the table, the address of a number, and a flag that is not 0 if
        the library started Python. The function sets the number to 1 when it has filled the table.
    end
        Python code that runs when the program ends, if the library started Python.
    """
    macros = {
        "CM_FILE": _text(soname),
        "CM_EXECUTABLE": _text(executable),
        "CM_START_CODE": _text(start),
        "CM_EXIT_CODE": _text(end),
        "CM_PYTHON_LIBRARIES": ", ".join([*map(_text, python_libraries), "NULL"]),
    }
    front = resources.files(__package__).joinpath("front.c").read_text("utf-8")
    return "\n".join(
        [
            *(f"#define {name} {value}" for name, value in macros.items()),
            "#include <stddef.h>",
            "#include <stdint.h>",
            declarations(library),
            f"static {_TABLE} cm_table;",
            front,
            *(_forwarder(one, library) for one in library.functions()),
            library.code,
        ]
    )


def version_script(library: Library) -> str:
    """Return the linker's version script: the exported functions and their versions."""
    nodes: dict[str, list[str]] = {}
    for name in library.exports():
        nodes.setdefault(library.nodes.get(name, library.node), []).append(f"{name};")
    text = "\n".join(
        f"{node} {{ global: {' '.join(sorted(names))} }};" for node, names in sorted(nodes.items())
    )
    return f"{text.removesuffix('};')}local: *; }};\n"
