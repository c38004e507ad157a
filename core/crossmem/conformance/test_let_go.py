# SPDX-License-Identifier: Apache-2.0
"""Law C29: imports with ``on_owner_death="release"`` end after the death of their owner."""

import os
import time
from multiprocessing import util
from typing import Any

import pytest

import crossmem
from crossmem.conformance import actions
from crossmem.conformance.forks import sleeping_child, wake_vendor
from crossmem.conformance.harness import Allocate, FreshPeer
from crossmem.conformance.old_drivers import raw_handles_or_skip
from crossmem.conformance.peers import Peer
from crossmem.conformance.pool import SOON_S, settle
from crossmem.driver import TracingDriver
from crossmem.sharing.base.process import current

_NBYTES = 4096
_A_WHILE_S = 0.7
"""The time in which an importer certainly notices the death of an owner, in seconds."""

RELEASE: Any = {"on_owner_death": "release"}


def thread_count() -> int:
    """Return the number of threads of this process, including those unknown to Python."""
    found = []
    for _ in range(5):
        found.append(len(os.listdir("/proc/self/task")))  # noqa: PTH208
        # The kernel lists a thread for a moment after its join, so the smallest count is right.
        time.sleep(0.01)
    return min(found)


def shows(one: crossmem.Mapping | crossmem.Import | crossmem.Piece) -> list[str]:
    """Return an empty list if an object is closed, else a list with its ``repr``."""
    return [] if one.closed else [repr(one)]


def is_closed(name: str) -> bool:
    """Whether a named object is closed.

    Most calls of crossmem continue deferred work, and this work could close the object. Reading
    ``closed`` does not continue deferred work.
    """
    closed: bool = actions.objects[name].closed
    return closed


def held(tracer: TracingDriver, before: dict[str, int]) -> list[str]:
    """Return a line for each kind of driver object whose count differs from ``before``."""
    live = tracer.live
    return [f"{live[name] - before[name]} {name}" for name in live if live[name] != before[name]]


@pytest.mark.crossmem_core
def test_c29_a_mapping_is_closed_at_the_vendor_when_its_owner_dies(
    fresh_peer: FreshPeer, tracer: TracingDriver
) -> None:
    before = tracer.live
    exporter = fresh_peer()
    blob = exporter.call(actions.offer, "memory", _NBYTES)
    mapping = crossmem.attach(blob, **RELEASE)
    assert mapping.owner_alive
    exporter.kill()

    # The test makes no call of crossmem, because the watcher alone must release the memory.
    assert settle(lambda: held(tracer, before)) == []
    assert mapping.closed
    for use in (mapping.read, lambda: mapping.ptr, lambda: mapping.owner_alive):
        with pytest.raises(crossmem.ClosedError, match=rf"{exporter.pid}, died.*on_owner_death"):
            use()
    mapping.unmap()


@pytest.mark.crossmem_core
def test_c29_an_import_is_closed_with_its_mappings(
    fresh_peer: FreshPeer, tracer: TracingDriver
) -> None:
    before = tracer.live
    exporter = fresh_peer()
    first, second = (exporter.call(actions.offer, name, _NBYTES) for name in "ab")
    imported = crossmem.import_handle(first, **RELEASE)
    mapping, late = imported.map(), imported.map()
    many = crossmem.attach_many([first, second], **RELEASE)
    exporter.kill()

    assert settle(lambda: held(tracer, before)) == []
    assert imported.closed
    assert all(one.closed for one in (mapping, late, *many))
    with pytest.raises(crossmem.ClosedError, match="died"):
        imported.map()


@pytest.mark.crossmem_core
def test_c29_an_import_is_kept_unless_somebody_asks(
    fresh_peer: FreshPeer, tracer: TracingDriver
) -> None:
    exporter = fresh_peer()
    blob = exporter.call(actions.offer, "memory", _NBYTES)
    kept: list[crossmem.Mapping | crossmem.Import] = [
        crossmem.attach(blob),
        crossmem.attach(blob, on_owner_death="keep"),
        crossmem.attach_many([blob], on_owner_death="keep")[0],
        crossmem.import_handle(blob, on_owner_death="keep"),
    ]
    before = tracer.live
    asked = crossmem.attach(blob, **RELEASE)
    exporter.kill()

    assert settle(lambda: shows(asked)) == []
    # The vendor opened the memory once for all these objects. The objects with "keep" still use it.
    assert held(tracer, before) == []
    for one in kept:
        assert shows(one)
        one.close() if isinstance(one, crossmem.Import) else one.unmap()


