# SPDX-License-Identifier: Apache-2.0
"""The library has what the headers declare, with the same layout."""

import re
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from crossmem_emulated.abi.ascend import LIBRARY, unsupported
from crossmem_emulated.abi.ascend.names import CALLED
from crossmem_emulated.acl import calls

if TYPE_CHECKING:
    from tests.plugins.emulated.acl_programs.conftest import Compile
else:
    from collections.abc import Callable as Compile

DECLARED = re.compile(r"^ACL_FUNC_VISIBILITY[^;()]*?\b(acl\w+)\(", re.MULTILINE)
LIST = Path(__file__).with_name("acl_rt.txt")
PAGE = Path(__file__).parents[4] / "docs" / "reference" / "libascendcl.md"
HEADERS = (
    "acl_base_rt.h",
    "acl_base_mdl.h",
    "acl_rt.h",
    "acl_rt_allocator.h",
    "acl_op.h",
    "acl_mdl.h",
    "acl_tdt.h",
    "acl_tdt_queue.h",
)


def declared_in_acl_rt() -> set[str]:
    """Return the functions of acl_rt.h, which need no headers of Huawei's to be known."""
    lines = LIST.read_text("utf-8").splitlines()
    return {name for line in lines if not line.startswith("#") for name in line.split()}


def test_layout(compile_program: Compile) -> None:
    """What the program states is checked while it is compiled."""
    assert compile_program("layout").exists()


def test_every_function_of_the_vendor_is_there(headers: list[str]) -> None:
    if len(headers) == 1:
        pytest.skip("needs Huawei's headers")
    folder = Path(headers[1].removeprefix("-I"), "acl")
    declared = {
        name for one in HEADERS for name in DECLARED.findall((folder / one).read_text("utf-8"))
    }

    assert len(declared) > 500
    assert declared - set(LIBRARY.exports()) == set()
    of_queues = set(DECLARED.findall((folder / "acl_tdt_queue.h").read_text("utf-8")))
    assert len(of_queues) == 37
    assert of_queues - set(CALLED) == set()
    of_acl_rt = set(DECLARED.findall((folder / "acl_rt.h").read_text("utf-8")))
    assert of_acl_rt - declared_in_acl_rt() == set()


def test_the_library_exports_what_is_declared(library: Path) -> None:
    listed = subprocess.run(
        ["nm", "-D", "--defined-only", str(library / "libascendcl.so")],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    exported = {line.split()[-1] for line in listed.splitlines() if " T " in line}

    assert exported == set(LIBRARY.exports())
    assert declared_in_acl_rt() - exported == set()


def test_nothing_is_declared_twice() -> None:
    names = LIBRARY.exports()

    assert len(names) == len(set(names))
    assert set(unsupported()) < set(names)


def test_all_of_the_emulation_is_reached() -> None:
    """C programs have every function that Python programs have."""
    assert set(CALLED.values()) == set(calls.ENTRIES)


def test_the_page_lists_what_is_emulated() -> None:
    section = PAGE.read_text("utf-8").partition("\n## What is emulated\n")[2]
    listed = re.findall(r"`(acl\w+|rtMem\w+)`", section.partition("\nThese functions follow")[0])

    assert sorted(listed) == sorted(set(LIBRARY.exports()) - set(unsupported()))
