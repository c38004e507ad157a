# SPDX-License-Identifier: Apache-2.0
"""A pytest fixture with the effect of ``crossmem emulate``.

Put ``pytest_plugins = ["crossmem_emulated.fixtures"]`` into the project's ``conftest.py``.
"""

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from crossmem.plugin import Breach, EmulationRequest
from crossmem_emulated.abi.session import prepare

__all__ = ["Emulated", "emulate"]


class Emulated:
    """An emulated library, for the processes that a test starts.

    Parameters
    ----------
    api
        The library's name, ``"hip"`` or ``"ascend"``.
    options
        The options of :class:`crossmem.plugin.EmulationRequest`.
    """

    def __init__(self, api: str, **options: Any) -> None:
        self._emulation = prepare(api, EmulationRequest(**options))

    @property
    def environ(self) -> dict[str, str]:
        """The environment variables for a process that uses the library."""
        return self._emulation.environment(os.environ)

    @property
    def violations(self) -> tuple[Breach, ...]:
        """The API misuse of all processes so far: forbidden or undefined uses."""
        return self._emulation.report().violations

    def close(self) -> None:
        """Remove the emulated host."""
        self._emulation.close()


@pytest.fixture
def emulate() -> Iterator[Callable[..., Emulated]]:
    """Return a function: ``emulate("hip", devices=4)`` returns an emulated library.

    Each library has a separate emulated host, which is removed at the end of the test.
    """
    made: list[Emulated] = []

    def do(api: str, **options: Any) -> Emulated:
        made.append(Emulated(api, **options))
        return made[-1]

    yield do
    for one in made:
        one.close()
