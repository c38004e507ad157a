# SPDX-License-Identifier: Apache-2.0
"""A queue's handle travels as bytes and through multiprocessing, however a process is started."""

import multiprocessing
import pickle
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing
from multiprocessing.context import ForkServerContext, SpawnContext
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import ForkingPickler
from typing import TYPE_CHECKING

import pytest

import crossmem
from crossmem import Queue, QueueHandle, UnsupportedError

if TYPE_CHECKING:
    from tests.integration import handle_actions
else:
    import handle_actions

pytestmark = pytest.mark.ci

WITHIN_S = handle_actions.WITHIN_S


@pytest.fixture
def queues() -> Iterator[tuple[Queue, Queue]]:
    """Return a queue for requests, and one for their answers."""
    device = crossmem.device("host")
    with device.queue(2, 256) as requests, device.queue(2, 256) as answers:
        yield requests, answers


@pytest.fixture
def handles(queues: tuple[Queue, Queue]) -> tuple[QueueHandle, QueueHandle]:
    requests, answers = queues
    return requests.export(role="consume"), answers.export(role="produce")


@pytest.fixture(params=["spawn", "forkserver"])
def context(request: pytest.FixtureRequest) -> SpawnContext | ForkServerContext:
    found: SpawnContext | ForkServerContext = multiprocessing.get_context(request.param)
    return found


def ask(queues: tuple[Queue, Queue]) -> None:
    """Put a request, and expect the answer of another process."""
    requests, answers = queues
    buffer = requests.allocate()
    buffer.write(b"some bytes")
    buffer.data_length, buffer.user_data = 10, b"number 1"
    requests.put(buffer)
    with answers.get(timeout=WITHIN_S) as found:
        assert (found.read(10), found.data_length) == (b"SOME BYTES", 10)
        assert found.user_data == b"number 1"


def end(process: BaseProcess) -> None:
    process.join(WITHIN_S)
    assert process.exitcode == 0


@pytest.mark.parametrize("as_bytes", [False, True])
def test_by_the_arguments_of_a_process(
    queues: tuple[Queue, Queue],
    handles: tuple[QueueHandle, QueueHandle],
    context: SpawnContext,
    *,
    as_bytes: bool,
) -> None:
    sent = [one.to_bytes() if as_bytes else one for one in handles]
    process = context.Process(target=handle_actions.answer, args=sent)
    process.start()

    ask(queues)
    end(process)


def test_by_a_queue(
    queues: tuple[Queue, Queue], handles: tuple[QueueHandle, QueueHandle], context: SpawnContext
) -> None:
    with closing(context.Queue()) as sent:
        process = context.Process(target=handle_actions.answer_from_queue, args=(sent,))
        process.start()
        # The queue pickles them in a thread of its own.
        sent.put(handles)

        ask(queues)
        end(process)


def test_by_a_pipe(
    queues: tuple[Queue, Queue], handles: tuple[QueueHandle, QueueHandle], context: SpawnContext
) -> None:
    ours, theirs = context.Pipe()
    with ours, theirs:
        process = context.Process(target=handle_actions.answer_from_pipe, args=(theirs,))
        process.start()
        ours.send(handles)

        ask(queues)
        end(process)


def test_by_a_pool_of_workers(
    queues: tuple[Queue, Queue], handles: tuple[QueueHandle, QueueHandle], context: SpawnContext
) -> None:
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        result = pool.submit(handle_actions.answer, *handles)

        ask(queues)
        assert result.result(WITHIN_S) == "number 1"


def test_a_forked_child_opens_its_parents_queue(
    queues: tuple[Queue, Queue], handles: tuple[QueueHandle, QueueHandle]
) -> None:
    process = multiprocessing.get_context("fork").Process(
        target=handle_actions.answer, args=handles
    )
    process.start()

    ask(queues)
    end(process)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_every_form_is_the_same_handle(
    handles: tuple[QueueHandle, QueueHandle], protocol: int
) -> None:
    for one in handles:
        for copy in (
            pickle.loads(pickle.dumps(one, protocol)),  # noqa: S301 - made here
            QueueHandle.from_bytes(one.to_bytes()),
            QueueHandle.from_bytes(memoryview(bytearray(one.to_bytes()))),
        ):
            assert copy == one
            assert hash(copy) == hash(one)
            assert copy.role == one.role
        assert one.to_bytes() in pickle.dumps(one, 4)


def test_what_stays_in_its_process_says_what_to_send(queues: tuple[Queue, Queue]) -> None:
    requests, _ = queues
    with requests.allocate() as buffer:
        for one, hint in ((requests, "export(role=...)"), (buffer, "put the buffer")):
            with pytest.raises(UnsupportedError) as caught:
                ForkingPickler.dumps(one)
            assert hint in (caught.value.hint or "")
