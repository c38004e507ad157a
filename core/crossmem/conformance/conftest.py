# SPDX-License-Identifier: Apache-2.0
"""Fixtures and pytest hooks of the kit."""

import faulthandler
import gc
import pickle
import re
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import pytest

import crossmem
from crossmem.conformance import actions, blocks, reporting
from crossmem.conformance.harness import Allocate, FreshPeer, Imports, Kit
from crossmem.conformance.peers import Peer
from crossmem.conformance.pool import LeakError, PeerPool, deadline, leftovers, own_state, settle
from crossmem.conformance.pools_of_tests import NBYTES, MakePool
from crossmem.conformance.queues_of_tests import NBYTES as BUFFER_NBYTES
from crossmem.conformance.queues_of_tests import MakeQueue
from crossmem.conformance.reporting import ABOUT_LAW, CAPABILITIES, recorder_of
from crossmem.conformance.speed import SLOWNESS
from crossmem.conformance.strangers import MakeStranger, Stranger
from crossmem.conformance.streams_of_tests import (
    MakeStream,
    MakeTimeline,
    StreamOfTest,
    has_streams,
)
from crossmem.driver import TracingDriver
from crossmem.models import TIMELINE_LEVELS, TimelineLevel

TEST_LIMIT_S: Final = 180.0 * SLOWNESS
"""The time limit of a test, in seconds. If a test cannot be interrupted, the whole run ends at
twice this limit."""

_HERE: Final = Path(__file__).parent
_LAW: Final = re.compile(r"test_([clpq])(\d\d)_")
_kit: Final = pytest.StashKey[Kit]()


def _kit_of(config: pytest.Config) -> Kit:
    kit = config.stash.get(_kit, None)
    if kit is None:
        kit = Kit(
            config.getoption("crossmem_device"),
            config.getoption("crossmem_runtime"),
            config.getoption("crossmem_mechanism"),
            forks=config.getoption("crossmem_fork_peers"),
            on_blocks=config.getoption("crossmem_blocks"),
        )
        config.stash[_kit] = kit
    return kit


# Collection, skips and report -------------------------------------------------------------


def _law_of(item: pytest.Item) -> str | None:
    """Return the law in a test's name, such as ``"C6"``; None if the name has no law."""
    found = _LAW.match(item.name)
    return f"{found[1].upper()}{int(found[2])}" if found else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark each test with its law.

    With ``--crossmem-core``, deselect the tests without the marker ``crossmem_core``.
    """
    left_out = []
    for item in items:
        if _HERE not in item.path.parents:
            continue
        law = _law_of(item)
        if law is None:
            raise pytest.UsageError(f"{item.nodeid} does not name the law that it tests")
        item.add_marker(pytest.mark.crossmem_law(law))
        if config.getoption("crossmem_core") and not item.get_closest_marker("crossmem_core"):
            left_out.append(item)
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in set(left_out)]


def pytest_collection_finish() -> None:
    """Exclude existing objects, mostly objects of pytest, from later garbage collections."""
    gc.collect()
    gc.freeze()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test if the device lacks a capability that the test requires.

    If the mechanism shares only queues of the vendor, also skip tests without the marker
    ``crossmem_with_vendor_queues``. With ``--crossmem-blocks``, also skip tests with the marker
    ``crossmem_not_of_blocks``.
    """
    if item.config.getoption("crossmem_blocks"):
        for marker in item.iter_markers("crossmem_not_of_blocks"):
            pytest.skip(f"does not apply to blocks: {marker.args[0]}")
    capabilities = _kit_of(item.config).device.capabilities
    if capabilities.vendor_queues and not any(item.iter_markers("crossmem_with_vendor_queues")):
        pytest.skip("the mechanism shares only queues of the vendor (capability vendor_queues)")
    for marker in item.iter_markers("crossmem_requires"):
        for name in marker.args:
            if not getattr(capabilities, name):
                pytest.skip(f"the device's capability {name} is false")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the test's law to pytest's report.

    If a test was skipped, and ``--crossmem-require`` names the test's law or a capability that the
    test requires, report a failure.
    """
    report = yield
    law = _law_of(item)
    if law is None:
        return report
    reason = ""
    if hasattr(report, "wasxfail"):
        reason = f"expected to fail: {report.wasxfail}"
    elif report.skipped:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        required = set(item.config.getoption("crossmem_require"))
        needed = {law}.union(*(mark.args for mark in item.iter_markers("crossmem_requires")))
        if named := sorted(required & needed):
            report.outcome = "failed"
            report.longrepr = f"--crossmem-require names {', '.join(named)}. {reason}"
    if report.when == "call" or not report.passed:
        vars(report)[ABOUT_LAW] = (law, item.name, reason)
    return report


def pytest_configure(config: pytest.Config) -> None:
    """Register the plugin ``reporting``, unless ``crossmem_pytest`` has registered it already."""
    if not config.pluginmanager.has_plugin(reporting.__name__):
        config.pluginmanager.register(reporting, reporting.__name__)


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Pass the device's capabilities to the kit's report, and end the peers."""
    config = session.config
    kit = config.stash.get(_kit, None)
    if kit is None:
        return
    capabilities = kit.device.capabilities
    recorder_of(config).capabilities = capabilities
    if hasattr(config, "workeroutput"):
        config.workeroutput[CAPABILITIES] = pickle.dumps(capabilities)
    kit.close()


