# SPDX-License-Identifier: Apache-2.0
"""Queues: one process owns one, others take places as producers and consumers."""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from math import inf
from typing import Any, ClassVar, Final, cast

from typing_extensions import override

from crossmem.control import words
from crossmem.control.records import Allow
from crossmem.errors import (
    BusyError,
    ClosedError,
    ConfigurationError,
    InvalidSizeError,
    QueueEmptyError,
    QueueFullError,
    UnsupportedError,
    WaitTimeoutError,
)
from crossmem.guards import check_choice, check_flag, check_size, check_timeout, is_within, shorten
from crossmem.models import ShareableHandle
from crossmem.models.queue_handle import ROLES, QueueHandle, QueueRole
from crossmem.sharing.base.deferred import Record
from crossmem.sharing.base.devices import LocalDevice
from crossmem.sharing.base.ending import Endable
from crossmem.sharing.base.memory import leave_to_views
from crossmem.sharing.base.process import Process, drain
from crossmem.sharing.importer.mapping import Mapping
from crossmem.sharing.queues import layout
from crossmem.sharing.queues.buffer import SharedBuffer, taken_from
from crossmem.sharing.queues.consumer import Consumer
from crossmem.sharing.queues.opened import Delivery, Opened, Overflow, Terms
from crossmem.sharing.queues.opening import Places, claim, make_directory, open_segments
from crossmem.sharing.queues.owner import QueueOwner, Segment
from crossmem.sharing.queues.producer import Producer
from crossmem.sharing.timelines.cell import VALUE

__all__ = ["Queue", "QueueStats", "make_queue", "open_queue"]

_HOST_ALIGNMENT: Final = 64
_DEVICE_ALIGNMENT: Final = 512
_MAX_DEPTH: Final = 2**16
_MAX_PLACES: Final = 64


@dataclass(frozen=True, slots=True)
class QueueStats:
    """The state of a queue at one moment.

    Attributes
    ----------
    producers, consumers
        Number of processes that produce and consume.
    put
        Number of entries that were put.
    dropped
        Number of entries that producers dropped.
    lost
        Number of entries that were lost with dead consumers.
    redelivered
        Number of entries that were delivered again.
    waiting
        Number of entries that wait for a consumer with room; with ``delivery="one"``.
    lag
        By consumer: number of entries that it has not looked at.
    """

    producers: int
    consumers: int
    put: int
    dropped: int
    lost: int
    redelivered: int
    waiting: int
    lag: dict[int, int]


class QueueEndedError(ClosedError):
    """The queue has ended: its producers have closed, and everything was read."""


class QueueRecord(Record):
    """The resources of a queue in this process."""

    __slots__ = (
        "consumer",
        "directories",
        "kept",
        "mine",
        "opened",
        "owner",
        "places",
        "process",
        "producer",
        "role",
    )

    def __init__(self, process: Process, opened: Opened) -> None:
        super().__init__()
        self.process = process
        self.opened = opened
        self.owner: QueueOwner | None = None
        self.role: QueueRole | None = None
        """The role of this object; None for the owner's, which has both."""
        self.mine: dict[QueueRole, list[ShareableHandle]] = {}
        """The handles of the places of each role."""
        self.directories: dict[QueueRole, Segment] = {}
        self.kept: list[Mapping] = []
        self.producer: Producer | None = None
        self.consumer: Consumer | None = None
        self.places: list[tuple[bytes, Mapping]] = []
        """Core and mapping of each place that this process has."""

    @override
    def give_back(self, *, blocking: bool) -> None:
        """Close the places, then the segments; the owner closes the queue for all.

        Each of them has a record of its own, with which a refused release is repeated.
        """
        if self.is_done:
            return
        self.is_done = True
        with ExitStack() as steps:
            # If one step raises, the others still run. The last one here runs first.
            if self.owner is not None:
                steps.callback(self.owner.free, self.directories.values())
            steps.callback(self._leave)
            for one in (self.producer, self.consumer):
                if one is not None:
                    steps.callback(one.close)
            if self.owner is not None:
                steps.callback(self.owner.close)

    def _leave(self) -> None:
        """Unmap the places and segments as soon as no view of them is left."""
        taken = self.process.part(Places).taken
        self.producer = self.consumer = None
        for _core, mapping in self.places:
            leave_to_views(mapping)
        taken.difference_update([core for core, _mapping in self.places])
        self.places.clear()
        for mapping in self.kept:
            leave_to_views(mapping)
        self.kept.clear()