@pytest.mark.crossmem_requires("host_visible")
@pytest.mark.crossmem_core
def test_c29_views_keep_the_memory(fresh_peer: FreshPeer, tracer: TracingDriver) -> None:
    before = tracer.live
    exporter = fresh_peer()
    blob = exporter.call(actions.offer, "memory", _NBYTES, b"viewed")
    mapping = crossmem.attach(blob, **RELEASE)
    view = mapping.view()
    part = view[:3]
    del view
    exporter.kill()
    assert settle(lambda: shows(mapping), within=_A_WHILE_S) != []
    assert bytes(part) == b"vie"
    assert mapping.read(6) == b"viewed"

    del part

    assert settle(lambda: held(tracer, before)) == []
    assert mapping.closed


@pytest.mark.crossmem_requires("dlpack_device_type")
def test_c29_capsules_of_dlpack_keep_the_memory(
    fresh_peer: FreshPeer, tracer: TracingDriver
) -> None:
    before = tracer.live
    exporter = fresh_peer()
    blob = exporter.call(actions.offer, "memory", _NBYTES)
    mapping = crossmem.attach(blob, **RELEASE)
    capsule = mapping.__dlpack__(stream=None)
    exporter.kill()
    assert settle(lambda: shows(mapping), within=_A_WHILE_S) != []

    del capsule

    assert settle(lambda: held(tracer, before)) == []
    assert mapping.closed


def test_c29_a_dropped_mapping_is_let_go_too(fresh_peer: FreshPeer, tracer: TracingDriver) -> None:
    before = tracer.live
    exporter = fresh_peer()
    blob = exporter.call(actions.offer, "memory", _NBYTES)
    mapping = crossmem.attach(blob, **RELEASE)
    with pytest.warns(ResourceWarning, match="without unmap"):
        del mapping
    exporter.kill()

    assert settle(lambda: held(tracer, before)) == []


@pytest.mark.crossmem_not_of_blocks("address ranges map only whole allocations")
@pytest.mark.crossmem_requires("address_ranges")
def test_c29_pieces_of_address_ranges_are_unmapped(
    device: crossmem.Device, fresh_peer: FreshPeer, tracer: TracingDriver
) -> None:
    exporter = fresh_peer()
    blob = exporter.call(actions.offer, "memory", device.capabilities.granularity_nbytes)
    before = tracer.live
    imported = crossmem.import_handle(blob, **RELEASE)
    with device.reserve(imported.handle.capacity) as addresses:
        piece = addresses.map(imported, at=0)
        exporter.kill()

        assert settle(lambda: shows(piece) + shows(imported)) == []
        with pytest.raises(crossmem.ClosedError, match="died"):
            piece.read(1)
    assert settle(lambda: held(tracer, before)) == []


def test_c29_each_owner_is_watched(peer: Peer, fresh_peer: FreshPeer) -> None:
    doomed = fresh_peer()
    lost = peer.call(actions.attach, "lost", doomed.call(actions.offer, "m", _NBYTES), **RELEASE)
    assert lost
    living = fresh_peer()
    peer.call(actions.attach, "kept", living.call(actions.offer, "m", _NBYTES), **RELEASE)
    doomed.kill()

    assert settle(lambda: [] if peer.call(is_closed, "lost") else ["lost"]) == []
    assert not peer.call(is_closed, "kept")
    peer.call(actions.unmap, "kept")


def test_c29_the_watcher_exists_only_while_somebody_asks(peer: Peer, fresh_peer: FreshPeer) -> None:
    blob = peer.call(actions.offer, "memory", _NBYTES)
    importer = fresh_peer()
    importer.call(actions.attach, "kept", blob)
    before = importer.call(thread_count)
    for _ in range(2):
        importer.call(actions.attach, "asked", blob, **RELEASE)
        importer.call(actions.attach, "again", blob, **RELEASE)

        assert importer.call(thread_count) == before + 1

        importer.call(actions.unmap, "asked", "again")

        assert settle(lambda: ["a thread"] * (importer.call(thread_count) - before)) == []


