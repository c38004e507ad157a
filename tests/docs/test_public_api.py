# SPDX-License-Identifier: Apache-2.0
"""Everything public is listed, sorted, and documented."""

import ast
import importlib
import inspect
import re
from collections.abc import Callable
from itertools import pairwise
from types import ModuleType
from typing import Any

import pytest

GetPage = Callable[[str], Any]

MODULES = (
    "crossmem",
    "crossmem.cupy",
    "crossmem.driver",
    "crossmem.errors",
    "crossmem.models",
    "crossmem.plugin",
    "crossmem.settings",
)
SHOWN = ("crossmem", "crossmem.driver", "crossmem.models", "crossmem.plugin")
"""Modules whose names the API page shows."""


def sort_key(name: str) -> tuple[int, str]:
    if name.isupper():
        return 0, name
    return (1 if name.lstrip("_")[0].isupper() else 2), name


def documented_values(module: ModuleType) -> set[str]:
    """Return names that the module assigns and describes in a string below."""
    body = ast.parse(inspect.getsource(module)).body
    found = set()
    for statement, below in pairwise(body):
        is_text = isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant)
        if isinstance(statement, ast.Assign | ast.AnnAssign) and is_text:
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            found |= {target.id for target in targets if isinstance(target, ast.Name)}
    return found


def source_of(module: ModuleType, name: str) -> ModuleType:
    """Return the module that assigns a name which another one re-exports."""
    for statement in ast.parse(inspect.getsource(module)).body:
        if not isinstance(statement, ast.ImportFrom) or not statement.module:
            continue
        if name in {alias.name for alias in statement.names}:
            return source_of(importlib.import_module(statement.module), name)
    return module


@pytest.mark.parametrize("name", MODULES)
def test_all_is_sorted_and_complete(name: str) -> None:
    module = importlib.import_module(name)
    listed = [one for one in module.__all__ if one != "__version__"]

    assert listed == sorted(listed, key=sort_key)
    assert len(set(listed)) == len(listed)
    assert all(hasattr(module, one) for one in listed)


@pytest.mark.parametrize("name", SHOWN)
def test_nothing_public_is_missing_from_all(name: str) -> None:
    module = importlib.import_module(name)
    public = {
        one
        for one, value in vars(module).items()
        if not one.startswith("_") and not inspect.ismodule(value)
    }

    assert public - set(module.__all__) == set()


@pytest.mark.parametrize("name", MODULES)
def test_every_public_name_has_a_docstring(name: str) -> None:
    module = importlib.import_module(name)
    without = []
    for one in module.__all__:
        value = getattr(module, one)
        if inspect.isclass(value) or inspect.isfunction(value):
            documented = bool(inspect.getdoc(value))
        else:
            documented = one in documented_values(source_of(module, one))
        if not documented:
            without.append(one)

    assert [one for one in without if one != "__version__"] == []


@pytest.mark.parametrize("name", MODULES)
def test_every_public_method_has_a_docstring(name: str) -> None:
    module = importlib.import_module(name)
    classes = [one for one in vars(module).values() if inspect.isclass(one)]
    without = [
        f"{one.__qualname__}.{method}"
        for one in classes
        if one.__module__.startswith("crossmem")
        for method, value in vars(one).items()
        if not method.startswith("_")
        and (inspect.isfunction(value) or isinstance(value, property | classmethod | staticmethod))
        and not inspect.getdoc(getattr(one, method))
    ]

    assert without == []


def shown_names(text: str) -> dict[str, set[str]]:
    """Return the names that the API page documents, by the module that users import from."""
    shown: dict[str, set[str]] = {}
    current = ""
    for kind, target in re.findall(r"^\.\. (\w+):: (\S+)$", text, re.MULTILINE):
        if kind == "currentmodule":
            current = target
        elif kind.startswith("auto") and kind != "automodule":
            module, _, name = target.rpartition(".")
            shown.setdefault(module or current, set()).add(name)
    for name, flags in re.findall(r"^\.\. automodule:: (\S+)\n((?:   .*\n)*)", text, re.MULTILINE):
        assert ":members:" in flags, name
        excluded = re.findall(r":exclude-members: (.*)", flags)
        left_out = {one.strip() for line in excluded for one in line.split(",")}
        module = importlib.import_module(name)
        shown.setdefault(name, set()).update(set(getattr(module, "__all__", ())) - left_out)
    return shown


def test_the_api_page_shows_every_public_name(page: GetPage) -> None:
    shown = shown_names(page("reference/api.md").text)

    assert set(shown) >= set(SHOWN)
    for name in SHOWN:
        public = set(importlib.import_module(name).__all__) - {"__version__"}
        # What two modules offer is shown once, where applications import it from.
        assert public <= shown[name] | shown["crossmem"], name
    assert "`crossmem.__version__`" in page("reference/api.md").text


def test_the_api_page_shows_public_names_only(page: GetPage) -> None:
    for name, shown in shown_names(page("reference/api.md").text).items():
        assert shown <= set(getattr(importlib.import_module(name), "__all__", shown)), name
