# SPDX-License-Identifier: Apache-2.0
"""The verbs, on real memory."""

import contextlib
import ctypes
import errno
import os
import sys
import threading
import time
from collections.abc import Callable

import numpy as np
import pytest

import crossmem
from crossmem.conformance.speed import SLOWNESS
from crossmem.driver import Block, CopyKind, Driver, check_groups, readonly_alias_of
from crossmem.driver.buffers import address_of
from crossmem.errors import CrossmemError, DriverError, OutOfMemoryError
from crossmem_emulated import memory
from crossmem_emulated.driver import EmulatedDriver
from crossmem_emulated.options import Options

PAGE = os.sysconf("SC_PAGE_SIZE")
UNIT = 2 << 20


def read(driver: Driver, pointer: int, nbytes: int) -> bytes:
    target = bytearray(nbytes)
    with address_of(target) as (address, _):
        driver.copy(0, address, pointer, nbytes, CopyKind.DEVICE_TO_HOST)
    return bytes(target)


def write(driver: Driver, pointer: int, data: object) -> None:
    with address_of(data) as (address, nbytes):
        driver.copy(0, pointer, address, nbytes, CopyKind.HOST_TO_DEVICE)


def test_the_groups_are_complete(driver: EmulatedDriver) -> None:
    assert check_groups(driver) == []
    assert readonly_alias_of(driver) is driver


def test_capabilities(driver: EmulatedDriver) -> None:
    for device in driver.devices():
        capabilities = driver.capabilities(device.ordinal, None)
        assert capabilities.mechanisms == ("memfd",)
        assert capabilities.max_allocation_nbytes == device.total_nbytes == 64 << 20
        assert capabilities.readonly_exports
        assert capabilities.readonly_imports


@pytest.mark.parametrize(
    ("granularity", "unit"), [("2MiB", UNIT), ("page", PAGE)], ids=["2MiB", "page"]
)
def test_capacities_are_multiples_of_the_granularity(granularity: str, unit: int) -> None:
    options = Options.from_environ({"CROSSMEM_EMULATED_GRANULARITY": granularity})
    driver = EmulatedDriver(options)
    for nbytes, capacity in ((1, unit), (unit, unit), (unit + 1, 2 * unit)):
        block = driver.allocate(1, nbytes, "memfd")

        assert (block.nbytes, block.capacity, block.ordinal) == (nbytes, capacity, 1)
        assert os.fstat(block.reference).st_size == capacity
        write(driver, block.pointer + capacity - 1, b"!")
        driver.free(block)


@pytest.mark.parametrize(
    "source",
    [
        b"bytes",
        bytearray(b"bytearray"),
        memoryview(b"view of bytes")[3:],
        np.arange(100, dtype=np.float32),
    ],
    ids=["bytes", "bytearray", "memoryview", "numpy"],
)
def test_copies_go_both_ways_and_from_readonly_sources(
    driver: EmulatedDriver, block: Block, source: object
) -> None:
    if isinstance(source, np.ndarray):
        source.setflags(write=False)
    expected = bytes(memoryview(source).cast("B"))  # type: ignore[arg-type]

    write(driver, block.pointer + 17, source)

    assert read(driver, block.pointer + 17, len(expected)) == expected
    driver.synchronize(0)


def test_a_large_copy_is_exact(driver: EmulatedDriver) -> None:
    data = np.random.default_rng(1).integers(0, 256, 3 * UNIT + 5, dtype=np.uint8)
    block = driver.allocate(0, data.nbytes, "memfd")

    write(driver, block.pointer, data)

    assert read(driver, block.pointer, data.nbytes) == data.tobytes()
    driver.free(block)


def test_blocks_stand_alone(driver: EmulatedDriver) -> None:
    first, second = driver.allocate(0, 1, "memfd"), driver.allocate(0, 1, "memfd")
    write(driver, first.pointer, b"first")

    assert read(driver, second.pointer, 5) == bytes(5)
    assert os.fstat(first.reference).st_ino != os.fstat(second.reference).st_ino
    driver.free(second)
    assert read(driver, first.pointer, 5) == b"first"
    driver.free(first)


def test_free_gives_everything_back(
    driver: EmulatedDriver, footprint: Callable[[], object]
) -> None:
    before = footprint()
    blocks = [driver.allocate(0, UNIT, "memfd") for _ in range(20)]
    for block in blocks:
        driver.free(block)

    assert footprint() == before


