# SPDX-License-Identifier: Apache-2.0
"""Memory that others allocated: its bounds, and why some of it cannot be shared."""

from dataclasses import dataclass
from typing import Any, cast

import pytest

import crossmem
from crossmem.driver import Foreign, check_groups, foreign_memory_of
from crossmem_hip.driver import GpuDriver
from crossmem_hip.family import CUDA, HIP, Family

MIB = 1 << 20
BASE = 64 * MIB
MANAGED, CAPABLE, POOL, KIND = 8, 10, 17, 2
NO_SUCH = "is not memory of the vendor's runtime in this process"


@dataclass
class Attributes:
    """``PointerAttributes``."""

    type: int = 2
    device: int = 0
    devicePointer: int = BASE  # noqa: N815


class Knowing:
    """A runtime that knows one allocation, and of it what a test says."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.range = (BASE, 4 * MIB)
        self.attributes: Any = Attributes()
        self.more: dict[int, int] = {CAPABLE: 1}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def pointerGetAttributes(self, pointer: int) -> Attributes:  # noqa: N802
        self._inner._note("pointerGetAttributes", pointer)
        found: Attributes = self.attributes
        return found

    def memGetAddressRange(self, pointer: int) -> tuple[int, int]:  # noqa: N802
        self._inner._note("memGetAddressRange", pointer)
        return self.range

    def pointerGetAttribute(self, attribute: int, pointer: int) -> int:  # noqa: N802
        self._inner._note("pointerGetAttribute", attribute, pointer)
        if attribute not in self.more:
            raise self._inner.CUDARuntimeError(801)
        return self.more[attribute]


@pytest.fixture
def knowing(rt: Any) -> Knowing:
    return Knowing(rt)


@pytest.fixture
def driver(family: Family, knowing: Knowing) -> GpuDriver:
    return GpuDriver(family, cast("Any", knowing))


def test_the_group_is_offered_where_bounds_are_known(
    family: Family, rt: Any, driver: GpuDriver
) -> None:
    assert foreign_memory_of(driver) is not None
    assert driver.capabilities(0, None).foreign_memory
    assert check_groups(driver) == []

    without = GpuDriver(family, rt)

    assert foreign_memory_of(without) is None
    assert not without.capabilities(0, None).foreign_memory
    assert check_groups(without) == []


@pytest.mark.parametrize(
    ("bounds", "exposed"),
    [
        ((BASE, 4 * MIB), (BASE, 4 * MIB)),
        ((BASE, 3 * MIB), (BASE, 4 * MIB)),
        ((BASE + 512, 512), (BASE, 2 * MIB)),
        ((BASE + MIB, 2 * MIB), (BASE, 4 * MIB)),
    ],
)
def test_importers_reach_whole_blocks(
    bounds: tuple[int, int], exposed: tuple[int, int], driver: GpuDriver, knowing: Knowing
) -> None:
    knowing.range = bounds

    assert driver.inspect(0, bounds[0] + 7, "legacy") == Foreign(*bounds, *exposed)


@pytest.mark.parametrize("mechanism", ["legacy", "vmm"])
def test_a_thread_without_a_context_gets_one(
    driver: GpuDriver, family: Family, knowing: Knowing, mechanism: str
) -> None:
    if mechanism not in driver.capabilities(0, None).mechanisms:
        pytest.skip("this runtime has no virtual memory")
    knowing.more |= {14: 1, 18: 4 * MIB, 19: BASE}
    knowing.more[CAPABLE] = int(mechanism == "legacy")
    knowing.attributes = Attributes(devicePointer=0)

    def give_context() -> tuple[int, int]:
        knowing.attributes = Attributes()
        return 1, 2

    knowing.memGetInfo = give_context  # type: ignore[attr-defined]

    # HIP reports the address in every thread.
    found = driver.inspect(0, BASE, mechanism)
    assert found.obstacle == (NO_SUCH if family.is_hip else None)


@pytest.mark.parametrize(
    ("attributes", "more", "obstacle"),
    [
        (Attributes(type=3), {}, "managed"),
        (Attributes(), {MANAGED: 1, CAPABLE: 1}, "managed"),
        (Attributes(type=0, devicePointer=0, device=-2), {}, NO_SUCH),
        (Attributes(type=1), {CAPABLE: 1}, "the host's"),
        (Attributes(device=1), {CAPABLE: 1}, "device 1"),
        (Attributes(), {CAPABLE: 0}, "virtual"),
    ],
)
def test_obstacles(
    attributes: Attributes,
    more: dict[int, int],
    obstacle: str,
    driver: GpuDriver,
    knowing: Knowing,
) -> None:
    knowing.attributes, knowing.more = attributes, more
    found = driver.inspect(0, BASE, "legacy")

    assert found.obstacle is not None
    assert obstacle in found.obstacle


@pytest.mark.parametrize("call", ["pointerGetAttributes", "memGetAddressRange"])
@pytest.mark.parametrize("code", [1, 17, 500])
def test_what_the_vendor_does_not_know(call: str, code: int, driver: GpuDriver, rt: Any) -> None:
    rt.fail(call, code)
    found = driver.inspect(0, BASE, "legacy")

    assert (found.base, found.nbytes) == (0, 0)
    assert found.obstacle is not None
    assert NO_SUCH in found.obstacle


def test_pinned_memory_that_cupy_takes_for_a_devices(driver: GpuDriver, knowing: Knowing) -> None:
    knowing.more = {KIND: 1, CAPABLE: 1}
    found = driver.inspect(0, BASE, "legacy").obstacle

    assert (found or "") == ("is the host's memory" if knowing.is_hip else "")


def test_rocm_5_counts_the_kinds_otherwise(fake: Any) -> None:
    rt = fake()
    rt.version = 50_731_921
    knowing = Knowing(rt)
    knowing.more = {KIND: 1, CAPABLE: 1}

    assert GpuDriver(HIP, cast("Any", knowing)).inspect(0, BASE, "legacy").obstacle is None


def test_pooled_memory_of_nvidia(fake: Any) -> None:
    knowing = Knowing(fake(is_hip=False))
    knowing.more = {CAPABLE: 0, POOL: 0x1234}
    found = GpuDriver(CUDA, cast("Any", knowing)).inspect(0, BASE, "legacy")

    assert "pool" in (found.obstacle or "")


def test_an_old_version_is_not_asked_by_an_export_before_memory_is_adopted(
    driver: GpuDriver, knowing: Knowing, rt: Any
) -> None:
    knowing.more = {}
    foreign = driver.inspect(0, BASE + 5, "legacy")
    assert foreign.obstacle is None
    assert "ipcGetMemHandle" not in rt.named()

    block = driver.adopt(0, foreign, "legacy")
    driver.export(block, "legacy", "rw", raw=False)

    assert [call for call in rt.calls if call[0] == "ipcGetMemHandle"] == [
        ("ipcGetMemHandle", BASE)
    ]


@pytest.mark.parametrize("code", [1, 17])
def test_what_an_old_version_refuses_is_not_adopted(
    code: int, driver: GpuDriver, knowing: Knowing, rt: Any
) -> None:
    knowing.more = {}
    foreign = driver.inspect(0, BASE, "legacy")
    rt.fail("ipcGetMemHandle", code)
    with pytest.raises(crossmem.UnsupportedError, match="virtual") as raised:
        driver.adopt(0, foreign, "legacy")

    assert raised.value.operation == "adopt"
    assert raised.value.hint


def test_a_new_version_is_not_asked_by_an_export_at_all(driver: GpuDriver, rt: Any) -> None:
    driver.adopt(0, driver.inspect(0, BASE, "legacy"), "legacy")

    assert "ipcGetMemHandle" not in rt.named()


@pytest.mark.parametrize("call", ["pointerGetAttributes", "memGetAddressRange"])
def test_other_failures_are_errors(call: str, driver: GpuDriver, knowing: Knowing, rt: Any) -> None:
    knowing.more = {}
    knowing.attributes = Attributes(device=1)
    rt.fail(call, 999)
    with pytest.raises(crossmem.DriverError, match="999") as raised:
        driver.inspect(1, BASE, "legacy")

    assert raised.value.call.endswith(call[1:])
    assert raised.value.operation == "inspect"
    assert rt.current == 0


def test_an_export_that_fails_otherwise_is_an_error(
    driver: GpuDriver, knowing: Knowing, rt: Any
) -> None:
    knowing.more = {}
    foreign = driver.inspect(0, BASE, "legacy")
    rt.fail("ipcGetMemHandle", 999)
    with pytest.raises(crossmem.DriverError, match="IpcGetMemHandle"):
        driver.adopt(0, foreign, "legacy")


def test_adopted_memory_is_exported_and_never_freed(driver: GpuDriver, rt: Any) -> None:
    foreign = driver.inspect(0, BASE + 5, "legacy")
    block = driver.adopt(0, foreign, "legacy")
    exported = driver.export(block, "legacy", "rw", raw=False)
    driver.release_export(block, exported)
    driver.disown(block)
    driver.disown(block)

    assert (block.pointer, block.nbytes, block.capacity) == (BASE, 4 * MIB, 4 * MIB)
    assert exported.payloads == (BASE.to_bytes(64, "little"),)
    assert "free" not in rt.named()
