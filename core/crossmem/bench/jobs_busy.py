# SPDX-License-Identifier: Apache-2.0
"""The job in which the consumer attaches while the producer is busy.

The producer exports memory and then runs a load. Meanwhile the consumer attaches one allocation
after another; the time of each attach is a sample. The load ``stopped`` is not measured for peers
that wait for the producer in ``attach``, because the wait would not end.
"""

import asyncio
import ctypes
import os
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from threading import Thread
from time import sleep
from types import MappingProxyType
from typing import Any, Final

from crossmem.bench.channel import Channel
from crossmem.bench.jobs import Context, Halves, timed

__all__ = ["BUSY_JOBS", "HELD", "IDLE", "LOADS", "ONE_THREAD", "STOPPED"]

IDLE: Final = "idle"
ONE_THREAD: Final = "busy"
HELD: Final = "GIL held"
STOPPED: Final = "stopped"
_FOUR_THREADS: Final = "4 threads"
_ASYNCIO: Final = "asyncio"

_OTHERS: Final = 3
_TASKS: Final = 4
_TURNS_OF_TASK: Final = 2000
_STOP_POLL_S: Final = 0.0005
# A function of a PyDLL keeps the GIL while it runs, as functions of some extension modules do.
_locked = ctypes.PyDLL(None, use_errno=True)

Load = Callable[[Channel, list[bool]], None]
"""A function that keeps the producer busy until its second argument, a list, is empty. Another
thread empties the list when a message from the consumer arrives."""


def _wait(_channel: Channel, _busy: list[bool]) -> None:
    """Do nothing: the main thread then sleeps, and other threads of the producer get the GIL."""


def _spin(_channel: Channel, busy: list[bool]) -> None:
    turns = 0
    while busy:  # pure Python releases the GIL only if another thread requests it
        turns += 1


def _spin_in_four(channel: Channel, busy: list[bool]) -> None:
    others = [Thread(target=_spin, args=(channel, busy), daemon=True) for _ in range(_OTHERS)]
    for thread in others:
        thread.start()
    _spin(channel, busy)
    for thread in others:
        thread.join()


def _run_loop(_channel: Channel, busy: list[bool]) -> None:
    async def task() -> None:
        while busy:
            sum(range(_TURNS_OF_TASK))
            await asyncio.sleep(0)

    async def tasks() -> None:
        await asyncio.gather(*(task() for _ in range(_TASKS)))

    asyncio.run(tasks())


LOADS: Final[Mapping[str, Load]] = MappingProxyType(
    {
        IDLE: _wait,
        ONE_THREAD: _spin,
        _FOUR_THREADS: _spin_in_four,
        _ASYNCIO: _run_loop,
        HELD: _wait,
        STOPPED: _wait,
    }
)
"""The function of each load. The key is the name of the load in a report.

The job itself makes the loads ``GIL held`` and ``stopped``, so their functions do nothing.
"""


def _produce_beside(
    context: Context, *, nbytes: int, count: int, load: str, hold_s: float
) -> dict[str, Any]:
    peer, channel = context.peer, context.channel
    memories = [peer.create(nbytes) for _ in range(count)]
    channel.send_all([peer.export(memory) for memory in memories])
    channel.send(str(os.getpid()).encode())
    channel.receive()  # the consumer has read all tokens
    busy = [True]

    def wait() -> None:
        try:
            channel.receive()
        finally:
            busy.clear()

    if load == HELD:
        # The next two calls hold the GIL. After the first one, the consumer begins to attach.
        _locked.write(channel.fileno(), b"busy", 4)
        _locked.poll(None, 0, round(hold_s * 1e3))
        wait()
    else:
        watcher = Thread(target=wait, daemon=True)
        watcher.start()
        channel.send(b"busy")
        LOADS[load](channel, busy)
        watcher.join()
    for memory in memories:
        peer.free(memory)
    return {}


def _stop(pid: int) -> None:
    """Stop a process with SIGSTOP, and return when all its threads have stopped."""
    os.kill(pid, signal.SIGSTOP)
    for thread in Path(f"/proc/{pid}/task").iterdir():
        while (thread / "stat").read_text().rpartition(")")[2].split()[0] != "T":
            sleep(_STOP_POLL_S)


def _consume_beside(context: Context, *, load: str, **_: Any) -> dict[str, Any]:
    peer, channel = context.peer, context.channel
    tokens = channel.receive_all()
    pid = int(channel.receive())
    channel.send(b"read")
    channel.receive()  # the producer is busy
    times, mappings = [], []
    try:
        if load == STOPPED:
            _stop(pid)
        for token in tokens:
            seconds, mapping = timed(peer.attach, token)
            times.append(seconds)
            mappings.append(mapping)
    finally:
        if load == STOPPED:
            os.kill(pid, signal.SIGCONT)
    for mapping in mappings:
        peer.detach(mapping)
    channel.send(b"stop")
    return {"attach": times}


BUSY_JOBS: Final[Halves] = MappingProxyType({"beside": (_produce_beside, _consume_beside)})
