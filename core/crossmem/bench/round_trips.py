# SPDX-License-Identifier: Apache-2.0
"""A program that times round trips between two processes, and prints one line of JSON.

Each process is bound to a CPU of its own. The first process signals and waits for the answer, and
the second process answers. One pair of processes measures all ways to signal and wait, in turn.
Times are in seconds.
"""

import gc
import json
import mmap
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from statistics import median
from time import perf_counter
from types import MappingProxyType
from typing import Any, Final

import crossmem
from crossmem.bench.channel import Channel

__all__ = ["PAUSE_S", "Way", "ask", "main", "reply", "settle"]

_DEADLINE_S: Final = 120
_LINE_WORDS: Final = 8
"""The number of words in a cache line. Each process writes into a cache line of its own."""
PAUSE_S: Final = 0.002
"""Seconds that the first process pauses before a signal, so that the second process sleeps."""

# The shortest and the longest pause between two reads in the way "polling".
_SHORTEST_S: Final = 20e-6
_LONGEST_S: Final = 2e-3


class _Ends:
    """One process's objects for the communication with the other process.

    Parameters
    ----------
    channel
        The channel to the other process.
    words
        A page that both processes have mapped.
    events
        Two eventfds. The first process writes to the first eventfd, and the second process writes
        to the second eventfd.
    """

    def __init__(
        self, channel: Channel, words: memoryview, events: tuple[int, int], *, is_first: bool
    ) -> None:
        self.is_first = is_first
        self.channel = channel
        self.words = words
        self.out, self.back = events if is_first else (events[1], events[0])

    def exchange(self, blob: bytes) -> bytes:
        """Send bytes to the other process, and return the bytes that the other process sends."""
        self.channel.send(blob)
        return self.channel.receive()


Way = tuple[Callable[[int], object], Callable[[int], object]]
"""Two functions of this process. The first function signals a value to the other process, and the
second function waits until the other process has signalled a value."""


def _plain_word(ends: _Ends) -> Way:
    """Spin on a word in shared memory."""
    words = ends.words
    out, back = (0, _LINE_WORDS) if ends.is_first else (_LINE_WORDS, 0)

    def tell(value: int) -> None:
        words[out] = value

    def wait(value: int) -> None:
        while words[back] < value:
            pass

    return tell, wait


def _eventfd(ends: _Ends) -> Way:
    """Signal by a write to an eventfd, and sleep in the read of the other eventfd."""
    out, back = ends.out, ends.back
    return lambda _: os.eventfd_write(out, 1), lambda _: os.eventfd_read(back)


def _timeline(ends: _Ends) -> Way:
    """Use a timeline of crossmem for each direction."""
    own = crossmem.device("host").timeline()
    other = crossmem.open_timeline(ends.exchange(own.export().to_bytes()))
    return own.signal, other.wait


def _shared_tree(ends: _Ends) -> Way:
    """Publish versions of a tree, and wait for versions of the other process's tree."""
    own = crossmem.share(crossmem.empty(16, "uint8", device="host"))
    other = crossmem.Shared.from_bytes(ends.exchange(own.to_bytes()))
    return lambda _: own.publish(), lambda value: other.wait(value - 1)


def _polling(ends: _Ends) -> Way:
    """Write a version into a word in shared memory. The reader polls the word between sleeps."""
    words, lock = ends.words, threading.Lock()
    out, back = (2, 3) if ends.is_first else (3, 2)
    out, back = out * _LINE_WORDS, back * _LINE_WORDS

    def publish(value: int) -> None:
        with lock:
            _order_memory()
            words[out] = value

    def wait(value: int) -> None:
        end = time.monotonic() + _DEADLINE_S
        pause_s = _SHORTEST_S
        while True:
            version = words[back]
            _order_memory()
            if version >= value:
                return
            time.sleep(min(pause_s, end - time.monotonic()))
            pause_s = min(2 * pause_s, _LONGEST_S)

    return publish, wait


def _order_memory() -> None:
    """Act as a full fence. A release and the next acquisition of a lock order all accesses."""
    lock = threading.Lock()
    lock.acquire()
    lock.release()
    lock.acquire()


_WAYS: Final[Mapping[str, Callable[[_Ends], Way]]] = MappingProxyType(
    {
        "timeline": _timeline,
        "plain word": _plain_word,
        "eventfd": _eventfd,
        "shared tree": _shared_tree,
        "polling": _polling,
    }
)
_NEEDS: Final = MappingProxyType({"shared tree": "numpy"})
"""The module that a way needs. Without the module, the way is not measured."""

_AWAKE: Final = ("timeline", "plain word", "shared tree", "polling")
_ASLEEP: Final = ("timeline", "eventfd")


