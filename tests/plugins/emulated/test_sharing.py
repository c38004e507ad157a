# SPDX-License-Identifier: Apache-2.0
"""Exports, imports, mappings, and what of them the kernel enforces."""

import ctypes
import errno
import fcntl
import mmap
import os
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from crossmem.conformance.speed import SLOWNESS
from crossmem.driver import Block, Exported, Imported
from crossmem.errors import DriverError, InvalidHandleError
from crossmem.models import Access
from crossmem_emulated import memory
from crossmem_emulated.driver import EmulatedDriver

Import = Callable[[EmulatedDriver, Block, Exported, Access], Imported]
Run = Callable[..., subprocess.CompletedProcess[str]]
PAGE = os.sysconf("SC_PAGE_SIZE")
SIZE_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW


def text_at(pointer: int, nbytes: int) -> bytes:
    return ctypes.string_at(pointer, nbytes)


def put(pointer: int, data: bytes) -> None:
    ctypes.memmove(pointer, data, len(data))


def test_an_export_is_the_descriptor_of_the_block(driver: EmulatedDriver, block: Block) -> None:
    exported = driver.export(block, "memfd", "rw", raw=False)

    assert exported == Exported((), (block.reference,))
    driver.release_export(block, exported)
    # The descriptor is still the block's own.
    os.fstat(block.reference)


@pytest.mark.parametrize("remappable", [False, True])
def test_both_sides_see_what_either_writes(
    driver: EmulatedDriver,
    block: Block,
    import_block: Import,
    footprint: Callable[[], object],
    remappable: bool,
) -> None:
    exported = driver.export(block, "memfd", "rw", raw=False)
    before = footprint()
    imported = import_block(driver, block, exported, "rw")
    assert (imported.capacity, imported.access, imported.ordinal) == (block.capacity, "rw", 0)
    mapped = driver.map(imported, remappable=remappable)
    pointer = mapped.pointer
    put(block.pointer, b"from the exporter")
    assert text_at(pointer, 17) == b"from the exporter"
    put(pointer, b"from the importer")
    assert text_at(block.pointer, 17) == b"from the importer"

    driver.unmap(mapped)
    driver.close(imported)

    assert footprint() == before
    assert text_at(block.pointer, 17) == b"from the importer"


def test_a_mapping_that_is_not_repeated_holds_no_descriptor(
    driver: EmulatedDriver, block: Block, import_block: Import
) -> None:
    exported = driver.export(block, "memfd", "rw", raw=False)
    imported = import_block(driver, block, exported, "rw")
    descriptor = imported.reference
    mapped = driver.map(imported, remappable=False)
    pointer = mapped.pointer

    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)
    put(pointer, b"still there")
    assert text_at(block.pointer, 11) == b"still there"
    driver.unmap(mapped)
    driver.close(imported)


def test_an_import_can_be_mapped_again(
    driver: EmulatedDriver, block: Block, import_block: Import
) -> None:
    exported = driver.export(block, "memfd", "rw", raw=False)
    imported = import_block(driver, block, exported, "rw")
    for round_ in range(3):
        mapped = driver.map(imported, remappable=True)
        pointer = mapped.pointer
        put(pointer, bytes([round_]))
        driver.unmap(mapped)
        assert text_at(block.pointer, 1) == bytes([round_])
    driver.close(imported)
    driver.close(imported)


def test_memory_can_be_mapped_for_another_device(
    driver: EmulatedDriver, block: Block, sent: Callable[[Exported], Exported]
) -> None:
    exported = sent(driver.export(block, "memfd", "rw", raw=False))
    imported = driver.import_(
        1,
        exported,
        home=0,
        mechanism="memfd",
        nbytes=block.nbytes,
        capacity=block.capacity,
        access="rw",
    )
    mapped = driver.map(imported, remappable=False)
    pointer = mapped.pointer
    put(pointer, b"x")

    assert imported.ordinal == 1
    assert text_at(block.pointer, 1) == b"x"
    driver.unmap(mapped)


def test_imports_keep_memory_that_the_exporter_freed(
    driver: EmulatedDriver, import_block: Import
) -> None:
    block = driver.allocate(0, 100, "memfd")
    put(block.pointer, b"kept")
    imported = import_block(driver, block, driver.export(block, "memfd", "rw", raw=False), "rw")
    driver.free(block)
    mapped = driver.map(imported, remappable=False)
    pointer = mapped.pointer

    assert text_at(pointer, 4) == b"kept"
    driver.unmap(mapped)


# Read-only memory: every way to write is tried, in a process that may die of it.


