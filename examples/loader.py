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
    # Whoever sends calls this. Without it, the queue would copy.
    crossmem.install()
    # Only the first sample differs between batches: the time of the queue is shown, and not that of
    # random numbers and digests.
    samples = np.random.default_rng(numbers.start).random(shape, "float32")
    rest = digest(samples.flat[1:])
    with crossmem.device(device).pool(samples.nbytes, BATCHES_OF_A_WORKER) as pool:
        for number in numbers:
            # Waits while the queue and the consumer have all blocks.
            batch = crossmem.empty(shape, "float32", pool=pool, timeout=DEADLINE_S)
            samples.flat[0] = number
            put(batch, samples)
            batches.put((number, batch, rest))
            # The worker may forget the batch: its message keeps the block until it is received.
            del batch
    # And it may exit: a worker waits until what it sent was received.


def main() -> None:
    """Start the workers, and consume what they make."""
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
        # Forgetting the batch lets the worker's pool give its block out again.
        del batch, values
    expect(seen, set(range(options.batches)), "numbers of the batches")
    # The median, because the first ones wait for the workers to start.
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
