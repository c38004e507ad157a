# SPDX-License-Identifier: Apache-2.0
"""A program that times copies of a dict of arrays into shared memory.

The suite runs this file by its path in a fresh interpreter. The program prints one line of JSON.
The times named ``"cold"`` include the first use of crossmem in a process. Therefore the program
imports only those modules of crossmem that a user's program imports. Times are in seconds. The
clock is the same in all processes.
"""

import json
import mmap
import pickle
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from multiprocessing.shared_memory import SharedMemory
from time import perf_counter
from types import MappingProxyType
from typing import Any, Final

__all__ = ["CASES", "end_child", "main", "start_child", "start_ray"]

_JOIN_S: Final = 30.0
_PAGE_NBYTES: Final = 4096

Reply = Callable[[], float]
"""A function that waits for the reader, and returns the time at which the reader has read every
page."""


def start_child(work: Callable[..., None], *arguments: Any) -> tuple[Any, Connection]:
    """Start a child that runs ``work``, and wait until the child is ready.

    Return the process object of the child, and the connection to the child.
    """
    context = get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=work, args=(theirs, *arguments))
    process.start()
    theirs.close()
    ours.recv()
    return process, ours


def end_child(process: Any, connection: Connection) -> None:
    """End a child of :func:`start_child`, and kill it if it does not end in time."""
    connection.close()
    process.join(_JOIN_S)
    if process.is_alive():
        process.kill()


def start_ray(nbytes: int) -> Any:
    """Start Ray with room for four objects of ``nbytes``; return the module of Ray."""
    ray: Any = import_module("ray")
    ray.init(
        address="local",
        num_cpus=2,
        object_store_memory=4 * nbytes + (80 << 20),
        include_dashboard=False,
        log_to_driver=False,
        logging_level="ERROR",
    )
    return ray


