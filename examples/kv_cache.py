# SPDX-License-Identifier: Apache-2.0
"""A KV cache whose blocks move from a prefill process to a decode process.

The prefill process has a pool of blocks and sends the handle of each block that it has filled. The
decode process attaches the block without a request to any process, and copies it into its own
memory on the device. The pool allocates the block again after the prefill process has freed it and
the decode process has unmapped it.

    python examples/kv_cache.py --device host
    crossmem emulate hip --profile clr26 -- python examples/kv_cache.py --device hip:0
    python examples/kv_cache.py --device cuda:0
"""

import argparse
import statistics
import time
from multiprocessing import get_context
from multiprocessing.connection import Connection

import numpy as np
from host import digest, expect

import crossmem

DEADLINE_S = 60.0


def prefill(pipe: Connection, device: str, blocks: int, nbytes: int, requests: int) -> None:
    """Fill a block for each request, as soon as one is free."""
    with crossmem.device(device).pool(nbytes, blocks) as pool:
        sent: dict[int, crossmem.Block] = {}
        generator = np.random.default_rng(0)
        for request in range(requests):
            while len(sent) == blocks or pipe.poll():
                sent.pop(pipe.recv()).free()
            # If the decode process still has all freed blocks mapped, this call waits for one.
            block = sent[request] = pool.allocate(timeout=DEADLINE_S)
            # A model would compute these bytes from the prompt.
            keys_and_values = generator.integers(0, 256, nbytes, "uint8")
            block.write(keys_and_values)
            # The export waits for the device, so the bytes are complete before the message is sent.
            pipe.send((request, block.export().to_bytes(), digest(keys_and_values)))
        while sent:
            sent.pop(pipe.recv()).free()
    # The pool is closed here. If blocks were still in use, its memory would be freed in the
    # background.


def decode(pipe: Connection, device: str, nbytes: int, requests: int) -> None:
    """Move every block into memory of this process."""
    with crossmem.device(device).allocate(requests * nbytes) as mine:
        wanted, took_s = {}, []
        for _ in range(requests):
            if not pipe.poll(DEADLINE_S):
                expect("silence", "a block", "the prefill process")
            request, handle, wanted_digest = pipe.recv()
            start = time.perf_counter()
            with crossmem.attach(handle) as theirs:
                mine.copy_from(theirs, nbytes=nbytes, offset=request * nbytes)
                mine.device.synchronize()
            took_s.append(time.perf_counter() - start)
            # After this message, the prefill process frees the block. It could have freed the block
            # as soon as this process had attached it: the lease keeps the memory.
            pipe.send(request)
            wanted[request] = wanted_digest
        for request, one in wanted.items():
            data = np.frombuffer(mine.read(nbytes, offset=request * nbytes), "uint8")
            expect(digest(data), one, f"block of request {request}")
    # The median is shown, because the first block needs a request to the other process.
    each_s = statistics.median(took_s)
    print(f"moved {requests} blocks of {nbytes} bytes on {device}: ", end="")
    print(f"{each_s * 1e6:.0f} us each, {nbytes / each_s / 1e9:.2f} GB/s")


def main() -> None:
    """Start the prefill process, and run the decode process."""
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
