# SPDX-License-Identifier: Apache-2.0
"""The places of some tests: the kit runs in the background, beside all others.

It works as long as the rest of the suite and waits more than that. So what starts it comes first,
and what waits for it comes last.
"""

import pytest

# These look at the memory of the whole machine, which the kit takes from.
_BEFORE = "test_kill_storm.py"
_FIRST = {"test_the_kit_begins_on_every_backend", "test_the_kit_passes_where_nothing_is_broken"}
_LAST = {"test_every_law_holds_on_every_backend", "test_the_kit_notices"}


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Move these to their places; the others keep their order."""
    items.sort(key=_place)


def _place(item: pytest.Item) -> int:
    name = item.name.partition("[")[0]
    if item.path.name == _BEFORE:
        return 0
    if name in _FIRST:
        return 1
    return 3 if name in _LAST else 2
