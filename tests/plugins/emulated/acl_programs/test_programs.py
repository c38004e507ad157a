# SPDX-License-Identifier: Apache-2.0
"""C and C++ programs share memory as the vendor's pages describe, and meet the vendor's codes."""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from crossmem_emulated.acl import Acl
from crossmem_emulated.options import Options

if TYPE_CHECKING:
    from tests.plugins.emulated.acl_programs.conftest import Compile, Run
else:
    from collections.abc import Callable as Compile
    from collections.abc import Callable as Run


def broken_rules(host: Path) -> list[str]:
    return [one.rule for one in Acl(options=Options(state=host)).violations]


@pytest.mark.parametrize(("whitelist", "start"), [(1, "fork"), (0, "exec")])
@pytest.mark.parametrize("method", ["handle", "handle2", "fabric", "key"])
def test_sharing(
    compile_program: Compile, run: Run, host: Path, method: str, whitelist: int, start: str
) -> None:
    assert run(compile_program("share"), method, whitelist, start, 0) == "shared\n"
    assert broken_rules(host) == []


@pytest.mark.parametrize("profile", ["documented", "a2"])
@pytest.mark.parametrize("method", ["handle", "handle2"])
def test_sharing_between_devices_in_cpp(
    compile_program: Compile, run: Run, host: Path, method: str, profile: str
) -> None:
    variables = {"CROSSMEM_EMULATED_ACL_PROFILE": profile}
    program = compile_program("share", "c++")

    assert run(program, method, 1, "exec", 1, **variables) == "shared\n"
    assert broken_rules(host) == []


def test_the_wrong_order(compile_program: Compile, run: Run, host: Path) -> None:
    assert run(compile_program("order")) == "ordered\n"
    assert {"ACL-E1", "ACL-E6", "ACL-E14", "ACL-E18", "ACL-E26"} <= set(broken_rules(host))


@pytest.mark.parametrize(("method", "rules"), [("handle", set()), ("key", {"ACL-E26"})])
def test_who_frees_first(
    compile_program: Compile, run: Run, host: Path, method: str, rules: set[str]
) -> None:
    assert run(compile_program("lifetime"), method) == "lived\n"
    assert set(broken_rules(host)) == rules


@pytest.mark.parametrize("language", ["c", pytest.param("c++", marks=pytest.mark.long)])
@pytest.mark.parametrize("slow", ["0", "1"])
def test_threads_streams_and_events(
    compile_program: Compile, run: Run, host: Path, language: str, slow: str
) -> None:
    variables = {"CROSSMEM_EMULATED_SLOW_STREAMS": slow}

    assert run(compile_program("threads", language), **variables) == "threaded\n"
    assert broken_rules(host) == ["ACL-E39", "ACL-E42", "ACL-E28", "ACL-E31", "ACL-E31"]


@pytest.mark.parametrize("slow", ["0", "1"])
def test_events_of_two_processes(compile_program: Compile, run: Run, host: Path, slow: str) -> None:
    variables = {"CROSSMEM_EMULATED_SLOW_STREAMS": slow}

    assert run(compile_program("event"), **variables) == "waited\n"
    assert broken_rules(host) == ["ACL-E37"]


@pytest.mark.parametrize("slow", ["0", "1"])
def test_notifies_and_values_of_two_processes(
    compile_program: Compile, run: Run, host: Path, slow: str
) -> None:
    variables = {"CROSSMEM_EMULATED_SLOW_STREAMS": slow}

    assert run(compile_program("notify"), **variables) == "notified\n"
    assert broken_rules(host) == ["ACL-E45", "ACL-E45", "ACL-E44"]


@pytest.mark.parametrize("language", ["c", pytest.param("c++", marks=pytest.mark.long)])
def test_functions_of_the_program_are_work_of_streams(
    compile_program: Compile, run: Run, host: Path, language: str
) -> None:
    assert run(compile_program("callbacks", language)) == "called\n"
    assert broken_rules(host) == ["ACL-E43", "ACL-E43", "ACL-E43"]


@pytest.mark.parametrize(
    "coarse", [4, pytest.param(1, marks=pytest.mark.long)], ids=["coarse", "fine"]
)
def test_a_fork_while_another_thread_makes_the_first_call(
    compile_program: Compile, run: Run, coarse: int
) -> None:
    program = compile_program("callbacks", "c", f"-DCOARSE={coarse}")

    assert run(program, "early") == "called\n"


def test_logs_of_programs(compile_program: Compile, run: Run) -> None:
    printed = run(compile_program("threads"), ASCEND_SLOG_PRINT_TO_STDOUT="1")

    assert "[ERROR] APP(" in printed
    assert "without_devices: a log with 1 number" in printed


def test_a_setting_without_meaning_is_told(compile_program: Compile, run: Run) -> None:
    with pytest.raises(
        RuntimeError, match="CROSSMEM_EMULATED_STRICT must be 1 or 0, not 'perhaps'"
    ):
        run(compile_program("order"), CROSSMEM_EMULATED_STRICT="perhaps")


def test_signals_stay_the_program_s(compile_program: Compile, run: Run) -> None:
    with pytest.raises(RuntimeError, match=r"ended with -2: $"):
        run(compile_program("signals"))