def test_a_device_has_its_capacity_and_no_more(driver: EmulatedDriver) -> None:
    blocks = [driver.allocate(0, 32 << 20, "memfd"), driver.allocate(0, 30 << 20, "memfd")]
    with pytest.raises(OutOfMemoryError, match="2097152 of 67108864 bytes are free"):
        driver.allocate(0, (2 << 20) + 1, "memfd")
    other = driver.allocate(1, 64 << 20, "memfd")
    driver.free(blocks.pop())
    blocks.append(driver.allocate(0, 32 << 20, "memfd"))
    with pytest.raises(OutOfMemoryError) as caught:
        driver.allocate(0, 1, "memfd")

    assert caught.value.device == "host:0"
    assert caught.value.backend == "emulated"
    assert caught.value.operation == "allocate"
    for block in (*blocks, other):
        driver.free(block)


def test_devices_are_accounted_by_ordinal_under_a_mask() -> None:
    driver = EmulatedDriver(
        Options(devices=3, visible_devices=(2, 0), capacity_nbytes=UNIT, granularity="2MiB")
    )
    block = driver.allocate(0, 1, "memfd")
    with pytest.raises(OutOfMemoryError) as caught:
        driver.allocate(0, 1, "memfd")

    assert caught.value.device == "host:2"
    driver.free(driver.allocate(1, 1, "memfd"))
    driver.free(block)


def in_threads(count: int, work: Callable[[int], None]) -> None:
    """Run work in threads that switch as often as Python can."""
    start = threading.Barrier(count)
    errors: list[BaseException] = []

    def run(index: int) -> None:
        try:
            start.wait(30)
            work(index)
        except BaseException as error:  # noqa: BLE001
            errors.append(error)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=run, args=(index,)) for index in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    finally:
        sys.setswitchinterval(interval)
    assert errors == []
    assert not any(thread.is_alive() for thread in threads)


def test_capacity_is_exact_under_threads(
    footprint: Callable[[], object], free_nbytes: Callable[[EmulatedDriver, int], int]
) -> None:
    room = 5
    driver = EmulatedDriver(Options(capacity_nbytes=room * PAGE, granularity="page"))
    held = [0] * 8
    most = [0] * 8
    before = footprint()

    def work(index: int) -> None:
        for _ in range(200):
            blocks = []
            for _ in range(2):
                with contextlib.suppress(OutOfMemoryError):
                    blocks.append(driver.allocate(0, 1, "memfd"))
                    held[index] += 1
            # Each thread counts up after it allocates and down before it frees.
            most[index] = max(most[index], sum(held))
            for block in blocks:
                held[index] -= 1
                driver.free(block)

    in_threads(8, work)

    assert 1 <= max(most) <= room
    assert free_nbytes(driver, 0) == room * PAGE
    assert footprint() == before


def test_accounts_lose_no_update(
    monkeypatch: pytest.MonkeyPatch, free_nbytes: Callable[[EmulatedDriver, int], int]
) -> None:
    # Without the kernel's part, nearly all of the time goes into accounting.
    monkeypatch.setattr(memory, "create", lambda *_, **__: (-1, 0))
    monkeypatch.setattr(memory, "munmap", lambda *_: 0)
    monkeypatch.setattr("crossmem_emulated.memfd.close", lambda _: None)
    driver = EmulatedDriver(Options(capacity_nbytes=100 * PAGE, granularity="page"))

    def work(_: int) -> None:
        for _ in range(3000):
            driver.free(driver.allocate(0, 1, "memfd"))

    in_threads(4, work)

    assert free_nbytes(driver, 0) == 100 * PAGE


def test_fresh_memory_has_no_pages_before_it_is_touched(block: Block) -> None:
    assert os.fstat(block.reference).st_blocks == 0


def test_prefault_makes_all_pages_resident() -> None:
    driver = EmulatedDriver(Options(prefault=True))
    block = driver.allocate(0, 3 * UNIT, "memfd")

    assert os.fstat(block.reference).st_blocks * 512 == 3 * UNIT
    assert read(driver, block.pointer, 3 * UNIT) == bytes(3 * UNIT)
    driver.free(block)


def test_poison_fills_the_whole_capacity() -> None:
    driver = EmulatedDriver(Options(poison=True))
    block = driver.allocate(0, 1, "memfd")

    assert read(driver, block.pointer, block.capacity) == b"\xa5" * UNIT
    driver.free(block)


