# SPDX-License-Identifier: Apache-2.0
"""Whichever call of an operation fails: a typed error, and nothing left behind."""

from collections.abc import Callable
from typing import Any

import pytest

import crossmem
from crossmem.driver import CopyKind
from crossmem_ascend.driver import AscendDriver

MIB = 1 << 20
OTHER_FAILURE = 507899
ACQUIRING = ("allocate", "import_", "map")


def calls_of(acl: Any, operation: Callable[[], object]) -> list[tuple[str, int]]:
    """Return the calls that an operation makes, each with how many of its name come before."""
    acl.rt.calls.clear()
    operation()
    names = acl.rt.named(context=True)
    return [(name, names[:index].count(name)) for index, name in enumerate(names)]


@pytest.mark.parametrize("device", [0, 1], ids=["no-context", "another-device"])
@pytest.mark.parametrize("operation", ACQUIRING)
def test_what_fails_leaves_nothing(
    operation: str, device: int, acl: Any, fake_acl: Any, story: Any
) -> None:
    driver, mechanism = story._driver, story._mechanism
    if device:
        acl.rt.set_device(device)
    kind = type(story)
    rehearsal = kind(driver, mechanism)
    rehearsal.until(operation)
    calls = calls_of(acl, getattr(rehearsal, operation))
    for call, index in calls:
        one = kind(driver, mechanism)
        one.until(operation)
        before, found = set(acl.rt.held), acl.rt.context
        acl.rt.codes.clear()
        acl.rt.fail(call, OTHER_FAILURE, skip=index)
        with pytest.raises(crossmem.DriverError) as raised:
            getattr(one, operation)()

        assert raised.value.call == f"acl.rt.{call}"
        assert raised.value.operation == operation.rstrip("_")
        assert raised.value.device
        # A context whose destruction fails cannot but stay, and so can what is current.
        assert {held for held in acl.rt.held - before if held[0] != "context"} == set(), call
        if call not in {"destroy_context", "set_context"}:
            assert acl.rt.context == found, call
        acl.rt.context = found


@pytest.mark.parametrize(
    ("failing", "left"),
    [
        ("unmap_mem", {"mapping", "physical", "addresses"}),
        ("free_physical", {"physical", "addresses"}),
        ("release_mem_address", {"addresses"}),
        ("destroy_context", {"context"}),
    ],
)
def test_freeing_goes_on_where_it_stopped(
    failing: str, left: set[str], acl: Any, story_of: Callable[[str], Any]
) -> None:
    story = story_of("shareable")
    story.allocate()
    acl.rt.fail(failing, OTHER_FAILURE)
    with pytest.raises(crossmem.DriverError) as raised:
        story.free()
    assert raised.value.call == f"acl.rt.{failing}"
    assert {kind for kind, _ in acl.rt.held} == left
    acl.rt.context = 0

    story.free()

    assert {kind for kind, _ in acl.rt.held} <= {"context"}


def test_memory_stays_under_a_key_that_does_not_close(
    acl: Any, story_of: Callable[[str], Any]
) -> None:
    story = story_of("key")
    story.until("grant")
    acl.rt.fail("ipc_mem_close", OTHER_FAILURE)
    with pytest.raises(crossmem.DriverError):
        story.free()

    assert {kind for kind, _ in acl.rt.held} == {"key", "memory"}


def test_an_export_that_fails_can_be_made_again(acl: Any, story: Any) -> None:
    story.until("export")
    for call, index in [("get_context", 0), ("mem_export_to_shareable_handle", 0)]:
        acl.rt.fail(call, OTHER_FAILURE, skip=index)
    acl.rt.fail("ipc_mem_get_export_key", OTHER_FAILURE)
    for _ in range(2):
        with pytest.raises(crossmem.DriverError):
            story.export()
    story.export()

    assert story.exported.payloads


def test_an_export_is_remembered_where_only_the_context_fails(acl: Any, story: Any) -> None:
    story.until("export")
    acl.rt.fail("destroy_context", OTHER_FAILURE)
    with pytest.raises(crossmem.DriverError):
        story.export()
    acl.rt.context = 0
    story.export()

    assert sum("export" in name for name in acl.rt.named()) == 1


@pytest.mark.parametrize("failing", ["memcpy_async", "synchronize_stream", "destroy_stream"])
def test_a_copy_leaves_no_stream(failing: str, acl: Any, driver: AscendDriver) -> None:
    acl.rt.fail(failing, OTHER_FAILURE)
    with pytest.raises(crossmem.DriverError, match=failing):
        driver.copy(0, 1, 2, 3, CopyKind.DEVICE_TO_DEVICE)

    assert not acl.rt.held


@pytest.mark.parametrize("failing", ["destroy_context", "reserve_mem_address"])
def test_a_range_that_fails_leaves_no_addresses(
    failing: str, acl: Any, driver: AscendDriver
) -> None:
    acl.rt.fail(failing, OTHER_FAILURE)
    with pytest.raises(crossmem.DriverError):
        driver.reserve(0, 2 * MIB)

    assert "addresses" not in {kind for kind, _ in acl.rt.held}


@pytest.mark.parametrize("failing", ["destroy_context", "map_mem"])
def test_a_piece_that_fails_is_not_mapped(
    failing: str, acl: Any, driver: AscendDriver, story_of: Callable[[str], Any]
) -> None:
    story = story_of("shareable")
    story.allocate()
    reserved = driver.reserve(0, 4 * MIB)
    pointer = reserved.pointer
    acl.rt.fail(failing, OTHER_FAILURE)
    with pytest.raises(crossmem.DriverError):
        driver.map_at(story.block, pointer)

    assert ("mapping", pointer) not in acl.rt.held


@pytest.mark.parametrize(
    ("call", "code", "error"),
    [
        ("malloc_physical", 207001, crossmem.OutOfMemoryError),
        ("malloc_physical", 207018, crossmem.OutOfMemoryError),
        ("malloc_physical", 207000, crossmem.UnsupportedError),
    ],
)
def test_what_allocation_can_meet(
    call: str, code: int, error: type[Exception], acl: Any, story_of: Callable[[str], Any]
) -> None:
    acl.rt.fail(call, code)
    with pytest.raises(error, match=f"acl.rt.{call}.*EE1001: The argument is invalid"):
        story_of("shareable").allocate()


def test_what_is_gone_is_stale(acl: Any, story_of: Callable[[str], Any]) -> None:
    acl.rt.fail("mem_import_from_shareable_handle", 107017)
    with pytest.raises(crossmem.StaleHandleError):
        story_of("shareable").import_()


def test_a_size_that_the_memory_does_not_have(acl: Any, story_of: Callable[[str], Any]) -> None:
    story = story_of("shareable")
    story.import_()
    acl.rt.fail("map_mem", 107000)
    with pytest.raises(crossmem.InvalidHandleError, match="4194304 bytes"):
        story.map()
    story.close()

    assert acl.rt.held == set()


def test_peer_access_that_never_comes(
    acl: Any, driver: AscendDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("crossmem_ascend.peers._TIMEOUT_S", 0.02)
    monkeypatch.setattr(acl.rt, "device_enable_peer_access", lambda *_: 0)
    driver.synchronize(1)
    with pytest.raises(crossmem.DriverError, match="no access to the memory of device 1"):
        driver.copy(0, 1, 2, 3, CopyKind.DEVICE_TO_DEVICE)
