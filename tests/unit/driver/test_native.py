# SPDX-License-Identifier: Apache-2.0
"""Libraries are looked for in one order, and their functions get what C expects."""

import ctypes
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from crossmem.conformance.speed import SLOWNESS
from crossmem.driver.native import (
    Array,
    Fixed,
    Functions,
    In,
    LibraryNotFoundError,
    Out,
    Prototype,
    Struct,
    Value,
    candidates,
    open_library,
)

SOURCE = Path(__file__).with_name("native.c")
STEM = "libvendor.so"
NAMES = (f"{STEM}.2", STEM)
LOADED = """\
7f00-7f01 r-xp 00000000 08:01 1  /usr/lib/libc.so.6
7f02-7f03 r--p 00000000 08:01 2  /opt/the vendor/lib/libvendor.so.2.1
7f03-7f04 r-xp 00001000 08:01 2  /opt/the vendor/lib/libvendor.so.2.1
7f04-7f05 rw-p 00000000 00:00 0  [heap]
7f06-7f07 rw-p 00000000 00:00 0
"""
WAIT_S = int(20 * SLOWNESS)


class Handle(ctypes.Structure):
    _fields_ = (("bytes", ctypes.c_uint8 * 64),)


class Record(ctypes.Structure):
    _fields_ = (
        ("first", ctypes.c_int),
        ("second", ctypes.c_uint64),
        ("rest", ctypes.c_uint8 * 16),
    )


SUM = Out(ctypes.c_uint64)
PROTOTYPES = {
    "absent": Prototype("nobody_has_this"),
    "add": Prototype(
        "add",
        In(ctypes.c_void_p),
        In(ctypes.c_size_t),
        Fixed(ctypes.c_int, 1),
        Out(ctypes.c_void_p),
    ),
    "by value": Prototype(
        "by_value", Value(Handle), In(ctypes.c_uint), Out(Handle, bytes), Out(ctypes.c_uint)
    ),
    "fail": Prototype("fail", Out(ctypes.c_void_p)),
    "fields": Prototype("fields", Struct(Record, "second", "first"), SUM),
    "number": Prototype("number_of"),
    "open": Prototype("open_now"),
    "records": Prototype("records", Array(Record), SUM),
    "text": Prototype("text", In(ctypes.c_int), restype=ctypes.c_char_p),
    "wait": Prototype("wait_until_open", In(ctypes.c_int)),
}


