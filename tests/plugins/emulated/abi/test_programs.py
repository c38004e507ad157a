# SPDX-License-Identifier: Apache-2.0
"""C and C++ programs for AMD's library run on the emulation without being changed."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from crossmem_emulated.abi.hip import LIBRARY
from crossmem_emulated.journal import Journal
from crossmem_emulated.machine import Machine

if TYPE_CHECKING:
    from tests.plugins.emulated.abi.conftest import Compile, Release, Run
else:
    Compile = Release = Run = Any

STRICT = ("-Wall", "-Wextra", "-Werror")
# Programs that fork or exit a bit later in each round take four rounds in one step, except in the
# tests that take long.
coarse_and_fine = pytest.mark.parametrize(
    "coarse", [4, pytest.param(1, marks=pytest.mark.long)], ids=["coarse", "fine"]
)


@pytest.mark.parametrize("language", ["c", pytest.param("c++", marks=pytest.mark.long)])
@pytest.mark.parametrize(
    "name", ["sharing", "device", "settings", "usual", "values", "virtual", "visible", "server"]
)
def test_every_code_is_right(compile_program: Compile, run: Run, name: str, language: str) -> None:
    done = run(compile_program(name, *STRICT, language=language))

    assert (done.returncode, done.stdout) == (0, "")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("language", ["c", "c++"])
@pytest.mark.parametrize(
    "name", ["sharing", "device", "usual", "values", "virtual", "visible", "server"]
)
def test_programs_of_each_release(
    compile_program: Compile, run: Run, amd: Release, name: str, language: str
) -> None:
    # Numbers and structures are others, and the name that a program is linked with says so. Where
    # that is ROCm 5 there is no virtual memory, but its headers describe what came later.
    soname = "libamdhip64.so.7" if name == "virtual" else amd.soname
    program = compile_program(name, *STRICT, *amd.options, language=language, soname=soname)

    done = run(program)

    assert (done.returncode, done.stdout) == (0, "")


def test_numbers_of_each_release_and_the_rules_of_another(
    compile_program: Compile, run: Run, amd: Release
) -> None:
    program = compile_program("sharing", *STRICT, *amd.options, soname=amd.soname)

    done = run(program, CROSSMEM_EMULATED_HIP_PROFILE="documented")

    assert (done.returncode, done.stdout) == (0, "")


def test_a_program_that_starts_itself_again(compile_program: Compile, run: Run) -> None:
    done = run(compile_program("several", *STRICT, language="c++"))

    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_program_that_starts_itself_again_with_each_release(
    compile_program: Compile, run: Run, amd: Release
) -> None:
    options = [*STRICT, *amd.options]
    done = run(compile_program("several", *options, language="c++", soname=amd.soname))

    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("soname", [*LIBRARY.sonames, *LIBRARY.links])
def test_functions_are_looked_up_by_name(compile_program: Compile, run: Run, soname: str) -> None:
    program = compile_program("lookup", *STRICT, "-Wl,--as-needed")

    done = run(program, soname)

    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_virtual_memory_as_older_headers_describe_it(compile_program: Compile, run: Run) -> None:
    done = run(compile_program("virtual", *STRICT, "-DROCM_5_2"))

    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize("slow", ["0", "1"])
@pytest.mark.parametrize("strict", ["0", "1"])
def test_sharing_however_the_emulation_is_set_up(
    compile_program: Compile, run: Run, slow: str, strict: str
) -> None:
    settings = {"CROSSMEM_EMULATED_STRICT": strict, "CROSSMEM_EMULATED_SLOW_STREAMS": slow}

    done = run(compile_program("sharing", *STRICT), **settings)

    assert (done.returncode, done.stdout) == (0, "")


def test_values_on_slow_streams(compile_program: Compile, run: Run) -> None:
    done = run(compile_program("values", *STRICT), CROSSMEM_EMULATED_SLOW_STREAMS="1")

    assert (done.returncode, done.stdout) == (0, "")


def test_a_thread_s_own_stream_is_not_the_usual_one(compile_program: Compile, run: Run) -> None:
    done = run(compile_program("settings", *STRICT), CROSSMEM_EMULATED_SLOW_STREAMS="1")

    assert (done.returncode, done.stdout) == (0, "")


def test_what_is_forbidden_is_recorded(compile_program: Compile, run: Run, host: Path) -> None:
    done = run(compile_program("sharing", *STRICT))

    assert done.returncode == 0
    machine = Machine(host, "")
    rules = {one.rule for one in Journal(machine).read()}
    machine.close()
    # Wrong flags, freed and closed twice, an import freed: all of that on purpose.
    assert {"HIP-E2", "HIP-E3", "HIP-E6", "HIP-E11", "HIP-X4"} <= rules


def test_each_thread_has_its_device_and_its_failure(compile_program: Compile, run: Run) -> None:
    done = run(compile_program("life", *STRICT), "threads")

    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_child_forked_after_the_first_call_cannot_go_on(
    compile_program: Compile, run: Run
) -> None:
    done = run(compile_program("life", *STRICT), "forks")

    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@coarse_and_fine
@pytest.mark.parametrize("part", ["early", "leaves"])
def test_forks_and_exits_while_another_thread_calls(
    compile_program: Compile, run: Run, part: str, coarse: int
) -> None:
    done = run(compile_program("ends", *STRICT, f"-DCOARSE={coarse}"), part)

    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("part", ["cancelled", "starter", "late", "last"])
def test_threads_and_programs_begin_and_end_at_any_time(
    compile_program: Compile, run: Run, part: str
) -> None:
    done = run(compile_program("ends", *STRICT), part)

    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("language", ["c", pytest.param("c++", marks=pytest.mark.long)])
def test_functions_of_the_program_are_work_of_streams(
    compile_program: Compile, run: Run, host: Path, language: str
) -> None:
    done = run(compile_program("callbacks", *STRICT, language=language))

    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    machine = Machine(host, "")
    rules = {one.rule for one in Journal(machine).read()}
    machine.close()
    assert rules == {"HIP-E25"}


def test_signals_stay_the_program_s(compile_program: Compile, run: Run) -> None:
    done = run(compile_program("life", *STRICT), "signals")

    assert (done.returncode, done.stdout) == (-2, "")


def test_what_is_not_emulated_is_said_once(compile_program: Compile, run: Run) -> None:
    done = run(compile_program("device", *STRICT))

    assert done.stderr.count("does not emulate hipModuleUnload") == 1


def test_an_environment_for_another_python(compile_program: Compile, run: Run) -> None:
    settings = {"PYTHONHOME": "/nonsense", "PYTHONPATH": "/nonsense", "PATH": "/nonsense"}

    done = run(compile_program("sharing", *STRICT), **settings)

    assert (done.returncode, done.stdout) == (0, "")


def test_a_setting_that_has_no_meaning(compile_program: Compile, run: Run) -> None:
    done = run(compile_program("life", *STRICT), "forks", CROSSMEM_EMULATED_DEVICES="lots")

    # Every call answers the vendor's unknown error; why that is so is said once.
    assert done.returncode == 1
    assert "answers 999, not 0" in done.stdout
    (line,) = done.stderr.splitlines()
    fault = "CROSSMEM_EMULATED_DEVICES must be a number from 1 to 1024, not 'lots'"
    assert f"cannot work in this process: {fault}" in line


def test_another_vendor_s_profile(compile_program: Compile, run: Run) -> None:
    done = run(compile_program("life", *STRICT), "forks", CROSSMEM_EMULATED_HIP_PROFILE="cuda")

    assert done.returncode == 1
    assert "'cuda' is not a profile of AMD" in done.stderr


def test_no_device_is_visible(compile_program: Compile, run: Run) -> None:
    done = run(compile_program("life", *STRICT), "nothing", HIP_VISIBLE_DEVICES="")

    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