def _make_weights(nbytes: int, arrays: int) -> dict[str, Any]:
    numpy: Any = import_module("numpy")
    return {f"layer.{i}": numpy.ones(nbytes // arrays // 8) for i in range(arrays)}


def _read_pages(weights: Mapping[str, Any]) -> None:
    """Read a byte of every page."""
    for array in weights.values():
        array.reshape(-1).view("uint8")[::_PAGE_NBYTES].sum()


# A copy for another process ----------------------------------------------------------------


def copied(kind: str, nbytes: int, arrays: int, rounds: int) -> dict[str, list[float]]:
    """Copy a dict of arrays into shared memory, and let another process read every page.

    Parameters
    ----------
    kind
        ``"crossmem"``: ``share(copy=True)`` and ``receive``. ``"mp"``: one process creates
        and fills a segment of ``multiprocessing.shared_memory``, and the other process attaches it.
        ``"ray"``: one actor calls ``put``, and another actor calls ``get``. ``"torch"``:
        the tensors already lie in shared memory, so ``torch.multiprocessing`` copies no data.
    nbytes, arrays
        Size of the dict in bytes, and its number of arrays.
    rounds
        Number of repetitions after the first copy.

    Returns
    -------
    dict
        Lists of times. A clock starts before the first call in the sender, and stops when the
        reader has read every page.
        ``"cold"``: the time of the first copy. ``"warm"``: the times of the repetitions.
    """
    if kind == "ray":
        times = _through_ray(nbytes, arrays, rounds + 1)
    else:
        weights = _make_weights(nbytes, arrays)
        if kind == "torch":
            torch: Any = import_module("torch")
            weights = {
                name: torch.from_numpy(array).share_memory_() for name, array in weights.items()
            }
        send = _SENDERS[kind]
        import_module("crossmem" if kind == "crossmem" else "numpy")
        process, connection = start_child(_read_dicts, kind)
        times = []
        for _ in range(rounds + 1):
            start = perf_counter()
            times.append(send(connection, weights, connection.recv) - start)
        end_child(process, connection)
    return {"cold": times[:1], "warm": times[1:]}


def _send_crossmem(connection: Connection, weights: dict[str, Any], reply: Reply) -> float:
    crossmem: Any = import_module("crossmem")
    shared = crossmem.share(weights, copy=True)
    connection.send_bytes(shared.to_bytes())
    end = reply()
    shared.close()
    return end


def _send_mp(connection: Connection, weights: dict[str, Any], reply: Reply) -> float:
    numpy: Any = import_module("numpy")
    memory = SharedMemory(create=True, size=sum(array.nbytes for array in weights.values()))
    places, offset = {}, 0
    for name, array in weights.items():
        places[name] = array.shape, array.dtype.str, offset
        numpy.copyto(numpy.ndarray(array.shape, array.dtype, memory.buf, offset), array)
        offset += array.nbytes
    connection.send_bytes(pickle.dumps((memory.name, places)))
    end = reply()
    memory.close()
    memory.unlink()
    return end


def _send_torch(connection: Connection, weights: dict[str, Any], reply: Reply) -> float:
    connection.send_bytes(ForkingPickler.dumps(weights))
    return reply()


def _read_dicts(connection: Connection, kind: str) -> None:
    load = _READERS[kind]
    import_module({"mp": "numpy"}.get(kind, kind))
    connection.send("ready")
    while True:
        try:
            blob = connection.recv_bytes()
        except EOFError:
            return
        end = load(blob)
        # load() has returned, so its arrays no longer exist when the sender gets this reply.
        connection.send(end)


def _read_crossmem(blob: bytes) -> float:
    crossmem: Any = import_module("crossmem")
    weights = crossmem.receive(blob)
    _read_pages(weights)
    return perf_counter()


def _read_mp(blob: bytes) -> float:
    numpy: Any = import_module("numpy")
    # The bytes come from the parent of this process, so they may be unpickled.
    name, places = pickle.loads(blob)  # noqa: S301
    memory = SharedMemory(name)
    weights = {
        name: numpy.ndarray(shape, dtype, memory.buf, offset)
        for name, (shape, dtype, offset) in places.items()
    }
    _read_pages(weights)
    end = perf_counter()
    del weights
    memory.close()
    return end


def _read_torch(blob: bytes) -> float:
    # The bytes come from the parent of this process, so they may be unpickled.
    weights = pickle.loads(blob)  # noqa: S301
    _read_pages({name: tensor.numpy() for name, tensor in weights.items()})
    return perf_counter()


_SENDERS: Final = MappingProxyType(
    {"crossmem": _send_crossmem, "mp": _send_mp, "torch": _send_torch}
)
_READERS: Final = MappingProxyType(
    {"crossmem": _read_crossmem, "mp": _read_mp, "torch": _read_torch}
)


def _through_ray(nbytes: int, arrays: int, rounds: int) -> list[float]:
    class Actor:
        def make(self) -> None:
            numpy: Any = import_module("numpy")
            each = nbytes // arrays // 8
            self.weights = {f"layer.{i}": numpy.ones(each) for i in range(arrays)}

        def put(self) -> Any:
            return perf_counter(), import_module("ray").put(self.weights)

        def get(self, put: Any) -> float:
            start, reference = put
            for array in import_module("ray").get(reference).values():
                array.view("uint8")[::4096].sum()
            return perf_counter() - float(start)

    ray = start_ray(nbytes)
    try:
        remote = ray.remote(num_cpus=1)(Actor)
        sender, receiver = remote.remote(), remote.remote()
        ray.get([sender.make.remote(), receiver.make.remote()])
        return [float(ray.get(receiver.get.remote(sender.put.remote()))) for _ in range(rounds)]
    finally:
        ray.shutdown()


# The copy itself ---------------------------------------------------------------------------


def updated(nbytes: int, arrays: int, rounds: int, *, plain_first: bool) -> dict[str, list[float]]:
    """Measure the times of crossmem's copies of a dict, and of NumPy's copies of the same dict.

    If ``plain_first``, NumPy's copy into fresh memory comes before the first share.

    Returns
    -------
    dict
        Lists of times. ``"first share"``: the first ``share(copy=True)`` of the process.
        ``"faulting copy"``: NumPy's copy into fresh shared memory, with page faults.
        ``"update"``: the calls of ``Shared.update``. ``"touched copy"``: NumPy's copies into
        private memory that was written before.
    """
    crossmem: Any = import_module("crossmem")
    numpy: Any = import_module("numpy")
    weights = _make_weights(nbytes, arrays)

    def copy(targets: list[Any]) -> float:
        start = perf_counter()
        for target, array in zip(targets, weights.values(), strict=True):
            numpy.copyto(target, array)
        return perf_counter() - start

    def copy_into_fresh() -> float:
        # crossmem's copy lies in a memfd. An anonymous shared mapping has the same kind of pages.
        fresh = numpy.frombuffer(mmap.mmap(-1, nbytes), "float64")
        return copy(numpy.split(fresh[: nbytes // 8 // arrays * arrays], arrays))

    faulting = [copy_into_fresh()] if plain_first else []
    start = perf_counter()
    shared = crossmem.share(weights, copy=True)
    first = [perf_counter() - start]
    faulting = faulting or [copy_into_fresh()]
    touched = [numpy.zeros_like(array) for array in weights.values()]
    copy(touched)
    updates: list[float] = []
    copies: list[float] = []
    for turn in range(rounds):
        for name, times in (("update", updates), ("copy", copies))[:: 1 if turn % 2 else -1]:
            start = perf_counter()
            if name == "update":
                shared.update(weights)
            else:
                copy(touched)
            times.append(perf_counter() - start)
    shared.close()
    return {
        "first share": first,
        "faulting copy": faulting,
        "update": updates,
        "touched copy": copies,
    }


CASES: Final[Mapping[str, Callable[..., dict[str, list[float]]]]] = MappingProxyType(
    {"copied": copied, "updated": updated}
)
"""The function of each case."""


def main(arguments: list[str]) -> None:
    """Measure one case. ``arguments``: the name of the case, and its keyword arguments as JSON."""
    name, given = arguments
    sys.stdout.write(json.dumps(CASES[name](**json.loads(given))) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
