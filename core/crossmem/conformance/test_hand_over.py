# SPDX-License-Identifier: Apache-2.0
"""Laws C9, C21 and C25 for exports, imports and unmappings on streams of a device."""

import time

import pytest

import crossmem
from crossmem.conformance import actions
from crossmem.conformance import streams_of_tests as streams
from crossmem.conformance.harness import Allocate, FreshPeer
from crossmem.conformance.peers import Peer
from crossmem.conformance.pool import SOON_S, settle
from crossmem.conformance.streams_of_tests import NBYTES, MakeStream, MakeTimeline
from crossmem.models import ReadyHandle, TimelineLevel


@pytest.mark.parametrize("on_stream", [True, False], ids=["stream", "host"])
@pytest.mark.crossmem_core
def test_c21_an_export_on_a_stream_is_ready_after_its_work(
    make_stream: MakeStream, fresh_peer: FreshPeer, *, on_stream: bool
) -> None:
    owner, importer = fresh_peer(), fresh_peer()
    for one in (owner, importer):
        one.call(streams.new_stream, "stream")
    owner.call(streams.make_work, "work")
    synchronized = owner.call(actions.calls).get("synchronize", 0)
    owner.call(streams.issue_work, "work", "stream")
    blob = owner.call(streams.export_on, "work", "stream")
    assert owner.call(actions.calls).get("synchronize", 0) == synchronized
    importer.call(actions.attach, "work", blob)
    importer.call(actions.allocate, "copy", NBYTES)
    if on_stream:
        importer.call(streams.await_ready_and_copy, "work", "stream", "copy")
        importer.call(streams.synchronize, "stream")

        assert importer.call(streams.is_written, "copy")
    else:
        importer.call(actions.call, "work", "wait")

        assert importer.call(streams.is_written, "work")
    assert owner.call(actions.violations) == importer.call(actions.violations) == []


def test_c21_an_export_waits_for_work_after_an_export_that_did_not(
    make_stream: MakeStream, fresh_peer: FreshPeer
) -> None:
    owner = fresh_peer()
    owner.call(streams.new_stream, "stream")
    owner.call(streams.make_work, "work")
    first = owner.call(actions.export, "work")
    owner.call(actions.call, "work", "withdraw", first)
    ready = crossmem.ShareableHandle.from_bytes(owner.call(streams.export_on, "work", "stream"))
    assert isinstance(ready, ReadyHandle)
    assert owner.call(actions.export, "work", synchronize=False) == ready.base.to_bytes()
    synchronized = owner.call(actions.calls).get("synchronize", 0)

    for _ in range(2):
        assert owner.call(actions.export, "work") == ready.base.to_bytes()
    assert owner.call(actions.calls)["synchronize"] == synchronized + 1


def test_c21_a_ready_handle_outlives_the_wire_and_its_parts(
    make_stream: MakeStream, fresh_peer: FreshPeer
) -> None:
    owner, importer = fresh_peer(), fresh_peer()
    owner.call(streams.new_stream, "stream")
    owner.call(streams.make_work, "work")
    owner.call(streams.issue_work, "work", "stream")
    handle = crossmem.ShareableHandle.from_bytes(owner.call(streams.export_on, "work", "stream"))
    assert isinstance(handle, ReadyHandle)
    part = handle.slice(NBYTES - 64, 64)
    importer.call(actions.attach, "part", part.to_bytes())
    importer.call(actions.call, "part", "wait")

    assert importer.call(actions.read, "part") == streams.data_of()[-64:]


def test_c21_a_dead_owner_is_reported_to_who_waits_for_its_work(
    word: TimelineLevel, make_stream: MakeStream, make_timeline: MakeTimeline, fresh_peer: FreshPeer
) -> None:
    gate, owner, importer = make_timeline(word), fresh_peer(), fresh_peer()
    owner.call(streams.new_stream, "stream")
    owner.call(streams.open_, "gate", gate.export().to_bytes())
    owner.call(actions.allocate, "work", NBYTES)
    owner.call(streams.wait, "gate", 1, "stream")
    importer.call(actions.attach, "work", owner.call(streams.export_on, "work", "stream"))
    with pytest.raises(crossmem.WaitTimeoutError):
        importer.call(actions.call, "work", "wait", timeout=0.2)
    answer = importer.start(actions.call, "work", "wait", timeout=10 * SOON_S)
    time.sleep(0.05)
    owner.kill()
    start = time.monotonic()

    with pytest.raises(crossmem.OwnerGoneError):
        answer.result()
    assert time.monotonic() - start < SOON_S


