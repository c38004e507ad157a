# SPDX-License-Identifier: Apache-2.0
"""The end of a process whose test does not end, not even when its time is over.

The alarm of pytest-timeout raises once, in Python. What a test cleans up afterwards can wait for
ever, and so can a call of C. Such a process prints where its threads are, and exits: the test
fails, and another process has the tests that are left.
"""

import faulthandler
from collections.abc import Generator
from typing import Final

import pytest
from _pytest.faulthandler import fault_handler_stderr_fd_key

from crossmem.conformance.speed import SLOWNESS

GRACE_S: Final = 60.0
"""How long a test may clean up after the alarm."""


@pytest.hookimpl(wrapper=True)
def watch(item: pytest.Item) -> Generator[None, object, object]:
    """End the process if a phase of a test takes longer than the test's timeout and the grace."""
    limit = item.get_closest_marker("timeout")
    assert limit is not None
    stderr = item.config.stash[fault_handler_stderr_fd_key]
    seconds = limit.args[0] + GRACE_S * SLOWNESS
    faulthandler.dump_traceback_later(seconds, exit=True, file=stderr)
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()
