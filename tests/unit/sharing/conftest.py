# SPDX-License-Identifier: Apache-2.0
"""What the tests of memory and timelines on streams have in common."""

from collections.abc import Iterator

import pytest
from busy_streams import Streams


@pytest.fixture
def streams() -> Iterator[Streams]:
    found = Streams()
    yield found
    found.close()
