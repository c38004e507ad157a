# SPDX-License-Identifier: Apache-2.0
"""Libraries are built once, whoever asks, and what is missing is said."""

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from crossmem.conformance.speed import SLOWNESS
from crossmem.errors import ConfigurationError
from crossmem_emulated.abi import builder
from crossmem_emulated.abi.builder import build, compiler
from crossmem_emulated.abi.library import Library, library_named
from crossmem_emulated.abi.sources import version_script

pytestmark = pytest.mark.usefixtures("compiler")

TYPES = "typedef struct { char bytes[24]; } box;"
PROTOTYPES = """
/* A comment. */
int toyAdd(int first, int second);
int toyWeigh(box given);
const char *toyName(int number);
void toyForget(void);
int toyMissing(void);
const char *toyMissingName(void);
int toyBroken(int *place);
int32_t toyBroken32(int *place);
"""


class Toy:
    """The Python side of a library that exists nowhere else."""

    def __init__(self, ffi: Any, soname: str) -> None:
        self._ffi = ffi
        self._name = ffi.new("char[]", soname.encode())

    def functions(self) -> Mapping[str, Callable[..., Any]]:
        return {
            "toyAdd": lambda first, second: first + second,
            "toyWeigh": lambda given: sum(self._ffi.buffer(self._ffi.addressof(given))[:][0:1]),
            "toyName": lambda _number: self._name,
            "toyForget": lambda: None,
            "toyBroken": lambda place: place[0] // 0,
            "toyBroken32": lambda place: place[0] // 0,
        }

    def refuse(self, name: str) -> int:
        return 801


