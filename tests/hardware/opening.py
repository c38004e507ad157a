# SPDX-License-Identifier: Apache-2.0
"""How long opening another process's GPU memory takes: raw calls, crossmem and PyTorch, in turn.

``python tests/hardware/opening.py`` measures on CUDA's device 0 and prints a table for
docs/hardware.md. ``--runtime emulated`` shows that it runs; the numbers then mean nothing.
"""

import argparse
import multiprocessing
import pickle
import statistics
import time
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from typing import Any, Final

import crossmem

__all__ = ["measure"]

_NBYTES: Final = 32 << 20
"""Large enough for an allocation of its own in PyTorch's allocator."""
_LAZY: Final = 1
_DEADLINE_S: Final = 60.0

Ways = dict[str, Callable[[Any], tuple[Any, Callable[[], Any]]]]
"""By name: opens what is passed, and returns what it gave and what closes it."""


def _ways(backend: str, runtime: str | None, *, has_torch: bool) -> Ways:
    """Return the ways to open memory. Everything that they load is loaded before."""
    device = crossmem.device(f"{backend}:0", runtime=runtime)
    rt = _raw(runtime)

    def raw(handle: bytes) -> tuple[Any, Callable[[], Any]]:
        pointer = rt.ipcOpenMemHandle(handle, _LAZY)
        return pointer, lambda: rt.ipcCloseMemHandle(pointer)

    def ours(blob: bytes) -> tuple[Any, Callable[[], Any]]:
        mapping = crossmem.attach(blob, device=device)
        return mapping, mapping.unmap

    ways: Ways = {"raw call": raw, "crossmem": ours}
    if has_torch:
        torch = import_module("torch")
        torch.cuda.init()

        def torchs(data: bytes) -> tuple[Any, Callable[[], Any]]:
            held = [pickle.loads(data)]  # noqa: S301 - of our own parent
            return held[0], held.clear

        ways["PyTorch"] = torchs
    return ways


def _raw(runtime: str | None) -> Any:
    """Return the runtime that the raw calls go to."""
    if runtime is None:
        return import_module("cupy_backends.cuda.api.runtime")
    return import_module("crossmem_emulated.hip").Runtime("cuda")


def _serve(connection: Connection, backend: str, runtime: str | None, *, has_torch: bool) -> None:
    """Open what arrives, twice, and tell how long each took, in seconds."""
    ways = _ways(backend, runtime, has_torch=has_torch)
    connection.send("ready")
    while True:
        try:
            name, passed = connection.recv()
        except EOFError:
            return
        start = time.perf_counter()
        held, close = ways[name](passed)
        first = time.perf_counter()
        again, close_again = ways[name](passed)
        second = time.perf_counter()
        close_again()
        before = time.perf_counter()
        close()
        connection.send((first - start, second - first, time.perf_counter() - before))
        del held, again


def _exporters(backend: str, runtime: str | None, *, has_torch: bool) -> dict[str, Any]:
    """Return, by name, what allocates, and gives what is passed and what has to be kept."""
    device = crossmem.device(f"{backend}:0", runtime=runtime)
    rt = _raw(runtime)

    def raw() -> tuple[Any, Callable[[], Any]]:
        pointer = rt.malloc(_NBYTES)
        return rt.ipcGetMemHandle(pointer), lambda: rt.free(pointer)

    def ours() -> tuple[Any, Callable[[], Any]]:
        allocation = device.allocate(_NBYTES)
        return allocation.export().to_bytes(), allocation.free

    found = {"raw call": raw, "crossmem": ours}
    if has_torch:
        torch = import_module("torch")
        # The import registers PyTorch's tensors with ForkingPickler.
        import_module("torch.multiprocessing")

        def torchs() -> tuple[Any, Callable[[], Any]]:
            held = [torch.empty(_NBYTES, dtype=torch.uint8, device="cuda:0")]
            return bytes(ForkingPickler.dumps(held[0])), held.clear

        found["PyTorch"] = torchs
    return found


def measure(backend: str, runtime: str | None, rounds: int) -> dict[str, list[tuple[float, ...]]]:
    """Return, by way, the seconds of first open, second open and close in each round."""
    has_torch = False
    if runtime is None and find_spec("torch") is not None:
        has_torch = import_module("torch").cuda.is_available()
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    arguments = (theirs, backend, runtime)
    importer = context.Process(
        target=_serve, args=arguments, kwargs={"has_torch": has_torch}, daemon=True
    )
    importer.start()
    theirs.close()
    try:
        _receive(ours)
        exporters = _exporters(backend, runtime, has_torch=has_torch)
        found: dict[str, list[tuple[float, ...]]] = {name: [] for name in exporters}
        for _ in range(rounds):
            for name, export in exporters.items():
                passed, release = export()
                ours.send((name, passed))
                found[name].append(_receive(ours))
                release()
        return found
    finally:
        ours.close()
        importer.join(_DEADLINE_S)
        importer.kill()


def _receive(connection: Connection) -> Any:
    if not connection.poll(_DEADLINE_S):
        raise TimeoutError("the importing process does not answer")
    return connection.recv()


def main() -> None:
    """Measure, and print medians in microseconds."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runtime", help="such as emulated; default: CuPy")
    parser.add_argument("--rounds", type=int, default=50)
    arguments = parser.parse_args()
    found = measure("cuda", arguments.runtime, arguments.rounds)
    print(f"Medians of {arguments.rounds} rounds in µs, {_NBYTES >> 20} MiB each\n")
    print("| way | first open | second open | last close |\n|---|---|---|---|")
    for name, rows in found.items():
        medians = (f"{statistics.median(one) * 1e6:.0f}" for one in zip(*rows, strict=True))
        print(f"| {name} | {' | '.join(medians)} |")


if __name__ == "__main__":
    main()