@pytest.mark.parametrize(
    ("option", "kernel", "granularity", "advised"),
    [
        (True, True, "2MiB", True),
        (True, False, "2MiB", False),
        (False, True, "2MiB", False),
        (True, True, "page", False),
    ],
    ids=["asked", "kernel decides", "switched off", "too small"],
)
def test_huge_pages_are_asked_for_where_option_kernel_and_size_say_so(
    option: bool, kernel: bool, granularity: str, advised: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    advice = []
    madvise = memory._madvise

    def record(pointer: int, nbytes: int, what: int) -> int:
        advice.append(what)
        return int(madvise(pointer, nbytes, what))

    monkeypatch.setattr(memory, "wants_huge_page_advice", lambda: kernel)
    monkeypatch.setattr(memory, "_madvise", record)
    options = Options(hugepages=option, granularity="page" if granularity == "page" else "2MiB")
    driver = EmulatedDriver(options)

    nbytes = PAGE if granularity == "page" else 4 << 20
    block = driver.allocate(0, nbytes, "memfd")
    exported = driver.export(block, "memfd", "ro", raw=False)
    imported = driver.import_(
        0, exported, home=0, mechanism="memfd", nbytes=nbytes, capacity=block.capacity, access="ro"
    )
    mapped = driver.map(imported, remappable=False)
    driver.unmap(mapped)
    driver.free(block)

    hugepage = 14
    assert advice == ([hugepage] if advised else []) * 2


def test_copying_lets_other_threads_run(driver: EmulatedDriver) -> None:
    block = driver.allocate(0, 48 << 20, "memfd")
    source = np.ones(48 << 20, np.uint8)
    ticks = 0
    done = threading.Event()

    def tick() -> None:
        nonlocal ticks
        while not done.wait(1e-4):
            ticks += 1

    thread = threading.Thread(target=tick)
    # No switch is due within the time that this takes: the other thread runs only where this
    # one lets it.
    interval = sys.getswitchinterval()
    sys.setswitchinterval(30)
    try:
        thread.start()
        deadline, counted = time.monotonic() + 20 * SLOWNESS, 0
        with address_of(source) as (address, nbytes):
            # A busy machine may not get to the other thread while one copy lasts.
            while not counted and time.monotonic() < deadline:
                before = ticks
                driver.copy(0, block.pointer, address, nbytes, CopyKind.HOST_TO_DEVICE)
                counted = ticks - before
    finally:
        done.set()
        sys.setswitchinterval(interval)
    thread.join(30)
    driver.free(block)

    assert counted > 0


def test_pointers_are_what_ctypes_understands(driver: EmulatedDriver, block: Block) -> None:
    view = (ctypes.c_ubyte * block.capacity).from_address(block.pointer)
    view[block.capacity - 1] = 9

    assert read(driver, block.pointer + block.capacity - 1, 1) == b"\x09"


@pytest.mark.timeout(20)
def test_a_thread_that_is_inside_may_allocate_once_more(driver: EmulatedDriver) -> None:
    # As a signal handler does that comes in between.
    with driver._accounts[0].lock:
        block = driver.allocate(0, 4096, "memfd")
        driver.free(block)

    assert block.pointer == 0


# Filling -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("most", [1 << 30, 1000])
def test_large_fresh_memory_is_written_without_mapping_it(
    driver: EmulatedDriver, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = np.random.default_rng(2).integers(0, 256, 300_007, dtype=np.uint8)
    block = driver.allocate(0, 2 * data.nbytes, "memfd")
    real, copies = os.pwrite, []
    # A system call may write less than it was given.
    monkeypatch.setattr(os, "pwrite", lambda fd, part, at: real(fd, part[:most], at))
    monkeypatch.setattr(memory, "copy", lambda *arguments: copies.append(arguments))

    with address_of(data) as (address, nbytes):
        driver.fill(block, 4097, address, nbytes)
    monkeypatch.undo()

    assert copies == []
    assert read(driver, block.pointer + 4096, nbytes + 2) == b"\0" + data.tobytes() + b"\0"
    driver.free(block)


@pytest.mark.parametrize("options", [Options(poison=True), Options(prefault=True), Options()])
def test_pages_that_are_there_and_few_bytes_are_copied(
    options: Options, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = EmulatedDriver(options)
    data = bytes(range(256)) * (4 if options == Options() else 4096)
    block = driver.allocate(0, len(data), "memfd")
    monkeypatch.setattr(memory, "write", pytest.fail)

    with address_of(data) as (address, nbytes):
        driver.fill(block, 0, address, nbytes)

    assert read(driver, block.pointer, len(data)) == data
    driver.free(block)


@pytest.mark.parametrize(
    ("code", "kind"), [(errno.ENOSPC, OutOfMemoryError), (errno.EIO, DriverError)]
)
def test_memory_that_cannot_be_filled(
    driver: EmulatedDriver,
    code: int,
    kind: type[CrossmemError],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: object) -> int:
        raise OSError(code, "injected")

    monkeypatch.setattr(os, "pwrite", fail)
    with pytest.raises(kind) as caught:
        crossmem.share(np.zeros(1 << 20, "uint8"), copy="allow", device="emulated:0")

    assert "pwrite" in str(caught.value)
    assert caught.value.backend == "emulated"
