# SPDX-License-Identifier: Apache-2.0
"""Law Q5: a put or a release on a stream takes effect after the earlier work of that stream."""

from typing import Any

import pytest

import crossmem
from crossmem.conformance import actions
from crossmem.conformance import queues_of_tests as queues
from crossmem.conformance import streams_of_tests as streams
from crossmem.conformance.harness import FreshPeer
from crossmem.conformance.peers import Peer
from crossmem.conformance.pool import SOON_S
from crossmem.conformance.queues_of_tests import MakeQueue
from crossmem.conformance.streams_of_tests import NBYTES, MakeStream, MakeTimeline, has_streams
from crossmem.models import TimelineLevel

_DELIVERIES = ("one", "each")


@pytest.fixture
def gate(word: TimelineLevel, make_timeline: MakeTimeline) -> crossmem.Timeline:
    """Return a timeline for which a stream can wait."""
    return make_timeline(word)


def _prepare(queue: crossmem.Queue, producer: Peer, consumer: Peer) -> None:
    """In each peer, open the queue, and make a stream and the memory for the stream's work."""
    for one, role in ((producer, "produce"), (consumer, "consume")):
        one.call(queues.open_, "queue", queues.handle_of(queue, role))
        one.call(_make_work)


def _make_work() -> None:
    """Make a stream and the memory for its work, and run the work once to measure its duration."""
    streams.new_stream("stream")
    streams.make_work("work")
    actions.allocate("copy", NBYTES)
    for part in ("source", "decoy"):
        actions.objects[f"buffer-{part}"] = actions.objects[f"work-{part}"]
    streams.issue_work("work", "stream")
    actions.objects["stream"].synchronize()


def _issue_and_put(count: int = 1) -> None:
    """Fill each buffer by slow work on a stream, and pass that stream to ``put``."""
    queue, stream = actions.objects["queue"], actions.objects["stream"]
    for _ in range(count):
        buffer = actions.objects["buffer"] = queue.allocate(timeout=SOON_S)
        streams.issue_work("buffer", "stream")
        queue.put(buffer, stream=stream)


def _get_and_check() -> bool:
    """Get a buffer; return whether it contains all data of the work."""
    with actions.objects["queue"].get(timeout=SOON_S) as buffer:
        return bool(buffer.read() == streams.data_of())


def _take_and_release_on_stream() -> None:
    """Get a buffer, let a stream copy it after other work, and release it on that stream."""
    stream = actions.objects["stream"]
    buffer = actions.objects["queue"].get(timeout=SOON_S, stream=stream)
    for _ in range(10):
        stream.copy(actions.objects["work-decoy"], actions.objects["work-source"], NBYTES)
    stream.copy(actions.objects["copy"], buffer, NBYTES)
    buffer.release(stream=stream)


def _overwrite(timeout: float) -> None:
    """Allocate a buffer, fill it with zeros and release it."""
    with actions.objects["queue"].allocate(timeout=timeout) as buffer:
        buffer.write(bytes(NBYTES))


@pytest.mark.parametrize("delivery", _DELIVERIES)
@pytest.mark.crossmem_core
def test_q05_a_consumer_sees_the_work_that_was_issued_before_a_put(
    make_queue: MakeQueue, make_stream: MakeStream, peer: Peer, peer2: Peer, delivery: str
) -> None:
    _prepare(make_queue(2, NBYTES, delivery=delivery), peer, peer2)
    for _ in range(3):
        answer = peer2.start(_get_and_check)
        peer.call(_issue_and_put)
        assert answer.result()

    peer.call(streams.synchronize, "stream")


@pytest.mark.parametrize("delivery", _DELIVERIES)
@pytest.mark.crossmem_core
def test_q05_a_producer_reuses_a_buffer_after_the_work_before_its_release(
    make_queue: MakeQueue, make_stream: MakeStream, peer: Peer, peer2: Peer, delivery: str
) -> None:
    _prepare(make_queue(1, NBYTES, delivery=delivery), peer, peer2)
    for _ in range(3):
        peer.call(_issue_and_put)
        peer2.call(actions.write, "copy", bytes(NBYTES))
        peer2.call(_take_and_release_on_stream)
        peer.call(_overwrite, SOON_S)
        peer2.call(streams.synchronize, "stream")
        assert peer2.call(streams.is_written, "copy")


def test_q05_without_a_stream_all_work_of_the_device_comes_first(
    make_queue: MakeQueue, make_stream: MakeStream, peer: Peer, peer2: Peer
) -> None:
    queue = make_queue(1, NBYTES)
    if queue.device.capabilities.host_visible:
        pytest.skip("a put or release of host memory does not wait for the device")
    _prepare(queue, peer, peer2)
    peer.call(_issue_and_put_without)
    assert peer2.call(_get_and_check)
    peer.call(_issue_and_put)
    peer2.call(actions.write, "copy", bytes(NBYTES))
    peer2.call(_take_and_release_without)
    peer.call(_overwrite, SOON_S)
    peer2.call(streams.synchronize, "stream")

    assert peer2.call(streams.is_written, "copy")


def _issue_and_put_without() -> None:
    queue = actions.objects["queue"]
    buffer = actions.objects["buffer"] = queue.allocate(timeout=SOON_S)
    streams.issue_work("buffer", "stream")
    queue.put(buffer)


