# SPDX-License-Identifier: Apache-2.0
"""The state of the vendor's library and driver for one process."""

import itertools
import sqlite3
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from crossmem.errors import CrossmemError
from crossmem_emulated import forks
from crossmem_emulated.acl.calls import Entry, Refused, parse
from crossmem_emulated.acl.codes import Code
from crossmem_emulated.acl.profiles import Profile
from crossmem_emulated.acl.schema import SCHEMA
from crossmem_emulated.acl.tdt.schema import TDT_SCHEMA
from crossmem_emulated.acl.tdt.state import TdtState
from crossmem_emulated.addresses import Space
from crossmem_emulated.journal import Faults, Journal
from crossmem_emulated.machine import HostLostError, Machine
from crossmem_emulated.ordering import Ordering
from crossmem_emulated.pages import NoRoomError, PageStore
from crossmem_emulated.queues import Queues, Work

__all__ = ["AclProcess", "Again", "Context", "DeviceState", "Event", "Stream"]

_FIRST_HANDLE: Final = 0x5AFE_0000_0000
_HANDLE_STEP: Final = 64


class Again(Exception):  # noqa: N818 - a retry, not a fault
    """A function raises this exception after a wait, and is then called again.

    Other calls may have run during the wait and changed the state that the function has read.
    """


@dataclass(slots=True, eq=False)
class Stream:
    """A stream: work that is done in order."""

    handle: int
    device: int
    context: int
    priority: int = 0
    flags: int = 0
    failure_mode: int = 0
    """0 if the stream continues after a failed task, 1 if it stops. No emulated task fails."""
    queue: list[Work] = field(default_factory=list)
    subscriber: int | None = None
    """The identifier of the thread that calls the functions which ``rt.launch_callback`` adds to
    the stream. None if the program has chosen no thread."""


@dataclass(slots=True, eq=False)
class Event:
    """A point in a stream's work."""

    handle: int
    flags: int
    is_reusable: bool
    """Whether the event can be recorded again without a reset."""
    stream: Stream | None = None
    """The stream in which the event was recorded; None before the first record or after a reset."""
    record: Work | None = None
    """The work of the latest record. The event is complete when this work is done."""
    time_ns: int | None = None
    """The time at which the event became complete, on the monotonic clock."""
    waits: list[tuple[Stream, Work]] = field(default_factory=list)
    """A pair for each wait for the event: the stream that waits, and the task that does the wait.
    The function ``rt.query_event_wait_status`` removes the completed waits."""
    token: bytes | None = None
    """The event's name for other processes."""
    is_foreign: bool = False
    """Whether another process created the event."""

    @property
    def is_done(self) -> bool:
        """Whether all work before the event's record is done. True if there is no record."""
        return self.stream is None or self.record not in self.stream.queue


@dataclass(slots=True, eq=False)
class Context:
    """A context of a device. A thread makes it current, and then uses the device."""

    handle: int
    device: int
    stream: Stream
    is_default: bool


@dataclass(slots=True, eq=False)
class DeviceState:
    """The state of one device in this process."""

    references: int = 0
    default: Context | None = None
    peers: set[int] = field(default_factory=set)
    """The numbers, in this process, of the devices whose memory this device may use."""