# Fixtures ---------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def kit(request: pytest.FixtureRequest) -> Kit:
    """Return the objects that all tests share."""
    return _kit_of(request.config)


@pytest.fixture(scope="session")
def pool(kit: Kit) -> PeerPool:
    """Return the pool of peers, for tests that need more than two peers."""
    return kit.pool


@pytest.fixture(autouse=True)
def guarded(request: pytest.FixtureRequest, kit: Kit) -> Iterator[None]:
    """Interrupt a test at its time limit, and check that the test has left no resources behind."""
    wanted = 2 if "peer2" in request.fixturenames else int("peer" in request.fixturenames)
    faulthandler.dump_traceback_later(2 * TEST_LIMIT_S, exit=True)
    try:
        with deadline(TEST_LIMIT_S):
            kit.pool.ensure(wanted)
            before = own_state()
            yield
            problems = settle(lambda: leftovers(before, own_state()))
    finally:
        faulthandler.cancel_dump_traceback_later()
    if problems:
        raise LeakError.of("the test's own process", problems)


@pytest.fixture
def device(kit: Kit) -> crossmem.Device:
    """Return the device under test."""
    return kit.device


@pytest.fixture
def capabilities(device: crossmem.Device) -> crossmem.Capabilities:
    """Return the capabilities of the device under test."""
    return device.capabilities


@pytest.fixture
def tracer(kit: Kit) -> TracingDriver:
    """Return the tracing driver of the device under test, in this process."""
    return actions.tracer()


@pytest.fixture
def allocate(device: crossmem.Device) -> Iterator[Allocate]:
    """Return the function ``allocate(nbytes, data=b"")``. After the test, free the allocations."""
    made: list[crossmem.Allocation] = []

    def make(nbytes: int, data: bytes = b"", **options: Any) -> crossmem.Allocation:
        allocation = blocks.allocate(device, nbytes, **options)
        made.append(allocation)
        if data:
            allocation.write(data)
        return allocation

    yield make
    for allocation in made:
        allocation.free()


@pytest.fixture
def make_pool(device: crossmem.Device, guarded: None) -> Iterator[MakePool]:
    """Return the function ``make_pool(blocks)``. After the test, close the pools."""
    made: list[crossmem.Pool] = []

    def make(blocks: int, nbytes: int = NBYTES) -> crossmem.Pool:
        made.append(device.pool(nbytes, blocks))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture(params=TIMELINE_LEVELS)
def level(request: pytest.FixtureRequest, capabilities: crossmem.Capabilities) -> TimelineLevel:
    """Return a level of timelines. The test runs once for each level that the device offers."""
    found: TimelineLevel = request.param
    if found not in capabilities.timeline_levels:
        pytest.skip(f"the device has no timelines of level {found!r}")
    return found


@pytest.fixture
def word(capabilities: crossmem.Capabilities) -> TimelineLevel:
    """Return the level ``"word"``. Skip the test if the device has no timelines of this level."""
    if "word" not in capabilities.timeline_levels:
        pytest.skip("the device has no timelines of level 'word'")
    return "word"


