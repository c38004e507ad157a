# SPDX-License-Identifier: Apache-2.0
"""Address ranges as the driver makes them: addresses of the kernel's that belong to nobody."""

import ctypes
import errno
import mmap
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from crossmem.driver import Block, Exported, Imported, Mapped
from crossmem.errors import DriverError, OutOfMemoryError
from crossmem.models import Access
from crossmem_emulated import memory
from crossmem_emulated.driver import EmulatedDriver

Import = Callable[[EmulatedDriver, Block, Exported, Access], Imported]
Run = Callable[..., subprocess.CompletedProcess[str]]

UNIT = 2 << 20


def permissions(pointer: int) -> str:
    """Return what the kernel lets this process do at an address."""
    for line in Path("/proc/self/maps").read_text("utf-8").splitlines():
        addresses, allowed = line.split()[:2]
        first, last = (int(one, 16) for one in addresses.split("-"))
        if first <= pointer < last:
            return allowed
    return ""


@pytest.fixture
def pointer(driver: EmulatedDriver) -> Iterator[int]:
    reserved = driver.reserve(0, 4 * UNIT)
    pointer = reserved.pointer
    yield pointer
    driver.release(reserved)
    assert permissions(pointer) == ""


def test_reserved_addresses_are_whole_units_without_memory(pointer: int) -> None:
    assert pointer % UNIT == 0
    assert {permissions(pointer + offset) for offset in (0, 4 * UNIT - 1)} == {"---p"}


def test_nobody_else_gets_reserved_addresses(pointer: int) -> None:
    # The kernel fills gaps from the top: it would take these first if it could.
    maps = [mmap.mmap(-1, UNIT) for _ in range(8)]

    assert permissions(pointer) == permissions(pointer + 3 * UNIT) == "---p"

    for one in maps:
        one.close()


def test_a_block_is_mapped_beside_its_own_mapping(
    driver: EmulatedDriver, block: Block, pointer: int
) -> None:
    driver.map_at(block, pointer + UNIT)
    memory.fill(block.pointer, 10, 7)

    assert permissions(pointer + UNIT) == "rw-s"
    assert permissions(pointer) == permissions(pointer + 2 * UNIT) == "---p"

    memory.copy(pointer + UNIT + 10, pointer + UNIT, 10)
    memory.copy(block.pointer + 20, block.pointer + 10, 10)
    driver.unmap_at(Mapped(block, pointer + UNIT))

    assert permissions(pointer + UNIT) == "---p"


@pytest.mark.parametrize("access", ["rw", "ro"])
@pytest.mark.parametrize("remappable", [None, True, False])
def test_an_import_is_mapped_whatever_else_it_is(
    driver: EmulatedDriver,
    block: Block,
    import_block: Import,
    footprint: Callable[[], object],
    pointer: int,
    access: Access,
    *,
    remappable: bool | None,
) -> None:
    before = footprint()
    exported = driver.export(block, "memfd", "rw", raw=False)
    imported = import_block(driver, block, exported, access)
    mapped = None if remappable is None else driver.map(imported, remappable=remappable)
    for _ in range(2):
        driver.map_at(imported, pointer)
        memory.fill(block.pointer, 1, 9)
        memory.copy(block.pointer + 1, pointer, 1)

        assert permissions(pointer) == ("rw-s" if access == "rw" else "r--s")

        driver.unmap_at(Mapped(imported, pointer))
    if mapped is not None:
        # The other mapping is not moved and not taken away.
        assert permissions(mapped.pointer) == ("rw-s" if access == "rw" else "r--s")

        driver.unmap(mapped)
    driver.close(imported)

    assert footprint() == before


def test_a_piece_outlives_the_other_mapping_and_the_descriptor(
    driver: EmulatedDriver, block: Block, import_block: Import, pointer: int
) -> None:
    exported = driver.export(block, "memfd", "rw", raw=False)
    imported = import_block(driver, block, exported, "rw")
    mapped = driver.map(imported, remappable=False)
    driver.map_at(imported, pointer)
    driver.unmap(mapped)
    memory.fill(pointer, 1, 3)
    driver.unmap_at(Mapped(imported, pointer))
    driver.close(imported)


def test_more_than_there_are_addresses(driver: EmulatedDriver) -> None:
    with pytest.raises(OutOfMemoryError, match="mmap"):
        driver.reserve(0, 1 << 47)


def test_a_piece_that_a_fork_would_copy_is_not_left(
    block: Block,
    pointer: int,
    monkeypatch: pytest.MonkeyPatch,
    footprint: Callable[[], object],
) -> None:
    before = footprint()
    madvise, calls = memory._madvise, iter([errno.EINVAL])

    def refuse_once(*arguments: int) -> int:
        code = next(calls, 0)
        ctypes.set_errno(code)
        return -1 if code else int(madvise(*arguments))

    with monkeypatch.context() as patch:
        patch.setattr(memory, "_madvise", refuse_once)
        with pytest.raises(memory.SystemCallError) as caught:
            memory.map_shared(
                block.reference,
                block.capacity,
                memory.READ_WRITE,
                is_inherited=False,
                at=pointer,
            )
        assert caught.value.call == "madvise(MADV_DONTFORK)"

    assert footprint() == before
    assert permissions(pointer) == "---p"


