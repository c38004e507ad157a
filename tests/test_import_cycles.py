# SPDX-License-Identifier: Apache-2.0
"""No circle of imports in core, imports for types and inside functions included."""

import ast
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

CORE = Path(__file__).parents[1] / "core"


def imports_of(path: Path, modules: set[str]) -> set[str]:
    """Return the modules of crossmem that a module imports anywhere."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                found.add(name if name in modules else node.module)
    return found & modules


def test_core_has_no_circle_of_imports() -> None:
    paths = {
        ".".join(path.relative_to(CORE).with_suffix("").parts).removesuffix(".__init__"): path
        for path in CORE.glob("crossmem/**/*.py")
    }
    # A package's own __init__ gathers names; who imports from it depends on those modules.
    graph = {name: imports_of(path, set(paths)) - {name} for name, path in paths.items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        raise AssertionError(" -> ".join(error.args[1])) from None
