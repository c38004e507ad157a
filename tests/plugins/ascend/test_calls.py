# SPDX-License-Identifier: Apache-2.0
"""Each operation makes the vendor's calls in the vendor's order, and no others."""

from collections.abc import Callable
from typing import Any

import pytest

from crossmem.driver import CopyKind, Exported, Mapped
from crossmem_ascend.driver import AscendDriver

MIB = 1 << 20
PROP = {
    "handleType": 0,
    "allocationType": 0,
    "memAttr": 4,
    "location": {"id": 0, "type": 1},
    "reserve": 0,
}
Calls = dict[str, list[tuple[Any, ...]]]
SHAREABLE: Calls = {
    "allocate": [
        ("mem_get_allocation_granularity", PROP, 0),
        ("malloc_physical", 4 * MIB, PROP, 0),
        ("reserve_mem_address", 4 * MIB, 0, 0, 0),
        ("map_mem", "P", 4 * MIB, 0, "H", 0),
    ],
    "export": [("mem_export_to_shareable_handle", "H", 0, 0)],
    "grant": [("mem_set_pid_to_shareable_handle", "S", [70])],
    "import_": [("mem_import_from_shareable_handle", 0x55, 0)],
    "map": [("reserve_mem_address", 4 * MIB, 0, 0, 0), ("map_mem", "Q", 4 * MIB, 0, "I", 0)],
    "unmap": [("unmap_mem", "Q"), ("release_mem_address", "Q")],
    "close": [("free_physical", "I")],
    "free": [("unmap_mem", "P"), ("free_physical", "H"), ("release_mem_address", "P")],
}
KEY: Calls = {
    "allocate": [("malloc", 4 * MIB, 0)],
    "export": [("ipc_mem_get_export_key", "P", 4 * MIB, 65, 0)],
    "grant": [("ipc_mem_set_import_pid", "K", [70])],
    "import_": [],
    "map": [("ipc_mem_import_by_key", "a" * 64, 0)],
    "unmap": [("ipc_mem_close", "a" * 64)],
    "close": [],
    "free": [("ipc_mem_close", "K"), ("free", "P")],
}


def test_each_operation_makes_its_calls(acl: Any, story: Any) -> None:
    mechanism = story._mechanism
    expected = SHAREABLE if mechanism == "shareable" else KEY
    made: dict[str, list[Any]] = {}
    names: dict[str, Any] = {}
    for operation in story.OPERATIONS:
        if operation == "unmap":
            # Before they are given back, and forgotten.
            block, imported = story.block.reference, story.imported.reference
            names = {"P": story.block.pointer, "Q": story.pointer}
            if mechanism == "shareable":
                names |= {"I": imported.handle, "H": block.handle, "S": block.share}
            else:
                names |= {"K": block.key}
        acl.rt.calls.clear()
        getattr(story, operation)()
        made[operation] = [
            call for call in acl.rt.calls if call[0] not in {"get_context", "get_device"}
        ]
    # Contexts are of no interest here.
    made = {
        operation: [call for call in calls if "context" not in call[0]]
        for operation, calls in made.items()
    }
    assert made == {
        operation: [
            tuple(names.get(one, one) if isinstance(one, str) else one for one in call)
            for call in calls
        ]
        for operation, calls in expected.items()
    }
    assert acl.rt.held == set()


def test_the_vendor_exports_once(acl: Any, driver: AscendDriver, story: Any) -> None:
    story.until("grant")
    first = story.exported
    story.export()

    assert story.exported == first
    assert sum("export" in name for name in acl.rt.named()) == 1


def test_payloads(acl: Any, story: Any) -> None:
    story.until("grant")
    reference = story.block.reference
    (payload,) = story.exported.payloads

    if story._mechanism == "shareable":
        assert payload == reference.share.to_bytes(8, "little")
    else:
        assert payload == reference.key.encode()
    assert story.exported.descriptors == ()


@pytest.mark.parametrize(
    ("kind", "number"), [(CopyKind.HOST_TO_DEVICE, 1), (CopyKind.DEVICE_TO_HOST, 2)]
)
def test_copies_with_the_host(acl: Any, driver: AscendDriver, kind: CopyKind, number: int) -> None:
    driver.copy(0, 0x10, 0x20, 5, kind)

    assert [call for call in acl.rt.calls if "memcpy" in call[0]] == [
        ("memcpy", 0x10, 5, 0x20, 5, number)
    ]
    assert acl.rt.named() == ["memcpy"]


def test_copies_within_a_device_are_asynchronous(acl: Any, driver: AscendDriver) -> None:
    driver.capabilities(0, None)
    acl.rt.calls.clear()
    driver.copy(0, 0x10, 0x20, 5, CopyKind.DEVICE_TO_DEVICE)

    assert acl.rt.named() == [
        "create_stream",
        "memcpy_async",
        "synchronize_stream",
        "destroy_stream",
    ]
    assert acl.rt.held == set()


def test_copies_between_devices_wait_for_both_directions(acl: Any, driver: AscendDriver) -> None:
    driver.synchronize(1)
    driver.copy(0, 0x10, 0x20, 5, CopyKind.DEVICE_TO_DEVICE)
    driver.copy(0, 0x10, 0x20, 5, CopyKind.DEVICE_TO_DEVICE)

    assert acl.rt.peers == {(0, 1), (1, 0)}
    assert acl.rt.named().count("device_enable_peer_access") == 2


def test_an_import_for_another_device_enables_access_to_its_home(
    acl: Any, driver: AscendDriver
) -> None:
    imported = driver.import_(
        1,
        Exported((bytes(8),)),
        home=0,
        mechanism="shareable",
        nbytes=1,
        capacity=2 * MIB,
        access="rw",
    )

    assert acl.rt.peers == {(1, 0)}
    assert ("mem_import_from_shareable_handle", 0, 1) in acl.rt.calls
    driver.close(imported)
    assert acl.rt.held == set()


def test_access_that_others_enabled_is_left_alone(acl: Any, driver: AscendDriver) -> None:
    acl.rt.peers |= {(0, 1), (1, 0)}
    driver.synchronize(1)
    driver.copy(0, 0x10, 0x20, 5, CopyKind.DEVICE_TO_DEVICE)

    assert "device_enable_peer_access" not in acl.rt.named()


def test_address_ranges(acl: Any, driver: AscendDriver, story_of: Callable[[str], Any]) -> None:
    story = story_of("shareable")
    story.until("map")
    acl.rt.calls.clear()
    reserved = driver.reserve(0, 8 * MIB)
    pointer = reserved.pointer
    for memory in (story.block, story.imported):
        driver.map_at(memory, pointer)
        driver.unmap_at(Mapped(memory, pointer))
    driver.release(reserved)

    assert [call for call in acl.rt.calls if "mem" in call[0]] == [
        ("reserve_mem_address", 8 * MIB, 0, 0, 0),
        ("map_mem", pointer, 4 * MIB, 0, story.block.reference.handle, 0),
        ("unmap_mem", pointer),
        ("map_mem", pointer, 4 * MIB, 0, story.imported.reference.handle, 0),
        ("unmap_mem", pointer),
        ("release_mem_address", pointer),
    ]


def test_nothing_of_others_is_ended(acl: Any, story: Any) -> None:
    for operation in story.OPERATIONS:
        getattr(story, operation)()

    # The stand-in has no such function, so a call would have raised.
    for name in ("reset_device", "reset_device_force"):
        assert not hasattr(acl.rt, name)
    assert not hasattr(acl, "finalize")