@pytest.mark.parametrize("call", ["reserve", "release", "unmap_at"])
def test_what_the_kernel_refuses_is_told(
    driver: EmulatedDriver, block: Block, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    def refuse(*_: object, **__: object) -> int:
        raise memory.SystemCallError("mmap", errno.EPERM)

    def munmap(*_: object) -> int:
        ctypes.set_errno(errno.EPERM)
        return -1

    reserved = driver.reserve(0, UNIT)
    monkeypatch.setattr(memory, "munmap", munmap)
    for name in ("reserve", "cover"):
        monkeypatch.setattr(memory, name, refuse)
    calls: dict[str, Callable[[], object]] = {
        "reserve": lambda: driver.reserve(0, UNIT),
        "release": lambda: driver.release(reserved),
        "unmap_at": lambda: driver.unmap_at(Mapped(block, reserved.pointer)),
    }
    with pytest.raises(DriverError) as caught:
        calls[call]()

    failed = "munmap" if call == "release" else "mmap"
    assert (caught.value.call, caught.value.name) == (failed, "EPERM")
    monkeypatch.undo()
    driver.release(reserved)


FULL = """
PAGE = os.sysconf("SC_PAGE_SIZE")
driver = EmulatedDriver(Options(granularity="page"))
block, other = driver.allocate(0, PAGE, "memfd"), driver.allocate(0, PAGE, "memfd")
exported = driver.export(block, "memfd", "rw", raw=False)
received = Exported((), (os.dup(block.reference),))
imported = driver.import_(0, received, home=0, mechanism="memfd", nbytes=PAGE, capacity=PAGE,
                          access="rw")
if sys.argv[1] == "kept":
    driver.map(imported, remappable=False)
reserved = driver.reserve(0, 8 * PAGE)
pointer = reserved.pointer
piece = driver.map_at(other, pointer)

def lines():
    with open("/proc/self/maps") as file:
        return [line.split()[:2] for line in file
                if pointer <= int(line.split("-")[0], 16) < pointer + 8 * PAGE]

# Fill up the number of mappings that a process may have.
while True:
    try:
        last = memory.map_shared(block.reference, PAGE, memory.READ, is_inherited=True)
        memory.map_shared(block.reference, PAGE, memory.READ_WRITE, is_inherited=True)
    except OSError:
        break
before = lines()
for _ in range(3):
    try:
        driver.map_at(imported, pointer + 4 * PAGE)
    except OutOfMemoryError as error:
        assert "max_map_count" in error.hint
    else:
        sys.exit("there was room")
assert lines() == before, (lines(), before)
# The kernel wants room even where it only replaces; a piece it refuses to take away stays.
try:
    driver.unmap_at(piece)
except OutOfMemoryError:
    assert lines() == before
memory.unmap(last, PAGE)
driver.unmap_at(piece)
driver.release(reserved)
"""


@pytest.mark.parametrize("how", ["open", "kept"])
def test_a_full_table_of_mappings_leaves_the_range_whole(run: Run, how: str) -> None:
    if int(Path("/proc/sys/vm/max_map_count").read_text("ascii")) > 1 << 20:
        pytest.skip("this kernel allows too many mappings to fill the table")
    ended = run(FULL, how)

    assert ended.returncode == 0, ended.stderr


FORKED = """
import ctypes
import warnings
warnings.simplefilter("ignore", DeprecationWarning)
driver = EmulatedDriver(Options())
block = driver.allocate(0, 1, "memfd")
reserved = driver.reserve(0, 8 << 20)
pointer = reserved.pointer
driver.map_at(block, pointer)
driver.unmap_at(driver.map_at(block, pointer + (4 << 20)))
memory.fill(pointer, 1, 1)

def inside():
    with open("/proc/self/maps") as file:
        starts = [int(line.split("-")[0], 16) for line in file]
    return [start for start in starts if pointer <= start < pointer + (8 << 20)]

child = os.fork()
if not child:
    found = inside()
    memory.fill(pointer + 1, 1, 2)
    os._exit(found != [pointer])
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert ctypes.string_at(pointer, 2) == b"\\1\\2"
"""


def test_a_child_has_the_pieces_of_a_range_and_nothing_in_between(run: Run) -> None:
    ended = run(FORKED, fresh=True)

    assert ended.returncode == 0, ended.stderr


TOUCH = """
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
driver = EmulatedDriver(Options())
block = driver.allocate(0, 1, "memfd")
reserved = driver.reserve(0, 4 << 20)
pointer = reserved.pointer
piece = driver.map_at(block, pointer)
memory.fill(pointer, 2 << 20, 1)
if sys.argv[1] == "unmapped":
    driver.unmap_at(piece)
memory.fill(pointer + int(sys.argv[2]), 1, 1)
"""


@pytest.mark.parametrize(("state", "offset"), [("mapped", 2 << 20), ("unmapped", 0)])
def test_addresses_without_memory_cannot_be_touched(run: Run, state: str, offset: int) -> None:
    assert run(TOUCH, state, offset).returncode == -11
    assert run(TOUCH, "mapped", 0).returncode == os.EX_OK
