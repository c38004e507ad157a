# SPDX-License-Identifier: Apache-2.0
"""What tests in several folders use, and how they are spread over processes."""

import gc
import signal

import compilers
import pytest
import skipped_tests
import slow_tests

from crossmem.conformance.speed import SLOWNESS

TIMEOUT_S = 120.0

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell starts what runs in its background like this, and children would be deaf to Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)

compiled = compilers.compiled
compile_library = compilers.compile_library


def pytest_configure(config: pytest.Config) -> None:
    """Register what reports about tests."""
    slow_tests.register(config)
    skipped_tests.register(config)


def pytest_collection_finish() -> None:
    """Spare the tests that collect garbage a look at all that pytest keeps."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep the tests of a file together, let slow ones begin, and scale all limits."""
    for item in items:
        if item.get_closest_marker("xdist_group") is None:
            whole = item.nodeid if slow_tests.is_exception(item.nodeid) else str(item.path)
            item.add_marker(pytest.mark.xdist_group(whole))
        own = item.get_closest_marker("timeout")
        limit_s = own.args[0] if own else TIMEOUT_S
        item.add_marker(pytest.mark.timeout(limit_s * SLOWNESS), append=False)
    # What takes longest would otherwise begin last, with the other processes idle.
    items.sort(key=lambda item: not slow_tests.is_exception(item.nodeid))