def _turns(rounds: int) -> list[tuple[str, str]]:
    """Return the measurements in their order.

    A measurement is a pair: the name of a way, and the state of the second process before each
    signal, which is ``awake`` or ``asleep``.
    """
    each = [(name, "awake") for name in _AWAKE] + [(name, "asleep") for name in _ASLEEP]
    # The first round is not counted, because a way may start threads at its first use.
    return [one for number in range(rounds + 1) for one in each[:: 1 if number % 2 else -1]]


def _run(ends: _Ends, count: int, rounds: int) -> dict[str, list[float]]:
    """Make all round trips. Return the median time in each round, for each measurement.

    The second process returns an empty dict, because only the first process takes times.
    """
    ways = {
        name: make(ends) for name, make in _WAYS.items() if find_spec(_NEEDS.get(name, "crossmem"))
    }
    values = dict.fromkeys(ways, 0)
    found: dict[str, list[float]] = {}
    for name, state in _turns(rounds):
        if name not in ways:
            continue
        start = values[name] + 1
        values[name] += count
        numbers = range(start, start + count)
        ends.exchange(b"ready")
        if ends.is_first:
            times = ask(ways[name], numbers, pause_s=PAUSE_S if state == "asleep" else 0.0)
            found.setdefault(f"{name}, {state}", []).append(median(times))
        else:
            reply(ways[name], numbers)
    ends.exchange(b"done")
    return {name: times[1:] for name, times in found.items()}


def ask(way: Way, numbers: range, *, pause_s: float) -> list[float]:
    """Signal each number and wait for its answer. Return the times in seconds.

    Before each signal, this process does nothing for ``pause_s`` seconds.
    """
    (ask, wait), clock, times = way, perf_counter, []
    for number in numbers:
        if pause_s:
            time.sleep(pause_s)
        begin = clock()
        ask(number)
        wait(number)
        times.append(clock() - begin)
    return times


def reply(way: Way, numbers: range) -> None:
    """Wait for each number, and then signal the same number to the other process."""
    tell, wait = way
    for number in numbers:
        wait(number)
        tell(number)


def settle(cpu: int) -> None:
    """Bind this process to a CPU, limit its life by an alarm, and disable garbage collection."""
    os.sched_setaffinity(0, {cpu})
    # Some ways wait forever if the other process has died. The alarm then ends this process.
    signal.alarm(_DEADLINE_S)
    gc.disable()


def measure(count: int, rounds: int, cpus: list[int]) -> dict[str, list[float]]:
    """Return lists with the median time of a round trip in each round.

    The key of a list, such as ``"timeline, asleep"``, has the name of a way, and the state of the
    second process before each signal.

    Parameters
    ----------
    count
        Number of round trips that each round makes for each key.
    rounds
        Number of rounds that are counted.
    cpus
        The CPUs of the two processes.
    """
    first, second = cpus
    settle(first)
    memory = os.memfd_create("words")
    os.truncate(memory, mmap.PAGESIZE)
    events = os.eventfd(0), os.eventfd(0)
    channel, theirs = Channel.couple(timeout_s=_DEADLINE_S)
    given: dict[str, Any] = {
        "count": count,
        "rounds": rounds,
        "cpu": second,
        "descriptors": [theirs.fileno(), memory, *events],
    }
    child = subprocess.Popen(
        [sys.executable, "-P", __file__, "answer", json.dumps(given)],
        pass_fds=given["descriptors"],
        stdout=subprocess.DEVNULL,
    )
    try:
        theirs.close()
        with mmap.mmap(memory, mmap.PAGESIZE) as page, memoryview(page).cast("Q") as words:
            return _run(_Ends(channel, words, events, is_first=True), count, rounds)
    finally:
        channel.close()
        try:
            child.wait(_DEADLINE_S)
        finally:
            child.kill()


def answer(count: int, rounds: int, cpu: int, descriptors: list[int]) -> dict[str, list[float]]:
    """Answer each signal of the first process. The second process calls this function."""
    settle(cpu)
    number, memory, out, back = descriptors
    channel = Channel(socket.socket(fileno=number), timeout_s=_DEADLINE_S)
    with mmap.mmap(memory, mmap.PAGESIZE) as page, memoryview(page).cast("Q") as words:
        return _run(_Ends(channel, words, (out, back), is_first=False), count, rounds)


def main(arguments: list[str]) -> None:
    """Run one of the two processes.

    The first of the ``arguments`` is the name of a function, ``"measure"`` or ``"answer"``. The
    second is that function's keyword arguments, as JSON.
    """
    part, given = arguments
    run = measure if part == "measure" else answer
    found = run(**json.loads(given))
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
