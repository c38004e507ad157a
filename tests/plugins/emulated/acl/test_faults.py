# SPDX-License-Identifier: Apache-2.0
"""Calls that are made to fail."""

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.plugins.emulated.acl.acl_actor import GRANULARITY, Actor, emulation_only
    from tests.plugins.emulated.acl.conftest import Start
else:
    from acl_actor import GRANULARITY, Actor, emulation_only

    Start = Any


pytestmark = [emulation_only, pytest.mark.parametrize("profile", ["documented"], indirect=True)]


def answers(acl: Actor, number: int) -> list[int]:
    """Allocate some times and return the codes."""
    return [acl.rt.malloc(GRANULARITY, 0)[1] for _ in range(number)]


def test_one_call_fails(acl: Actor) -> None:
    before = acl.free_nbytes
    acl.call("fail", "rt.malloc", 207001, {})

    assert acl.rt.malloc(GRANULARITY, 0) == (0, 207001)
    assert acl.free_nbytes == before
    assert "rt.malloc" in acl.acl.get_recent_err_msg()
    assert answers(acl, 2) == [0, 0]
    acl.check_broken()


def test_calls_are_skipped_and_counted(acl: Actor) -> None:
    acl.call("fail", "rt.malloc", 507899, {"skip": 2, "count": 3})

    assert answers(acl, 7) == [0, 0, 507899, 507899, 507899, 0, 0]


def test_faults_follow_each_other(acl: Actor) -> None:
    acl.call("fail", "rt.malloc", 1, {})
    acl.call("fail", "rt.malloc", 2, {"skip": 1})

    assert answers(acl, 4) == [1, 0, 2, 0]


def test_other_calls_do_not_count(acl: Actor) -> None:
    acl.call("fail", "rt.map_mem", 507899, {})

    assert answers(acl, 2) == [0, 0]
    with pytest.raises(AssertionError):
        acl.physical()
    acl.physical()


def test_one_process_fails(acl: Actor, start: Start) -> None:
    other = start()
    acl.call("fail", "rt.malloc", 507899, {"pid": other.pid})

    assert answers(acl, 1) == [0]
    assert answers(other, 2) == [507899, 0]


def test_any_process_fails(acl: Actor, start: Start) -> None:
    other = start()
    acl.call("fail", "rt.malloc", 507899, {"count": 3})

    assert sorted(answers(acl, 2) + answers(other, 2)) == [0, 507899, 507899, 507899]


def test_faults_are_cleared(acl: Actor, start: Start) -> None:
    other = start()
    other.call("fail", "rt.malloc", 507899, {"count": 9})
    assert answers(acl, 1) == [507899]
    other.call("acl.faults.clear")

    assert answers(acl, 1) == answers(other, 1) == [0]


@pytest.mark.parametrize("is_running", [True, False])
def test_a_fault_ends_with_the_process_that_added_it(
    start: Start,
    is_running: bool,
) -> None:
    other = start()
    third = start() if is_running else None
    other.call("fail", "rt.malloc", 507899, {"count": 9})
    if third is not None:
        assert answers(third, 1) == [507899]
    other.kill()

    assert answers(third or start(), 1) == [0]


def test_a_fault_is_for_one_process_and_not_for_its_pid(acl: Actor, start: Start) -> None:
    other = start()
    acl.call("fail", "rt.malloc", 507899, {"pid": other.pid})
    acl.call("run", "host_actions", "age_faults")

    assert answers(other, 1) == [0]


def test_every_call_can_fail_before_it_does_anything(acl: Actor) -> None:
    handle, pointer = acl.physical()
    acl.write(pointer, b"mapped")
    for name, arguments in {
        "unmap_mem": (pointer,),
        "free_physical": (handle,),
        "release_mem_address": (pointer,),
        "synchronize_device": (),
        "memcpy": (pointer, 1, pointer + 1, 1, 3),
    }.items():
        acl.call("fail", f"rt.{name}", 507899, {})
        assert acl.call(f"acl.rt.{name}", *arguments) == 507899
    assert acl.read(pointer, 6) == b"mapped"
