# SPDX-License-Identifier: Apache-2.0
"""What is in objects beside their fields."""

from typing import TYPE_CHECKING

import pytest

import crossmem

if TYPE_CHECKING:
    from tests.unit.trees.tree_classes import SlotAbove
else:
    from tree_classes import SlotAbove


def test_a_slot_that_is_no_field_is_refused_where_it_is_filled() -> None:
    value = SlotAbove(1)
    with crossmem.share(value) as shared:
        assert crossmem.receive(shared) == value
    value.label = "lost"

    with pytest.raises(crossmem.UnsupportedError, match=r"x\[0\] has the attribute 'label'"):
        crossmem.share([value])
