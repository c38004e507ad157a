# SPDX-License-Identifier: Apache-2.0
"""A trainer updates weights, and eight ranks copy each version on a stream of their own.

No process waits for a whole device. The trainer writes a version on its stream and publishes it on
that stream. Each rank queues three pieces of work for each version: wait for the version, copy the
weights, and acknowledge the version. The ranks' streams do that work as the versions come.

The programs count the calls that crossmem makes to the vendor. Calls of CuPy are not counted:
`crossmem emulate hip --report` shows those too.

    python examples/ranks.py --device host
    crossmem emulate hip --profile clr26 -- python examples/ranks.py --device hip:0
    python examples/ranks.py --device cuda:0

Host memory has no streams: on host memory, the ranks wait on the host.
"""

import argparse
import time
from collections import Counter
from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
from host import Array, digest, expect, get, put

import crossmem

DEADLINE_S = 60.0

CALLS = {
    "synchronize": "deviceSynchronize",
    "synchronize_stream": "streamSynchronize",
    "write_value": "streamWriteValue64",
    "wait_value": "streamWaitValue64",
}
"""The vendor's function behind each method of the driver."""


def count_calls(device: str) -> Counter[str]:
    """Count the calls of the vendor's functions that crossmem makes in this process from now on."""
    counts: Counter[str] = Counter()
    driver = crossmem.device(device).driver

    def counting(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any) -> Any:
            counts[name] += 1
            return method(*arguments)

        return counted

    for method, name in CALLS.items():
        if hasattr(driver, method):
            setattr(driver, method, counting(name, getattr(driver, method)))
    return counts


def listed(counts: Counter[str]) -> str:
    """Return the number of calls of each function as text."""
    return ", ".join(f"{name} {counts[name]}" for name in CALLS.values())


def new_stream(array: Array) -> Any:
    """Return a stream of CuPy, or None if the array is in host memory, which has no streams."""
    if isinstance(array, np.ndarray):
        return None
    import cupy  # noqa: PLC0415 - there is no CuPy without a GPU

    # The default stream does not order this stream. Only crossmem orders its work.
    return cupy.cuda.Stream(non_blocking=True)


def copy(target: Array, source: Array, stream: Any) -> None:
    """Copy an array on a stream, as a kernel would use it. Without a stream, copy at once."""
    if stream is None:
        target[...] = source
    else:
        with stream:
            target.data.copy_from_device_async(source.data, source.nbytes, stream)


def be_rank(device: str, steps: int, pipe: Connection) -> None:
    """Run one of the ranks."""
    shared = crossmem.Shared.from_bytes(pipe.recv())
    weights = crossmem.receive(shared)
    stream = new_stream(weights)
    mine = crossmem.empty((steps, *weights.shape), weights.dtype, device=device)
    counts = count_calls(device)
    pipe.send("ready")

    version = 0
    for copied in mine:
        # With a stream, none of these three calls waits.
        version = shared.wait(version, stream=stream, timeout=DEADLINE_S)
        copy(copied, weights, stream)
        shared.done(version, stream=stream)
    calls = listed(counts)

    if stream is not None:
        stream.synchronize()
    # If the trainer has died, the streams were released too early, and ``shared.version`` raises
    # ClosedError.
    expect(shared.version, version, "version after the copies")
    pipe.send((version, calls, [digest(values) for values in get(mine)]))
    expect(pipe.recv(), "close", "message of the trainer")


def main() -> None:
    """Run the trainer."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="host")
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--shape", type=int, nargs="+", default=[256, 1024])
    options = parser.parse_args()

    shape = tuple(options.shape)
    weights = crossmem.empty(shape, "float32", device=options.device)
    # The results of all steps of the optimizer are in device memory before the loop begins.
    values = np.random.default_rng(0).random((options.steps, *shape), "float32")
    results = crossmem.empty(values.shape, "float32", device=options.device)
    put(results, values)
    wanted = [digest(one) for one in values]
    stream = new_stream(weights)

    context = get_context("spawn")  # a forked child cannot use a GPU
    ranks = []
    for _ in range(options.ranks):
        pipe, theirs = context.Pipe()
        process = context.Process(
            target=be_rank, args=(options.device, options.steps, theirs), daemon=True
        )
        process.start()
        theirs.close()
        ranks.append((process, pipe))

    shared = crossmem.share(weights)
    for _, pipe in ranks:
        pipe.send(shared.to_bytes())
    for _, pipe in ranks:
        expect(pipe.recv(), "ready", "message of a rank")

    counts = count_calls(options.device)
    for result in results:
        counts.clear()
        start = time.perf_counter()
        copy(weights, result, stream)
        version = shared.publish(stream=stream)
        # The next version overwrites this one, so all ranks must be done with it.
        done = shared.wait_for_readers(version, readers=options.ranks, timeout=DEADLINE_S)
        took_ms = (time.perf_counter() - start) * 1e3
        print(f"version {version}: copied by {done} ranks in {took_ms:.2f} ms", end="")
        print("" if stream is None else f"; calls of the trainer: {listed(counts)}")

    for number, (_, pipe) in enumerate(ranks):
        version, calls, digests = pipe.recv()
        expect(version, options.steps, "last version")
        expect(digests, wanted, f"versions of rank {number}")
        print(f"rank {number}: found {version} versions", end="")
        print("" if stream is None else f"; calls of the rank for all: {calls}")
    for process, pipe in ranks:
        pipe.send("close")
        process.join(DEADLINE_S)
        expect(process.exitcode, 0, "exit code of a rank")
    shared.close()


if __name__ == "__main__":
    main()
