# SPDX-License-Identifier: Apache-2.0
"""Attaching memory imports no package that only reports, trees, commands and arrays need."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import crossmem
import crossmem.plugin

HEAVY = {"numpy", "pydantic", "rich", "typer"}

IMPORTING = """
import sys
import crossmem
print(*sorted(HEAVY & sys.modules.keys()))
"""
ATTACHING = """
import sys
import crossmem
with crossmem.attach(bytes.fromhex(sys.argv[1])) as mapping:
    assert mapping.read(5) == b"hello"
    mapping.view().release()
    mapping.device.allocate(1).free()
print(*sorted(HEAVY & sys.modules.keys()))
"""
LAZY = """
import crossmem
import crossmem.plugin
for package in (crossmem, crossmem.plugin):
    assert set(package.__all__) <= set(dir(package))
    for name in package.__all__:
        assert getattr(package, name) is getattr(package, name)
try:
    crossmem.no_such_name
except AttributeError as error:
    print(error, error.name)
"""


def run(program: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", f"HEAVY = {HEAVY}\n{program}", *arguments],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert not done.stderr
    return done.stdout.strip()


def test_importing_crossmem_imports_none_of_them() -> None:
    assert not run(IMPORTING)


def test_attaching_another_process_s_memory_imports_none_of_them() -> None:
    with crossmem.device("emulated:0").allocate(4096) as allocation:
        allocation.write(b"hello")
        blob = allocation.export().to_bytes()

        assert not run(ATTACHING, blob.hex())


def test_names_that_are_imported_at_their_first_use() -> None:
    assert run(LAZY) == "module 'crossmem' has no attribute 'no_such_name' no_such_name"


@pytest.mark.parametrize("name", ["share", "collect", "how_can_share"])
def test_a_name_that_was_used_is_an_attribute(name: str) -> None:
    found = getattr(crossmem, name)

    assert vars(crossmem)[name] is found


EAGER = """
import crossmem
import crossmem.plugin
print(*vars(crossmem))
print(*vars(crossmem.plugin))
"""


def test_no_module_takes_a_lazy_name_at_its_import() -> None:
    # The module's importer would hold Python's lock of the module and wait for forks.MODULES, which
    # another thread may hold while it imports the same module.
    done = subprocess.run(
        [sys.executable, "-c", EAGER], capture_output=True, text=True, timeout=60, check=True
    )
    eager = dict(zip(("crossmem", "crossmem.plugin"), done.stdout.splitlines(), strict=True))
    root = Path(crossmem.__file__).parent
    found = [
        (path.relative_to(root).as_posix(), alias.name)
        for path in root.rglob("*.py")
        if path.relative_to(root).parts[0] not in {"bench", "cli", "conformance"}
        for node in ast.parse(path.read_text("utf-8")).body
        if isinstance(node, ast.ImportFrom) and node.module in eager
        for alias in node.names
        if alias.name in sys.modules[node.module].__all__
        and alias.name not in eager[node.module].split()
    ]

    assert found == []
