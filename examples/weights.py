# SPDX-License-Identifier: Apache-2.0
"""A trainer updates weights, and two inference processes read them in place.

The weights are a thousand tensors, sharded over several devices. They are shared once. After each
step of the training the trainer publishes a new version, which the readers wait for: nothing is
sent again, and nothing is copied.

    python examples/weights.py --device host
    crossmem emulate hip --profile clr26 -- python examples/weights.py --device hip:0 hip:1
    python examples/weights.py --device cuda:0
"""

import argparse
import time
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
from host import digest, expect, get, put

import crossmem

DEADLINE_S = 60.0
READERS = 2


def read_weights(pipe: Connection) -> None:
    """Run an inference process: receive once, then read each new version."""
    shared = crossmem.Shared.from_bytes(pipe.recv())
    start = time.perf_counter()
    weights = crossmem.receive(shared)
    pipe.send((len(weights), time.perf_counter() - start))
    version = 0
    while pipe.recv() is not None:
        # Returns as soon as the trainer has published; the tensors then have the new values.
        version = shared.wait(version, timeout=DEADLINE_S)
        seen = time.perf_counter()
        pipe.send((version, seen, {name: digest(get(one)) for name, one in weights.items()}))
    # The end of this function drops the last tensor, and with it the lease on the memory.


def make_weights(names: list[str], shape: tuple[int, ...], devices: list[str]) -> dict[str, Any]:
    """Return the tensors by name. Those of one device lie in one allocation.

    However many tensors lie in an allocation, readers need one lease and one open for it.
    """
    weights: dict[str, Any] = {}
    for number, name in enumerate(devices):
        mine = names[number :: len(devices)]
        # Tensors keep the memory. The end of the last tensor releases it, without a call of free().
        weights |= dict(zip(mine, crossmem.empty((len(mine), *shape), device=name), strict=True))
    return weights


def train(weights: dict[str, Any], step: int) -> dict[str, str]:
    """Overwrite every tensor, as an optimizer would; return what readers must find."""
    wanted = {}
    generator = np.random.default_rng(step)
    for name, tensor in weights.items():
        values = generator.random(tensor.shape, "float32")
        put(tensor, values)
        wanted[name] = digest(values)
    return wanted


def main() -> None:
    """Run the trainer."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", nargs="+", default=["host"])
    parser.add_argument("--tensors", type=int, default=1000)
    parser.add_argument("--shape", type=int, nargs="+", default=[32, 32])
    parser.add_argument("--steps", type=int, default=3)
    options = parser.parse_args()

    names = [f"layers.{number}.weight" for number in range(options.tensors)]
    weights = make_weights(names, tuple(options.shape), options.device)

    context = get_context("spawn")  # a forked child cannot use a GPU
    readers = []
    for _ in range(READERS):
        pipe, theirs = context.Pipe()
        process = context.Process(target=read_weights, args=(theirs,), daemon=True)
        process.start()
        theirs.close()
        readers.append((process, pipe))

    start = time.perf_counter()
    shared = crossmem.share(weights)
    blob = shared.to_bytes()
    shared_s = time.perf_counter() - start
    print(
        f"shared {len(weights)} tensors on {', '.join(options.device)} in {shared_s * 1e3:.2f} ms"
    )
    for process, pipe in readers:
        pipe.send(blob)
        count, received_s = pipe.recv()
        expect(count, options.tensors, "number of tensors")
        print(f"reader {process.pid} received them in {received_s * 1e3:.2f} ms")

    for step in range(1, options.steps + 1):
        for _, pipe in readers:
            pipe.send(step)
        wanted = train(weights, step)
        start = time.perf_counter()
        version = shared.publish()
        published_s = time.perf_counter() - start
        # Nothing is overwritten before all readers have answered: a reader that has not finished
        # would see old and new values side by side.
        waits = []
        for _, pipe in readers:
            found, seen, digests = pipe.recv()
            expect(found, version, "version")
            expect(digests, wanted, f"tensors of version {version}")
            waits.append(seen - start)
        late_ms = max(waits) * 1e3
        print(f"version {version}: published in {published_s * 1e3:.2f} ms, ", end="")
        print(f"seen by all readers {late_ms:.2f} ms after the publication began")

    for process, pipe in readers:
        pipe.send(None)
        process.join(DEADLINE_S)
        expect(process.exitcode, 0, "exit code of a reader")
    shared.close()


if __name__ == "__main__":
    main()
