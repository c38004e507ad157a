# SPDX-License-Identifier: Apache-2.0
"""A program that measures how long it takes to send trees and arrays to other processes.

One run of the program measures one case and prints one line of JSON. Times are in seconds. The
clock is the same in all processes.
"""

import json
import os
import pickle
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib import import_module
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from statistics import median
from time import perf_counter
from types import MappingProxyType
from typing import Any, Final

import crossmem
from crossmem.bench.copies import end_child, start_child, start_ray

__all__ = ["CASES", "main"]

_JOIN_S: Final = 30.0
_RAY_WARMUP_ROUNDS: Final = 3
_ATTACHES: Final = 25
_DEVICE: Final = "host"


# Trees ------------------------------------------------------------------------------------


def tree(kind: str, tensors: int, nbytes: int, rounds: int) -> dict[str, list[float]]:
    """Measure the time to share a dictionary of tensors and to receive it in another process.

    With crossmem, the other process then receives the dictionary again. The second receive is timed
    separately.

    Parameters
    ----------
    kind
        ``"crossmem"``: all tensors lie in one allocation. ``"torch"``: PyTorch shares the tensors,
        and moves each CPU tensor into separate shared memory.
    tensors, nbytes
        Number of tensors, and size of each tensor in bytes.
    rounds
        Number of rounds. Each round makes new tensors, because PyTorch moves a tensor only once.
    """
    torch: Any = import_module("torch")
    process, connection = start_child(_read_trees, kind)
    firsts, agains = [], []
    pool = None
    if kind == "crossmem":
        pool = crossmem.device(_DEVICE).allocate(tensors * nbytes)
        memory = pool.as_tensor()
        # This write causes the page faults of the shared memory before the measurement. With
        # PyTorch, the page faults are a part of the measurement: torch.ones() touches only private
        # memory, and the send moves each tensor into new shared memory.
        memory.fill_(1)
    for _ in range(rounds):
        if pool is not None:
            weights = {
                f"layer.{i}.weight": pool.as_tensor((nbytes // 4,), "float32", offset=i * nbytes)
                for i in range(tensors)
            }
        else:
            weights = {f"layer.{i}.weight": torch.ones(nbytes // 4) for i in range(tensors)}
        start = perf_counter()
        if pool is not None:
            shared = crossmem.share(weights)
            connection.send_bytes(shared.to_bytes())
        else:
            connection.send_bytes(ForkingPickler.dumps(weights))
        received, again = connection.recv()
        firsts.append(received - start)
        agains.append(again)
        if pool is not None:
            shared.close()
    end_child(process, connection)
    return {"share and receive": firsts, "receive again": agains if kind == "crossmem" else []}


def _read_trees(connection: Connection, kind: str) -> None:
    import_module("torch")
    connection.send("ready")
    while True:
        try:
            blob = connection.recv_bytes()
        except EOFError:
            return
        # The bytes come from the parent of this process, so it is safe to unpickle them.
        load = crossmem.receive if kind == "crossmem" else pickle.loads
        weights = load(blob)
        received = perf_counter()
        again = load(blob) if kind == "crossmem" else None
        took = perf_counter() - received
        connection.send((received, took))
        del weights, again


# Queues -----------------------------------------------------------------------------------


def queue(kind: str, nbytes: int, rounds: int) -> dict[str, list[float]]:
    """Measure the time from sending an array until it arrives in the other process.

    Parameters
    ----------
    kind
        ``"crossmem"``: a queue of multiprocessing sends a handle. ``"numpy"``: the same kind of
        queue sends the pickled array. ``"ray"``: one actor calls ``put``, another calls ``get``.
    nbytes, rounds
        Size of the array in bytes, and number of rounds.
    """
    if kind == "ray":
        return {"send": _through_ray(nbytes, rounds)}
    numpy: Any = import_module("numpy")
    crossmem.install()
    array = crossmem.empty(nbytes, "uint8") if kind == "crossmem" else numpy.empty(nbytes, "uint8")
    array[:] = 1
    context = get_context("spawn")
    items, answers = context.Queue(), context.Queue()
    process = context.Process(target=_read_queue, args=(items, answers))
    process.start()
    answers.get()
    times = []
    for _ in range(rounds + 1):
        start = perf_counter()
        items.put(array)
        times.append(answers.get() - start)
    items.put(None)
    process.join(_JOIN_S)
    process.kill()
    # The first round is not counted, because it starts threads and connections.
    return {"send": times[1:]}


def _read_queue(items: Any, answers: Any) -> None:
    answers.put(0.0)
    while (array := items.get()) is not None:
        seen, first = perf_counter(), int(array[-1])
        answers.put(seen if first else 0.0)
        del array


def _through_ray(nbytes: int, rounds: int) -> list[float]:
    ray = start_ray(nbytes)
    numpy: Any = import_module("numpy")

    class Actor:
        def make(self) -> None:
            self.array = numpy.ones(nbytes, "uint8")

        def put(self) -> Any:
            return perf_counter(), ray.put(self.array)

        def get(self, put: Any) -> float:
            start, reference = put
            array = ray.get(reference)
            return perf_counter() - float(start) if array[-1] else 0.0

    try:
        remote = ray.remote(num_cpus=1)(Actor)
        sender, receiver = remote.remote(), remote.remote()
        ray.get(sender.make.remote())
        times = [
            float(ray.get(receiver.get.remote(sender.put.remote())))
            for _ in range(_RAY_WARMUP_ROUNDS + rounds)
        ]
    finally:
        ray.shutdown()
    # The first rounds are not counted, because Ray's store allocates its pages in these rounds.
    return times[_RAY_WARMUP_ROUNDS:]


# Readers ----------------------------------------------------------------------------------


def readers(count: int, nbytes: int) -> dict[str, list[float]]:
    """Measure the time and the memory that ``count`` processes need to receive the same array.

    Returns
    -------
    dict
        ``"attach"``: each reader's median time to receive the array, in seconds. ``"counted"``: the
        sum of the array's proportional sizes (Pss) in all processes, divided by the array's size.
    """
    array = crossmem.empty(nbytes, "uint8")
    array[:] = 1
    shared = crossmem.share(array)
    pointer = array.__array_interface__["data"][0]
    children, attach = [], []
    for _ in range(count):
        process, connection = start_child(_read_array)
        children.append((process, connection))
        connection.send_bytes(shared.to_bytes())
        attach.append(connection.recv())
    counted = _counted(pointer)
    for _, connection in children:
        connection.send_bytes(b"count")
        counted += connection.recv()
    for process, connection in children:
        end_child(process, connection)
    return {"attach": attach, "counted": [counted / nbytes]}


def _read_array(connection: Connection) -> None:
    # The first receive() in a process has one-time costs, so this call is not timed.
    with crossmem.device(_DEVICE).allocate(1) as warm:
        crossmem.receive(crossmem.share(warm.as_array()))
    connection.send("ready")
    blob = connection.recv_bytes()
    times = []
    for _ in range(_ATTACHES):
        # Release the previous array first, so that receive() attaches the memory anew.
        array: Any = None
        crossmem.collect()
        start = perf_counter()
        array = crossmem.receive(blob)
        times.append(perf_counter() - start)
    array.sum()
    connection.send(median(times))
    connection.recv_bytes()
    connection.send(_counted(array.__array_interface__["data"][0]))
    # Pss divides each page by the number of processes that map the page. So this reader keeps the
    # memory mapped until all readers are counted.
    with suppress(EOFError):
        connection.recv_bytes()


def _counted(pointer: int) -> int:
    """Return the proportional size (Pss) of this process's mapping at an address, in bytes."""
    inside = False
    for line in (
        Path(f"/proc/{os.getpid()}/smaps").read_text("ascii", errors="replace").splitlines()
    ):
        first = line.split(maxsplit=1)[0]
        start, dash, end = first.partition("-")
        if dash and ":" not in first:
            inside = int(start, 16) <= pointer < int(end, 16)
        elif inside and first == "Pss:":
            return int(line.split()[1]) * 1024
    return 0


CASES: Final[Mapping[str, Callable[..., dict[str, list[float]]]]] = MappingProxyType(
    {"tree": tree, "queue": queue, "readers": readers}
)
"""The function of each case."""


def main(arguments: list[str]) -> None:
    """Measure one case.

    ``arguments`` are the name of the case, and a JSON object with the arguments of its function.
    """
    name, given = arguments
    sys.stdout.write(json.dumps(CASES[name](**json.loads(given))) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
