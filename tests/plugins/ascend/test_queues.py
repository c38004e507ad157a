# SPDX-License-Identifier: Apache-2.0
"""The mechanism ``acltdt`` on the emulation: where it is offered, its errors and its times."""

import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import pytest

import crossmem
from crossmem.driver import Peer, VendorBuffer, VendorQueue, check_groups, vendor_queues_of
from crossmem.driver.native import LibraryNotFoundError
from crossmem_ascend import library
from crossmem_ascend.driver import AscendDriver
from crossmem_emulated.acl import Acl
from crossmem_emulated.options import Options

NAME = "acltdt"
FULL, EMPTY, BUSY, FAILURE = 207014, 207013, 507899, 500001


class Queues:
    """A driver with the vendor's queues, and the vendor under it."""

    def __init__(self, acl: Any) -> None:
        self.acl = acl
        self.driver: Any = AscendDriver(acl)

    def create(self, depth: int = 2) -> VendorQueue:
        queue: VendorQueue = self.driver.create_queue(0, depth, NAME)
        return queue

    def allocate(self, nbytes: int = 64) -> VendorBuffer:
        buffer: VendorBuffer = self.driver.allocate_buffer(0, nbytes, NAME)
        return buffer

    def fail(self, call: str, code: int, count: int = 1) -> None:
        self.acl.faults.add(f"tdt.{call}", code, count=count, pid=os.getpid())

    @property
    def left(self) -> list[int]:
        """Numbers of buffers, attributes and queues that are there."""
        process = self.acl._process
        with process.machine.transaction() as tables:
            (queues,) = tables.execute("SELECT count(*) FROM acl_queue").fetchone()
        return [len(process.tdt.buffers), len(process.tdt.objects), queues]


@pytest.fixture
def make_acl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    def make(profile: str = "310b-rc", *, group: str = "group", in_group: bool = True) -> Any:
        monkeypatch.delenv("SHAREGROUP_PRECONFIG", raising=False)
        if in_group:
            monkeypatch.setenv("SHAREGROUP_PRECONFIG", "")
        return Acl(profile, options=Options(state=tmp_path, acl_group=group))

    return make


@pytest.fixture
def queues(make_acl: Callable[..., Any]) -> Iterator[Queues]:
    made = Queues(make_acl())
    yield made
    assert made.left == [0, 0, 0]
    assert made.acl.violations == []


# Where it is offered ----------------------------------------------------------------------


def test_programs_of_a_share_group_have_it(queues: Queues) -> None:
    found = queues.driver.capabilities(0, NAME)

    assert found.mechanisms == ("shareable", "key", NAME)
    assert found.vendor_queues
    assert not queues.driver.capabilities(0, None).vendor_queues
    assert NAME not in queues.driver.capabilities(1, None).mechanisms
    assert "can use only device 0" in str(queues.driver.refusal(1, NAME))
    assert queues.driver.refusal(0, NAME) is None
    assert queues.driver.refusal(0, "other") is None
    assert check_groups(queues.driver) == []


@pytest.mark.parametrize(
    ("profile", "in_group", "reason", "hint"),
    [
        ("documented", True, "200006 .* run mode host", "shareable handles"),
        ("a2", False, "200006 .* run mode host", "shareable handles"),
        (
            "310b-rc",
            False,
            "200006 .* acltdtGrantQueue without a share group",
            "set SHAREGROUP_PRECONFIG=1",
        ),
    ],
)
def test_elsewhere_it_is_refused_with_the_vendors_reason(
    make_acl: Callable[..., Any], profile: str, in_group: bool, reason: str, hint: str
) -> None:
    driver = AscendDriver(make_acl(profile, in_group=in_group))
    refusal = driver.refusal(0, NAME)

    assert NAME not in driver.capabilities(0, None).mechanisms
    assert vendor_queues_of(driver) is None
    with pytest.raises(crossmem.UnsupportedError, match=reason):
        raise refusal or AssertionError
    assert refusal is not None
    assert hint in str(refusal.hint)


