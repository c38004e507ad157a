# SPDX-License-Identifier: Apache-2.0
"""The place of one test: whoever waits for the kits comes last, and they run beside the others."""

import pytest

_LAST = "test_every_law_holds_on_every_backend"


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Move the test that waits to the end of the run; the others keep their order."""
    items.sort(key=lambda item: item.name == _LAST)
