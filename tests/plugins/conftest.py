# SPDX-License-Identifier: Apache-2.0
"""The tiers of the plugins' tests: two profiles of the emulations and no C for newcomers.

Also an emulated host for each test that asks for one.
"""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

HERE: Final = Path(__file__).parent
# The second one is the product with buffers.
DEFAULT_PROFILES: Final = ("documented", "310b-rc")
C_PROGRAMS: Final = (HERE / "emulated" / "abi", HERE / "emulated" / "acl_programs")
ON_REAL_BINDINGS: Final = any(
    os.environ.get(name, "0") not in {"", "0"}
    for name in ("CROSSMEM_TEST_CUPY", "CROSSMEM_TEST_PYACL")
)
"""Whether the tests of the emulation's rules ask a vendor's binding, which has one profile."""


def _is_for_ci(item: pytest.Item) -> bool:
    if any(folder in item.path.parents for folder in C_PROGRAMS):
        return True
    if not isinstance(item, pytest.Function) or ON_REAL_BINDINGS:
        return False
    parameters = item.callspec.params if hasattr(item, "callspec") else {}
    return parameters.get("profile", "documented") not in DEFAULT_PROFILES


@pytest.fixture
def variables(tmp_path: Path) -> Iterator[dict[str, str]]:
    """Return the variables of processes on an emulated host of the test's own."""
    # The path of a socket must be short, and ``tmp_path`` contains the name of the test.
    with tempfile.TemporaryDirectory(prefix="crossmem-") as run_dir:
        yield {"CROSSMEM_RUN_DIR": run_dir, "CROSSMEM_EMULATED_STATE": str(tmp_path / "host")}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what only `.ci/run` runs: other profiles of the emulations, and programs in C."""
    for item in items:
        if HERE in item.path.parents and _is_for_ci(item):
            item.add_marker(pytest.mark.ci)