def test_an_unknown_run_mode_is_the_reason(make_acl: Callable[..., Any]) -> None:
    acl = make_acl()
    acl.rt.get_run_mode = lambda: (0, BUSY)

    assert "get_run_mode failed with 507899" in str(AscendDriver(acl).refusal(0, NAME))


def test_pyacl_takes_the_functions_of_the_library(
    make_acl: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    acl, pyacl = make_acl(), cast("Any", ModuleType("acl"))
    vars(pyacl).update(init=acl.init, rt=acl.rt)

    def missing() -> None:
        raise LibraryNotFoundError("none", [])

    monkeypatch.setattr(library, "acl_library", missing)
    assert "no function acl.tdt" in str(AscendDriver(pyacl).refusal(0, NAME))

    monkeypatch.setattr(library, "acl_library", lambda: None)
    monkeypatch.setattr(library, "LibraryAcl", lambda _: acl)
    assert AscendDriver(pyacl).refusal(0, NAME) is None


def test_a_device_says_why_it_lacks_a_mechanism(make_acl: Callable[..., Any]) -> None:
    from crossmem.sharing.base.process import current
    from crossmem.sharing.device import Device

    driver = AscendDriver(make_acl("documented"))
    device = Device(current(), driver, driver.devices()[0], None)
    with pytest.raises(crossmem.UnsupportedError, match="200006"):
        device.for_mechanism(NAME)
    with pytest.raises(crossmem.UnsupportedError, match="it has: shareable, key"):
        device.for_mechanism("other")


# Hand-overs -------------------------------------------------------------------------------


def test_a_buffer_goes_through_a_queue(queues: Queues) -> None:
    driver, queue, buffer = queues.driver, queues.create(), queues.allocate()
    assert driver.enqueue(queue, buffer, 5, b"user", 0.0)
    assert buffer.pointer == 0
    received = driver.dequeue(queue, 0.0)

    assert (received.capacity, received.length) == (64, 5)
    assert received.user_data == b"user".ljust(96, b"\0")
    driver.free_buffer(received)
    driver.free_buffer(received)
    driver.close_queue(queue)
    driver.close_queue(queue)


def test_a_queue_holds_as_many_as_asked(queues: Queues) -> None:
    driver, queue = queues.driver, queues.create(depth=3)
    buffers = [queues.allocate() for _ in range(4)]
    put = [driver.enqueue(queue, one, 0, b"", 0.0) for one in buffers]

    assert put == [True, True, True, False]
    driver.free_buffer(buffers[-1])
    driver.close_queue(queue)


@pytest.mark.parametrize("depth", [8192, 2**32])
def test_a_depth_that_the_vendor_lacks_is_refused(queues: Queues, depth: int) -> None:
    with pytest.raises(crossmem.InvalidSizeError):
        queues.create(depth)


@pytest.mark.parametrize("payload", [b"", b"123", b"12345", b"\xff" * 4])
def test_rubbish_is_no_queue(queues: Queues, payload: bytes) -> None:
    with pytest.raises(crossmem.InvalidHandleError):
        queues.driver.attach_queue(0, payload, "consume", NAME)


def test_a_queue_that_does_not_exist_is_not_attached(queues: Queues) -> None:
    with pytest.raises(crossmem.DriverError, match="507899") as caught:
        queues.driver.attach_queue(0, b"\1\0\0\0", "consume", NAME)

    assert "destroyed" in str(caught.value.hint)


def test_grants_of_one_process_add_up(queues: Queues) -> None:
    driver, queue = queues.driver, queues.create()
    given: list[tuple[int, ...]] = []
    grant = queues.acl.tdt.grant_queue

    def note(*arguments: int) -> Any:
        given.append(arguments)
        return grant(*arguments)

    queues.acl.tdt.grant_queue = note
    for role in ("produce", "consume"):
        driver.grant_queue(queue, role, Peer(os.getppid(), 0))
    with pytest.raises(crossmem.AccessDeniedError):
        driver.grant_queue(queue, "consume", Peer(0, 0))

    number = int.from_bytes(queue.payload, "little")
    assert given == [(number, os.getppid(), 4, 0), (number, os.getppid(), 6, 0)]
    driver.close_queue(queue)


# Times ------------------------------------------------------------------------------------


@pytest.mark.parametrize("timeout_s", [0.0, 0.0004, 0.1])
def test_waits_take_the_time_that_was_asked(queues: Queues, timeout_s: float) -> None:
    driver, queue, more = queues.driver, queues.create(depth=1), queues.allocate()
    start = time.monotonic()
    assert driver.dequeue(queue, timeout_s) is None
    assert timeout_s <= time.monotonic() - start < timeout_s + 1
    driver.enqueue(queue, queues.allocate(), 0, b"", 0.0)
    start = time.monotonic()
    assert not driver.enqueue(queue, more, 0, b"", timeout_s)
    assert timeout_s <= time.monotonic() - start < timeout_s + 1

    driver.free_buffer(more)
    driver.close_queue(queue)


@pytest.mark.parametrize("code", [FULL, EMPTY])
def test_the_other_codes_of_a_timeout(queues: Queues, code: int) -> None:
    driver, queue, buffer = queues.driver, queues.create(), queues.allocate()
    queues.fail("enqueue", code)
    assert not driver.enqueue(queue, buffer, 0, b"", 0.0)
    queues.fail("dequeue", code)
    assert driver.dequeue(queue, 0.0) is None

    driver.free_buffer(buffer)
    driver.close_queue(queue)


def test_a_busy_queue_is_tried_again(queues: Queues) -> None:
    driver, queue, buffer = queues.driver, queues.create(), queues.allocate()
    queues.fail("enqueue", BUSY, count=3)
    assert driver.enqueue(queue, buffer, 0, b"", 0.0)
    queues.fail("dequeue", BUSY, count=3)
    received = driver.dequeue(queue, 0.0)

    driver.free_buffer(received)
    driver.close_queue(queue)


def test_a_queue_that_stays_busy_is_an_error(queues: Queues) -> None:
    driver, queue, buffer = queues.driver, queues.create(), queues.allocate()
    queues.fail("enqueue", BUSY, count=10**6)
    with pytest.raises(crossmem.DriverError) as caught:
        driver.enqueue(queue, buffer, 0, b"", 0.0)
    queues.acl.faults.clear()

    assert (caught.value.call, caught.value.code) == ("acl.tdt.enqueue", BUSY)
    assert "another process died" in str(caught.value.hint)
    driver.free_buffer(buffer)
    driver.close_queue(queue)


def test_a_failure_before_the_time_is_no_timeout(queues: Queues) -> None:
    driver, queue = queues.driver, queues.create()
    queues.fail("dequeue", FAILURE)
    with pytest.raises(crossmem.DriverError, match="500001"):
        driver.dequeue(queue, 0.5)

    driver.close_queue(queue)


# Failures ---------------------------------------------------------------------------------


@pytest.mark.parametrize("call", ["get_buf_data", "get_buf_data_len", "get_buf_user_data"])
def test_what_cannot_be_received_is_freed(queues: Queues, call: str) -> None:
    driver, queue = queues.driver, queues.create()
    driver.enqueue(queue, queues.allocate(), 1, b"", 0.0)
    queues.fail(call, 107000)
    with pytest.raises(crossmem.DriverError, match=call):
        driver.dequeue(queue, 0.0)

    assert driver.dequeue(queue, 0.0) is None
    driver.close_queue(queue)


def test_a_refused_release_can_be_repeated(queues: Queues) -> None:
    driver, queue, buffer = queues.driver, queues.create(), queues.allocate()
    pointer = buffer.pointer
    queues.fail("free_buf", BUSY)
    with pytest.raises(crossmem.DriverError, match="free_buf"):
        driver.free_buffer(buffer)
    assert buffer.pointer == pointer
    driver.free_buffer(buffer)
    queues.fail("destroy_queue", FAILURE)
    with pytest.raises(crossmem.DriverError, match="destroy_queue"):
        driver.close_queue(queue)
    driver.close_queue(queue)


@pytest.mark.parametrize("call", ["set_queue_attr", "create_queue", "destroy_queue_attr"])
def test_a_failed_creation_leaves_nothing(queues: Queues, call: str) -> None:
    queues.fail(call, 107000)
    with pytest.raises(crossmem.DriverError, match=call):
        queues.create()

    if call == "destroy_queue_attr":
        # The vendor keeps what it does not destroy.
        queues.acl._process.tdt.objects.clear()


def test_the_first_of_two_failures_is_raised(queues: Queues) -> None:
    queues.fail("set_queue_attr", 100000)
    queues.fail("destroy_queue_attr", 107000)
    with pytest.raises(crossmem.DriverError, match="set_queue_attr") as caught:
        queues.create()

    assert "destroy_queue_attr" in "".join(caught.value.__notes__)
    # The vendor keeps what it does not destroy.
    queues.acl._process.tdt.objects.clear()


def test_a_closed_queue_is_refused_before_the_vendor_is_asked(queues: Queues) -> None:
    driver, queue, buffer = queues.driver, queues.create(), queues.allocate()
    driver.close_queue(queue)
    # Any number could be that of another queue of this process.
    for call in ("enqueue", "dequeue", "grant_queue", "set_buf_user_data"):
        setattr(queues.acl.tdt, call, None)
    uses: list[Callable[[], object]] = [
        lambda: driver.enqueue(queue, buffer, 1, b"", 0.0),
        lambda: driver.dequeue(queue, 0.0),
        lambda: driver.grant_queue(queue, "consume", Peer(os.getppid(), 0)),
    ]
    for use in uses:
        with pytest.raises(crossmem.ClosedError):
            use()

    driver.free_buffer(buffer)


def test_a_length_that_the_vendor_cannot_undo_is_refused(queues: Queues) -> None:
    driver, queue = queues.driver, queues.create(depth=1)
    assert driver.enqueue(queue, queues.allocate(), 0, b"", 0.0)
    buffer = queues.allocate()
    assert not driver.enqueue(queue, buffer, 5, b"", 0.0)
    driver.free_buffer(driver.dequeue(queue, 0.0))
    with pytest.raises(crossmem.UnsupportedError, match="length 5"):
        driver.enqueue(queue, buffer, 0, b"", 0.0)
    assert driver.enqueue(queue, buffer, 6, b"", 0.0)

    received = driver.dequeue(queue, 0.0)
    assert received.length == 6
    driver.free_buffer(received)
    driver.close_queue(queue)


@pytest.mark.parametrize("what", ["buffer", "queue"])
def test_two_threads_end_it_once(queues: Queues, what: str) -> None:
    driver, queue, buffer = queues.driver, queues.create(), queues.allocate()
    name = "free_buf" if what == "buffer" else "destroy_queue"
    end: Callable[[], None] = (
        (lambda: driver.free_buffer(buffer))
        if what == "buffer"
        else (lambda: driver.close_queue(queue))
    )
    inner, calls, others = getattr(queues.acl.tdt, name), list[int](), list[threading.Thread]()

    def slow(number: int) -> Any:
        calls.append(number)
        if not others:
            others.append(threading.Thread(target=end))
            others[0].start()
            others[0].join()
        return inner(number)

    setattr(queues.acl.tdt, name, slow)
    end()

    assert len(calls) == 1
    driver.free_buffer(buffer)
    driver.close_queue(queue)


def test_outside_of_a_group_everything_fails(make_acl: Callable[..., Any]) -> None:
    queues = Queues(make_acl(group=""))
    with pytest.raises(crossmem.DriverError, match="500001"):
        queues.create()
    with pytest.raises(crossmem.DriverError, match="500001"):
        queues.allocate()
