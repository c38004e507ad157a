# SPDX-License-Identifier: Apache-2.0
"""A trainer hands each version of its weights to eight ranks, and each rank copies it.

With ``delivery="each"``, every rank gets every version, read-only, in the memory that the trainer
has filled. The trainer writes the next version into another buffer meanwhile. It waits if the
slowest rank is as many versions behind as the queue has buffers. The trainer does not wait for a
rank that has died.

    python examples/broadcast.py --device host
    CROSSMEM_RUNTIME=hip=emulated python examples/broadcast.py --device hip:0
    python examples/broadcast.py --device cuda:0

`ranks.py` does the same with one buffer, and with streams that wait instead of processes.
"""

import argparse
import time
from multiprocessing import get_context
from multiprocessing.connection import Connection

import numpy as np
from host import digest, expect

import crossmem

DEADLINE_S = 60.0
DEPTH = 2


def be_rank(handle: crossmem.QueueHandle, device: str, pipe: Connection) -> None:
    """Copy each version, until the trainer has finished."""
    digests: list[str] = []
    with (
        crossmem.open_queue(handle, device=device) as queue,
        crossmem.device(device).allocate(queue.nbytes) as mine,
    ):
        for buffer in queue:
            # The end of the block releases the buffer, so the trainer can use it again after all
            # ranks.
            with buffer:
                expect(buffer.user_data, b"version %d" % len(digests), "user data")
                mine.copy_from(buffer)
            # This is where the rank would work with its weights.
            values = np.frombuffer(mine.read(), "float32")
            digests.append(digest(values))
    pipe.send(digests)


def main() -> None:
    """Run the trainer."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="host")
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--versions", type=int, default=4)
    parser.add_argument("--shape", type=int, nargs="+", default=[256, 1024])
    options = parser.parse_args()

    # These are the values that an optimizer would compute in each step.
    shape = (options.versions, *options.shape)
    values = np.random.default_rng(0).random(shape, "float32")
    context = get_context("spawn")  # a forked child cannot use a GPU
    ranks = []
    with crossmem.device(options.device).queue(
        DEPTH, values[0].nbytes, delivery="each", consumers=options.ranks
    ) as queue:
        for _ in range(options.ranks):
            pipe, theirs = context.Pipe(duplex=False)
            handle = queue.export(role="consume")
            process = context.Process(
                target=be_rank, args=(handle, options.device, theirs), daemon=True
            )
            process.start()
            theirs.close()
            ranks.append((process, pipe))

        # A rank gets the versions that are put after it has opened the queue.
        queue.wait_for(consumers=options.ranks, timeout=DEADLINE_S)
        for number, weights in enumerate(values):
            start = time.perf_counter()
            buffer = queue.allocate(timeout=DEADLINE_S)
            waited_ms = (time.perf_counter() - start) * 1e3
            buffer.write(weights)
            buffer.user_data = b"version %d" % number
            start = time.perf_counter()
            queue.put(buffer)
            put_us = (time.perf_counter() - start) * 1e6
            print(f"version {number}: waited {waited_ms:.2f} ms for a buffer, ", end="")
            print(f"put to {options.ranks} ranks in {put_us:.0f} us")
        queue.finish()

        wanted = [digest(weights) for weights in values]
        for number, (process, pipe) in enumerate(ranks):
            if not pipe.poll(DEADLINE_S):
                expect("silence", "a message", f"rank {number}")
            expect(pipe.recv(), wanted, f"versions of rank {number}")
            process.join(DEADLINE_S)
            expect(process.exitcode, 0, "exit code of a rank")
            print(f"rank {number}: found {len(wanted)} versions")


if __name__ == "__main__":
    main()
