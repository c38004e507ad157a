# SPDX-License-Identifier: Apache-2.0
"""Four producers make batches on a device, and each batch goes to one of two consumers.

The main process owns the queue: the memory of all batches, and the roles. It hands no batch over
itself. A producer fills a buffer where it lies and puts it; a consumer gets that memory, not a copy
of it. The queue bounds the memory: a producer whose buffers are all in use waits.

    python examples/batches.py --device host
    CROSSMEM_RUNTIME=hip=emulated python examples/batches.py --device hip:0
    python examples/batches.py --device cuda:0
"""

import argparse
import json
import statistics
import time
from multiprocessing import get_context
from multiprocessing.connection import Connection

import numpy as np
from host import digest, expect

import crossmem

DEADLINE_S = 60.0
BUFFERS_OF_A_PRODUCER = 4


def make(producer: int, number: int, length: int) -> np.ndarray:
    """Return a batch. A real loader would read a file and decode it."""
    return np.random.default_rng([producer, number]).random(length, "float32")


def produce(handle: crossmem.QueueHandle, producer: int, batches: int, nbytes: int) -> None:
    """Make batches, and put them."""
    # The handle names the role, so this process may put, and may not get.
    with crossmem.open_queue(handle) as queue:
        for number in range(batches):
            # No two batches have the same length.
            values = make(producer, number, nbytes // 4 - number)
            # This call waits while consumers have all buffers of this producer.
            buffer = queue.allocate(timeout=DEADLINE_S)
            buffer.write(values)
            buffer.data_length = values.nbytes
            buffer.user_data = json.dumps({"producer": producer, "number": number}).encode()
            queue.put(buffer)
    # The batches stay in the queue after this process has exited.


def consume(handle: crossmem.QueueHandle, pipe: Connection) -> None:
    """Get batches until all producers have closed."""
    found, took_s = {}, []
    with crossmem.open_queue(handle) as queue:
        while True:
            start = time.perf_counter()
            try:
                buffer = queue.get(timeout=DEADLINE_S)
            except crossmem.ClosedError:
                break  # the queue has ended
            took_s.append(time.perf_counter() - start)
            # This is where a model would be trained with the batch. The end of the block gives the
            # buffer back to its producer.
            with buffer:
                about = json.loads(buffer.user_data)
                values = np.frombuffer(buffer.read(buffer.data_length), "float32")
                found[about["producer"], about["number"]] = digest(values)
    pipe.send((found, took_s))


def main() -> None:
    """Make the queue, start the other processes, and check what the consumers found."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="host")
    parser.add_argument("--producers", type=int, default=4)
    parser.add_argument("--consumers", type=int, default=2)
    parser.add_argument("--batches", type=int, default=16, help="of each producer")
    parser.add_argument("--nbytes", type=int, default=256 * 1024, help="of a buffer")
    options = parser.parse_args()

    context = get_context("spawn")  # a forked child cannot use a GPU
    with crossmem.device(options.device).queue(
        BUFFERS_OF_A_PRODUCER,
        options.nbytes,
        producers=options.producers,
        consumers=options.consumers,
    ) as queue:
        consumers = []
        for _ in range(options.consumers):
            pipe, theirs = context.Pipe(duplex=False)
            handle = queue.export(role="consume")
            process = context.Process(target=consume, args=(handle, theirs), daemon=True)
            process.start()
            theirs.close()
            consumers.append((process, pipe))
        # Batches wait for consumers, so this wait is not needed. With it, both consumers get some
        # batches.
        queue.wait_for(consumers=options.consumers, timeout=DEADLINE_S)
        producers = []
        for number in range(options.producers):
            handle = queue.export(role="produce")
            arguments = handle, number, options.batches, options.nbytes
            process = context.Process(target=produce, args=arguments, daemon=True)
            process.start()
            producers.append(process)

        found: dict[tuple[int, int], str] = {}
        took_s: list[float] = []
        shares: list[str] = []
        for process, pipe in consumers:
            # If a consumer has died, poll() returns True, and recv() raises EOFError.
            if not pipe.poll(DEADLINE_S):
                expect("silence", "a message", "a consumer")
            theirs_found, theirs_took_s = pipe.recv()
            expect(found.keys() & theirs_found.keys(), set(), "batches that two consumers got")
            found |= theirs_found
            took_s += theirs_took_s
            shares.append(str(len(theirs_found)))
            process.join(DEADLINE_S)
            expect(process.exitcode, 0, "exit code of a consumer")
        for process in producers:
            process.join(DEADLINE_S)
            expect(process.exitcode, 0, "exit code of a producer")
        expect(queue.stats().put, options.producers * options.batches, "batches put")

    wanted = {
        (producer, number): digest(make(producer, number, options.nbytes // 4 - number))
        for producer in range(options.producers)
        for number in range(options.batches)
    }
    expect(found, wanted, "batches of the consumers")
    # The median is shown, because the first batches wait for the producers to start.
    each_us = statistics.median(took_s) * 1e6
    print(f"{len(found)} batches from {options.producers} producers on {options.device}: ", end="")
    print(f"consumers got {' + '.join(shares)}, {each_us:.0f} us to get one")


if __name__ == "__main__":
    main()
