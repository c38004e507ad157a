# SPDX-License-Identifier: Apache-2.0
"""A program that measures hand-overs of buffers between processes, and prints one JSON line.

Each process is bound to one CPU. Times are in seconds.
"""

import gc
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle, send_handle
from statistics import median
from time import perf_counter, sleep
from types import MappingProxyType
from typing import Any, Final

import crossmem
from crossmem.bench.copies import end_child, start_child
from crossmem.bench.hand_over_ways import GET_S, NAME, SMALL, WAYS, Ends
from crossmem.bench.round_trips import PAUSE_S, ask, reply, settle

__all__ = ["CASES", "main"]

_BATCH: Final = 64


# Round trips ------------------------------------------------------------------------------


def trips(count: int, rounds: int, cpus: list[int], skipped: list[str]) -> dict[str, list[float]]:
    """Return the median time of a round trip in each round.

    A key of the dict, such as ``"queue, awake"``, consists of two parts: the name of a way to hand
    over buffers, and the state of the second process before each hand-over.

    Parameters
    ----------
    count
        Number of round trips in a round, for each key.
    cpus
        The CPUs of the two processes.
    skipped
        The ways that are not measured. Ways whose module is not installed are not measured either.
    """
    is_there = find_spec("iceoryx2") is not None
    chosen = [name for name in WAYS if name not in skipped and (is_there or "iceoryx2" not in name)]
    each = [(name, state) for name in chosen for state in WAYS[name][1]]
    # The first round is not counted, because a way may start threads at its first use.
    turns = [one for number in range(rounds + 1) for one in each[:: 1 if number % 2 else -1]]
    found: dict[str, list[float]] = {}
    with _Pair(chosen, turns, count, cpus) as ends:
        made = {name: WAYS[name][0](ends) for name in chosen}
        for (name, state), numbers in zip(turns, _numbers(turns, count), strict=True):
            ends.begin()
            times = ask(made[name], numbers, pause_s=PAUSE_S if state == "asleep" else 0.0)
            ends.exchange("over")
            found.setdefault(f"{name}, {state}", []).append(median(times))
    return {name: times[1:] for name, times in found.items()}


def _numbers(turns: Sequence[Any], count: int) -> list[range]:
    return [range(1 + turn * count, 1 + (turn + 1) * count) for turn in range(len(turns))]


class _Pair:
    """Starts the second process, and ends it at the end of the ``with`` block."""

    def __init__(
        self, ways: list[str], turns: list[tuple[str, str]], count: int, cpus: list[int]
    ) -> None:
        settle(cpus[0])
        context = get_context("spawn")
        self._names = [context.Queue(), context.Queue()]
        arguments = ways, turns, count, cpus[1], self._names
        self.process, self._connection = start_child(_answer, *arguments)
        self._events = [os.eventfd(0), os.eventfd(0)]
        for event in self._events:
            send_handle(self._connection, event, self.process.pid)
        self._ends = Ends(self._connection, self._events, self._names)

    def __enter__(self) -> Ends:
        return self._ends

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self._ends.exchange("done")
        _close(self._ends)
        end_child(self.process, self._connection)


def _close(ends: Ends) -> None:
    for one in ends.kept:
        end = getattr(one, "delete", None) or getattr(one, "close", None)
        if end is not None:
            end()
    for names in ends.names:
        names.close()
        names.cancel_join_thread()


def _answer(
    connection: Connection,
    ways: list[str],
    turns: list[tuple[str, str]],
    count: int,
    cpu: int,
    names: list[Any],
) -> None:
    """Answer the round trips. This function runs in the second process."""
    settle(cpu)
    connection.send("started")
    events = [recv_handle(connection) for _ in range(2)]
    ends = Ends(connection, events[::-1], names[::-1])
    made = {name: WAYS[name][0](ends) for name in ways}
    for (name, _state), numbers in zip(turns, _numbers(turns, count), strict=True):
        ends.begin()
        reply(made[name], numbers)
        ends.exchange("over")
    ends.exchange("done")
    _close(ends)


# Many items -------------------------------------------------------------------------------


