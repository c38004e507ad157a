# SPDX-License-Identifier: Apache-2.0
"""The measured ways to hand over data between two processes."""

import ctypes
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import import_module
from multiprocessing.connection import Connection
from time import perf_counter
from types import MappingProxyType
from typing import Any, Final

import crossmem
from crossmem.bench.round_trips import Way

__all__ = ["GET_S", "NAME", "SMALL", "WAYS", "Ends"]

SMALL: Final = 4 << 10
"""The number of bytes of a small buffer."""
NAME: Final = "psm_crossmem{:04}"
"""Format of the names that go through queues of ``multiprocessing``. These names are about as long
as the names of ``multiprocessing.shared_memory``."""
_TOGETHER_S: Final = 0.005
GET_S: Final = 60.0
"""The longest time, in seconds, for which one call waits for a buffer, an item or a name."""


class Ends:
    """One process's objects for the communication with the other process.

    Parameters
    ----------
    connection
        The connection to the other process.
    events
        Two eventfds: this process writes to the first one, and reads the second one.
    names
        Two queues of ``multiprocessing``: this process puts into the first one, and gets from the
        second one.
    """

    def __init__(self, connection: Connection, events: Sequence[int], names: Sequence[Any]) -> None:
        self.connection = connection
        self.events = events
        self.names = names
        self.kept: list[Any] = []

    def exchange(self, item: Any) -> Any:
        """Send an item to the other process, and return the item that the other process sends."""
        self.connection.send(item)
        return self.connection.recv()

    def begin(self) -> None:
        """Agree on a start time with the other process, and spin until that time.

        Because they spin, both processes are awake at the start time.
        """
        # All processes read the same clock.
        start = perf_counter() + _TOGETHER_S
        start = max(start, self.exchange(start))
        while perf_counter() < start:
            pass


# Ways of handing over ---------------------------------------------------------------------


def _queues(ends: Ends, nbytes: int) -> tuple[crossmem.Queue, crossmem.Queue]:
    """Return the queue that this process fills, and the queue that this process reads."""
    own = crossmem.device("host").queue(2, nbytes, consumers=1)
    other = crossmem.open_queue(ends.exchange(own.export(role="consume").to_bytes()))
    ends.kept += [other, own]
    ends.exchange("opened")
    return own, other


def _queue(ends: Ends) -> Way:
    """Return the functions that hand over 8 bytes of user data in a queue of crossmem."""
    own, other = _queues(ends, SMALL)

    def tell(value: int) -> None:
        buffer = own.allocate(timeout=GET_S)
        buffer.user_data = value.to_bytes(8, "little")
        own.put(buffer)

    def wait(value: int) -> None:
        buffer = other.get(timeout=GET_S)
        _check(buffer.user_data, value)
        buffer.release()

    return tell, wait


def _queue_buffers(nbytes: int, ends: Ends) -> Way:
    """Return the functions that hand over data in the buffers of a queue of crossmem."""
    own, other = _queues(ends, nbytes)

    def tell(value: int) -> None:
        buffer = own.allocate(timeout=GET_S)
        with buffer.view() as view:
            view[:8] = value.to_bytes(8, "little")
        own.put(buffer)

    def wait(value: int) -> None:
        buffer = other.get(timeout=GET_S)
        with buffer.view() as view:
            _check(view[:8], value)
        buffer.release()

    return tell, wait


def _check(data: bytes | memoryview, value: int) -> None:
    if int.from_bytes(data, "little") != value:
        msg = f"expected {value}, got {bytes(data)!r}"
        raise RuntimeError(msg)


