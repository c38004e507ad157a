# SPDX-License-Identifier: Apache-2.0
"""What the tests of trees have in common."""

import gc
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from in_use import assert_in_use, in_use

import crossmem

# They import tree_classes.
sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture
def nothing_left() -> Iterator[None]:
    """Check that what a test shared and closed is freed; versions keep their memory."""
    with crossmem.share(None):
        before = in_use()
    yield

    gc.collect()
    assert_in_use(before)