@pytest.fixture(scope="module")
def library(compile_library: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_library(SOURCE, tmp_path_factory.mktemp("native") / "kinds.so", NUMBER=7)


@pytest.fixture
def functions(library: Path) -> Functions:
    return Functions(ctypes.CDLL(str(library)), PROTOTYPES)


# Search ---------------------------------------------------------------------------------------


def test_the_copy_that_is_loaded_comes_first() -> None:
    assert candidates(NAMES, ("/a", "/b/"), STEM, LOADED) == (
        "/opt/the vendor/lib/libvendor.so.2.1",
        "libvendor.so.2",
        "libvendor.so",
        "/a/libvendor.so.2",
        "/a/libvendor.so",
        "/b/libvendor.so.2",
        "/b/libvendor.so",
    )


def test_a_file_that_is_only_read_is_not_loaded() -> None:
    (line,) = (one for one in LOADED.splitlines() if " r--p " in one)

    assert candidates((), (), STEM, line) == ()


def test_nothing_is_tried_twice() -> None:
    assert candidates((STEM,), ("/a", "/a"), STEM, "") == (STEM, f"/a/{STEM}")


def test_a_library_that_is_not_there() -> None:
    with pytest.raises(LibraryNotFoundError) as raised:
        open_library(("libnowhere.so.2", "libnowhere.so"), ("/nowhere/lib",), "libnowhere.so")

    assert str(raised.value) == "no libnowhere.so can be loaded"
    assert raised.value.tried == (
        "libnowhere.so.2: not on the library search path",
        "libnowhere.so: not on the library search path",
        "/nowhere/lib/libnowhere.so.2: no such file",
        "/nowhere/lib/libnowhere.so: no such file",
    )
    assert raised.value.details.splitlines() == list(raised.value.tried)


def test_a_file_that_is_no_library(tmp_path: Path) -> None:
    (tmp_path / "libnothing.so").write_text("This is a text.")
    with pytest.raises(LibraryNotFoundError) as raised:
        open_library(("libnothing.so",), (str(tmp_path),), "libnothing.so")

    assert f"{tmp_path}/libnothing.so: file too short" in raised.value.tried


def test_a_library_that_lacks_another(compile_library: Callable[..., Path], tmp_path: Path) -> None:
    needed = compile_library(SOURCE, tmp_path / "libneeded.so", NUMBER=1)
    path = tmp_path / "libneedy.so"
    command = ["cc", "-shared", "-o", str(path), "-x", "c", "/dev/null", "-x", "none"]
    subprocess.run([*command, "-Wl,--no-as-needed", str(needed)], check=True)
    needed.unlink()
    with pytest.raises(LibraryNotFoundError) as raised:
        open_library(("libneedy.so",), (str(tmp_path),), "libneedy.so")

    # It is there, so the message must not say that it is not.
    assert f"{path}: " in raised.value.details
    assert "libneeded.so: cannot open" in raised.value.details


def test_a_loaded_copy_is_opened_again(
    compile_library: Callable[..., Path], tmp_path: Path
) -> None:
    folders = []
    for number in (1, 2):
        folder = tmp_path / str(number)
        folder.mkdir()
        compile_library(SOURCE, folder / "libcopies.so.1", NUMBER=number)
        folders.append(str(folder))
    first = open_library(("libcopies.so.1",), folders, "libcopies.so")
    again = open_library(("libcopies.so.1",), folders[::-1], "libcopies.so")

    assert Functions(first, PROTOTYPES).call("number") == (1,)
    assert Functions(again, PROTOTYPES).call("number") == (1,)


# Calls ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("pointer", [1, 0x8000_0001, 0x8000_0000_0001, 0xFFFF_FFFF_0000_0001])
def test_addresses_have_64_bits(pointer: int, functions: Functions) -> None:
    assert functions.call("add", pointer, 0x10) == (pointer + 0xF, 0)


def test_address_0_is_a_number(functions: Functions) -> None:
    assert functions.call("add", None, 1) == (0, 0)


def test_a_structure_by_value(functions: Functions) -> None:
    handle = bytes(range(192, 256))

    assert functions.call("by value", handle, 0xFFFF_FFFF) == (handle[::-1], 0xFFFF_FFFF, 0)


def test_a_structure_by_address(functions: Functions) -> None:
    assert functions.call("fields", 1 << 40, 5) == ((1 << 40) + 5, 0)


def test_a_sequence(functions: Functions) -> None:
    assert functions.call("records", [(2, 1 << 33), (3, 5)]) == ((1 << 34) + 15, 0)
    assert functions.call("records", []) == (0, 0)


def test_a_code_comes_last(functions: Functions) -> None:
    assert functions.call("fail") == (1, 207000)


def test_a_text(functions: Functions) -> None:
    assert functions.call("text", 1) == ("café".encode(),)
    assert functions.call("text", 0) == (None,)


def test_what_the_library_does_not_export(functions: Functions) -> None:
    assert "add" in functions
    assert "absent" not in functions
    assert "unknown" not in functions


@pytest.mark.parametrize("arguments", [(), (1,), (1, 2, 3)])
def test_the_number_of_arguments(arguments: tuple[int, ...], functions: Functions) -> None:
    with pytest.raises(TypeError, match=f"add takes 2 arguments, not {len(arguments)}"):
        functions.call("add", *arguments)


def test_two_prototypes_of_one_function(library: Path) -> None:
    prototypes = {
        "whole": Prototype("add", *PROTOTYPES["add"].parameters[:-1], Out(ctypes.c_uint64)),
        "bytes": Prototype(
            "add", *PROTOTYPES["add"].parameters[:-1], Out(ctypes.c_char * 8, bytes)
        ),
    }
    functions = Functions(ctypes.CDLL(str(library)), prototypes)

    assert functions.call("whole", 1, 2) == (2, 0)
    assert functions.call("bytes", 1, 2) == ((2).to_bytes(8, "little"), 0)
    assert functions.call("whole", 1, 2) == (2, 0)


def test_other_threads_run_meanwhile(functions: Functions) -> None:
    thread = threading.Timer(0.05, functions.call, ("open",))
    thread.start()
    waited = functions.call("wait", WAIT_S)
    thread.join()

    assert waited == (0,)