LIBRARY = Library(
    name="hip",
    sonames=("libtoy.so.2", "libtoy.so.1"),
    links=("libtoy.so",),
    types=TYPES,
    prototypes=PROTOTYPES,
    code="EXPORTED int toyPlain(void) { return 7; }",
    node="TOY_1",
    nodes={"toyName": "TOY_2"},
    unknown=999,
    ended=4,
    profiles=("documented",),
    profile_field="hip_profile",
    entry_of=lambda _name: None,
    fault_hint="",
    bind=Toy,
)


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {"XDG_CACHE_HOME": str(tmp_path), "PATH": os.environ["PATH"]}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return the environment for tests that take the library as it is."""
    return {"XDG_CACHE_HOME": str(tmp_path_factory.mktemp("built"))}


def test_all_names_are_there(environ: dict[str, str], tmp_path: Path) -> None:
    folder = build(LIBRARY, environ)

    assert folder.parent == tmp_path / "crossmem" / "abi"
    for name in ("libtoy.so.2", "libtoy.so.1", "libtoy.so", "lib/libtoy.so"):
        assert (folder / name).exists()
    assert folder.parent.stat().st_mode & 0o077 == 0
    # Each name is a library of its own, but for the one that means the newest.
    assert (folder / "libtoy.so").samefile(folder / "libtoy.so.2")
    assert not (folder / "libtoy.so").samefile(folder / "libtoy.so.1")


def test_the_second_time_nothing_is_built(environ: dict[str, str]) -> None:
    first = build(LIBRARY, environ)

    assert build(LIBRARY, {**environ, "PATH": "/nonsense"}) == first


def test_other_sources_are_another_library(environ: dict[str, str]) -> None:
    other = replace(LIBRARY, code="EXPORTED int toyPlain(void) { return 8; }")

    assert build(LIBRARY, environ) != build(other, environ)


def test_builders_at_once(environ: dict[str, str], tmp_path: Path) -> None:
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from test_builder import LIBRARY\n"
        "from crossmem_emulated.abi.builder import build\n"
        "sys.stdin.readline(); print(build(LIBRARY))"
    )
    command = [sys.executable, "-c", code, str(Path(__file__).parent)]
    started = [
        subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **environ},
        )
        for _ in range(3)
    ]
    outputs = {one.communicate("go\n", timeout=90 * SLOWNESS)[0].strip() for one in started}

    assert outputs == {str(build(LIBRARY, environ))}
    (folder,) = (tmp_path / "crossmem" / "abi").iterdir()
    assert outputs == {str(folder)}


def test_no_compiler(environ: dict[str, str]) -> None:
    with pytest.raises(ConfigurationError, match="none was found") as caught:
        build(LIBRARY, {**environ, "PATH": "/nonsense"})

    assert "gcc" in str(caught.value.hint)
    with pytest.raises(ConfigurationError, match="no-such-compiler"):
        compiler({**environ, "CC": "no-such-compiler -O1"})
    assert compiler({**environ, "CC": "gcc -O1"}) == ["gcc", "-O1"]


def test_a_compiler_that_fails(environ: dict[str, str], tmp_path: Path) -> None:
    broken = replace(LIBRARY, code="EXPORTED int toyPlain(void) { return nothing; }")

    with pytest.raises(ConfigurationError, match="nothing"):
        build(broken, environ)

    assert list((tmp_path / "crossmem" / "abi").iterdir()) == []


def test_without_cffi(environ: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cffi", None)

    with pytest.raises(ConfigurationError, match="package cffi") as caught:
        build(LIBRARY, environ)

    assert caught.value.hint == "pip install 'crossmem[emulate]'"


def test_a_cache_that_cannot_be_written(environ: dict[str, str], tmp_path: Path) -> None:
    place = tmp_path / "file"
    place.touch()

    with pytest.raises(ConfigurationError, match="cannot be kept") as caught:
        build(LIBRARY, {**environ, "XDG_CACHE_HOME": str(place)})

    assert "XDG_CACHE_HOME" in str(caught.value.hint)


def test_a_compiler_for_another_machine(environ: dict[str, str], tmp_path: Path) -> None:
    cross = tmp_path / "cross-cc"
    # Number 8, which is MIPS, in place of what the real compiler wrote.
    patch = "printf '\\010\\000' | dd of=\"$2\" bs=1 seek=18 conv=notrunc 2>/dev/null"
    find = 'while [ "$1" != -o ]; do shift; done'
    cross.write_text(f'#!/bin/sh\ngcc "$@" || exit\n{find}\n{patch}\n')
    cross.chmod(0o755)

    with pytest.raises(ConfigurationError, match=r"cross-cc did not build libtoy\.so\.2 for this"):
        build(LIBRARY, {**environ, "CC": str(cross)})
    with pytest.raises(ConfigurationError, match=r"true did not build libtoy\.so\.2 for this"):
        build(LIBRARY, {**environ, "CC": "true"})
    assert build(LIBRARY, environ).is_dir()


def test_a_library_that_lost_a_file_is_built_again(environ: dict[str, str]) -> None:
    folder = build(LIBRARY, environ)
    (folder / "libtoy.so.1").unlink()
    with (folder / "libtoy.so.2").open("r+b") as file:
        file.truncate(5000)

    assert build(LIBRARY, environ) == folder
    assert python(environ, "print(toy.toyAdd(3, 4))") == ["7\n", ""]
    assert python(environ, "print(toy.toyAdd(3, 4))", "libtoy.so.1") == ["7\n", ""]


def test_versions_of_symbols() -> None:
    script = version_script(LIBRARY)

    assert "TOY_2 { global: toyName; local: *; };" in script
    assert "toyPlain;" in script
    assert version_script(replace(LIBRARY, node="", nodes={})).startswith(" { global: toyAdd; ")


# What programs see --------------------------------------------------------------------------------

# A process whose libraries are those of this file.
PRELUDE = """
import ctypes, sys
sys.path.insert(0, {here!r})
from crossmem_emulated.abi import engine
import test_builder
engine.library_named = lambda name: test_builder.LIBRARY
toy = ctypes.CDLL({path!r})
toy.toyName.restype = toy.toyMissingName.restype = ctypes.c_char_p
class Box(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_char * 24)]
"""


def unmeasured() -> dict[str, str]:
    """Return this environment without coverage, which takes as long as all else to begin."""
    return {name: one for name, one in os.environ.items() if not name.startswith("COVERAGE_")}


def python(environ: Mapping[str, str], code: str, name: str = "libtoy.so") -> list[str]:
    path = build(LIBRARY, environ) / name
    prelude = PRELUDE.format(here=str(Path(__file__).parent), path=str(path))
    done = subprocess.run(
        [sys.executable, "-c", prelude + code],
        capture_output=True,
        text=True,
        timeout=60 * SLOWNESS,
        check=False,
        env={**unmeasured(), **environ},
    )
    assert done.returncode == 0, done.stderr
    return [done.stdout, done.stderr]


def test_calls_from_the_same_python(built: dict[str, str]) -> None:
    code = "print(toy.toyAdd(3, 4), toy.toyPlain(), toy.toyWeigh(Box(b'A')), toy.toyName(1))"

    assert python(built, code) == ["7 7 65 b'libtoy.so.2'\n", ""]
    assert python(built, code, "libtoy.so.1") == ["7 7 65 b'libtoy.so.1'\n", ""]


@pytest.mark.parametrize("name", ["toyBroken", "toyBroken32"])
def test_what_raises_becomes_the_unknown_error(built: dict[str, str], name: str) -> None:
    out, err = python(built, f"print(toy.{name}(ctypes.byref(ctypes.c_int(1))))")

    assert out == "999\n"
    assert f"emulation failed in {name}; the error code of this call (if any) is 999" in err
    assert "ZeroDivisionError" in err


def test_what_is_missing_is_refused_and_said_once(built: dict[str, str]) -> None:
    code = "print([toy.toyMissing(), toy.toyMissing(), toy.toyMissingName(), toy.toyForget()][:3])"
    out, err = python(built, code)

    assert out == "[801, 801, None]\n"
    assert err.count("libtoy.so.2 does not emulate toyMissing:") == 1


@pytest.mark.parametrize(
    "change",
    [
        # Upgrades that the library, which is loaded already, knows nothing of.
        "test_builder.LIBRARY = replace(old, prototypes=PROTOTYPES.replace('toyAdd', 'toySum'))",
        "test_builder.LIBRARY = replace(old, types=TYPES.replace('24', '25'))",
        "sources.__version__ = '99'",
        "os.remove(os.path.join(folder, 'contents.json'))",
        "os.rename(folder, folder + '-moved')",
    ],
)
def test_an_environment_of_before_an_upgrade(environ: dict[str, str], change: str) -> None:
    code = f"""
