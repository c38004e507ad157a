# SPDX-License-Identifier: Apache-2.0
"""Every step that can fail, failing: nothing is left of what came before it."""

import ctypes
import errno
import os
import pickle
import subprocess
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from crossmem.driver import Block, Exported, Imported
from crossmem.errors import CrossmemError, DriverError, OutOfMemoryError
from crossmem.models import Access
from crossmem_emulated import memfd, memory
from crossmem_emulated.driver import EmulatedDriver
from crossmem_emulated.options import Options

Import = Callable[[EmulatedDriver, Block, Exported, Access], Imported]
Free = Callable[[EmulatedDriver, int], int]
Run = Callable[..., subprocess.CompletedProcess[str]]
UNIT = 2 << 20
POPULATE_WRITE = 23


def fail_call(
    monkeypatch: pytest.MonkeyPatch, name: str, code: int, *, advice: int | None = None
) -> None:
    """Make a system call of the module fail, or only one kind of madvise."""
    original = getattr(memory, name)

    def libc_function(*arguments: Any) -> int:
        if advice is not None and arguments[2] != advice:
            return int(original(*arguments))
        ctypes.set_errno(code)
        return -1

    def python_function(*_: Any) -> int:
        raise OSError(code, os.strerror(code))

    is_libc = name.startswith("_") or name == "munmap"
    replacement = libc_function if is_libc else python_function
    monkeypatch.setattr(memory, name, replacement)


STEPS = {
    "memfd_create": ("memfd_create", None),
    "ftruncate": ("ftruncate", None),
    "fcntl(F_ADD_SEALS)": ("fcntl", None),
    "mmap": ("_mmap", None),
    "madvise(MADV_POPULATE_WRITE)": ("_madvise", POPULATE_WRITE),
}


@pytest.mark.parametrize("call", STEPS)
@pytest.mark.parametrize(
    "code", [errno.ENOMEM, errno.ENOSPC, errno.EPERM, errno.EMFILE, errno.EINVAL]
)
def test_a_failed_step_of_allocate_leaves_nothing(
    call: str,
    code: int,
    monkeypatch: pytest.MonkeyPatch,
    footprint: Callable[[], object],
    free_nbytes: Free,
) -> None:
    no_room = code in {errno.ENOMEM, errno.ENOSPC}
    expected: type[CrossmemError] = OutOfMemoryError if no_room else DriverError
    driver = EmulatedDriver(Options(prefault=True, capacity_nbytes=UNIT))
    before = footprint()
    name, advice = STEPS[call]
    with monkeypatch.context() as patch:
        fail_call(patch, name, code, advice=advice)
        with pytest.raises(expected) as caught:
            driver.allocate(0, 1, "memfd")

    assert footprint() == before
    assert free_nbytes(driver, 0) == UNIT
    assert (caught.value.backend, caught.value.device) == ("emulated", "host:0")
    assert call in str(caught.value)
    assert errno.errorcode[code] in str(caught.value)
    if isinstance(caught.value, DriverError):
        assert (caught.value.call, caught.value.code) == (call, code)
        assert caught.value.name == errno.errorcode[code]
    # The device works as if nothing had been.
    driver.free(driver.allocate(0, 1, "memfd"))


@pytest.mark.parametrize("step", ["ftruncate", "fcntl", "_mmap"])
def test_an_interrupted_allocate_leaves_no_descriptor_and_no_account(
    step: str,
    driver: EmulatedDriver,
    monkeypatch: pytest.MonkeyPatch,
    footprint: Callable[[], Any],
    free_nbytes: Free,
) -> None:
    def interrupt(*_: Any) -> int:
        raise KeyboardInterrupt

    before = footprint()
    with monkeypatch.context() as patch:
        patch.setattr(memory, step, interrupt)
        with pytest.raises(KeyboardInterrupt):
            driver.allocate(0, 1, "memfd")

    assert footprint().descriptors == before.descriptors
    assert free_nbytes(driver, 0) == 64 << 20


@pytest.mark.parametrize("step", ["advise_huge", "populate", "fill"])
def test_an_interrupted_preparation_leaves_nothing(
    step: str, monkeypatch: pytest.MonkeyPatch, footprint: Callable[[], Any], free_nbytes: Free
) -> None:
    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(memory, "wants_huge_page_advice", lambda: True)
    monkeypatch.setattr(memory, step, interrupt)
    driver = EmulatedDriver(Options(prefault=True, poison=True, capacity_nbytes=UNIT))
    before = footprint()
    with pytest.raises(KeyboardInterrupt):
        driver.allocate(0, UNIT, "memfd")

    assert footprint() == before
    assert free_nbytes(driver, 0) == UNIT


