# SPDX-License-Identifier: Apache-2.0
"""A KV cache whose blocks move from a prefill process to a decode process.

Each process has a pool of blocks. The prefill process exports its pool once; after that only the
numbers of blocks travel. The decode process copies a block into its own pool, on the device, and
gives the number back.

    python examples/kv_cache.py --device host
    crossmem emulate hip --profile clr26 -- python examples/kv_cache.py --device hip:0
    python examples/kv_cache.py --device cuda:0
"""

import argparse
import time
from multiprocessing import get_context
from multiprocessing.connection import Connection

import numpy as np
from host import digest, expect

import crossmem

DEADLINE_S = 60.0


def prefill(pipe: Connection, device: str, blocks: int, nbytes: int, requests: int) -> None:
    """Fill a block for each request, as soon as one is free."""
    with crossmem.device(device).allocate(blocks * nbytes) as pool:
        pipe.send(pool.export().to_bytes())
        free = list(range(blocks))
        generator = np.random.default_rng(0)
        for request in range(requests):
            while not free or pipe.poll():
                free.append(pipe.recv())
            block = free.pop()
            # Stands for what a model computes from the prompt.
            keys_and_values = generator.integers(0, 256, nbytes, "uint8")
            pool.write(keys_and_values, offset=block * nbytes)
            # A message says that the bytes are there. So the device has to be done before it.
            pool.device.synchronize()
            pipe.send((request, block, digest(keys_and_values)))
        while len(free) < blocks:
            free.append(pipe.recv())
    # The pool is freed here. Were it still in use, that would wait in the background.


def decode(pipe: Connection, device: str, nbytes: int, requests: int) -> None:
    """Move every block into a pool of this process, and give the number back."""
    handle = pipe.recv()
    with (
        crossmem.device(device).allocate(requests * nbytes) as mine,
        crossmem.attach(handle) as theirs,
    ):
        wanted = {}
        moving_s = 0.0
        for _ in range(requests):
            if not pipe.poll(DEADLINE_S):
                expect("silence", "a block", "the prefill process")
            request, block, wanted_digest = pipe.recv()
            start = time.perf_counter()
            mine.copy_from(
                theirs, nbytes=nbytes, offset=request * nbytes, source_offset=block * nbytes
            )
            # From the next line on, the other process may overwrite the block.
            mine.device.synchronize()
            moving_s += time.perf_counter() - start
            pipe.send(block)
            wanted[request] = wanted_digest
        for request, one in wanted.items():
            data = np.frombuffer(mine.read(nbytes, offset=request * nbytes), "uint8")
            expect(digest(data), one, f"block of request {request}")
    each_us, rate = moving_s / requests * 1e6, requests * nbytes / moving_s / 1e9
    print(f"moved {requests} blocks of {nbytes} bytes on {device}: ", end="")
    print(f"{each_us:.0f} us each, {rate:.2f} GB/s")


def main() -> None:
    """Start the prefill process, and be the decode process."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="host")
    parser.add_argument("--blocks", type=int, default=8, help="in the pool of the prefill process")
    parser.add_argument("--nbytes", type=int, default=256 * 1024, help="of one block")
    parser.add_argument("--requests", type=int, default=64)
    options = parser.parse_args()

    context = get_context("spawn")  # a forked child cannot use a GPU
    pipe, theirs = context.Pipe()
    process = context.Process(
        target=prefill,
        args=(theirs, options.device, options.blocks, options.nbytes, options.requests),
        daemon=True,
    )
    process.start()
    theirs.close()
    decode(pipe, options.device, options.nbytes, options.requests)
    process.join(DEADLINE_S)
    expect(process.exitcode, 0, "exit code of the prefill process")


if __name__ == "__main__":
    main()
