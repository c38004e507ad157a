# SPDX-License-Identifier: Apache-2.0
"""Holds in shared memory are safe in every interleaving, and need each part of the protocol."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.model.hold_model import Rules, ViolationError, explore
else:
    import sys

    sys.path.insert(0, str(Path(__file__).parent))
    from hold_model import Rules, ViolationError, explore

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
# What a broken protocol ends in: a block that is used in another life, or a lost message.
BROKEN: dict[str, tuple[dict[str, Any], str]] = {
    "no barrier between the next generation and the rows": (
        {"barriers": frozenset({"reuse"})},
        "holds life|nobody rings",
    ),
    "the generation is read before the row is written": ({"holds_first": False}, "holds life"),
    "a generation comes twice": ({"new_generations": False}, "holds life"),
}


@pytest.mark.parametrize("machine", SAFE_MACHINES)
def test_the_protocol_is_safe(machine: dict[str, Any]) -> None:
    assert explore(Rules(**machine)) > 10_000


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("broken", BROKEN)
def test_each_part_is_needed(machine: dict[str, Any], broken: str) -> None:
    changes, found = BROKEN[broken]
    with pytest.raises(ViolationError, match=found):
        explore(Rules(**machine, **changes))


@pytest.mark.parametrize("order", ["tso", "weak"])
def test_without_the_last_fence_an_owner_with_fences_sleeps_for_ever(order: Any) -> None:
    with pytest.raises(ViolationError, match="nobody rings"):
        explore(Rules(order=order, is_fenced=True, has_last_fence=False))

    assert explore(Rules(order=order, has_last_fence=False)) > 10_000


def test_the_barrier_before_the_reuse_is_needed_where_stores_pass_each_other() -> None:
    without: dict[str, Any] = {"barriers": frozenset({"free"})}
    with pytest.raises(ViolationError, match="writes in life"):
        explore(Rules(order="weak", **without))

    # On x86-64, what was stored under a hold is visible before the hold ends. With fences, an
    # importer ends a hold by a store that comes after all others.
    for rules in (
        Rules(order="tso", **without),
        Rules(order="tso", is_fenced=True, **without),
        Rules(order="weak", is_fenced=True, **without),
    ):
        assert explore(rules) > 10_000
