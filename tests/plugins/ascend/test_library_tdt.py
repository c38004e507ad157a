# SPDX-License-Identifier: Apache-2.0
"""The library's functions for queues and buffers through ctypes."""

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from crossmem_ascend.library import LibraryAcl
from crossmem_ascend.prototypes import TDT
from crossmem_ascend.queues import NEEDS

SOURCE = Path(__file__).with_name("vendor_tdt.c")
POINTER = 0x00FF_8123_4567_8000
P = f"{POINTER:#x}"
SIZE = 1 << 33
USER = ctypes.create_string_buffer(b"user", 96)
AT = ctypes.addressof(USER)
DEPTH = ctypes.c_uint32(9)

# Every function: its name, what it is called with, what C gets, and what it gives.
FUNCTIONS: list[tuple[str, tuple[Any, ...], str, Any]] = [
    ("alloc_buf", (SIZE, 1), f"acltdtAllocBuf {SIZE} 1", (POINTER, 0)),
    ("attach_queue", (4000, -1), "acltdtAttachQueue 4000 -1", (7, 0)),
    ("create_queue", (POINTER,), f"acltdtCreateQueue {P}", (4000, 0)),
    ("create_queue_attr", (), "acltdtCreateQueueAttr", POINTER),
    ("dequeue", (4000, -1), "acltdtDequeue 4000 -1", (POINTER, 0)),
    ("destroy_queue", (4000,), "acltdtDestroyQueue 4000", 0),
    ("destroy_queue_attr", (POINTER,), f"acltdtDestroyQueueAttr {P}", 0),
    ("enqueue", (4000, POINTER, 25), f"acltdtEnqueue 4000 {P} 25", 0),
    ("free_buf", (POINTER,), f"acltdtFreeBuf {P}", 0),
    ("get_buf_data", (POINTER,), f"acltdtGetBufData {P}", (POINTER + 64, SIZE, 0)),
    ("get_buf_data_len", (POINTER,), f"acltdtGetBufDataLen {P}", (SIZE, 0)),
    ("get_buf_user_data", (POINTER, AT, 0, 3), f"acltdtGetBufUserData {P} 0 3", 0),
    ("grant_queue", (4000, 1 << 30, 6, 0), f"acltdtGrantQueue 4000 {1 << 30} 6 0", 0),
    ("set_buf_data_len", (POINTER, SIZE), f"acltdtSetBufDataLen {P} {SIZE}", 0),
    ("set_buf_user_data", (POINTER, AT, 96, 0), f"acltdtSetBufUserData {P} user 96 0", 0),
    (
        "set_queue_attr",
        (POINTER, 1, 4, ctypes.addressof(DEPTH)),
        f"acltdtSetQueueAttr {P} 1 4 9",
        0,
    ),
]


@pytest.fixture(scope="module")
def library(
    compile_library: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory
) -> ctypes.CDLL:
    path = tmp_path_factory.mktemp("vendor") / "vendor_tdt.so"
    library = ctypes.CDLL(
        str(compile_library(SOURCE, path, EDITION=2, SOC='"Ascend310B1"', MESSAGE='""'))
    )
    library.vendor_record.restype = ctypes.c_char_p
    return library


@pytest.mark.parametrize(("name", "given", "wanted", "answer"), FUNCTIONS)
def test_a_function(
    library: ctypes.CDLL, name: str, given: tuple[Any, ...], wanted: str, answer: Any
) -> None:
    library.vendor_reset()
    found = getattr(LibraryAcl(library).tdt, name)(*given)

    assert library.vendor_record().decode().strip() == wanted
    assert found == answer


def test_all_that_the_mechanism_needs_is_there_and_tested() -> None:
    assert sorted(NEEDS) == sorted(TDT) == [name for name, *_ in FUNCTIONS]


def test_a_library_without_the_functions_has_none(
    compile_library: Callable[..., Path], tmp_path: Path
) -> None:
    path = compile_library(
        SOURCE.with_name("vendor.c"), tmp_path / "old.so", EDITION=1, SOC="0", MESSAGE="0"
    )
    tdt = LibraryAcl(ctypes.CDLL(str(path))).tdt

    assert not any(hasattr(tdt, name) for name in TDT)