def readonly_pointers(
    driver: EmulatedDriver, block: Block, import_block: Import
) -> dict[str, Callable[[], tuple[int, Callable[[], None]]]]:
    def of_import(access: Access) -> tuple[int, Callable[[], None]]:
        exported = driver.export(block, "memfd", access, raw=False)
        imported = import_block(driver, block, exported, "ro")
        mapped = driver.map(imported, remappable=False)
        pointer = mapped.pointer

        def give_back() -> None:
            driver.unmap(mapped)
            driver.release_export(block, exported)

        return pointer, give_back

    def of_alias() -> tuple[int, Callable[[], None]]:
        mapped = driver.map_readonly(block)
        pointer = mapped.pointer
        return pointer, lambda: driver.unmap_readonly(mapped)

    return {
        "read-only export": lambda: of_import("ro"),
        "read-only import": lambda: of_import("rw"),
        "alias": of_alias,
    }


@pytest.mark.parametrize("kind", ["read-only export", "read-only import", "alias"])
def test_readonly_mappings_follow_the_memory_and_leave_nothing(
    driver: EmulatedDriver,
    block: Block,
    import_block: Import,
    footprint: Callable[[], object],
    kind: str,
) -> None:
    before = footprint()
    pointer, give_back = readonly_pointers(driver, block, import_block)[kind]()
    put(block.pointer, b"new")

    assert text_at(pointer, 3) == b"new"
    (line,) = (
        line
        for line in Path("/proc/self/maps").read_text("ascii").splitlines()
        if line.startswith(f"{pointer:x}-")
    )
    assert line.split()[1] == "r--s"
    give_back()
    assert footprint() == before


WRITE_THROUGH = """
import ctypes
how, descriptor, capacity = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
driver = EmulatedDriver(Options())
exported = Exported((), (descriptor,))
imported = driver.import_(
    0, exported, home=0, mechanism="memfd", nbytes=capacity, capacity=capacity, access="ro"
)
mapped = driver.map(imported, remappable=True)
pointer = mapped.pointer
assert ctypes.string_at(pointer, 6) == b"secret"
if how == "mprotect":
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mprotect.argtypes = (ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int)
    assert libc.mprotect(pointer, capacity, 3) == -1
    assert ctypes.get_errno() == errno.EACCES
    sys.exit(0)
ctypes.memset(pointer, 0, 1)
"""


@pytest.mark.parametrize("access", ["ro", "rw"])
def test_a_write_through_a_readonly_import_kills_the_writer_alone(
    driver: EmulatedDriver, block: Block, run: Run, access: Access
) -> None:
    put(block.pointer, b"secret")
    exported = driver.export(block, "memfd", access, raw=False)
    (descriptor,) = exported.descriptors
    ended = run(WRITE_THROUGH, "write", descriptor, block.capacity, pass_fds=(descriptor,))
    driver.release_export(block, exported)

    assert ended.returncode == -signal.SIGSEGV, ended.stderr
    assert text_at(block.pointer, 6) == b"secret"


def test_a_readonly_export_cannot_be_made_writable_by_mprotect(
    driver: EmulatedDriver, block: Block, run: Run
) -> None:
    put(block.pointer, b"secret")
    exported = driver.export(block, "memfd", "ro", raw=False)
    (descriptor,) = exported.descriptors
    ended = run(WRITE_THROUGH, "mprotect", descriptor, block.capacity, pass_fds=(descriptor,))
    driver.release_export(block, exported)

    assert ended.returncode == 0, ended.stderr


def test_the_kernel_refuses_every_write_through_a_readonly_descriptor(
    driver: EmulatedDriver, block: Block
) -> None:
    exported = driver.export(block, "memfd", "ro", raw=False)
    (descriptor,) = exported.descriptors

    with pytest.raises(PermissionError) as caught:
        mmap.mmap(descriptor, block.capacity, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
    assert caught.value.errno == errno.EACCES
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.write(descriptor, b"x")
    with pytest.raises(OSError, match="Invalid argument"):
        os.ftruncate(descriptor, 0)
    assert not os.get_inheritable(descriptor)
    driver.release_export(block, exported)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)


def test_other_users_cannot_reopen_a_readonly_export_for_writing(
    driver: EmulatedDriver, block: Block
) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can start a process of another user")

    def reopen(descriptor: int) -> int:
        return subprocess.run(
            ["/bin/sh", "-c", f"exec 9<>/proc/self/fd/{descriptor}"],
            check=False,
            timeout=60 * SLOWNESS,
            user=65534,
            group=65534,
            extra_groups=(),
            pass_fds=(descriptor,),
            stderr=subprocess.DEVNULL,
        ).returncode

    # Without the export they can, which shows that the test would notice.
    assert reopen(block.reference) == 0
    exported = driver.export(block, "memfd", "ro", raw=False)
    assert reopen(exported.descriptors[0]) != 0
    assert reopen(block.reference) != 0
    driver.release_export(block, exported)


