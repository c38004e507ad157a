# SPDX-License-Identifier: Apache-2.0
"""A context manager that skips tests if the vendor's driver is too old for a capability."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

import crossmem

__all__ = ["raw_handles_or_skip"]


@contextmanager
def raw_handles_or_skip() -> Iterator[None]:
    """Skip the test if the vendor's driver refuses a raw handle.

    The capability ``raw_handles`` does not depend on the installed version of the driver. Only an
    export shows whether this version supports raw handles.
    """
    try:
        yield
    except crossmem.UnsupportedError as error:
        pytest.skip(f"the vendor's driver is too old: {error}")