class Queue(Endable):
    """A bounded queue of device buffers between processes.

    Made by :meth:`crossmem.Device.queue` in the process that owns it, and by
    :func:`crossmem.open_queue` in the others. A context manager. The owner's object may both put
    and get. Iteration yields buffers until the queue has ended.

    Attributes
    ----------
    device
        The device that uses the buffers here.
    nbytes
        Capacity of a buffer, in bytes.
    depth
        Number of buffers of each producer.
    """

    __slots__ = ("depth", "device", "nbytes")

    _ended_by: ClassVar = "close"
    _record: QueueRecord | None

    def __init__(self, record: QueueRecord) -> None:
        self._process = record.process
        self.device = record.opened.device
        self.nbytes = record.opened.terms.nbytes
        self.depth = record.opened.terms.depth
        # The last statement: from here on, the finaliser of this object closes the queue.
        self._record = record

    @override
    def __repr__(self) -> str:
        what = f"{self.depth} buffers of {self.nbytes} bytes on {self.device.name}"
        record = self._record
        if record is None:
            return f"<Queue of {what}, closed>"
        return f"<Queue of {what}, {record.role or 'owned here'}>"

    def _usable(self) -> QueueRecord:
        record = self._record
        if record is None or not self._process.is_usable:
            raise self._ended()
        return record

    def _producer(self) -> Producer:
        record = self._usable()
        if record.producer is None:
            index, mapping = self._claim(record, "produce")
            record.producer = Producer(record.opened, index, mapping.view(), mapping.ptr)
        return record.producer

    def _consumer(self) -> Consumer:
        record = self._usable()
        if record.consumer is None:
            index, mapping = self._claim(record, "consume")
            record.consumer = Consumer(record.opened, index, mapping.view(), mapping.ptr)
        return record.consumer

    def _claim(self, record: QueueRecord, role: QueueRole) -> tuple[int, Mapping]:
        if role not in record.mine:
            msg = f"{self!r} was opened to {record.role}, not to {role}"
            hint = f"open it with the handle of queue.export(role={role!r})"
            raise UnsupportedError(msg, operation=role, hint=hint)
        index, mapping = claim(record.opened, role, record.mine[role], None)
        record.places.append((record.mine[role][index].core, mapping))
        return index, mapping

    def export(self, *, role: QueueRole) -> QueueHandle:
        """Return the handle with which other processes open the queue.

        Parameters
        ----------
        role
            ``"produce"`` or ``"consume"``: what a process with the handle may do.

        Raises
        ------
        UnsupportedError
            Another process owns the queue.
        """
        record = self._usable()
        check_choice("role", role, ROLES, "export")
        if record.owner is None:
            msg = f"{self!r}: only the process that made a queue exports it"
            raise UnsupportedError(msg, operation="export")
        return QueueHandle(role, record.directories[role].export("ro").handle)

    # Putting ------------------------------------------------------------------------------

    def allocate(self, *, timeout: float | None = 0.0) -> SharedBuffer:
        """Return a free buffer. Its contents are undefined.

        Parameters
        ----------
        timeout
            Time limit of the wait for a free buffer, in seconds; 0 does not wait; None waits as
            long as the owner lives. With ``overflow="raise"`` this never waits.

        Raises
        ------
        QueueFullError
            No buffer became free in time.
        BusyError
            All places for producers are taken.
        OwnerGoneError, AccessDeniedError, ClosedError, ForkedProcessError
            Nothing can be put any more.
        """
        timeout_s = _wait_s(timeout)
        producer = self._producer()
        producer.check()
        if producer.opened.terms.overflow != "wait":
            timeout_s = 0.0
        found = producer.sleeper.wait(
            producer.take, producer.check, timeout_s, polls=producer.waits_for_streams
        )
        if found is None:
            msg = f"no buffer of {self.depth} became free within {timeout_s:g} s"
            hint = "wait longer with timeout=, or make the queue deeper"
            raise QueueFullError(msg, operation="allocate", hint=hint)
        return SharedBuffer(found, self.nbytes, b"")

    def put(
        self,
        item: Any,
        *,
        stream: Any = None,
        timeout: float | None = None,
        copy: str | None = None,
    ) -> None:
        """Hand a buffer over to the consumers.

        Parameters
        ----------
        item
            A buffer of :meth:`allocate`; it ends here. With ``copy="allow"`` also bytes or an
            array, which is copied into a free buffer.
        stream
            The stream that fills the buffer: a stream of CuPy, PyTorch or torch-npu, or its handle.
            Consumers get the buffer when the work that was issued before is complete. None: this
            waits for all work of the device.
        timeout
            Time limit of the wait for a free buffer, if ``item`` is copied; as for
            :meth:`allocate`.
        copy
            ``"allow"``, or None to refuse everything that is not a buffer.

        Raises
        ------
        BusyError
            A view of the buffer is alive. Nothing has changed then.
        UnsupportedError
            The item is neither a buffer of this queue nor may be copied.
        QueueFullError, InvalidSizeError
            No buffer became free in time, or the item does not fit.
        OwnerGoneError, AccessDeniedError, ClosedError, ForkedProcessError
            Nothing can be put any more, or the buffer was handed over before.
        """
        if not isinstance(item, SharedBuffer):
            item = self._copied(item, copy, timeout)
        producer = self._producer()
        if item._record is not None:
            producer.refuse_foreign(item._record)
        producer.check()
        length, user_data = item.data_length, item.user_data
        record = taken_from(item, "put")
        try:
            producer.put(record, length, user_data, stream)
        except BaseException:
            if not record.is_done:
                # Nothing was published: the buffer is the application's again.
                item._record = record
            raise

    def put_many(self, items: Iterable[Any], *, timeout: float | None = None) -> None:
        """Put several items, in order; see :meth:`put`. If one raises, earlier ones were put."""
        for item in items:
            self.put(item, timeout=timeout)

    def _copied(self, item: Any, copy: str | None, timeout: float | None) -> SharedBuffer:
        if copy != "allow":
            msg = f"{shorten(item, 60)} is not a buffer of this queue"
            hint = "pass copy='allow' to copy it, or fill a buffer of queue.allocate()"
            raise UnsupportedError(msg, operation="put", hint=hint)
        made = self.allocate(timeout=timeout)
        try:
            view = memoryview(item).cast("B") if not isinstance(item, bytes) else memoryview(item)
            made.write(view)
            made.data_length = view.nbytes
        except BaseException:
            made.release()
            raise
        return made

    # Getting ------------------------------------------------------------------------------

    def get(self, *, timeout: float | None = None) -> SharedBuffer:
        """Return the next buffer. Release it when its contents are used.

        Parameters
        ----------
        timeout
            Time limit in seconds; 0 looks once; None waits as long as something can come.

        Raises
        ------
        QueueEmptyError
            No buffer arrived in time.
        ClosedError
            The queue has ended or was closed, and everything was read.
        OwnerGoneError
            The owner is dead, and everything readable was read.
        BusyError
            All places for consumers are taken.
        AccessDeniedError, ForkedProcessError
            The owner has revoked the role, or a forked child called this.
        """
        timeout_s = _wait_s(timeout)
        consumer = self._consumer()

        def check() -> None:
            self._usable()
            if consumer.is_over:
                msg = "the queue has ended: its producers have closed, and everything was read"
                raise QueueEndedError(msg, operation="get")
            consumer.check()

        found = consumer.sleeper.wait(
            consumer.look, check, timeout_s, polls=consumer.waits_for_streams
        )
        if found is None:
            msg = f"no buffer arrived within {timeout_s:g} s"
            raise QueueEmptyError(msg, operation="get", hint="wait longer with timeout=")
        return found

    def get_many(self, most: int, *, timeout: float | None = None) -> list[SharedBuffer]:
        """Return the first buffer, and up to ``most`` in total that are there already."""
        found = [self.get(timeout=timeout)]
        consumer = self._consumer()
        while len(found) < most and (one := consumer.look()) is not None:
            found.append(one)
        return found

    def __iter__(self) -> Iterator[SharedBuffer]:
        try:
            while True:
                yield self.get()
        except QueueEndedError:
            return

    def fileno(self) -> int:
        """Return a descriptor for ``select``, which becomes readable when a buffer may have come.

        Call :meth:`get` with ``timeout=0`` after that, until it raises :class:`QueueEmptyError`.
        """
        return self._consumer().sleeper.fileno()

    async def get_async(self) -> SharedBuffer:
        """Return the next buffer; see :meth:`get`. The event loop runs meanwhile."""
        loop = asyncio.get_running_loop()
        number = self.fileno()
        while True:
            try:
                return self.get(timeout=0)
            except QueueEmptyError:
                came = loop.create_future()
                loop.add_reader(number, _settle, came)
                try:
                    # The end of the owner rings no bell.
                    await asyncio.wait_for(came, _LOOK_S)
                except TimeoutError:
                    continue
                finally:
                    loop.remove_reader(number)

    async def put_async(self, item: Any, *, copy: str | None = None) -> None:
        """Put an item; see :meth:`put`. The event loop runs while all buffers are in use."""
        while True:
            try:
                self.put(item, copy=copy, timeout=0)
                return
            except QueueFullError:
                await asyncio.sleep(_PAUSE_S)

    def __aiter__(self) -> AsyncIterator[SharedBuffer]:
        return self._iterate()

    async def _iterate(self) -> AsyncIterator[SharedBuffer]:
        try:
            while True:
                yield await self.get_async()
        except QueueEndedError:
            return

    # The whole queue ----------------------------------------------------------------------

    def wait_for(
        self, *, producers: int = 0, consumers: int = 0, timeout: float | None = None
    ) -> None:
        """Wait until that many processes have taken places.

        Parameters
        ----------
        producers, consumers
            The smallest numbers.
        timeout
            Time limit in seconds; None: ``CROSSMEM_TIMEOUT``.

        Raises
        ------
        WaitTimeoutError
            The message says how many have come.
        """
        record = self._usable()
        end = time.monotonic() + check_timeout(timeout, default_s=self._process.settings.timeout_s)
        while True:
            found = _sessions(record.opened)
            if found[0] >= producers and found[1] >= consumers:
                return
            self._usable()
            record.opened.check_owner()
            if time.monotonic() > end:
                msg = f"{found[0]} producers and {found[1]} consumers have come in time"
                raise WaitTimeoutError(msg, operation="wait_for", hint="give a longer timeout")
            time.sleep(_PAUSE_S)

    def finish(self) -> None:
        """Put nothing more. The queue ends when all producers have finished, closed or died.

        In the owner, it also means that no further producer will come.
        """
        record = self._usable()
        if record.producer is not None:
            record.producer.close()
            record.producer = None
        if record.owner is not None:
            record.owner.finish()

    def stats(self) -> QueueStats:
        """Return the state of the queue at this moment."""
        opened = self._usable().opened
        control, shape = opened.control, opened.shape
        producers, consumers = _sessions(opened)
        tails = [words.observe(one, VALUE) for one in opened.rings]
        lag = {
            index: sum(max(0, t - place[shape.read(p)]) for p, t in enumerate(tails))
            for index, place in enumerate(opened.places)
            if opened.session_of(index)
        }
        waiting = sum(
            max(0, one[layout.LEFT] - control[shape.caught_up(p)])
            for p, one in enumerate(opened.rings)
        )
        return QueueStats(
            producers,
            consumers,
            sum(tails),
            sum(one[layout.DROPS] for one in opened.rings),
            control[layout.LOST],
            control[layout.REDELIVERED],
            waiting,
            lag,
        )

    def close(self) -> None:
        """Give up the places of this process. A second call does nothing.

        The owner closes the queue for all: nothing can be put any more, and consumers get what is
        readable.

        Raises
        ------
        BusyError
            This process has buffers of the queue that it has not released.
        """
        self._end()

    @override
    def _refuse_if_used(self, operation: str) -> None:
        record = self._record
        if record is not None and record.consumer is not None and record.consumer.held:
            msg = f"{self!r} has {len(record.consumer.held)} buffers that were not released"
            raise BusyError(msg, operation=operation, hint="release them first")

    @override
    def __reduce__(self) -> tuple[Any, ...]:
        msg = "a Queue stays in its process; send the handle of queue.export(role=...)"
        raise UnsupportedError(msg)