@pytest.fixture
def make_timeline(device: crossmem.Device, guarded: None) -> Iterator[MakeTimeline]:
    """Return the function ``make_timeline(level)``. After the test, close the timelines."""
    made: list[crossmem.Timeline] = []

    def make(
        level: TimelineLevel | None = None, *, allow: crossmem.Allow | None = None
    ) -> crossmem.Timeline:
        made.append(device.timeline(level, allow=allow))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture
def make_queue(device: crossmem.Device, guarded: None) -> Iterator[MakeQueue]:
    """Return the function ``make_queue(depth)``. After the test, close the queues.

    A test must name this fixture before the fixtures of peers, so that the peers close the queue
    before its owner does.
    """
    made: list[crossmem.Queue] = []

    def make(depth: int = 4, nbytes: int = BUFFER_NBYTES, **options: Any) -> crossmem.Queue:
        if device.capabilities.vendor_queues and options.get("delivery") == "each":
            pytest.skip("a vendor's queue gives each buffer to one consumer (vendor_queues)")
        made.append(device.queue(depth, nbytes, **options))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture
def named(guarded: None) -> Iterator[None]:
    """After the test, release this process's objects in ``actions.objects``."""
    yield
    actions.reset()


@pytest.fixture
def make_stream(kit: Kit, guarded: None) -> Iterator[MakeStream]:
    """Return the function ``make_stream()``. After the test, destroy the streams.

    A test must name this fixture after ``make_timeline`` and the fixtures of memory, so that each
    stream is destroyed before the timelines and the memory.
    """
    if not has_streams():
        pytest.skip("the driver lacks the group StreamWork")
    made: list[StreamOfTest] = []

    def make() -> StreamOfTest:
        made.append(StreamOfTest())
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture
def stranger(guarded: None) -> Iterator[MakeStranger]:
    """Return a function that allocates memory outside of crossmem, for adoptions.

    A test must name this fixture before the fixtures of peers, so that the peers' imports are
    closed before the memory is freed.
    """
    made: list[Stranger] = []

    def make(blocks: int = 1, data: bytes = b"") -> Stranger:
        made.append(Stranger(blocks, data))
        return made[-1]

    yield make
    crossmem.collect()
    for one in made:
        one.free()


@pytest.fixture
def imports(device: crossmem.Device, request: pytest.FixtureRequest) -> Iterator[Imports]:
    """Return an object that makes imports and address ranges. After the test, end them."""
    for name in {"peer", "peer2", "fresh_peer"}.intersection(request.fixturenames):
        # pytest ends fixtures in the reverse order of their set-up, and this call sets up the peer.
        # So this process closes its imports of the peer's memory before the peer is checked for
        # leaks.
        request.getfixturevalue(name)
    with ExitStack() as undo:
        yield Imports(device, undo)


def _pooled(kit: Kit, number: int) -> Iterator[Peer]:
    peer = kit.pool.ensure(number)[number - 1]
    yield peer
    kit.pool.reset(peer)


@pytest.fixture
def peer(kit: Kit, guarded: None) -> Iterator[Peer]:
    """Return another process, in a clean state."""
    yield from _pooled(kit, 1)


@pytest.fixture
def peer2(kit: Kit, guarded: None) -> Iterator[Peer]:
    """Return a third process, in a clean state."""
    yield from _pooled(kit, 2)


@pytest.fixture
def fresh_peer(kit: Kit, guarded: None, request: pytest.FixtureRequest) -> Iterator[FreshPeer]:
    """Return a function that starts peers for this test. The test may kill or stop the peers."""
    for name in {"peer", "peer2"}.intersection(request.fixturenames):
        # pytest ends fixtures in the reverse order of their set-up, and this call sets up the other
        # peers. So the fresh peers end before the other peers are checked for leaks. At the check,
        # the other peers have no connection to a fresh peer any more.
        request.getfixturevalue(name)
    started: list[Peer] = []

    def start(*, tracing: bool = True, fresh: bool = False, **environment: str | None) -> Peer:
        peer = kit.pool.new(tracing=tracing, fresh=fresh, **environment)
        started.append(peer)
        return peer

    yield start
    for one in started:
        one.destroy()


@pytest.fixture
def state() -> Callable[[], dict[str, Any]]:
    """Return a function that returns the resources of this process, except those of the kit."""
    return own_state
