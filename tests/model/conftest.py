# SPDX-License-Identifier: Apache-2.0
"""Models run undisturbed: nothing of crossmem runs in them, and their states are no garbage."""

import gc
import sys
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def undisturbed() -> Iterator[None]:
    """Keep coverage and the garbage collector out of a model, which takes a third of the time."""
    tracing = sys.gettrace()
    sys.settrace(None)
    gc.disable()
    yield
    gc.enable()
    sys.settrace(tracing)
