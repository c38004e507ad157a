# SPDX-License-Identifier: Apache-2.0
"""Mechanism ``vmm``: whichever call fails, a typed error, and nothing left behind."""

import os
from pathlib import Path
from typing import Any

import pytest

import crossmem
from crossmem.driver import Exported
from crossmem_hip.driver import GpuDriver
from crossmem_hip.family import Family

MIB = 1 << 20
OTHER_FAILURE = 719
TOKEN = bytes(16)


def descriptors() -> int:
    """Return how many this process has open of the file that stands for memory."""
    links = [str(one.readlink()) for one in Path("/proc/self/fd").iterdir() if one.is_symlink()]
    return links.count(os.devnull)


@pytest.fixture
def rt(virtual_rt: Any) -> Any:
    return virtual_rt


@pytest.fixture
def driver(virtual: GpuDriver) -> GpuDriver:
    return virtual


@pytest.fixture
def life(virtual_story: Any) -> Any:
    return virtual_story


@pytest.mark.parametrize("current", [0, 1], ids=["this-device", "another-device"])
@pytest.mark.parametrize(
    "operation",
    ["allocate", "export", "import_", "map", "map for good", "reserve", "map_at", "map_import_at"],
)
def test_what_fails_leaves_nothing(
    operation: str, current: int, family: Family, new_virtual_story: Any, rt: Any
) -> None:
    operation, _, for_good = operation.partition(" ")

    def fresh() -> Any:
        life = new_virtual_story(remappable=not for_good)
        life.until(operation)
        return life

    rt.current = current
    rehearsal = fresh()
    rt.calls.clear()
    getattr(rehearsal, operation)()
    names = rt.named(device=True)
    for index, call in enumerate(names):
        life = fresh()
        held, opened = set(rt.held), descriptors()
        rt.fail(call, OTHER_FAILURE, skip=names[:index].count(call))
        with pytest.raises(crossmem.DriverError) as raised:
            getattr(life, operation)()

        assert raised.value.call == family.function(call)
        assert raised.value.device == "pci:0000:03:00.0"
        assert (set(rt.held), descriptors()) == (held, opened), call
        rt.codes.clear()
        # What could not be put back is put back by the next call.
        life.driver.synchronize(0)
        assert rt.current == current, call
        getattr(life, operation)()


GIVING_BACK = [
    *(("free", call) for call in ("memUnmap", "memRelease", "memAddressFree")),
    *(("unmap", call) for call in ("memUnmap", "memAddressFree")),
    ("close", "memRelease"),
    ("unmap_at", "memUnmap"),
    ("unmap_import_at", "memUnmap"),
    ("release", "memAddressFree"),
]


@pytest.mark.parametrize(("operation", "call"), GIVING_BACK)
@pytest.mark.parametrize("failing", ["getDevice", "setDevice", "streamIsCapturing", "itself"])
@pytest.mark.parametrize("skip", [0, 1])
def test_giving_back_goes_on_where_it_stopped(
    operation: str, call: str, failing: str, skip: int, rt: Any, life: Any
) -> None:
    life.until(operation)
    rt.current = 1
    rt.calls.clear()
    rt.fail(call if failing == "itself" else failing, OTHER_FAILURE, skip=skip)
    try:
        getattr(life, operation)()
    except crossmem.DriverError:
        rt.codes.clear()
        getattr(life, operation)()
    rt.codes.clear()
    rest = life.OPERATIONS.index(operation) + 1
    for name in life.OPERATIONS[rest:]:
        getattr(life, name)()

    # Whatever was released twice, the stand-in would have raised.
    assert rt.held == set()
    assert rt.current == 1


def test_a_mapping_that_could_not_be_undone_is_closed_later(rt: Any, life: Any) -> None:
    life.until("map")
    rt.fail("memSetAccess", OTHER_FAILURE)
    rt.codes["memUnmap"] = [OTHER_FAILURE]
    with pytest.raises(crossmem.DriverError) as raised:
        life.map()
    assert "MemUnmap" in raised.value.__notes__[0]
    assert "mapping" in {kind for kind, _ in rt.held}

    life.close()
    life.release_export()
    life.free()
    assert rt.held == set()


def test_a_mapping_that_was_left_gets_its_access(rt: Any, life: Any) -> None:
    life.until("map")
    rt.fail("memSetAccess", OTHER_FAILURE)
    rt.codes["memUnmap"] = [OTHER_FAILURE]
    with pytest.raises(crossmem.DriverError):
        life.map()

    rt.calls.clear()
    life.map()
    assert rt.named() == ["memSetAccess"]
    life.since("reserve")
    assert rt.held == set()


@pytest.mark.parametrize(
    ("call", "operation", "code", "error"),
    [
        ("memCreate", "allocate", 2, crossmem.OutOfMemoryError),
        ("memCreate", "allocate", 801, crossmem.UnsupportedError),
        ("memImportFromShareableHandle", "import_", 1, crossmem.InvalidHandleError),
        ("memImportFromShareableHandle", "import_", 801, crossmem.UnsupportedError),
        ("memAddressReserve", "map", 2, crossmem.OutOfMemoryError),
        ("memMap", "map", 205, crossmem.DriverError),
        ("memSetAccess", "map", 801, crossmem.UnsupportedError),
        ("memUnmap", "unmap", 1, crossmem.DriverError),
    ],
)
def test_what_operations_can_meet(
    call: str, operation: str, code: int, error: type[Exception], rt: Any, life: Any
) -> None:
    life.until(operation)
    rt.fail(call, code)
    with pytest.raises(error, match=str(code)):
        getattr(life, operation)()


@pytest.mark.parametrize("call", ["memAddressReserve", "memMap"])
def test_sizes_that_the_memory_does_not_have(call: str, rt: Any, life: Any) -> None:
    life.until("map")
    held = set(rt.held)
    rt.fail(call, 1)
    with pytest.raises(crossmem.InvalidHandleError, match="4194304 bytes"):
        life.map()

    assert rt.held == held


def test_cudas_code_for_a_size_that_the_memory_does_not_have(
    family: Family, rt: Any, life: Any
) -> None:
    life.until("map")
    rt.fail("memMap", 801)
    kind = crossmem.UnsupportedError if family.is_hip else crossmem.InvalidHandleError
    with pytest.raises(kind):
        life.map()


@pytest.mark.parametrize(
    ("payloads", "count", "nbytes", "capacity"),
    [
        ((TOKEN,), 0, 1, 1),
        ((TOKEN,), 2, 1, 1),
        ((), 1, 1, 1),
        ((TOKEN, TOKEN), 1, 1, 1),
        ((bytes(15),), 1, 1, 1),
        ((TOKEN,), 1, 0, 1),
        ((TOKEN,), 1, 2, 1),
    ],
)
def test_exports_that_are_none(
    payloads: tuple[bytes, ...],
    count: int,
    nbytes: int,
    capacity: int,
    driver: GpuDriver,
    rt: Any,
) -> None:
    received = tuple(os.open(os.devnull, os.O_RDONLY) for _ in range(count))
    with pytest.raises(crossmem.InvalidHandleError):
        driver.import_(
            0,
            Exported(payloads, received),
            home=0,
            mechanism="vmm",
            nbytes=nbytes,
            capacity=capacity,
            access="rw",
        )

    assert rt.calls == []
    # They are core's to close.
    for descriptor in received:
        os.close(descriptor)


def test_a_forked_child_keeps_no_descriptor(driver: GpuDriver, life: Any) -> None:
    before = descriptors()
    for _ in range(3):
        life.allocate()
        life.export()
    driver.after_fork_in_child()

    assert descriptors() == before
