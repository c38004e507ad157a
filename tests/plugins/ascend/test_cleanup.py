# SPDX-License-Identifier: Apache-2.0
"""What could not be put back or given back at once is, later and once."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import crossmem
from crossmem.driver import CopyKind
from crossmem_ascend.driver import AscendDriver

MIB = 1 << 20
OTHER_FAILURE = 507899


def contexts(acl: Any) -> set[tuple[str, Any]]:
    """Return those that were made and not destroyed; a device's own is none of them."""
    return {held for held in acl.rt.held if held[0] == "context"}


def copy(driver: AscendDriver, ordinal: int = 0) -> None:
    driver.copy(ordinal, 1, 2, 3, CopyKind.HOST_TO_DEVICE)


# The thread's context ----------------------------------------------------------------------


def test_a_thread_without_a_context_is_rid_of_crossmem_s_later(
    acl: Any, driver: AscendDriver
) -> None:
    acl.rt.fail("destroy_context", OTHER_FAILURE)
    with pytest.raises(crossmem.DriverError, match="destroy_context"):
        copy(driver)
    assert acl.rt.context
    copy(driver)

    assert acl.rt.context == 0
    assert contexts(acl) == set()


def test_a_thread_of_another_device_gets_it_back_later(acl: Any, driver: AscendDriver) -> None:
    acl.rt.set_device(1)
    found = acl.rt.context
    # Once to enter and once to leave.
    acl.rt.fail("set_context", OTHER_FAILURE, skip=1)
    with pytest.raises(crossmem.DriverError, match="set_context"):
        copy(driver)
    assert acl.rt.context != found
    copy(driver)

    assert acl.rt.context == found


def test_what_the_application_chose_since_stays(acl: Any, driver: AscendDriver) -> None:
    acl.rt.set_device(1)
    acl.rt.fail("set_context", OTHER_FAILURE, skip=1)
    with pytest.raises(crossmem.DriverError):
        copy(driver)
    chosen, _ = acl.rt.create_context(1)
    copy(driver)

    assert acl.rt.context == chosen


def test_a_context_that_the_application_left_is_destroyed(acl: Any, driver: AscendDriver) -> None:
    acl.rt.fail("destroy_context", OTHER_FAILURE)
    with pytest.raises(crossmem.DriverError):
        copy(driver)
    acl.rt.set_device(1)
    found = acl.rt.context
    copy(driver)

    assert acl.rt.context == found
    assert contexts(acl) == set()


def test_a_context_that_is_gone_with_its_device_is_forgotten(
    acl: Any, driver: AscendDriver
) -> None:
    acl.rt.fail("destroy_context", OTHER_FAILURE)
    with pytest.raises(crossmem.DriverError):
        copy(driver)
    acl.rt.context = 0
    # As the vendor answers for what it does not know.
    acl.rt.fail("destroy_context", 107000)
    copy(driver)
    copy(driver)

    assert acl.rt.context == 0


def test_contexts_within_each_other_are_put_back_from_the_inside(
    acl: Any, driver: AscendDriver
) -> None:
    driver.synchronize(1)
    # Enabling the way back is done in the other device's context, within that of the copy.
    acl.rt.fail("set_context", OTHER_FAILURE, skip=1)
    with pytest.raises(crossmem.DriverError, match="set_context"):
        driver.copy(0, 1, 2, 3, CopyKind.DEVICE_TO_DEVICE)
    copy(driver)

    assert acl.rt.context == 0
    assert contexts(acl) == set()


def test_threads_are_owed_each_their_own(acl: Any, driver: AscendDriver) -> None:
    acl.rt.fail("destroy_context", OTHER_FAILURE)
    with pytest.raises(crossmem.DriverError):
        copy(driver)
    mine = acl.rt.context
    with ThreadPoolExecutor(max_workers=1) as threads:
        threads.submit(copy, driver).result()

    assert acl.rt.context == mine
    assert contexts(acl) == {("context", mine)}


# Imports ------------------------------------------------------------------------------------

UNDO = {"shareable": "unmap_mem", "key": "ipc_mem_close"}