def test_an_old_kernel_that_cannot_prefault_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = EmulatedDriver(Options(prefault=True))
    fail_call(monkeypatch, "_madvise", errno.EINVAL, advice=POPULATE_WRITE)

    with pytest.raises(DriverError, match=r"CROSSMEM_EMULATED_PREFAULT needs Linux 5\.14"):
        driver.allocate(0, 1, "memfd")


def test_the_system_wide_limit_is_told_from_the_process_limit(
    driver: EmulatedDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_call(monkeypatch, "memfd_create", errno.ENFILE)

    with pytest.raises(DriverError, match=r"sysctl fs\.file-max") as caught:
        driver.allocate(0, 1, "memfd")
    assert caught.value.name == "ENFILE"


def test_a_kernel_without_memfds_is_reported_when_the_driver_is_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fail_call(monkeypatch, "memfd_create", errno.ENOSYS)

    with pytest.raises(DriverError) as caught:
        EmulatedDriver(Options())
    assert (caught.value.call, caught.value.name) == ("memfd_create", "ENOSYS")
    assert pickle.loads(pickle.dumps(caught.value)).call == "memfd_create"  # noqa: S301


def test_refused_huge_pages_are_no_failure(
    monkeypatch: pytest.MonkeyPatch, footprint: Callable[[], object]
) -> None:
    monkeypatch.setattr(memory, "wants_huge_page_advice", lambda: True)
    fail_call(monkeypatch, "_madvise", errno.EINVAL, advice=14)
    driver = EmulatedDriver(Options())
    before = footprint()

    driver.free(driver.allocate(0, 1, "memfd"))

    assert footprint() == before


@pytest.fixture
def imported(driver: EmulatedDriver, block: Block, import_block: Import) -> Imported:
    return import_block(driver, block, driver.export(block, "memfd", "rw", raw=False), "rw")


def test_a_failed_map_leaves_the_import_as_it_was(
    driver: EmulatedDriver,
    imported: Imported,
    monkeypatch: pytest.MonkeyPatch,
    footprint: Callable[[], object],
) -> None:
    before = footprint()
    with monkeypatch.context() as patch:
        fail_call(patch, "_mmap", errno.ENOMEM)
        with pytest.raises(OutOfMemoryError, match=r"ulimit -v.*vm\.max_map_count"):
            driver.map(imported, remappable=False)

    assert footprint() == before
    mapped = driver.map(imported, remappable=False)
    driver.unmap(mapped)
    driver.close(imported)


def test_a_failed_alias_leaves_nothing(
    driver: EmulatedDriver,
    block: Block,
    monkeypatch: pytest.MonkeyPatch,
    footprint: Callable[[], object],
) -> None:
    before = footprint()
    with monkeypatch.context() as patch:
        fail_call(patch, "_mmap", errno.ENOMEM)
        with pytest.raises(OutOfMemoryError):
            driver.map_readonly(block)

    assert footprint() == before


def test_a_descriptor_that_someone_else_closed_is_reported_and_not_mapped(
    driver: EmulatedDriver, block: Block, import_block: Import, footprint: Callable[[], object]
) -> None:
    before = footprint()
    imported = import_block(driver, block, driver.export(block, "memfd", "rw", raw=False), "rw")
    os.close(imported.reference)
    with pytest.raises(DriverError) as caught:
        driver.map(imported, remappable=False)

    assert (caught.value.call, caught.value.name) == ("mmap", "EBADF")
    with pytest.raises(DriverError) as caught:
        driver.close(imported)
    assert (caught.value.call, caught.value.name) == ("close", "EBADF")
    assert footprint() == before


def test_a_failed_close_after_mapping_leaves_no_mapping(
    driver: EmulatedDriver,
    block: Block,
    import_block: Import,
    monkeypatch: pytest.MonkeyPatch,
    footprint: Callable[[], object],
) -> None:
    def close(descriptor: int) -> None:
        os.close(descriptor)
        raise OSError(errno.EIO, "Input/output error")

    before = footprint()
    imported = import_block(driver, block, driver.export(block, "memfd", "rw", raw=False), "rw")
    monkeypatch.setattr(memfd, "close", close)
    with pytest.raises(DriverError, match="close failed with EIO"):
        driver.map(imported, remappable=False)

    assert footprint() == before


def test_a_failed_unmap_changes_nothing(
    driver: EmulatedDriver, monkeypatch: pytest.MonkeyPatch, free_nbytes: Free
) -> None:
    block = driver.allocate(0, 1, "memfd")
    mapped = driver.map_readonly(block)
    with monkeypatch.context() as patch:
        fail_call(patch, "munmap", errno.EINVAL)
        for end, operation in (
            (partial(driver.unmap_readonly, mapped), "unmap"),
            (partial(driver.free, block), "free"),
        ):
            with pytest.raises(DriverError, match="munmap failed with EINVAL") as caught:
                end()
            assert (caught.value.operation, caught.value.device) == (operation, "host:0")
    assert free_nbytes(driver, 0) == (64 << 20) - UNIT
    driver.unmap_readonly(mapped)
    driver.free(block)

    assert free_nbytes(driver, 0) == 64 << 20


@pytest.mark.parametrize("step", ["fchmod", "open"])
def test_a_failed_readonly_export_leaves_nothing(
    step: str,
    driver: EmulatedDriver,
    block: Block,
    monkeypatch: pytest.MonkeyPatch,
    footprint: Callable[[], object],
) -> None:
    def refuse(*_: Any) -> int:
        raise OSError(errno.EPERM, "Operation not permitted")

    before = footprint()
    with monkeypatch.context() as patch:
        patch.setattr(os, step, refuse)
        with pytest.raises(DriverError) as caught:
            driver.export(block, "memfd", "ro", raw=False)

    assert (caught.value.call, caught.value.name) == (step, "EPERM")
    assert footprint() == before


# The same with the limits of a real process.

DESCRIPTOR_LIMIT = """
driver = EmulatedDriver(Options(granularity="page"))
blocks = []
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 200))
try:
    while True:
        blocks.append(driver.allocate(0, 1, "memfd"))
except DriverError as error:
    assert (error.call, error.code, error.name) == ("memfd_create", errno.EMFILE, "EMFILE")
    assert "64 open files: raise it with `ulimit -n 200`" in error.hint, error.hint
held = driver._accounts[0].free_nbytes + len(blocks) * 4096
assert held == driver.devices()[0].total_nbytes, held
try:
    driver.export(blocks[0], "memfd", "ro", raw=False)
except DriverError as error:
    assert (error.call, error.name) == ("open", "EMFILE")
else:
    sys.exit("an export found a descriptor where there is none")
driver.free(blocks.pop())
# One descriptor is free again: enough to look, and for a read-only export.
assert mappings() == len(blocks) > 40
before = descriptors()
exported = driver.export(blocks[0], "memfd", "ro", raw=False)
driver.release_export(blocks[0], exported)
assert descriptors() == before
for block in blocks:
    driver.free(block)
assert mappings() == 0
"""


def test_running_out_of_descriptors_names_the_limit(run: Run) -> None:
    ended = run(DESCRIPTOR_LIMIT.replace("4096", str(os.sysconf("SC_PAGE_SIZE"))))

    assert ended.returncode == 0, ended.stderr


ADDRESS_LIMIT = """
driver = EmulatedDriver(Options(capacity_nbytes=64 << 30))
with open("/proc/self/statm") as file:
    used = int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
resource.setrlimit(resource.RLIMIT_AS, (used + (256 << 20), resource.RLIM_INFINITY))
before = descriptors()
for _ in range(3):
    try:
        driver.allocate(0, 32 << 30, "memfd")
    except OutOfMemoryError as error:
        assert "mmap failed with ENOMEM" in error.message, error
        assert "ulimit -v" in error.hint
    else:
        sys.exit("more was mapped than the limit allows")
assert (descriptors(), mappings()) == (before, 0)
assert driver._accounts[0].free_nbytes == 64 << 30
driver.free(driver.allocate(0, 1, "memfd"))
"""


def test_running_out_of_addresses_is_running_out_of_memory(run: Run) -> None:
    ended = run(ADDRESS_LIMIT)

    assert ended.returncode == 0, ended.stderr


FILE_SIZE_LIMIT = """
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
driver = EmulatedDriver(Options())
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
before = descriptors()
try:
    driver.allocate(0, 1, "memfd")
except OutOfMemoryError as error:
    assert "ftruncate failed with EFBIG" in error.message, error
    assert "ulimit -f" in error.hint, error
else:
    sys.exit("the limit on file sizes did not hold")
assert (descriptors(), mappings()) == (before, 0)
"""


def test_the_limit_on_file_sizes_counts_for_memory_too(run: Run) -> None:
    ended = run(FILE_SIZE_LIMIT)

    assert ended.returncode == 0, ended.stderr