_LOOK_S: Final = 0.25
_PAUSE_S: Final = 1e-3


def _settle(came: "asyncio.Future[None]") -> None:
    if not came.done():
        came.set_result(None)


def _sessions(opened: Opened) -> tuple[int, int]:
    """Return the number of producers and of consumers."""
    control, shape = opened.control, opened.shape
    producers = 0
    for index, cell in enumerate(opened.rings):
        session = words.observe(cell, layout.SESSION)
        producers += session % 2 and session > words.load(control, shape.ended_producer(index))
    return producers, sum(bool(opened.session_of(one)) for one in range(len(opened.places)))


def _wait_s(timeout: object) -> float:
    """Return a time limit in seconds, infinity for None."""
    if timeout is None:
        return inf
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not timeout >= 0:
        msg = f"timeout is {shorten(timeout)}; it must be a number of seconds, 0 or more, or None"
        raise ConfigurationError(msg)
    return float(timeout)


def make_queue(
    process: Process,
    device: LocalDevice,
    depth: object,
    nbytes: object,
    *,
    delivery: Delivery,
    overflow: Overflow,
    redeliver: bool,
    producers: object,
    consumers: object,
    prefetch: object,
    allow: Allow | None,
) -> Queue:
    """Make a queue; see :meth:`crossmem.Device.queue`."""
    check_choice("delivery", delivery, ("one", "each"), "queue")
    check_choice("overflow", overflow, ("wait", "raise", "drop"), "queue")
    counts = (
        ("depth", depth, _MAX_DEPTH),
        ("producers", producers, _MAX_PLACES),
        ("consumers", consumers, _MAX_PLACES),
        ("prefetch", prefetch, _MAX_DEPTH),
    )
    for name, value, most in counts:
        if not is_within(value, 1, most):
            msg = f"{name} is {shorten(value)}; it must be an integer from 1 to {most}"
            raise InvalidSizeError(msg, operation="queue")
    check_flag("redeliver", redeliver, "queue")
    if redeliver and delivery == "each":
        msg = "redeliver=True needs delivery='one': with 'each', every consumer has its own copy"
        raise ConfigurationError(msg, operation="queue")
    size = check_size("nbytes", nbytes, limit=device.capabilities.max_allocation_nbytes)
    alignment = _HOST_ALIGNMENT if device.capabilities.host_visible else _DEVICE_ALIGNMENT
    stride = -(-size // alignment) * alignment
    terms = Terms(
        int.from_bytes(os.urandom(6), "little") | 1,
        cast("int", depth),
        size,
        stride,
        cast("int", producers),
        cast("int", consumers),
        cast("int", prefetch),
        delivery,
        overflow,
        redeliver,
    )
    owner = QueueOwner(process, device, terms, allow)
    record = QueueRecord(process, owner.opened)
    record.owner = owner
    rings = len(owner.rings)
    record.mine = {
        "produce": [one.handle for one in owner.exclusive[:rings]],
        "consume": [one.handle for one in owner.exclusive[rings:]],
    }
    is_readonly = delivery == "each" and device.capabilities.readonly_exports
    arena = owner.arena[0]
    for role in ROLES:
        access: Any = "ro" if role == "consume" and is_readonly else "rw"
        handle = arena.export(allow=allow, access=access)
        record.directories[role] = make_directory(owner, role, handle)
    return Queue(record)


def open_queue(
    handle: QueueHandle | bytes | bytearray | memoryview,
    *,
    device: LocalDevice | str | None = None,
    timeout: float | None = None,
) -> Queue:
    """Open a queue of another process, and take a place in it.

    Parameters
    ----------
    handle
        A handle or its bytes, which name the role.
    device
        The device that uses the buffers here; None: the device that holds them.
    timeout
        How long the owner may take to reply, in seconds; None: ``CROSSMEM_TIMEOUT``.

    Returns
    -------
    Queue
        Close it, or use it as a context manager.

    Raises
    ------
    InvalidHandleError
        The bytes are not the handle of a queue.
    StaleHandleError
        The queue was closed.
    BusyError
        All places for the role are taken.
    OwnerGoneError, OwnerUnresponsiveError
        The owner is dead, or does not reply.
    AccessDeniedError
        The owner does not admit this process.
    WrongHostError, BackendNotFoundError, BackendUnavailableError, DeviceNotFoundError
        This process cannot reach the queue.
    """
    process = drain()
    if not isinstance(handle, QueueHandle):
        handle = QueueHandle.from_bytes(handle)
    if handle.directory.owner == process.identity:
        msg = "this process owns the queue"
        raise UnsupportedError(msg, operation="open_queue", hint="use the object that made it")
    opened, mine, kept = open_segments(process, handle, device, timeout)
    record = QueueRecord(process, opened)
    record.role = handle.role
    record.mine = {handle.role: mine}
    record.kept = kept
    queue = Queue(record)
    try:
        if handle.role == "produce":
            queue._producer()
        else:
            queue._consumer()
    except BaseException:
        queue._is_left = True
        queue._end()
        raise
    return queue