@pytest.mark.parametrize("mechanism", UNDO)
def test_a_mapping_that_could_not_be_undone_is_closed_with_its_import(
    mechanism: str, acl: Any, story_of: Callable[[str], Any]
) -> None:
    story = story_of(mechanism)
    before = set(acl.rt.held)
    story.import_()
    acl.rt.fail("destroy_context", OTHER_FAILURE)
    acl.rt.fail(UNDO[mechanism], OTHER_FAILURE)
    with pytest.raises(crossmem.DriverError, match="destroy_context") as raised:
        story.map()
    assert UNDO[mechanism] in raised.value.__notes__[0]
    story.close()

    assert acl.rt.held == before


@pytest.mark.parametrize("mechanism", UNDO)
def test_a_mapping_that_could_not_be_undone_is_used_again(
    mechanism: str, acl: Any, story_of: Callable[[str], Any]
) -> None:
    story = story_of(mechanism)
    before = set(acl.rt.held)
    story.import_()
    acl.rt.fail("destroy_context", OTHER_FAILURE)
    acl.rt.fail(UNDO[mechanism], OTHER_FAILURE)
    with pytest.raises(crossmem.DriverError):
        story.map()
    acl.rt.calls.clear()
    story.map()

    assert story.pointer
    assert acl.rt.named() == []

    story.unmap()
    story.close()

    assert acl.rt.held == before


# Address ranges -----------------------------------------------------------------------------


def test_addresses_are_released_once_whatever_happens_to_the_context(
    acl: Any, driver: AscendDriver, caplog: pytest.LogCaptureFixture
) -> None:
    reserved = driver.reserve(0, 2 * MIB)
    acl.rt.fail("destroy_context", OTHER_FAILURE)
    # Another thread may have the addresses now: who is told that it failed would ask again.
    driver.release(reserved)

    assert "tries again to make it current" in caplog.text
    assert acl.rt.named().count("release_mem_address") == 1

    copy(driver)

    assert (acl.rt.context, contexts(acl)) == (0, set())


def test_addresses_that_are_not_released_are_asked_for_again(
    acl: Any, driver: AscendDriver
) -> None:
    reserved = driver.reserve(0, 2 * MIB)
    pointer = reserved.pointer
    acl.rt.fail("release_mem_address", OTHER_FAILURE)
    with pytest.raises(crossmem.DriverError, match="release_mem_address"):
        driver.release(reserved)
    driver.release(reserved)

    assert ("addresses", pointer) not in acl.rt.held


# Devices that do not reach each other -----------------------------------------------------


@pytest.fixture
def two_opened(acl: Any, driver: AscendDriver) -> AscendDriver:
    driver.synchronize(1)
    acl.rt.calls.clear()
    return driver


def test_a_copy_on_one_device_needs_no_functions_for_two(
    fake_acl: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("can_access_peer", "enable_peer_access", "peer_access_status"):
        monkeypatch.delattr(type(fake_acl().rt), f"device_{name}")
    acl = fake_acl()
    driver = AscendDriver(acl)
    for ordinal in (0, 1):
        driver.synchronize(ordinal)
    driver.copy(0, 1, 2, 3, CopyKind.DEVICE_TO_DEVICE)

    assert "memcpy_async" in acl.rt.named()


@pytest.mark.parametrize("answer", [(0, 0), (0, 207000)], ids=["no-way", "unsupported"])
def test_a_copy_on_one_device_asks_for_no_way_that_is_not_there(
    answer: tuple[int, int],
    acl: Any,
    two_opened: AscendDriver,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(acl.rt, "device_can_access_peer", lambda *_: answer)

    assert not two_opened.capabilities(0, None).peer_access

    two_opened.copy(0, 1, 2, 3, CopyKind.DEVICE_TO_DEVICE)

    assert "device_enable_peer_access" not in acl.rt.named()
    assert "memcpy_async" in acl.rt.named()


def test_a_thread_is_needed_to_open_a_device(
    acl: Any, driver: AscendDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: threading.Thread) -> None:
        # As newer Pythons do at exit.
        raise RuntimeError("can't create new thread at interpreter shutdown")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(crossmem.DriverError, match="device 1 cannot be opened"):
        driver.synchronize(1)
    driver.synchronize(0)


def test_what_the_application_destroyed_is_not_owed(acl: Any, driver: AscendDriver) -> None:
    acl.rt.set_device(1)
    # The put-back is refused, and then the context to put back is gone.
    acl.rt.fail("set_context", OTHER_FAILURE, skip=1)
    with pytest.raises(crossmem.DriverError):
        copy(driver)
    acl.rt.fail("set_context", 107000)
    copy(driver)
    copy(driver)