def _ports(ends: Ends, payload: Any, **options: Any) -> tuple[Any, Any, Any]:
    """Return iceoryx2's module, a publisher, and a subscriber to the other process's publisher."""
    api: Any = import_module("iceoryx2")
    api.set_log_level(api.LogLevel.Error)
    mode = api.SignalHandlingMode.Disabled
    node = api.NodeBuilder.new().signal_handling_mode(mode).create(api.ServiceType.Ipc)

    def service(pid: int) -> Any:
        name = api.ServiceName.new(f"crossmem-bench-{pid}-{payload}")
        return (
            node.service_builder(name)
            .publish_subscribe(payload)
            .max_publishers(1)
            .max_subscribers(1)
            .history_size(0)
            .enable_safe_overflow(False)  # noqa: FBT003 - a method of iceoryx2
            .subscriber_max_buffer_size(2)
            .subscriber_max_borrowed_samples(2)
            .open_or_create()
        )

    builder = service(os.getpid()).publisher_builder()
    for name, value in options.items():
        builder = getattr(builder, name)(value)
    publisher = builder.create()
    subscriber = service(ends.exchange(os.getpid())).subscriber_builder().create()
    ends.exchange("opened")
    publisher.update_connections()
    ends.exchange("connected")
    ends.kept += [subscriber, publisher, node]
    return api, publisher, subscriber


def _receive(subscriber: Any) -> Any:
    """Spin until a sample has arrived. Return the sample."""
    while (sample := subscriber.receive()) is None:
        pass
    return sample


def _iceoryx2(ends: Ends) -> Way:
    """Return the functions that copy 8 bytes into and out of samples of iceoryx2."""
    _api, publisher, subscriber = _ports(ends, ctypes.c_uint64)

    def tell(value: int) -> None:
        publisher.send_copy(ctypes.c_uint64(value))

    def wait(value: int) -> None:
        sample = _receive(subscriber)
        found = sample.payload().contents.value
        sample.delete()
        if found != value:
            msg = f"expected {value}, got {found}"
            raise RuntimeError(msg)

    return tell, wait


def _iceoryx2_buffers(ends: Ends) -> Way:
    """Return the functions that hand over iceoryx2's samples of 4 KiB, without a copy."""
    api: Any = import_module("iceoryx2")
    payload = api.Slice[ctypes.c_uint8]
    _api, publisher, subscriber = _ports(ends, payload, initial_max_slice_len=SMALL)

    def tell(value: int) -> None:
        sample = publisher.loan_slice_uninit(SMALL)
        view = sample.payload().as_memory_view().cast("B")
        view[:8] = value.to_bytes(8, "little")
        sample.assume_init().send()

    def wait(value: int) -> None:
        sample = _receive(subscriber)
        _check(sample.payload().as_memory_view().cast("B")[:8], value)
        sample.delete()

    return tell, wait


def _names(ends: Ends) -> Way:
    """Return the functions that send a name of shared memory through ``multiprocessing.Queue``.

    Shared memory with this name does not exist, so the times include no mapping of memory.
    """
    own, other = ends.names
    name = NAME.format(0)

    def wait(_value: int) -> None:
        found = other.get(timeout=GET_S)
        if found != name:
            msg = f"expected the name {name!r}, got {found!r}"
            raise RuntimeError(msg)

    return lambda _value: own.put(name), wait


def _eventfd(ends: Ends) -> Way:
    """Return functions that signal by a write to one eventfd, and sleep in a read of the other."""
    out, back = ends.events
    return lambda _: os.eventfd_write(out, 1), lambda _: os.eventfd_read(back)


WAYS: Final[Mapping[str, tuple[Callable[[Ends], Way], tuple[str, ...]]]] = MappingProxyType(
    {
        "queue": (_queue, ("awake", "asleep")),
        "queue 4096": (partial(_queue_buffers, SMALL), ("awake", "asleep")),
        f"queue {1 << 30}": (partial(_queue_buffers, 1 << 30), ("awake",)),
        "iceoryx2": (_iceoryx2, ("awake",)),
        "iceoryx2 4096": (_iceoryx2_buffers, ("awake",)),
        "mp.Queue": (_names, ("awake", "asleep")),
        "eventfd": (_eventfd, ("asleep",)),
    }
)
"""The ways to hand over data. If a way writes into buffers, its name ends with the size of a buffer
in bytes.

The key is the way's name. The value is a pair. The first item of the pair is a function that takes
this process's :class:`Ends` and returns the way's two functions. The second item lists the states
of the second process for which the way is measured.
"""
