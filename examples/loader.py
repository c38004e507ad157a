# SPDX-License-Identifier: Apache-2.0
"""A data loader: workers make batches and put them into a queue of ``multiprocessing``.

Each worker has a pool of blocks and calls ``crossmem.install()``. A batch that was made by
``crossmem.empty`` in a block then crosses the queue as a handle of a few hundred bytes, and the
consumer works on the worker's memory. The pool bounds the memory: a worker waits for a free block.

    python examples/loader.py --device host
    crossmem emulate hip --profile clr26 -- python examples/loader.py --device hip:0
    python examples/loader.py --device cuda:0
"""

import argparse
import statistics
import time
from multiprocessing import Queue, get_context
from typing import Any

import numpy as np
from host import digest, expect, get, put

import crossmem

DEADLINE_S = 60.0
BATCHES_OF_A_WORKER = 4


def work(
    batches: "Queue[Any]",
    device: str,
    numbers: range,
    shape: tuple[int, ...],
) -> None:
    """Make the batches with these numbers."""
    # Each process that sends calls install(). Without this call, the queue would copy.
    crossmem.install()
    # Only the first sample differs between batches: the program shows the time of the queue,
    # without the time for random numbers and digests.
    samples = np.random.default_rng(numbers.start).random(shape, "float32")
    rest = digest(samples.flat[1:])
    with crossmem.device(device).pool(samples.nbytes, BATCHES_OF_A_WORKER) as pool:
        for number in numbers:
            # This call waits while the queue and the consumer have all blocks.
            batch = crossmem.empty(shape, "float32", pool=pool, timeout=DEADLINE_S)
            samples.flat[0] = number
            put(batch, samples)
            batches.put((number, batch, rest))
            # The worker may drop the batch: the message keeps the block until the message is
            # received.
            del batch
    # The worker may also exit: its exit waits until its messages are received.


def main() -> None:
    """Start the workers, and consume their batches."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="host")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--batches", type=int, default=32)
    parser.add_argument("--shape", type=int, nargs="+", default=[64, 4096])
    options = parser.parse_args()

    context = get_context("spawn")  # a forked child cannot use a GPU
    batches: Queue[Any] = context.Queue()
    workers = [
        context.Process(
            target=work,
            args=(
                batches,
                options.device,
                range(first, options.batches, options.workers),
                tuple(options.shape),
            ),
            daemon=True,
        )
        for first in range(options.workers)
    ]
    for process in workers:
        process.start()

    seen, took_s = set(), []
    for _ in range(options.batches):
        begin = time.perf_counter()
        number, batch, rest = batches.get(timeout=DEADLINE_S)
        took_s.append(time.perf_counter() - begin)
        # This is where a model would be trained with the batch.
        values = get(batch)
        expect((values.flat[0], digest(values.flat[1:])), (number, rest), f"batch {number}")
        seen.add(number)
        nbytes = batch.nbytes
        # Without references to the batch, the worker's pool can allocate its block again.
        del batch, values
    expect(seen, set(range(options.batches)), "numbers of the batches")
    # The median is shown, because the first batches wait for the workers to start.
    each_s = statistics.median(took_s)
    print(
        f"{options.batches} batches from {options.workers} workers on {options.device}: "
        f"{each_s * 1e3:.2f} ms to receive one, {nbytes / each_s / 1e9:.2f} GB/s"
    )
    crossmem.collect()
    for process in workers:
        process.join(DEADLINE_S)
        expect(process.exitcode, 0, "exit code of a worker")


if __name__ == "__main__":
    main()
