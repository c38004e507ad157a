# SPDX-License-Identifier: Apache-2.0
"""A data loader: workers make batches and put them into a queue of ``multiprocessing``.

Each worker calls ``crossmem.install()``. A batch that was made by ``crossmem.empty`` then crosses
the queue as a handle of a few hundred bytes, and the consumer works on the worker's memory.

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


def work(
    batches: "Queue[Any]",
    device: str,
    numbers: range,
    shape: tuple[int, ...],
    tickets: Any,
) -> None:
    """Make the batches with these numbers."""
    # Whoever sends calls this. Without it, the queue would copy.
    crossmem.install()
    # Only the first sample differs between batches: the time of the queue is shown, and not that of
    # random numbers and digests.
    samples = np.random.default_rng(numbers.start).random(shape, "float32")
    rest = digest(samples.flat[1:])
    for number in numbers:
        # Not more than the consumer wants to have at once: each batch is memory of the device.
        tickets.acquire()
        batch = crossmem.empty(shape, "float32", device)
        samples.flat[0] = number
        put(batch, samples)
        batches.put((number, batch, rest))
        # The worker may forget the batch now: its message holds the memory until it is received.
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
    tickets = context.Semaphore(2 * options.workers)
    workers = [
        context.Process(
            target=work,
            args=(
                batches,
                options.device,
                range(first, options.batches, options.workers),
                tuple(options.shape),
                tickets,
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
        # Forgetting the batch gives its memory back, at the next call of crossmem.
        del batch, values
        tickets.release()
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
