# SPDX-License-Identifier: Apache-2.0
"""How many examples tests with generated values try."""

import os
from typing import Final

from hypothesis import settings

VARIABLE: Final = "CROSSMEM_TEST_EXAMPLES"
"""Which profile: ``default``, ``ci`` or ``long``."""

PROFILES: Final = {"default": 0.5, "ci": 1.0, "long": 5.0}
"""How many examples each profile tries, as a multiple of what the test asks for."""


def examples(count: int) -> settings:
    """Return the settings of a test: the same examples each time, but for new ones in ``long``."""
    profile = os.environ.get(VARIABLE, "default")
    return settings(
        deadline=None,
        derandomize=profile != "long",
        database=None,
        max_examples=int(count * PROFILES[profile]),
    )
