# SPDX-License-Identifier: Apache-2.0
"""What the vendor's library and driver know about one process."""

import itertools
import sqlite3
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from crossmem.errors import CrossmemError
from crossmem_emulated import forks
from crossmem_emulated.addresses import Space
from crossmem_emulated.hip.calls import Entry, Refused
from crossmem_emulated.hip.codes import Status
from crossmem_emulated.hip.profiles import Profile
from crossmem_emulated.hip.schema import SCHEMA
from crossmem_emulated.journal import Faults, Journal
from crossmem_emulated.machine import HostLostError, Machine
from crossmem_emulated.pages import NoRoomError, Pages, PageStore
from crossmem_emulated.queues import Queues

__all__ = ["Again", "Context", "HipProcess", "Quirk", "Setup"]

_FIRST_HANDLE: Final = 0x1FA6_0000_0000
_HANDLE_STEP: Final = 64
_SLOW_OPEN_S: Final = 0.5


class Again(Exception):  # noqa: N818 - no fault of anybody's
    """A function waited before it did anything, and begins again: others may have called."""


class Quirk:
    """Names of what some releases get wrong, to be asked for one by one (HIP-E23)."""

    LEAK_ON_CLOSE: Final = "leak-on-close"
    """Closed imports stay mapped until the process ends (up to ROCm 6.2.0)."""
    PIN_AFTER_FREE: Final = "pin-after-free"
    """Exported memory stays allocated after it was freed (ROCm 7)."""
    NO_EXPORT: Final = "no-export"
    """No memory can be exported (legacy mode on a kernel without AMD's module)."""
    SLOW_OPEN: Final = "slow-open"
    """Opening takes half a second."""
    IGNORED_FLAG: Final = "ignored-flag"
    """Opening gives no access to another device's memory (before ROCm 7.0)."""
    REUSED_HANDLES: Final = "reused-handles"
    """A handle stands for an address, whatever is allocated there (before ROCm 7.1)."""
    FRESH_HANDLES: Final = "fresh-handles"
    """Each export of the same memory gives another handle (2025 and 2026)."""
    NEW_ADDRESSES: Final = "new-addresses"
    """Opening a handle again maps the memory again, as AMD's documents allow."""
    FOREIGN_NAMESPACE: Final = "foreign-namespace"
    """This process is in another pid namespace than those that export."""


@dataclass(frozen=True, slots=True)
class Setup:
    """What an emulation of this process is told.

    Parameters
    ----------
    profile
        Edition of the rules.
    strict
        Whether forbidden and undefined uses are recorded, and device addresses closed to the
        host.
    folder
        Of the emulated host.
    visible
        Host-wide index of each device, by its number in this process.
    capacity_nbytes
        Memory of each device in bytes.
    slow_streams
        Whether streams do their work only when somebody waits for it.
    has_peers
        Whether devices can reach each other's memory.
    quirks
        Of :class:`Quirk`.
    """

    profile: Profile
    strict: bool
    folder: Path
    visible: tuple[int, ...]
    capacity_nbytes: int
    slow_streams: bool
    has_peers: bool
    quirks: frozenset[str]


@dataclass(slots=True, eq=False)
class Context:
    """What a thread is in while it uses a device."""

    handle: int
    device: int
    """The device, by its number in this process."""
    is_primary: bool
    peers: set[int] = field(default_factory=set)
    """Devices, by number in this process, whose memory it may use."""


def _coupled(stream: Any, streams: Iterable[Any]) -> list[Any]:
    """Return the streams that wait for one, and it for them: the legacy and the blocking ones."""
    if not stream.is_blocking:
        return []
    return [
        one
        for one in streams
        if one.device == stream.device and one.is_blocking and one.is_legacy != stream.is_legacy
    ]