def rates(count: int, rounds: int, cpus: list[int]) -> dict[str, list[float]]:
    """Return the time per item in each round: the time for all items, divided by their number.

    Parameters
    ----------
    count
        Number of batches of 64 items in a round.
    cpus
        The CPUs of the producer and of the consumer.

    Returns
    -------
    dict
        The key says what the producer hands over. ``"queue"``: buffers, with ``put_many`` and
        ``get_many``. ``"mp.Queue"``: names of shared memory. ``"mp.Queue, both ways"``: such names,
        and the consumer sends the names back, so that the producer can reuse the memory.
    """
    settle(cpus[0])
    context, kinds = get_context("spawn"), ["queue", "mp.Queue", "mp.Queue, both ways"]
    full, free = context.Queue(), context.Queue()
    turns = [one for number in range(rounds + 1) for one in kinds[:: 1 if number % 2 else -1]]
    process, connection = start_child(_consume, turns, count, cpus[1], full, free)
    depth = 4 * _BATCH
    found: dict[str, list[float]] = {}
    with crossmem.device("host").queue(depth, SMALL, consumers=1) as queue:
        connection.send(queue.export(role="consume").to_bytes())
        connection.recv()
        names = [NAME.format(number) for number in range(depth)]

        def put_items() -> None:
            for _ in range(count):
                queue.put_many([queue.allocate(timeout=GET_S) for _ in range(_BATCH)])

        def put_names() -> None:
            for number in range(count * _BATCH):
                full.put(names[number % depth])

        def put_free_names() -> None:
            for number in range(count * _BATCH):
                full.put(names[number] if number < depth else free.get())
            for _ in range(min(depth, count * _BATCH)):
                free.get()

        works = dict(zip(kinds, (put_items, put_names, put_free_names), strict=True))
        for kind in turns:
            connection.send("ready")
            connection.recv()
            start = perf_counter()
            works[kind]()
            connection.recv()
            found.setdefault(kind, []).append((perf_counter() - start) / (count * _BATCH))
        connection.send("done")
        connection.recv()
    end_child(process, connection)
    return {kind: times[1:] for kind, times in found.items()}


def _consume(
    connection: Connection, turns: list[str], count: int, cpu: int, full: Any, free: Any
) -> None:
    """Get all items of each measurement. This function runs in the consumer."""
    settle(cpu)
    connection.send("started")
    queue = crossmem.open_queue(connection.recv())
    connection.send("opened")
    number = count * _BATCH

    def get_items() -> None:
        left = number
        while left:
            items = queue.get_many(_BATCH, timeout=GET_S)
            left -= len(items)
            for item in items:
                item.release()

    def get_names() -> None:
        for _ in range(number):
            full.get()

    def get_and_free_names() -> None:
        for _ in range(number):
            free.put(full.get())

    works = {"queue": get_items, "mp.Queue": get_names, "mp.Queue, both ways": get_and_free_names}
    for kind in turns:
        connection.recv()
        connection.send("ready")
        works[kind]()
        connection.send("all")
    connection.recv()
    queue.close()
    connection.send("closed")


# Several consumers ------------------------------------------------------------------------


def fans(count: int, rounds: int, cpus: list[int]) -> dict[str, list[float]]:
    """Return the producer's median time to allocate and put one item, for each round.

    All consumers get each item. The keys of the dict are ``"1 consumers"`` and ``"8 consumers"``.

    Parameters
    ----------
    count
        Number of bursts of 32 items in a round. Before each burst, all consumers have released
        all items.
    cpus
        The CPU of the producer, and the CPU that all consumers share.
    """
    settle(cpus[0])
    burst, found = _BATCH // 2, dict[str, list[float]]()
    made = {several: _Fan(several, cpus[1]) for several in (1, 8)}
    for number in range(rounds + 1):
        for several in (1, 8)[:: 1 if number % 2 else -1]:
            times = [made[several].put(burst) / burst for _ in range(count)]
            found.setdefault(f"{several} consumers", []).append(median(times))
    for fan in made.values():
        fan.close()
    return {name: times[1:] for name, times in found.items()}


class _Fan:
    """A queue that delivers each item to all of its consumers, and the consumers' processes."""

    def __init__(self, consumers: int, cpu: int) -> None:
        self.queue = crossmem.device("host").queue(
            _BATCH, SMALL, delivery="each", consumers=consumers
        )
        handle = self.queue.export(role="consume").to_bytes()
        self._children = [start_child(_take, handle, cpu) for _ in range(consumers)]
        for _process, connection in self._children:
            # The child replies to this count of 0 after it has opened the queue.
            connection.send(0)
            connection.recv()

    def put(self, count: int) -> float:
        """Allocate and put ``count`` items. Return the producer's time in seconds."""
        for _process, connection in self._children:
            connection.send(count)
        # After this pause, the consumers sleep in their wait for the first item.
        sleep(PAUSE_S)
        start = perf_counter()
        for _ in range(count):
            self.queue.put(self.queue.allocate(timeout=GET_S))
        took_s = perf_counter() - start
        for _process, connection in self._children:
            connection.recv()
        return took_s

    def close(self) -> None:
        """End the consumers, and close the queue."""
        for process, connection in self._children:
            connection.send(-1)
            connection.recv()
            end_child(process, connection)
        self.queue.close()


def _take(connection: Connection, handle: bytes, cpu: int) -> None:
    """For each received ``count``, get and release ``count`` items. End at a negative ``count``."""
    settle(cpu)
    connection.send("started")
    with crossmem.open_queue(handle) as queue:
        while (count := connection.recv()) >= 0:
            for _ in range(count):
                queue.get(timeout=GET_S).release()
            connection.send("released")
    connection.send("closed")


CASES: Final[Mapping[str, Callable[..., dict[str, list[float]]]]] = MappingProxyType(
    {"trips": trips, "rates": rates, "fans": fans}
)
"""The function of each case."""


def main(arguments: list[str]) -> None:
    """Measure a case. ``arguments``: the case's name, and keyword arguments as a JSON object."""
    name, given = arguments
    gc.disable()
    sys.stdout.write(json.dumps(CASES[name](**json.loads(given))) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
