# SPDX-License-Identifier: Apache-2.0
"""Every entry leaves the thread's device and context as it found them (law C19)."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import count
from typing import Any

import pytest

import crossmem
from crossmem.conformance.interrupts import Interrupted, Interrupts
from crossmem.driver import CopyKind
from crossmem_ascend.driver import AscendDriver

OPERATIONS = ("allocate", "export", "import_", "map", "unmap", "close", "free")


def in_a_thread(work: Callable[[], None]) -> None:
    with ThreadPoolExecutor(max_workers=1) as threads:
        threads.submit(work).result()


def nothing(acl: Any) -> None:
    pass


def this_device(acl: Any) -> None:
    acl.rt.set_device(0)


def own_context_of_this_device(acl: Any) -> None:
    acl.rt.create_context(0)


def another_device(acl: Any) -> None:
    acl.rt.set_device(1)


BEFORE = (nothing, this_device, own_context_of_this_device, another_device)


@pytest.mark.parametrize("before", BEFORE)
def test_what_was_current_is_current_again(
    before: Callable[[Any], None], acl: Any, story: Any
) -> None:
    def work() -> None:
        before(acl)
        found = acl.rt.context
        for operation in story.OPERATIONS:
            if operation != "grant":
                getattr(story, operation)()
                assert acl.rt.context == found, operation
            else:
                in_a_thread(story.grant)

    in_a_thread(work)


@pytest.mark.parametrize("before", BEFORE)
def test_it_is_current_again_after_a_failure(
    before: Callable[[Any], None], acl: Any, driver: AscendDriver
) -> None:
    def work() -> None:
        before(acl)
        found = acl.rt.context
        acl.rt.fail("memcpy", 507899)
        with pytest.raises(crossmem.DriverError):
            driver.copy(0, 1, 2, 3, CopyKind.HOST_TO_DEVICE)
        assert acl.rt.context == found

    in_a_thread(work)


def test_an_interrupted_call_restores_it_at_the_latest_at_the_next_call(
    acl: Any, driver: AscendDriver
) -> None:
    another_device(acl)
    found = acl.rt.context
    driver.synchronize(0)
    for number in count(1):
        with (
            Interrupts(
                number, lambda file: "crossmem_ascend" in file, innermost=True
            ) as interrupts,
            suppress(Interrupted),
        ):
            driver.synchronize(0)
        if not interrupts.place:
            break
        if acl.rt.context != found:
            driver.synchronize(0)
        assert acl.rt.context == found, interrupts.place
    assert number > 10


def test_a_signal_handler_may_use_a_device_that_is_being_opened(
    monkeypatch: pytest.MonkeyPatch, driver: AscendDriver
) -> None:
    start, synchronized = threading.Thread.start, []

    def interrupted(thread: threading.Thread) -> None:
        monkeypatch.setattr(threading.Thread, "start", start)
        driver.synchronize(1)
        start(thread)

    def use() -> None:
        monkeypatch.setattr(threading.Thread, "start", interrupted)
        driver.synchronize(1)
        synchronized.append(0)

    using = threading.Thread(target=use, daemon=True)
    using.start()
    using.join(5)

    assert synchronized == [0]


def test_a_thread_of_this_device_costs_two_questions(acl: Any, driver: AscendDriver) -> None:
    acl.rt.set_device(0)
    acl.rt.calls.clear()
    driver.copy(0, 1, 2, 3, CopyKind.HOST_TO_DEVICE)

    assert acl.rt.named(context=True) == ["get_context", "get_device", "memcpy"]


def test_a_thread_without_a_context_gets_the_default_context(
    acl: Any, driver: AscendDriver
) -> None:
    driver.synchronize(0)
    acl.rt.calls.clear()
    driver.synchronize(0)

    (own,) = (call[1] for call in acl.rt.calls if call[0] == "destroy_context")
    assert [call for call in acl.rt.calls if call[0] in {"set_context", "synchronize_device"}] == [
        ("set_context", acl.rt._defaults[0]),
        ("synchronize_device",),
        ("set_context", own),
    ]


def test_a_synchronisation_waits_for_the_threads_own_context_and_the_default_one(
    acl: Any, driver: AscendDriver
) -> None:
    acl.rt.set_device(0)
    default = acl.rt.context
    own, _ = acl.rt.create_context(0)
    acl.rt.calls.clear()
    driver.synchronize(0)

    assert [call for call in acl.rt.calls if call[0] in {"set_context", "synchronize_device"}] == [
        ("synchronize_device",),
        ("set_context", default),
        ("synchronize_device",),
        ("set_context", own),
    ]
    assert acl.rt.context == own


def test_a_thread_of_another_device_gets_the_default_context(
    acl: Any, driver: AscendDriver
) -> None:
    acl.rt.set_device(1)
    default = acl.rt._defaults[0]
    found = acl.rt.context
    acl.rt.calls.clear()
    driver.synchronize(0)

    assert [call for call in acl.rt.calls if call[0] == "set_context"] == [
        ("set_context", default),
        ("set_context", found),
    ]


def test_granting_leaves_the_thread_as_it_was(acl: Any, story: Any) -> None:
    # Whoever frees helps the lease server to read, so it may be the application's thread.
    story.until("grant")
    acl.rt.set_device(1)
    found = acl.rt.context
    story.grant()

    assert acl.rt.context == found


def test_a_device_is_opened_once_whatever_threads_come(acl: Any, fake_acl: Any) -> None:
    driver = AscendDriver(acl)
    barrier = threading.Barrier(8)

    def work() -> None:
        barrier.wait(10)
        driver.synchronize(1)

    with ThreadPoolExecutor(max_workers=8) as threads:
        for one in [threads.submit(work) for _ in range(8)]:
            one.result()

    assert [call for call in acl.rt.calls if call[0] == "set_device"] == [("set_device", 1)]


def test_a_device_that_does_not_open_is_tried_again(acl: Any) -> None:
    driver = AscendDriver(acl)
    acl.rt.fail("set_device", 507033)
    with pytest.raises(crossmem.DriverError, match="DEV_SETUP_ERROR"):
        driver.synchronize(0)
    driver.synchronize(0)

    assert acl.rt.named(context=True).count("set_device") == 2


def test_looking_at_devices_opens_none(acl: Any) -> None:
    driver = AscendDriver(acl)
    for device in driver.devices():
        driver.capabilities(device.ordinal, None)

    assert "set_device" not in acl.rt.named(context=True)