class HipProcess:
    """State of the emulated library in this process. Guarded by its lock."""

    def __init__(self, setup: Setup) -> None:
        forks.expect()
        self.setup = setup
        self.profile = setup.profile
        self.machine = Machine(setup.folder, SCHEMA)
        self.store = PageStore(self.machine, setup.capacity_nbytes)
        self.journal = Journal(self.machine)
        self.faults = Faults(self.machine)
        self._generation = forks.generation()
        self._begin()

    def _begin(self) -> None:
        self.lock = threading.RLock()
        self.thread = threading.local()
        self.space = Space(is_host_readable=not self.setup.strict)
        self.handles = itertools.count(_FIRST_HANDLE, _HANDLE_STEP)
        self.captures = itertools.count(1)
        self.is_used = False
        self.contexts: dict[int, Context] = {}
        self.primary: dict[int, Context] = {}
        self.streams: dict[Any, Any] = {}
        """By handle, or by device for the legacy ones, or by device and thread."""
        self.queues = Queues(
            self.lock,
            self.thread,
            self.streams,
            is_slow=self.setup.slow_streams,
            coupled=_coupled,
        )
        self.graphs: dict[int, Any] = {}
        self.events: dict[int, Any] = {}
        self.slabs: list[Any] = []
        """Memory from which small requests are served."""
        self.host_blocks: dict[int, Any] = {}
        """Memory that the host can use: pinned and managed."""
        self.exports: dict[int, list[int]] = {}
        """Numbers of what is exported, by the address of the allocation."""
        self.imports: list[Any] = []
        self.pools: dict[int, Any] = {}
        self.default_pools: dict[int, Any] = {}
        self.current_pools: dict[int, Any] = {}
        """By device, where a program chose one."""
        self.limits: dict[tuple[int, int], int] = {}
        """By device and number, where a program set them."""
        self.device_flags: dict[int, int] = {}
        self.physical: dict[int, Any] = {}
        """Memory without an address of its own, by handle; also what is only mapped still."""
        self.leaked: list[Pages] = []

    # Calls ------------------------------------------------------------------------------------

    def call(self, called: Entry, values: list[Any]) -> tuple[int, Any]:
        """Call a function as C does: return its code, and its result where that is 0.

        The code of a failure is kept for ``getLastError`` (HIP-E20).
        """
        fault: CrossmemError | None = None
        try:
            with self._turn(called):
                value = self._work(called, values)
            self.thread.last_status = 0
            return 0, value
        except Refused as refused:
            status = int(refused.status)
            if refused.rule is not None:
                self.violate(called.name, refused.rule, refused.text)
        except (NoRoomError, OSError, MemoryError):
            status = int(Status.OUT_OF_MEMORY)
        except (HostLostError, sqlite3.OperationalError) as error:
            status, fault = int(Status.UNKNOWN), self.machine.fault_of(error)
        self.thread.fault = fault
        self.thread.last_status = status
        if status != Status.NOT_READY or self.profile.keeps_not_ready:
            self.thread.last_error = status
        return status, None

    def refuse(self, name: str, status: int) -> int:
        """Answer a call with a code, after what every call checks first."""

        def function(_process: "HipProcess") -> None:
            raise Refused(status, f"{name} always answers {status}")

        return self.call(Entry(name, name, (), function), [])[0]

    def _turn(self, called: Entry) -> threading.RLock:
        """Return the lock, renewed in a child that nothing keeps from using the devices."""
        if self._generation != forks.generation():
            if self.is_used and called.needs_device:
                raise Refused(
                    Status.NOT_INITIALIZED,
                    "the library was used before this process was forked",
                    "HIP-E18",
                )
            if self.is_used:
                # Another thread may have had the lock at the fork.
                return threading.RLock()
            self._generation = forks.generation()
            self._begin()
        if called.name == "ipcOpenMemHandle" and self.has(Quirk.SLOW_OPEN):
            # Nothing else has to wait.
            time.sleep(_SLOW_OPEN_S)
        return self.lock

    def _work(self, called: Entry, values: list[Any]) -> Any:
        if called.needs_device:
            # Before the host is asked anything: a child that is forked meanwhile has lost it.
            self.is_used = True
        code = self.faults.take(called.name)
        if code is not None:
            raise Refused(code, f"{called.name} was made to fail with {code}")
        if called.needs_device and not self.setup.visible:
            # Counting devices was right even where all else answered with a wrong code.
            is_count = called.name == "getDeviceCount"
            status = Status.NO_DEVICE if is_count else self.profile.no_device
            raise Refused(status, "no device is visible")
        if called.needs_device:
            self._check_callback(called)
        while True:
            try:
                return called.function(self, *values)
            except Again:
                continue

    def _check_callback(self, called: Entry) -> None:
        """Note calls of functions that are work of a stream; they must not make any."""
        if getattr(self.thread, "callback", None) is None:
            return
        text = "a function that is work of a stream calls the library"
        if not self.profile.is_hip:
            raise Refused(Status.NOT_PERMITTED, text, "HIP-E25")
        self.violate(called.name, "HIP-E25", text)

    def violate(self, call: str, rule: str, text: str) -> None:
        """Record a use that the vendor forbids or leaves undefined, where the rules are strict."""
        if self.setup.strict:
            # A forked child may have no way to tell.
            with suppress(HostLostError, sqlite3.OperationalError):
                self.journal.record(call, rule, text)

    @property
    def fault(self) -> CrossmemError | None:
        """Why this thread's last failed call failed, if the emulation itself was the cause."""
        return getattr(self.thread, "fault", None)

    def last_error(self, *, is_cleared: bool) -> int:
        """Return the code of this thread's last failure."""
        if self.profile.is_hip and not self.setup.visible:
            # AMD's runtime looks for devices before it looks at what a call asks for.
            return int(self.profile.no_device)
        status: int = getattr(self.thread, "last_error", 0)
        if is_cleared:
            self.thread.last_error = 0
        return status

    def last_status(self) -> int:
        """Return the code of this thread's last call, and forget it."""
        status: int = getattr(self.thread, "last_status", 0)
        self.thread.last_status = 0
        return status

    # What most functions ask ------------------------------------------------------------------

    def has(self, quirk: str) -> bool:
        """Whether something is done wrong on purpose."""
        return quirk in self.setup.quirks

    def primary_of(self, device: int) -> Context:
        """Return the context that the runtime itself makes for a device."""
        context = self.primary.get(device)
        if context is None:
            context = self.primary[device] = self.new_context(device, is_primary=True)
        return context

    def new_context(self, device: int, *, is_primary: bool) -> Context:
        """Make a context."""
        context = Context(next(self.handles), device, is_primary)
        self.contexts[context.handle] = context
        return context

    def current(self) -> Context:
        """Return the context of the calling thread: of device 0, where it chose none."""
        handle = getattr(self.thread, "context", 0)
        if self.profile.has_contexts:
            # Another thread may have destroyed some of them.
            bound = [one for one in self.stack() if one in self.contexts]
            handle = bound[-1] if bound else handle
        context = self.contexts.get(handle)
        return self.primary_of(0) if context is None else context

    def stack(self) -> list[int]:
        """Return the contexts that the calling thread was given, the current one on top."""
        stack: list[int] | None = getattr(self.thread, "stack", None)
        if stack is None:
            stack = self.thread.stack = []
        return stack

    def check_device(self, device: int) -> int:
        """Return a device's index on the host, or refuse."""
        if not 0 <= device < len(self.setup.visible):
            raise Refused(
                Status.INVALID_DEVICE,
                f"there is no device {device}; there are {len(self.setup.visible)}",
            )
        return self.setup.visible[device]

    def ordinal_of(self, index: int) -> int | None:
        """Return the number, in this process, of a device of the host."""
        visible = self.setup.visible
        return visible.index(index) if index in visible else None

    def can_reach(self, index: int, other: int) -> bool:
        """Whether a device can reach the memory of another, both by their index on the host."""
        return index == other or self.setup.has_peers
