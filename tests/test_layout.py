# SPDX-License-Identifier: Apache-2.0
"""The source tree keeps the shape that its packaging and its readers rely on."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MAX_LINES = 500
MAX_LINES_OF_CORE = 400
SOURCE_FOLDERS = ("core", "docs", "examples", "plugins", "tests")
UNINTERRUPTED = ("core/crossmem/bench", "core/crossmem/cli", "core/crossmem/conformance")
"""Packages whose programs end at Ctrl-C."""
PACKAGE_PARENTS = [ROOT / "core", *sorted((ROOT / "plugins").iterdir())]


def modules() -> list[Path]:
    return sorted(path for folder in SOURCE_FOLDERS for path in (ROOT / folder).rglob("*.py"))


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_source_is_found() -> None:
    found = {relative(path) for path in modules()}

    assert {"core/crossmem/errors.py", "docs/conf.py", "tests/test_layout.py"} <= found


def test_modules_are_short() -> None:
    lengths = {relative(path): len(path.read_text("utf-8").splitlines()) for path in modules()}

    def most(path: str) -> int:
        return MAX_LINES_OF_CORE if path.startswith("core/") else MAX_LINES

    assert {path: lines for path, lines in lengths.items() if lines > most(path)} == {}


def test_modules_name_their_licence() -> None:
    header = "# SPDX-License-Identifier: Apache-2.0\n"
    without = [
        relative(path) for path in modules() if not path.read_text("utf-8").startswith(header)
    ]

    assert without == []


@pytest.mark.parametrize("parent", PACKAGE_PARENTS, ids=relative)
def test_only_typed_packages_lie_beside_each_other(parent: Path) -> None:
    # An editable install puts these folders on sys.path, where anything else could be imported too.
    for entry in parent.iterdir():
        if entry.name != "__pycache__":
            assert (entry / "__init__.py").is_file(), relative(entry)
            assert (entry / "py.typed").is_file(), relative(entry)


def guarded_loops(path: Path) -> list[str]:
    """Return the ``while`` loops with a condition in ``with`` and ``try`` statements."""
    found = []

    def visit(node: ast.AST, *, is_guarded: bool) -> None:
        if isinstance(node, ast.While) and is_guarded and not isinstance(node.test, ast.Constant):
            found.append(f"{relative(path)}:{node.lineno}")
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            is_guarded = False
        elif isinstance(node, ast.With):
            contexts = [ast.unparse(one.context_expr) for one in node.items]
            is_guarded |= not all(one.startswith("suppress(") for one in contexts)
        elif isinstance(node, ast.Try | ast.AsyncWith):
            is_guarded = True
        for child in ast.iter_child_nodes(node):
            visit(child, is_guarded=is_guarded)

    visit(ast.parse(path.read_text("utf-8")), is_guarded=False)
    return found


def test_an_interrupted_loop_runs_the_handlers_around_it() -> None:
    # In CPython 3.13, the jump back to the condition of a loop lies outside the exception table. A
    # signal handler that raises there skips the handlers, and with them the release of a lock.
    # ``while True: if not condition: break`` has no such jump.
    loops = [
        loop
        for path in modules()
        if relative(path).startswith(("core/", "plugins/"))
        and not relative(path).startswith(UNINTERRUPTED)
        for loop in guarded_loops(path)
    ]

    assert loops == []
