# SPDX-License-Identifier: Apache-2.0
"""The backend ``host``: what it has beside the verbs, which it shares with ``emulated``."""

import ctypes
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from typing_extensions import override

import crossmem
from crossmem.driver import check_groups
from crossmem.driver.memory import Limit, Limits
from crossmem.errors import OutOfMemoryError
from crossmem_emulated import memory
from crossmem_emulated.host import CHECKED_NBYTES, HostDriver

PAGE = os.sysconf("SC_PAGE_SIZE")
TIGHT = Limit("/sys/fs/cgroup/memory.max", "Raise it.", 1 << 30, CHECKED_NBYTES)


class SetLimits(Limits):
    """Limits that a test sets, and how often they were read."""

    def __init__(self, limit: Limit | None) -> None:
        super().__init__()
        self.limit = limit
        self.reads = 0

    @override
    def tightest(self) -> Limit | None:
        self.reads += 1
        return self.limit


@pytest.fixture
def limits() -> SetLimits:
    return SetLimits(TIGHT)


@pytest.fixture
def driver(limits: SetLimits) -> HostDriver:
    return HostDriver(limits)


def test_there_is_one_device_with_the_memory_that_this_process_may_have() -> None:
    driver = HostDriver(Limits())
    (device,) = driver.devices()

    assert check_groups(driver) == []
    assert (device.ordinal, device.identity) == (0, "host")
    assert device.total_nbytes == Limits().total_nbytes()
    assert driver.capabilities(0, None).mechanisms == ("memfd",)


def test_handles_name_the_backend_the_mechanism_and_the_device() -> None:
    with crossmem.device("host").allocate(1) as allocation:
        handle = allocation.export()

    assert (handle.backend, handle.mechanism, handle.device) == ("host", "memfd", "host")


def test_capacities_are_pages_and_fresh_memory_is_zero(driver: HostDriver) -> None:
    block = driver.allocate(0, PAGE + 1, "memfd")

    assert block.capacity == 2 * PAGE
    assert os.fstat(block.reference).st_blocks == 0
    assert ctypes.string_at(block.pointer, 2 * PAGE) == bytes(2 * PAGE)
    driver.free(block)


def test_a_request_beyond_a_limit_is_refused_before_anything_is_made(
    driver: HostDriver, footprint: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    def create(*_: object, **__: object) -> tuple[int, int]:
        raise AssertionError("memory was made")

    before = footprint()
    with monkeypatch.context() as patch:
        patch.setattr(memory, "create", create)
        with pytest.raises(OutOfMemoryError) as caught:
            driver.allocate(0, CHECKED_NBYTES + 1, "memfd")

    error = caught.value
    assert error.message == f"{TIGHT.name} leaves {CHECKED_NBYTES} bytes"
    assert error.hint == TIGHT.remedy
    assert (error.backend, error.device, error.operation) == ("host", "host", "allocate")
    assert footprint() == before

    # What fits is given.
    driver.free(driver.allocate(0, CHECKED_NBYTES, "memfd"))


def test_small_requests_read_no_limits(driver: HostDriver, limits: SetLimits) -> None:
    limits.limit = Limit("nothing", "None.", 0, 0)
    driver.free(driver.allocate(0, CHECKED_NBYTES - PAGE, "memfd"))

    assert limits.reads == 0

    with pytest.raises(OutOfMemoryError):
        driver.allocate(0, CHECKED_NBYTES, "memfd")

    assert limits.reads == 1


def test_a_reading_serves_what_follows_at_once_up_to_half_of_what_was_free(
    driver: HostDriver, limits: SetLimits, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 1000.0
    monkeypatch.setattr("crossmem_emulated.host.monotonic", lambda: now_s)
    limits.limit = Limit("a limit", "None.", 0, 10 * CHECKED_NBYTES)
    for number in range(11):
        driver.free(driver.allocate(0, CHECKED_NBYTES, "memfd"))

        assert limits.reads == 1 + number // 5

    now_s += 0.2
    driver.free(driver.allocate(0, CHECKED_NBYTES, "memfd"))

    assert limits.reads == 4

    # What is more than the rest of the half is not refused by an old reading.
    driver.free(driver.allocate(0, 6 * CHECKED_NBYTES, "memfd"))

    assert limits.reads == 5


def test_where_no_limit_can_be_read_the_kernel_decides(
    driver: HostDriver, limits: SetLimits
) -> None:
    limits.limit = None
    driver.free(driver.allocate(0, CHECKED_NBYTES, "memfd"))


def test_the_error_names_the_limit_and_fits_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    path = f"/sys/fs/cgroup/kubepods.slice/{'x' * 200}.scope/memory.max"
    limit = Limit(path, "Raise it.", 1 << 40, 24765534208)
    device = crossmem.device("host")
    monkeypatch.setattr(Limits, "tightest", lambda _: limit)
    with pytest.raises(OutOfMemoryError) as caught:
        device.allocate(1 << 46)

    error = caught.value
    assert error.message.startswith(f"host:0 has no room for {1 << 46} bytes: ...")
    assert "xxx.scope/memory.max leaves 24765534208 bytes" in error.message
    assert len(error.message) <= 200
    assert path in error.details
    assert str(1 << 40) in error.details


def test_more_than_this_machine_has_is_out_of_memory() -> None:
    device = crossmem.device("host")
    total = device.info.total_nbytes
    assert total is not None
    before = resident()
    with pytest.raises(OutOfMemoryError, match=r" leaves \d+ bytes"):
        device.allocate(2 * total)

    assert resident() - before < CHECKED_NBYTES


def resident() -> int:
    """Return how many bytes of memory this process has."""
    return int(Path("/proc/self/statm").read_text("ascii").split()[1]) * PAGE