def is_complete_after(operation: str, blob: bytes | None = None) -> bool:
    """Return whether work on a stream is complete as soon as ``operation`` has returned.

    The work writes memory that this process imports from ``blob``. If ``blob`` is None, this
    process allocates the memory.
    """
    objects = actions.objects
    if blob is None:
        actions.allocate("work", NBYTES)
    else:
        actions.attach("work", blob)
    zeros = bytes(NBYTES)
    for name, data in (("work-source", streams.data_of()), ("work-decoy", zeros), ("copy", zeros)):
        actions.allocate(name, NBYTES)
        actions.write(name, data)
    streams.new_stream("stream")
    # The first export starts the lease server. The work is issued later, so that the work does not
    # end while the server starts.
    actions.export("copy")
    streams.issue_work("work", "stream")
    # The operation may release the written memory, so the test checks a copy of the contents.
    objects["stream"].copy(objects["copy"], objects["work"], NBYTES)
    if operation == "synchronize":
        actions.device().synchronize()
    else:
        getattr(objects["work"], operation)()
    return streams.is_written("copy")


@pytest.mark.parametrize("operation", ["export", "synchronize"])
@pytest.mark.crossmem_core
def test_c21_the_work_of_every_stream_is_complete(
    make_stream: MakeStream, fresh_peer: FreshPeer, operation: str
) -> None:
    assert fresh_peer().call(is_complete_after, operation)


@pytest.mark.parametrize("operation", ["free", "unmap"])
@pytest.mark.crossmem_core
def test_c09_the_work_of_every_stream_is_complete_before_memory_ends(
    allocate: Allocate, make_stream: MakeStream, fresh_peer: FreshPeer, operation: str
) -> None:
    blob = allocate(NBYTES).export().to_bytes() if operation == "unmap" else None

    assert fresh_peer().call(is_complete_after, operation, blob)


def test_c09_an_unmapping_on_a_stream_keeps_the_memory_until_its_work_is_done(
    word: TimelineLevel, make_timeline: MakeTimeline, make_stream: MakeStream, fresh_peer: FreshPeer
) -> None:
    gate, owner, importer = make_timeline(word), fresh_peer(), fresh_peer()
    importer.call(actions.attach, "memory", owner.call(actions.offer, "memory", NBYTES, b"kept"))
    importer.call(actions.allocate, "copy", NBYTES)
    importer.call(streams.new_stream, "stream")
    importer.call(streams.open_, "gate", gate.export().to_bytes())
    importer.call(streams.wait_and_copy, "gate", 1, "stream", "memory", "copy")
    synchronized = importer.call(actions.calls).get("synchronize", 0)
    owner.call(actions.keep_tracer, "tracer")
    start = time.monotonic()
    importer.call(streams.unmap_on, "memory", "stream")
    owner.call(actions.free, "memory")

    assert time.monotonic() - start < SOON_S
    with pytest.raises(crossmem.ClosedError):
        importer.call(actions.read, "memory")
    # The stream still uses the memory, so the memory stays leased and mapped.
    time.sleep(1.2)
    assert [len(one.leases) for one in owner.call(actions.exports)] == [1]
    gate.signal(1)
    importer.call(streams.synchronize, "stream")

    # The memory is released within a second (C27), although neither process calls crossmem.
    assert settle(lambda: _blocks_of(owner)) == []
    assert importer.call(actions.calls).get("synchronize", 0) == synchronized
    assert importer.call(actions.read, "copy", 4) == b"kept"
    assert owner.call(actions.violations) == importer.call(actions.violations) == []


def _blocks_of(owner: Peer) -> list[str]:
    # Reading the tracer's counts does not call crossmem, so the read releases nothing.
    found = owner.call(actions.attribute, "tracer", "live")["blocks"]
    return [f"{found} blocks"] if found else []


@pytest.mark.crossmem_core
def test_c25_devices_without_streams_refuse_to_hand_memory_over(
    allocate: Allocate, peer: Peer
) -> None:
    if streams.has_streams():
        pytest.skip("the device has streams")
    memory = allocate(64, b"data")
    mapping = crossmem.attach(peer.call(actions.offer, "theirs", 64, b"data"))
    with pytest.raises(crossmem.UnsupportedError, match="streams"):
        mapping.unmap(stream=0)

    # The refused call did not change the mapping.
    assert mapping.read(4) == b"data"
    mapping.unmap()
    if not isinstance(memory, crossmem.Block):
        with pytest.raises(crossmem.UnsupportedError, match="streams"):
            memory.export(stream=0)
    # Memory that was exported without a stream is ready at once.
    with crossmem.attach(peer.call(actions.export, "theirs")) as other:
        other.wait()
        other.wait(timeout=0)
