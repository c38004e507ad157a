# SPDX-License-Identifier: Apache-2.0
"""Skips for drivers that are too old for a capability of their device."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

import crossmem

__all__ = ["raw_handles_or_skip"]


@contextmanager
def raw_handles_or_skip() -> Iterator[None]:
    """Skip the test if the vendor's driver refuses a raw handle.

    The capability ``raw_handles`` is that of the product. Only the export shows whether the
    installed driver has it.
    """
    try:
        yield
    except crossmem.UnsupportedError as error:
        pytest.skip(f"the vendor's driver is too old: {error}")
