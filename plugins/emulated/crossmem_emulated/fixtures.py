# SPDX-License-Identifier: Apache-2.0
"""A pytest fixture that gives an emulated HIP or ACL library to the processes of a test.

The command ``crossmem emulate`` does the same for a program that the user starts. To get the
fixture, put ``pytest_plugins = ["crossmem_emulated.fixtures"]`` into the project's ``conftest.py``.
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
        The fields of :class:`crossmem.plugin.EmulationRequest` to set.
    """

    def __init__(self, api: str, **options: Any) -> None:
        self._emulation = prepare(api, EmulationRequest(**options))

    @property
    def environ(self) -> dict[str, str]:
        """The environment variables of this process, changed so that a child uses the library."""
        return self._emulation.environment(os.environ)

    @property
    def violations(self) -> tuple[Breach, ...]:
        """Calls that the vendor forbids or leaves undefined. The calls of all processes count."""
        return self._emulation.report().violations

    def close(self) -> None:
        """End the emulation, and remove its emulated host.

        The host stays if the options or the environment name the host's folder.
        """
        self._emulation.close()


@pytest.fixture
def emulate() -> Iterator[Callable[..., Emulated]]:
    """Return a function that makes emulated libraries: call ``emulate("hip", devices=4)``.

    Each library has its own emulated host, which is removed at the end of the test. If the options
    or the environment name the host's folder, the library uses that host, and the host stays.
    """
    made: list[Emulated] = []

    def do(api: str, **options: Any) -> Emulated:
        made.append(Emulated(api, **options))
        return made[-1]

    yield do
    for one in made:
        one.close()