def test_a_writable_export_still_works_after_a_readonly_one(
    driver: EmulatedDriver, block: Block, import_block: Import
) -> None:
    readonly = driver.export(block, "memfd", "ro", raw=False)
    imported = import_block(driver, block, driver.export(block, "memfd", "rw", raw=False), "rw")
    mapped = driver.map(imported, remappable=False)
    pointer = mapped.pointer
    put(pointer, b"written")

    assert text_at(block.pointer, 7) == b"written"
    driver.unmap(mapped)
    driver.release_export(block, readonly)


def test_writing_to_a_readonly_export_is_refused_with_a_hint(
    driver: EmulatedDriver, block: Block, import_block: Import, footprint: Callable[[], object]
) -> None:
    exported = driver.export(block, "memfd", "ro", raw=False)
    imported = import_block(driver, block, exported, "rw")
    before = footprint()
    with pytest.raises(DriverError, match="attach with readonly=True") as caught:
        driver.map(imported, remappable=False)

    assert (caught.value.call, caught.value.name) == ("mmap", "EACCES")
    assert footprint() == before
    driver.close(imported)
    driver.release_export(block, exported)


# What is not sealed memory of the size that the exporter says is not mapped.


def memfd(nbytes: int, seals: int) -> int:
    descriptor = os.memfd_create("crossmem", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, nbytes)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
    return descriptor


def half(pair: tuple[int, int]) -> int:
    os.close(pair[1])
    return pair[0]


def file_in(folder: str) -> int:
    descriptor = os.open(folder, os.O_TMPFILE | os.O_RDWR)
    os.ftruncate(descriptor, PAGE)
    return descriptor


FOREIGN: dict[str, Callable[[], int]] = {
    "pipe": lambda: half(os.pipe()),
    "socket": lambda: socket.socket(socket.AF_UNIX, socket.SOCK_STREAM).detach(),
    "/dev/zero": lambda: os.open("/dev/zero", os.O_RDWR),
    "folder": lambda: os.open("/", os.O_RDONLY),
    "file": lambda: file_in("/tmp"),
    "file in tmpfs": lambda: file_in("/dev/shm"),
    "eventfd": lambda: os.eventfd(0),
    "path only": lambda: os.open("/dev/zero", os.O_PATH),
    "unsealed": lambda: memfd(PAGE, 0),
    "may shrink": lambda: memfd(PAGE, fcntl.F_SEAL_GROW),
    "may grow": lambda: memfd(PAGE, fcntl.F_SEAL_SHRINK),
    "too small": lambda: memfd(PAGE - 1, SIZE_SEALS),
    "too large": lambda: memfd(2 * PAGE, SIZE_SEALS),
    "empty": lambda: memfd(0, SIZE_SEALS),
}


@pytest.fixture(params=FOREIGN)
def foreign(request: pytest.FixtureRequest) -> Iterator[int]:
    try:
        descriptor = FOREIGN[request.param]()
    except OSError as error:
        pytest.skip(f"{request.param} cannot be made here: {error}")
    yield descriptor
    os.close(descriptor)


def test_only_sealed_memory_of_the_right_size_is_imported(
    driver: EmulatedDriver, foreign: int, footprint: Callable[[], object]
) -> None:
    before = footprint()
    with pytest.raises(InvalidHandleError):
        driver.import_(
            0,
            Exported((), (foreign,)),
            home=0,
            mechanism="memfd",
            nbytes=100,
            capacity=PAGE,
            access="rw",
        )

    # Core closes what a failed import was given, so it must still be open.
    os.fstat(foreign)
    assert footprint() == before


def test_a_closed_descriptor_is_refused(driver: EmulatedDriver) -> None:
    with pytest.raises(InvalidHandleError):
        driver.import_(
            0,
            Exported((), (1 << 20,)),
            home=0,
            mechanism="memfd",
            nbytes=1,
            capacity=PAGE,
            access="rw",
        )


@pytest.mark.parametrize("nbytes", [0, -1, PAGE + 1])
def test_sizes_that_contradict_each_other_are_refused(driver: EmulatedDriver, nbytes: int) -> None:
    descriptor = memfd(PAGE, SIZE_SEALS)
    with pytest.raises(InvalidHandleError, match="the sizes do not fit"):
        driver.import_(
            0,
            Exported((), (descriptor,)),
            home=0,
            mechanism="memfd",
            nbytes=nbytes,
            capacity=PAGE,
            access="rw",
        )
    os.close(descriptor)


def test_an_import_is_one_descriptor_and_no_bytes(driver: EmulatedDriver) -> None:
    descriptor = memfd(PAGE, SIZE_SEALS)
    for exported in (
        Exported(),
        Exported((b"x",), (descriptor,)),
        Exported((), (descriptor, descriptor)),
    ):
        with pytest.raises(InvalidHandleError, match="one descriptor and no payload, "):
            driver.import_(
                0, exported, home=0, mechanism="memfd", nbytes=1, capacity=PAGE, access="rw"
            )
    os.close(descriptor)


def test_the_sealed_size_is_what_counts(block: Block) -> None:
    assert memory.sealed_nbytes(block.reference) == block.capacity
