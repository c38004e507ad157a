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
ELSEWHERE: Final = (
    "tests/plugins/",
    "tests/frameworks/test_example_programs.py",
    *(
        f"tests/integration/test_{name}.py"
        for name in (
            *("ascend_faults", "ascend_releases", "hip_faults"),
            *("crash_points", "timelines_crash_points", "interrupted"),
            *("leases_floods", "leases_rogue", "leases_rubbish"),
        )
    ),
)
"""Tests in many processes, of code that other tests measure. A measured peer takes 50 ms of CPU
more to begin and end."""


@pytest.fixture(scope="module", autouse=True)
def _measured_elsewhere(request: pytest.FixtureRequest) -> None:
    """Let coverage start in no child of some tests."""
    if request.node.nodeid.startswith(ELSEWHERE):
        request.getfixturevalue("unmeasured")


@pytest.fixture(scope="module")
def unmeasured() -> Iterator[None]:
    """Let coverage start in no child of the tests of a module."""
    with pytest.MonkeyPatch.context() as patch:
        for name in UNMEASURED:
            patch.delenv(name, raising=False)
        yield
