# SPDX-License-Identifier: Apache-2.0
"""What tests in several folders use, and how they are spread over processes."""

import gc
import os
import signal
from collections.abc import Generator, Iterator
from typing import Any

# Before crossmem is imported, here and in every process of the tests.
os.environ["CROSSMEM_TEST_LOCK_ORDER"] = "1"
os.environ["CROSSMEM_TEST_MESSAGES"] = "1"

import compilers
import measuring
import pytest
import skipped_tests
import slow_tests
import stuck_tests

from crossmem.conformance.speed import SLOWNESS

TIMEOUT_S = 120.0
# Their tests share nothing and take long. Tests of another file share what fixtures made, so they
# stay in one process.
SPREAD = ("tests/kit/test_kit.py", "tests/kit/test_mutants.py")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell starts what runs in its background like this, and children would be deaf to Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)

compiled = compilers.compiled
compile_library = compilers.compile_library
unmeasured = measuring.unmeasured
_measured_elsewhere = measuring._measured_elsewhere
pytest_runtest_protocol = stuck_tests.watch
pytest_timeout_set_timer = stuck_tests.repeat_alarm
pytest_testnodedown = stuck_tests.note_end
pytest_sessionfinish = stuck_tests.refuse_unfinished


def pytest_configure(config: pytest.Config) -> None:
    """Register what reports about tests."""
    slow_tests.register(config)
    skipped_tests.register(config)


def _is_spread(nodeid: str) -> bool:
    return nodeid.partition("::")[0] in SPREAD or nodeid in slow_tests.EXCEPTIONS


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Have two processes more than there are cores, because tests wait more than they compute."""
    return len(os.sched_getaffinity(0)) + 2


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give a process the tests of a file, or a single one of those that are spread."""
    from xdist.scheduler import LoadScopeScheduling

    class Scheduler(LoadScopeScheduling):  # type: ignore[misc]  # pytest-xdist has no types
        def _split_scope(self, nodeid: str) -> str:
            return nodeid if _is_spread(nodeid) else nodeid.partition("::")[0]

    return Scheduler(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Let each process begin with other files: it finds those that others have rewritten by then.

    Processes that rewrite the same files for pytest take seven seconds each.
    """
    report = yield
    if isinstance(collector, pytest.Dir) and "PYTEST_XDIST_WORKER" in os.environ:
        number = int(os.environ["PYTEST_XDIST_WORKER"].removeprefix("gw"))
        first = len(report.result) * number // int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
        report.result = report.result[first:] + report.result[:first]
    return report


@pytest.fixture(scope="module", autouse=True)
def _frozen() -> None:
    """Spare the tests that collect garbage a look at what pytest keeps of all tests before."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> Iterator[None]:
    """Give all processes one order, let slow tests begin, and scale all limits."""
    # Before others select and shuffle.
    items.sort(key=lambda item: item.path)
    yield
    for item in items:
        own = item.get_closest_marker("timeout")
        limit_s = own.args[0] if own else TIMEOUT_S
        item.add_marker(pytest.mark.timeout(limit_s * SLOWNESS), append=False)
    # What takes longest would otherwise begin last, with the other processes idle.
    items.sort(key=lambda item: not _is_spread(item.nodeid))