import os
from dataclasses import replace
from crossmem_emulated.abi import sources
from test_builder import PROTOTYPES, TYPES
old, folder = test_builder.LIBRARY, os.path.dirname({{path!r}})
{change}
print(toy.toyAdd(1, 1), toy.toyAdd(1, 1))
"""
    path = build(LIBRARY, environ) / "libtoy.so"
    out, err = python(environ, code.format(path=str(path)))

    assert out == "999 999\n"
    (line,) = err.splitlines()
    assert "libtoy.so.2 cannot work in this process: another version of crossmem built the" in line
    assert "run `crossmem emulate hip --print-env` again" in line


def test_threads_that_come_first_together(built: dict[str, str]) -> None:
    code = """
import threading
barrier, found = threading.Barrier(8), []
def work():
    barrier.wait()
    found.append(toy.toyAdd(1, 1))
threads = [threading.Thread(target=work) for _ in range(8)]
[one.start() for one in threads]; [one.join() for one in threads]
print(found)
"""
    assert python(built, code) == ["[2, 2, 2, 2, 2, 2, 2, 2]\n", ""]


def test_after_python_has_ended(built: dict[str, str]) -> None:
    # A destructor of C++ calls the library when Python is gone already.
    code = """
libc = ctypes.CDLL(None)
assert toy.toyAdd(1, 1) == 2
libc.__cxa_atexit(ctypes.cast(toy.toyForget, ctypes.c_void_p), None, None)
"""
    assert python(built, code) == ["", ""]


def test_forks_of_python_itself(built: dict[str, str]) -> None:
    code = """
import os
print(toy.toyAdd(1, 1), flush=True)
if not os.fork():
    print(toy.toyAdd(1, 2), flush=True)
    os._exit(0)
os.wait()
print(toy.toyAdd(1, 3))
"""
    assert python(built, code) == ["2\n3\n4\n", ""]


def test_a_library_that_is_closed_and_opened_again(opener: Path, library: Path, run: Any) -> None:
    done = run(opener, library / "libamdhip64.so")

    assert (done.returncode, done.stdout, done.stderr) == (0, "0 2 0\n", "")


def test_a_python_without_a_shared_library(
    opener: Path, environ: dict[str, str], run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(builder, "_python_libraries", lambda: ["libpython-nonsense.so"])
    # One name, because each is compiled for itself.
    folder = build(replace(library_named("hip"), sonames=("libamdhip64.so.7",)), environ)

    done = run(opener, folder / "libamdhip64.so")

    assert (done.returncode, done.stdout) == (0, "999 -1 999\n")
    assert done.stderr.count("--enable-shared") == 1
    assert "libpython-nonsense.so: cannot open shared object file" in done.stderr
