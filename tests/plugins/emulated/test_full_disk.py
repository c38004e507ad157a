# SPDX-License-Identifier: Apache-2.0
"""Transactions of an emulated host that cannot be written down: nothing comes of them."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

Run = Callable[..., subprocess.CompletedProcess[str]]

START = """
import contextlib, sqlite3
from pathlib import Path
from crossmem_emulated.machine import Machine
from crossmem_emulated.pages import PageStore

UNIT = memory.PAGE_NBYTES
machine = Machine(Path(sys.argv[1]), "")
store = PageStore(machine, 4 * UNIT)

def held():
    return descriptors(), mappings()

@contextlib.contextmanager
def full_disk():
    # Enough for the memory, not for what a transaction writes down when it ends.
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    resource.setrlimit(resource.RLIMIT_FSIZE, (2 * UNIT, hard))
    try:
        yield
    except sqlite3.OperationalError as error:
        assert error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_IOERR, error
    else:
        raise AssertionError("the disk is not full")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
"""

ALLOCATE = """
with machine.transaction():
    pass
before = held()
with full_disk():
    store.allocate(0, UNIT, is_labelled=sys.argv[2] == "labelled")
assert held() == before, (held(), before)

# This process had entered itself in what was lost.
store.release(store.allocate(0, UNIT))
assert (held(), store.used_nbytes(0)) == (before, 0)
"""

OPEN = """
pages = store.allocate(0, UNIT)
before = held()
with full_disk():
    with machine.transaction() if sys.argv[2] == "inside" else contextlib.nullcontext():
        store.open(pages.number, hold=True)
assert held() == before, (held(), before)

# Whoever gives it up before the transaction ends does so once.
with full_disk(), machine.transaction():
    opened = store.open(pages.number, hold=True)
    store.release(opened)
    again = memory.map_shared(pages.descriptor, UNIT, memory.READ_WRITE, is_inherited=False)
    store.allocate(0, UNIT)
assert held() == (before[0], before[1] + 1), (held(), before)
memory.fill(again, UNIT, 7)
"""


@pytest.mark.parametrize("kind", ["plain", "labelled"])
def test_memory_that_cannot_be_entered_is_not_kept(run: Run, tmp_path: Path, kind: str) -> None:
    ended = run(START + ALLOCATE, tmp_path, kind)

    assert ended.returncode == 0, ended.stderr


@pytest.mark.parametrize("place", ["alone", "inside"])
def test_memory_that_cannot_be_held_is_not_left_open(run: Run, tmp_path: Path, place: str) -> None:
    ended = run(START + OPEN, tmp_path, place)

    assert ended.returncode == 0, ended.stderr
