# SPDX-License-Identifier: Apache-2.0
"""No wake-up of a timeline is lost in any interleaving, and each part of the protocol is needed."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.model.wake_model import LostWakeError, Rules, explore
else:
    import sys

    sys.path.insert(0, str(Path(__file__).parent))
    from wake_model import LostWakeError, Rules, explore

pytestmark = pytest.mark.ci

MACHINES = [
    pytest.param({"order": order, "is_fenced": is_fenced}, id=f"{order}-{way}")
    for order in ("tso", "weak")
    for is_fenced, way in ((False, "barrier"), (True, "fences"))
]
# The weak order allows whatever the other one does.
SAFE_MACHINES = [
    pytest.param(one.values[0], id=one.id, marks=pytest.mark.long if "tso" in str(one.id) else ())
    for one in MACHINES
]
BROKEN: dict[str, dict[str, Any]] = {
    "no second look": {"looks_again": False},
    "no sequence": {"has_sequence": False},
    "the flag is cleared after the wake-up": {"clears_first": False},
    "the sequence is read after the second look": {"reads_sequence_first": False},
}


@pytest.mark.parametrize("machine", SAFE_MACHINES)
def test_no_wake_up_is_lost(machine: dict[str, Any]) -> None:
    assert explore(Rules(**machine)) > 1000


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("broken", BROKEN)
def test_each_part_is_needed(machine: dict[str, Any], broken: str) -> None:
    with pytest.raises(LostWakeError):
        explore(Rules(**machine, **BROKEN[broken]))


@pytest.mark.parametrize("order", ["tso", "weak"])
def test_the_barrier_before_the_second_look_is_needed(order: Any) -> None:
    with pytest.raises(LostWakeError):
        explore(Rules(order=order, has_barrier=False))


@pytest.mark.parametrize("order", ["tso", "weak"])
def test_each_part_that_saves_barriers_is_needed(order: Any) -> None:
    for broken in (
        {"settles_late": False},
        {"trusts_pending": True},
        {"has_care": False},
        {"has_waiter_fence": False},
    ):
        with pytest.raises(LostWakeError):
            explore(Rules(order=order, **broken))


@pytest.mark.parametrize("order", ["tso", "weak"])
def test_a_signaller_that_is_not_registered_needs_its_fence(order: Any) -> None:
    with pytest.raises(LostWakeError):
        explore(Rules(order=order, is_fenced=True, has_fence=False))


def test_where_loads_may_be_late_the_read_of_the_sequence_needs_its_fence() -> None:
    with pytest.raises(LostWakeError):
        explore(Rules(order="weak", observes_sequence=False))

    # On x86-64, no load is delayed past a later store.
    assert explore(Rules(order="tso", observes_sequence=False)) > 1000


def test_the_increment_comes_after_the_clearing_where_stores_pass_each_other() -> None:
    with pytest.raises(LostWakeError):
        explore(Rules(order="weak", has_release=False))

    assert explore(Rules(order="tso", has_release=False)) > 1000
