# SPDX-License-Identifier: Apache-2.0
"""Stand-ins have what a package needs of ROCm's other libraries, and take nobody's place."""

import contextlib
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from crossmem.errors import ConfigurationError
from crossmem_emulated.abi.elf import needs_of
from crossmem_emulated.abi.maths import build_stand_ins

# What a package is compiled against; the name that it asks for is newer than any real one.
FFT = "int rocfft_setup(void) { return 0; }\nint rocfft_cleanup(void) { return 0; }\n"
TRACER = "int roctracer_start(void) { return 0; }\n"
USER = """
int rocfft_setup(void);
int roctracer_start(void);
int nothing_known(void) __attribute__((weak));
int use(void) { return rocfft_setup() * 100 + roctracer_start(); }
"""


@pytest.fixture
def user(compiler: str, tmp_path: Path) -> Path:
    """Return a compiled module that needs two of ROCm's libraries, which are gone then."""
    folder = tmp_path / "real"
    folder.mkdir()
    script = folder / "versions.map"
    script.write_text("ROCTRACER_9.9 { global: roctracer_start; local: *; };")
    libraries = {
        "librocfft.so.99": (FFT, []),
        "libroctracer64.so.99": (TRACER, [f"-Wl,--version-script={script}"]),
    }
    for soname, (text, options) in libraries.items():
        source = folder / f"{soname}.c"
        source.write_text(text)
        build(compiler, folder / soname, source, f"-Wl,-soname,{soname}", *options)
    source = tmp_path / "user.c"
    source.write_text(USER)
    target = tmp_path / "user.so"
    build(compiler, target, source, *(str(folder / soname) for soname in libraries))
    return target


def build(compiler: str, target: Path, source: Path, *options: str) -> None:
    command = [compiler, "-shared", "-fPIC", str(source), "-o", str(target), *options]
    subprocess.run(command, check=True)


def environ(tmp_path: Path, **more: str) -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "XDG_CACHE_HOME": str(tmp_path / "cache"), **more}


def test_what_a_library_needs(user: Path) -> None:
    needs = needs_of(user)

    assert needs is not None
    assert {"librocfft.so.99", "libroctracer64.so.99"} <= set(needs.libraries)
    assert ("rocfft_setup", "", "") in needs.symbols
    assert ("roctracer_start", "libroctracer64.so.99", "ROCTRACER_9.9") in needs.symbols
    assert "nothing_known" not in {name for name, _, _ in needs.symbols}


def test_what_is_no_library(tmp_path: Path) -> None:
    path = tmp_path / "text.so"
    path.write_text("nothing")

    assert needs_of(path) is None
    assert needs_of(Path(__file__)) is None


def test_what_is_damaged(user: Path, tmp_path: Path) -> None:
    whole, path = user.read_bytes(), tmp_path / "damaged.so"
    refused = 0
    for size in range(6, len(whole), 61):
        path.write_bytes(whole[:size])
        with pytest.raises(
            ConfigurationError, match=f"^'{path}' is not a complete library"
        ) as caught:
            needs_of(path)
        refused += 1

    assert refused > 100
    assert "reinstall the package" in str(caught.value.hint)
    with pytest.raises(ConfigurationError, match="is not a complete library"):
        build_stand_ins([path], environ(tmp_path))


def test_what_is_changed(user: Path, tmp_path: Path) -> None:
    whole, path = user.read_bytes(), tmp_path / "changed.so"
    places = random.Random(5)
    for _ in range(300):
        changed = bytearray(whole)
        for _ in range(20):
            # The headers of sections are the last bytes, that of the file the first.
            place = places.choice([places.randrange(6, 64), -places.randrange(1, 2000)])
            changed[place] = places.randrange(256)
        path.write_bytes(changed)
        with contextlib.suppress(ConfigurationError):
            needs_of(path)


def test_what_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"nowhere\.so' cannot be read: No such file"):
        build_stand_ins([tmp_path / "nowhere.so"], environ(tmp_path))


def test_a_folder_that_cannot_be_looked_into(user: Path, tmp_path: Path) -> None:
    given = environ(tmp_path, LD_LIBRARY_PATH="/" + "x" * 5000)

    assert build_stand_ins([user], given) is not None


def test_stand_ins_are_loaded_and_refuse(user: Path, tmp_path: Path) -> None:
    folder = build_stand_ins([user], environ(tmp_path))

    assert folder is not None
    code = f"import ctypes; use = ctypes.CDLL({str(user)!r}).use; print(use(), use())"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "LD_LIBRARY_PATH": str(folder)},
    )
    assert done.stdout == "99 99\n"
    assert done.stderr.splitlines() == [
        "crossmem: librocfft.so.99 stands in for ROCm, and has no rocfft_setup",
        "crossmem: libroctracer64.so.99 stands in for ROCm, and has no roctracer_start",
    ]
    assert build_stand_ins([user], environ(tmp_path, PATH="/nonsense")) == folder


@pytest.mark.parametrize("variable", ["LD_LIBRARY_PATH", "ROCM_PATH"])
def test_a_real_library_is_not_replaced(user: Path, tmp_path: Path, variable: str) -> None:
    rocm = tmp_path / "rocm"
    (rocm / "lib").mkdir(parents=True)
    (rocm / "lib" / "librocfft.so.99").symlink_to(tmp_path / "real" / "librocfft.so.99")
    given = {variable: str(rocm / "lib" if variable == "LD_LIBRARY_PATH" else rocm)}

    folder = build_stand_ins([user], environ(tmp_path, **given))

    assert folder is not None
    assert {path.name for path in folder.glob("*.99")} == {"libroctracer64.so.99"}


def test_nothing_to_do(tmp_path: Path) -> None:
    assert build_stand_ins([], environ(tmp_path)) is None
    assert not (tmp_path / "cache").exists()
