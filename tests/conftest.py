# SPDX-License-Identifier: Apache-2.0
"""What tests in several folders use, and how they are spread over processes."""

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


def tell_xdist_the_group(item: pytest.Item) -> None:
    """Write a test's group where pytest-xdist 3.8 means to write it.

    It sets a private attribute, which pytest 9.2 no longer reads: all groups would be ignored.
    """
    if item.config.getoption("loadgroup", default=False) and hasattr(item, "_id"):
        groups = {str(mark.args[0]) for mark in item.iter_markers("xdist_group")}
        item._id = type(item._id).parse(f"{item.nodeid}@{'_'.join(sorted(groups))}")


# Before xdist's own hook, which reads the groups.
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep the tests of a file together, let slow ones begin, and scale all limits."""
    for item in items:
        if item.get_closest_marker("xdist_group") is None:
            file = item.nodeid.partition("::")[0]
            whole = item.nodeid if slow_tests.is_exception(item.nodeid) else file
            item.add_marker(pytest.mark.xdist_group(whole))
        tell_xdist_the_group(item)
        own = item.get_closest_marker("timeout")
        limit_s = own.args[0] if own else TIMEOUT_S
        item.add_marker(pytest.mark.timeout(limit_s * SLOWNESS), append=False)
    # What takes longest would otherwise begin last, with the other processes idle.
    items.sort(key=lambda item: not slow_tests.is_exception(item.nodeid))