class AclProcess:
    """The state of the emulated library in this process, guarded by the attribute ``lock``.

    Parameters
    ----------
    profile
        Edition of the rules.
    strict
        Whether the emulation records calls that the vendor forbids or leaves undefined, and denies
        the host access to device addresses.
    folder
        The folder of the emulated host.
    visible
        The host-wide index of each device. The position is the device's number in this process.
    capacity_nbytes
        Memory of each device in bytes.
    slow_streams
        Whether streams execute work only when a thread waits for it, or when another process may
        wait for it.
    group
        The memory group of TDT that this process joins; empty if it joins none.
    recycle_s
        The time in seconds after which TDT frees the buffers of a dead process.
    """

    def __init__(
        self,
        *,
        profile: Profile,
        strict: bool,
        folder: Path,
        visible: tuple[int, ...],
        capacity_nbytes: int,
        slow_streams: bool,
        group: str,
        recycle_s: float,
    ) -> None:
        forks.expect()
        self.profile = profile
        self.strict = strict
        self.visible = visible
        self.is_slow = slow_streams
        self.group = group
        self.recycle_s = recycle_s
        self.machine = Machine(folder, SCHEMA + TDT_SCHEMA)
        self.store = PageStore(self.machine, capacity_nbytes)
        self.journal = Journal(self.machine)
        self.faults = Faults(self.machine)
        self._forks = forks.generation()
        # In the vendor's library, these two values are in ordinary memory, so a forked child
        # inherits them. Therefore `_begin`, which also runs in a forked child, does not reset them.
        self.initialized = False
        self.init_references = 0
        self._begin()

    @property
    def recent_error(self) -> str:
        """The text of this thread's latest error."""
        text: str = getattr(self._errors, "text", "")
        return text

    @recent_error.setter
    def recent_error(self, text: str) -> None:
        self._errors.text = text

    def _begin(self) -> None:
        self.lock = threading.RLock()
        self.thread = threading.local()
        self._is_exclusive = False
        """Whether a thread is in a call of a function that is not thread-safe."""
        self._errors = threading.local()
        self.space = Space(is_host_readable=not self.strict)
        self.handles = itertools.count(_FIRST_HANDLE, _HANDLE_STEP)
        self.devices: dict[int, DeviceState] = {}
        self.contexts: dict[int, Context] = {}
        self.streams: dict[int, Stream] = {}
        self.queues = Queues(self.lock, self.thread, self.streams, is_slow=self.is_slow)
        if self.is_slow and self.strict:
            Ordering(self.machine, self.space, self.queues, self._violate_order)
        self.physical: dict[int, Any] = {}
        """The physical memory that this process allocated or imported. The key is the handle."""
        self.opened_keys: dict[str, Any] = {}
        """The memory that this process imported by key. The dict's keys are the texts of the IPC
        keys."""
        self.slabs: list[Any] = []
        """The pages from which small allocations get memory."""
        self.accesses: dict[int, set[int]] = {}
        """For each mapping, the host-wide indices of the devices that may use the mapping. The key
        is the mapping's address."""
        self.events: dict[int, Event] = {}
        self.notifies: dict[int, Any] = {}
        self.tdt = TdtState()
        self.host_blocks: dict[int, Any] = {}
        self.registered: dict[int, int] = {}
        """The size of each range of host memory that the program registered for devices. The key is
        the range's address."""

    # Calls ------------------------------------------------------------------------------------

    def bind(self, called: Entry) -> Callable[..., Any]:
        """Return the function by which a Python program calls an entry."""

        def function(*arguments: Any) -> Any:
            outputs, code = self.answer(called, parse(called, arguments))
            outputs = called.blanks if outputs is None else outputs
            if not called.has_code:
                return outputs[0]
            return (*outputs, code) if outputs else code

        function.__name__ = function.__qualname__ = called.name.rpartition(".")[2]
        function.__doc__ = called.function.__doc__
        return function

    def answer(self, called: Entry, values: list[Any]) -> tuple[tuple[Any, ...] | None, int]:
        """Call a function. Return its outputs, which are None after most failures, and its code."""
        self.thread.fault = None
        is_overlapping = called.is_exclusive and self._is_exclusive
        try:
            with self._turn():
                if is_overlapping:
                    text = "another thread is in a call that is not thread-safe"
                    self.violate(called.name, "ACL-Q35", text)
                outputs = self._call(called, values)
                one = len(called.blanks) == 1
                return (outputs,) if one else outputs if called.blanks else (), int(Code.SUCCESS)
        except Refused as refused:
            return self._refuse(called, refused)
        except (NoRoomError, OSError) as error:
            text = f"this process or the host has no room: {error}"
            return self._refuse(called, Refused(Code.RT_RESOURCE_ALLOC_FAIL, text))
        except (HostLostError, sqlite3.OperationalError) as error:
            text = f"the emulated host does not answer: {error}"
            self.thread.fault = self.machine.fault_of(error)
            return self._refuse(called, Refused(Code.RT_DRV_INTERNAL_ERROR, text))

    @property
    def fault(self) -> CrossmemError | None:
        """The error of the emulation that made this thread's last call fail, or None."""
        return getattr(self.thread, "fault", None)

    def _turn(self) -> threading.RLock:
        """Return the lock that a call holds while it runs.

        A forked child starts with new state and a new lock. But if a device was set when the
        process was forked, the child's calls are refused.
        """
        if self._forks != forks.generation():
            if self.devices or self.contexts:
                raise Refused(
                    Code.RT_CONTEXT_NULL,
                    "a device was set when this process was forked",
                    "ACL-E31",
                )
            self._forks = forks.generation()
            self._begin()
        return self.lock

    def _call(self, called: Entry, values: list[Any]) -> Any:
        self._is_exclusive = called.is_exclusive
        try:
            code = self.faults.take(called.name)
            if code is not None:
                self.recent_error = f"an injected fault makes the call fail with {code}"
                raise Refused(code, self.recent_error)  # type: ignore[arg-type]  # any number
            while True:
                try:
                    return called.function(self, *values)
                except Again:
                    continue
        finally:
            self._is_exclusive = False

    def _refuse(self, called: Entry, refused: Refused) -> tuple[tuple[Any, ...] | None, int]:
        self.recent_error = f"acl.{called.name}: {refused.text}"
        if refused.rule is not None:
            self.violate(called.name, refused.rule, refused.text)
        return refused.outputs, int(refused.code)

    def violate(self, call: str, rule: str, text: str) -> None:
        """If the emulation is strict, record a call that the vendor forbids or leaves undefined."""
        if self.strict:
            # A forked child that outlives the emulated host's folder cannot record violations.
            with suppress(HostLostError, sqlite3.OperationalError):
                self.journal.record(call, rule, text)

    def _violate_order(self, call: str, text: str) -> None:
        self.violate(call, "ACL-X8", text)

    # Checks and look-ups that most functions need ---------------------------------------------

    @property
    def context(self) -> Context | None:
        """The current context of the calling thread."""
        return self.contexts.get(getattr(self.thread, "context", 0))

    def current(self) -> Context:
        """Return the current context of the calling thread. Refuse if there is none (ACL-E1)."""
        context = self.context
        if context is None:
            raise Refused(Code.RT_CONTEXT_NULL, "this thread has no current context", "ACL-E1")
        return context

    def check_device(self, device: int) -> int:
        """Return the host-wide index of a device of this process. Refuse an invalid number."""
        if not 0 <= device < len(self.visible):
            raise Refused(
                Code.RT_INVALID_DEVICEID,
                f"there is no device {device}; this process sees {len(self.visible)} devices",
            )
        return self.visible[device]

    def check_opened(self, rule: str, driver_code: Code) -> None:
        """Refuse if this process has no context, for example before it sets a device.

        ``driver_code`` is the result code in profiles that behave like the drivers' source code.
        """
        if not self.contexts:
            code = Code.RT_CONTEXT_NULL if self.profile.is_documented else driver_code
            raise Refused(code, "no device is set in this process", rule)

    def ordinal_of(self, index: int) -> int | None:
        """Return a device's number in this process; None if the process does not see the device.

        ``index`` is the device's host-wide index.
        """
        return self.visible.index(index) if index in self.visible else None

    # Work -------------------------------------------------------------------------------------

    def finish(
        self,
        *streams: Stream,
        until: int = sys.maxsize,
        timeout_ms: int = -1,
        late: Code = Code.RT_STREAM_SYNC_TIMEOUT,
    ) -> bool:
        """Wait until the work of some streams is done; see :meth:`Queues.finish`."""
        text = "a function waits for the stream in which it runs"
        return self.queues.finish(
            streams,
            until,
            own=Refused(Code.RT_DRV_INTERNAL_ERROR, text, "ACL-E43"),
            timeout_ms=timeout_ms,
            late=Refused(late, f"the work was not done within {timeout_ms} ms"),
        )

    def check_idle(self, call: str, start: int, nbytes: int) -> None:
        """Before a range of memory is released, discard the pending tasks that use the range.

        Each discarded task is recorded as a violation.
        """
        for work in self.queues.lose(start, nbytes):
            text = f"{nbytes} bytes at {start:#x} are released while {work.call} uses them"
            self.violate(call, "ACL-X1", text)