def _take_and_release_without() -> None:
    buffer = actions.objects["queue"].get(timeout=SOON_S)
    actions.objects["stream"].copy(actions.objects["copy"], buffer, NBYTES)
    buffer.release()


@pytest.mark.parametrize("delivery", _DELIVERIES)
@pytest.mark.crossmem_core
def test_q05_a_put_on_a_stream_waits_on_the_stream(
    gate: crossmem.Timeline, make_queue: MakeQueue, make_stream: MakeStream,
    peer: Peer, peer2: Peer, delivery: str,
) -> None:  # fmt: skip
    queue = make_queue(4, NBYTES, delivery=delivery)
    _prepare(queue, peer, peer2)
    peer.call(streams.open_, "gate", gate.export().to_bytes())
    peer.call(streams.wait, "gate", 1, "stream")
    # These puts return, although the stream cannot continue.
    peer.call(_issue_and_put, 2)
    # The last buffer is ready at once, but arrives after the earlier ones, which wait for a stream.
    peer.call(streams.new_stream, "free")
    peer.call(_put_on, "free", b"last")
    assert peer2.call(_is_empty), "a buffer arrived before its stream had done the earlier work"
    gate.signal(1)

    assert peer2.call(_get_and_check)
    assert peer2.call(_get_and_check)
    assert peer2.call(_get_user_data) == b"last"
    for name in ("stream", "free"):
        peer.call(streams.synchronize, name)


def _is_empty() -> bool:
    try:
        actions.objects["queue"].get(timeout=0.1).release()
    except crossmem.QueueEmptyError:
        return True
    return False


def _put_on(stream: str, user_data: bytes) -> None:
    queue = actions.objects["queue"]
    buffer = queue.allocate()
    buffer.user_data = user_data
    queue.put(buffer, stream=actions.objects[stream])


def _get_user_data() -> bytes:
    with actions.objects["queue"].get(timeout=SOON_S) as buffer:
        return bytes(buffer.user_data)


@pytest.mark.parametrize("delivery", _DELIVERIES)
@pytest.mark.crossmem_core
def test_q05_a_release_on_a_stream_waits_on_the_stream(
    gate: crossmem.Timeline, make_queue: MakeQueue, make_stream: MakeStream,
    peer: Peer, peer2: Peer, delivery: str,
) -> None:  # fmt: skip
    queue = make_queue(1, NBYTES, delivery=delivery)
    _prepare(queue, peer, peer2)
    peer.call(_issue_and_put)
    peer2.call(streams.open_, "gate", gate.export().to_bytes())
    peer2.call(streams.wait, "gate", 1, "stream")
    # This call returns, although the stream cannot continue.
    peer2.call(_take_and_release_on_stream)
    with pytest.raises(crossmem.QueueFullError):
        peer.call(_overwrite, 0.1)
    answer = peer.start(_overwrite, SOON_S)
    gate.signal(1)
    answer.result()
    peer2.call(streams.synchronize, "stream")

    assert peer2.call(streams.is_written, "copy")


def test_q05_the_death_of_a_producer_ends_what_its_stream_had_not_done(
    gate: crossmem.Timeline, make_queue: MakeQueue, make_stream: MakeStream,
    peer: Peer, fresh_peer: FreshPeer,
) -> None:  # fmt: skip
    queue, victim = make_queue(4, NBYTES), fresh_peer()
    _prepare(queue, victim, peer)
    victim.call(_issue_and_put)
    assert peer.call(_get_and_check)
    victim.call(streams.open_, "gate", gate.export().to_bytes())
    victim.call(streams.wait, "gate", 1, "stream")
    victim.call(_issue_and_put)
    victim.kill()

    # The work of the dead producer may be lost, so no consumer gets the buffer.
    with pytest.raises(crossmem.ClosedError):
        peer.call(queues.get, "queue", within=SOON_S)


@pytest.mark.crossmem_core
def test_q05_a_device_without_streams_refuses_them(make_queue: MakeQueue, peer: Peer) -> None:
    if has_streams():
        pytest.skip("the device has streams")
    queue = make_queue()
    peer.call(queues.open_, "queue", queues.handle_of(queue, "consume"))
    buffer = queue.allocate()
    with pytest.raises(crossmem.UnsupportedError):
        queue.put(buffer, stream=1)
    queues.put_buffer(queue, buffer, 3)
    assert peer.call(queues.take, "queue", "buffer").number == 3
    with pytest.raises(crossmem.UnsupportedError):
        peer.call(actions.call, "buffer", "release", stream=1)
    # The consumer still has the buffer after the refused release.
    assert queues.count_free(queue) == queue.depth - 1
    peer.call(actions.call, "buffer", "release")

    assert queues.count_free(queue) == queue.depth


@pytest.mark.parametrize(
    "wrong", ["text", -1, 1.5, object()], ids=["text", "negative", "fraction", "object"]
)
def test_q05_what_is_no_stream_is_refused(make_queue: MakeQueue, wrong: Any) -> None:
    queue = make_queue()
    with queue.allocate() as buffer:
        for call in (queue.put, crossmem.SharedBuffer.release):
            with pytest.raises((crossmem.ConfigurationError, crossmem.UnsupportedError)):
                call(buffer, stream=wrong)
            assert not buffer.closed
    with pytest.raises((crossmem.ConfigurationError, crossmem.UnsupportedError)):
        queue.get(timeout=0, stream=wrong)
    assert queue.stats().put == 0
