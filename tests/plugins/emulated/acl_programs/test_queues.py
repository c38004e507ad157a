# SPDX-License-Identifier: Apache-2.0
"""C programs use TDT's queues and buffers, as the vendor's header declares them."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from crossmem_emulated.abi.ascend.names import CALLED
from crossmem_emulated.acl import Acl
from crossmem_emulated.options import Options

if TYPE_CHECKING:
    from tests.plugins.emulated.acl_programs.conftest import Compile, Run
else:
    from collections.abc import Callable as Compile
    from collections.abc import Callable as Run

WITHOUT_EMULATION = """
import ctypes
library = ctypes.CDLL("libascendcl.so")
library.acltdtCreateQueueAttr.restype = ctypes.c_void_p
library.acltdtGetQueueRouteNum.restype = ctypes.c_size_t
print(library.acltdtCreateQueueAttr(), library.acltdtGetQueueRouteNum(None))
print(library.acltdtDestroyQueue(0))
"""
ON_DEVICE = {"CROSSMEM_EMULATED_ACL_PROFILE": "310b-rc"}
NAMES = [name for name in CALLED if name.startswith(("acltdt", "rtMem"))]
WITHOUT_CODE = {"acltdtGetQueueRouteNum": 0}
DOCUMENTED = (
    100000,
    107000,
    107002,
    200006,
    207000,
    207001,
    207005,
    207006,
    207012,
    207013,
    207014,
    207015,
    500000,
    500001,
    507899,
)
"""Every code that rules of queues and buffers name, and the vendor's internal error."""


def acl_of(host: Path) -> Acl:
    return Acl("310b-rc", options=Options(state=host, acl_profile="310b-rc"))


def broken_rules(host: Path) -> list[str]:
    return [one.rule for one in acl_of(host).violations]


@pytest.mark.parametrize("kind", [0, 1], ids=["normal", "dvpp"])
@pytest.mark.parametrize("calls", [0, 1], ids=["sample", "text"])
def test_the_documented_sequence(
    compile_program: Compile, run: Run, host: Path, kind: int, calls: int
) -> None:
    assert run(compile_program("sequence"), kind, calls, **ON_DEVICE) == "freed\n"
    assert broken_rules(host) == []


@pytest.mark.parametrize("language", ["c", pytest.param("c++", marks=pytest.mark.long)])
@pytest.mark.parametrize("profile", ["documented", "310b-rc"])
def test_queues_buffers_and_routes(
    compile_program: Compile, run: Run, host: Path, profile: str, language: str
) -> None:
    is_on_host = int(profile == "documented")
    variables = {"CROSSMEM_EMULATED_ACL_PROFILE": profile}

    assert run(compile_program("queues", language), is_on_host, **variables) == "queued\n"
    rules = set(broken_rules(host))
    assert {"ACL-Q7", "ACL-Q18", "ACL-Q39"} <= rules
    assert ("ACL-B15" in rules) is not is_on_host


def test_a_memory_group(compile_program: Compile, run: Run, host: Path) -> None:
    assert run(compile_program("group", "c", "-ldl"), **ON_DEVICE) == "grouped\n"
    assert broken_rules(host) == []


def test_results_that_are_no_codes(run: Run) -> None:
    """If the emulation cannot start, no pointer and no count is a code."""
    python = Path(sys.executable)
    printed = run(python, "-c", WITHOUT_EMULATION, CROSSMEM_EMULATED_STRICT="perhaps")

    assert printed == "None 0\n500000\n"


def test_every_documented_code_passes_through(
    compile_program: Compile, run: Run, host: Path
) -> None:
    acl = acl_of(host)
    for name in NAMES:
        for code in DOCUMENTED:
            acl.faults.add(CALLED[name], code)
    printed = run(compile_program("injected"), len(DOCUMENTED), **ON_DEVICE)

    answers = {line.split()[0]: line.split()[1:] for line in printed.splitlines()}
    assert list(answers) == NAMES
    for name, codes in answers.items():
        is_null = name.startswith("acltdtCreate") and name != "acltdtCreateQueue"
        expected = (
            [1] * len(DOCUMENTED)
            if is_null
            else [WITHOUT_CODE.get(name, code) for code in DOCUMENTED]
        )
        assert [int(one) for one in codes] == expected, name
    assert broken_rules(host) == []