@pytest.mark.crossmem_not_of_blocks("the thread that releases pools would be counted too")
def test_c29_own_memory_needs_no_watcher(allocate: Allocate) -> None:
    handle = allocate(_NBYTES, b"mine").export()
    before = thread_count()
    with crossmem.attach(handle, **RELEASE) as mapping:
        # The number can be smaller than before if the watcher of an earlier test has just ended.
        assert thread_count() <= before
        assert mapping.read(4) == b"mine"


def test_c29_a_fork_of_the_importer_changes_nothing(peer: Peer, fresh_peer: FreshPeer) -> None:
    exporter = fresh_peer()
    blob = exporter.call(actions.offer, "memory", _NBYTES)
    peer.call(actions.attach, "mapped", blob, **RELEASE)
    child_threads = peer.call(threads_of_a_forked_child)
    assert child_threads == 1
    peer.call(sleeping_child, with_handlers=True)
    exporter.kill()

    assert settle(lambda: [] if peer.call(is_closed, "mapped") else ["mapped"]) == []


def threads_of_a_forked_child() -> int:
    """Fork, and return the number of the child's threads."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(writing, b"%d" % thread_count())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as answer:
        count = int(answer.read())
    os.waitpid(pid, 0)
    return count


@pytest.mark.parametrize("dies", [True, False], ids=["dead-owner", "living-owner"])
def test_c29_an_importer_exits_at_once(fresh_peer: FreshPeer, *, dies: bool) -> None:
    # At its exit, the importer prints the number of its threads. The vendor's threads count, too,
    # because they live as long as the process. report_threads_at_exit() returns the number of the
    # vendor's threads that start during its call. The importer has no tracer, because a tracer uses
    # crossmem earlier. Threads of the vendor that start before the call would not be counted.
    exporter, importer = fresh_peer(), fresh_peer(tracing=False)
    blob = exporter.call(actions.offer, "memory", _NBYTES)
    vendors = importer.call(report_threads_at_exit)
    importer.call(actions.attach, "mapped", blob, **RELEASE)
    if dies:
        exporter.kill()
    start = time.monotonic()
    output = importer.exit()

    assert time.monotonic() - start < SOON_S
    assert f"threads left: {1 + vendors}\n" in output


def report_threads_at_exit() -> int:
    """Let this process print its thread count at its exit, after crossmem's exit handler has run.

    Return the number of the vendor's threads that start during this call.
    """
    # current() registers crossmem's exit handler. The report runs later than this handler, because
    # the report has a lower priority.
    current()

    def report() -> None:
        print(f"threads left: {thread_count()}", flush=True)  # noqa: T201 - the test reads it

    util.Finalize(None, report, exitpriority=-100)
    before = thread_count()
    wake_vendor()
    return thread_count() - before


def test_c29_other_words_are_refused(fresh_peer: FreshPeer) -> None:
    blob = fresh_peer().call(actions.offer, "memory", _NBYTES)
    wrong: Any
    for wrong in ("die", "", None, True, b"release", ["keep"]):
        for attempt in (
            lambda wrong: crossmem.attach(blob, on_owner_death=wrong),
            lambda wrong: crossmem.import_handle(blob, on_owner_death=wrong),
            lambda wrong: crossmem.attach_many([blob], on_owner_death=wrong),
        ):
            with pytest.raises(crossmem.ConfigurationError, match="on_owner_death"):
                attempt(wrong)


@pytest.mark.crossmem_not_of_blocks("blocks have no raw handles")
@pytest.mark.crossmem_requires("raw_handles")
def test_c29_owners_of_raw_handles_are_not_watched(peer: Peer, tracer: TracingDriver) -> None:
    with raw_handles_or_skip():
        blob = peer.call(actions.offer, "memory", _NBYTES, lease=False)
    before = dict(tracer.calls)
    with pytest.raises(crossmem.UnsupportedError, match="raw"):
        crossmem.attach(blob, **RELEASE)

    assert dict(tracer.calls) == before
