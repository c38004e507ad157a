# SPDX-License-Identifier: Apache-2.0
"""Processes that coverage does not measure: it takes time, and the gate is about core alone."""

import os
from collections.abc import Iterator
from typing import Final

import pytest

UNMEASURED: Final[dict[str, str | None]] = {
    name: None for name in os.environ if name.startswith(("COV_CORE_", "COVERAGE_"))
}
"""Changes of the environment that keep coverage from starting in a child."""


@pytest.fixture(scope="module")
def unmeasured() -> Iterator[None]:
    """Let coverage start in no child of the tests of a module."""
    with pytest.MonkeyPatch.context() as patch:
        for name in UNMEASURED:
            patch.delenv(name, raising=False)
        yield
