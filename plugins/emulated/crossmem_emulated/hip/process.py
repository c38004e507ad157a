# SPDX-License-Identifier: Apache-2.0
"""The state of the emulated library and driver in one process."""

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
from crossmem_emulated.ordering import Ordering
from crossmem_emulated.pages import NoRoomError, Pages, PageStore
from crossmem_emulated.queues import Queues

__all__ = ["Again", "Context", "HipProcess", "Quirk", "Setup"]

_FIRST_HANDLE: Final = 0x1FA6_0000_0000
_HANDLE_STEP: Final = 64
_SLOW_OPEN_S: Final = 0.5
_WITHOUT_CONTEXT: Final = frozenset(
    {
        "deviceCanAccessPeer",
        "deviceGetAttribute",
        "deviceGetByPCIBusId",
        "deviceGetPCIBusId",
        "deviceGetUuid",
        "getDevice",
        "getDeviceCount",
        "getDeviceProperties",
        "memGetAddressRange",
        "pointerGetAttribute",
        "pointerGetAttributes",
    }
)
"""The functions that need a device, but create no context for the calling thread."""


class Again(Exception):  # noqa: N818 - a retry, not a fault
    """A function raises this exception after a wait. The emulation then calls the function again.

    During the wait, other calls may have changed the state that the function has read.
    """


class Quirk:
    """The names of defects and special cases that the option ``hip_quirks`` selects (HIP-E23)."""

    LEAK_ON_CLOSE: Final = "leak-on-close"
    """Closed imports stay mapped until the process ends (up to ROCm 6.2.0)."""
    PIN_AFTER_FREE: Final = "pin-after-free"
    """Exported memory stays allocated when the program frees it (ROCm 7)."""
    NO_EXPORT: Final = "no-export"
    """``ipcGetMemHandle`` always fails (AMD's legacy IPC on a kernel without AMD's own driver)."""
    SLOW_OPEN: Final = "slow-open"
    """Opening a handle of memory takes half a second longer."""
    IGNORED_FLAG: Final = "ignored-flag"
    """Opening a handle ignores the flag ``IpcMemLazyEnablePeerAccess``, so the current device gets
    no access to another device's memory (before ROCm 7.0)."""
    REUSED_HANDLES: Final = "reused-handles"
    """An allocation has the same handle as an earlier allocation at the same address (before ROCm
    7.1)."""
    FRESH_HANDLES: Final = "fresh-handles"
    """Each export of the same memory returns a new handle (releases of 2025 and 2026)."""
    NEW_ADDRESSES: Final = "new-addresses"
    """Opening a handle again maps the memory at a new address, as AMD's documents allow."""
    FOREIGN_NAMESPACE: Final = "foreign-namespace"
    """Opening a handle fails as if the exporter were in another pid namespace."""


@dataclass(frozen=True, slots=True)
class Setup:
    """The configuration of an emulation in this process.

    Parameters
    ----------
    profile
        The edition of the rules that the emulation keeps.
    strict, capacity_nbytes, slow_streams
        See :class:`crossmem_emulated.options.Options`.
    folder
        The folder of the emulated host.
    visible
        The host-wide index of each visible device. The position of a device in this tuple is the
        device's number in this process.
    has_peers
        Whether devices can access each other's memory.
    quirks
        The defects to emulate, by their names in :class:`Quirk`.
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
    """A context of a device. A thread that makes the context current uses the device."""

    handle: int
    device: int
    """The device's number in this process."""
    is_primary: bool
    peers: set[int] = field(default_factory=set)
    """The numbers, in this process, of the other devices whose memory the context may use."""


def _coupled(stream: Any, streams: Iterable[Any]) -> list[Any]:
    """Return the streams that are coupled with ``stream``.

    Coupled streams wait for each other's earlier work. On each device, the legacy stream is coupled
    with every other blocking stream.
    """
    if not stream.is_blocking:
        return []
    return [
        one
        for one in streams
        if one.device == stream.device and one.is_blocking and one.is_legacy != stream.is_legacy
    ]


class HipProcess:
    """The state of the emulated library in this process, guarded by the attribute ``lock``."""

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
        """The key is a tuple for a legacy stream, for a thread's own stream, and for a destroyed
        stream whose work is not done. For any other stream, the key is the stream's handle."""
        self.queues = Queues(
            self.lock,
            self.thread,
            self.streams,
            is_slow=self.setup.slow_streams,
            coupled=_coupled,
        )
        if self.setup.slow_streams and self.setup.strict:
            Ordering(self.machine, self.space, self.queues, self._violate_order)
        self.graphs: dict[int, Any] = {}
        self.events: dict[int, Any] = {}
        self.slabs: list[Any] = []
        """The pages from which small allocations get memory."""
        self.host_blocks: dict[int, Any] = {}
        """The pinned and the managed memory, which the host can use. The key is the address."""
        self.exports: dict[int, list[int]] = {}
        """The numbers of each allocation's rows in the table ``hip_share``. The key is the address
        of the allocation."""
        self.imports: list[Any] = []
        self.pools: dict[int, Any] = {}
        self.default_pools: dict[int, Any] = {}
        self.current_pools: dict[int, Any] = {}
        """The pool that the program chose for a device. A device without an entry uses its default
        pool."""
        self.limits: dict[tuple[int, int], int] = {}
        """The values of the limits that the program set. The key is the pair of the device and the
        number of the limit."""
        self.device_flags: dict[int, int] = {}
        self.physical: dict[int, Any] = {}
        """Physical memory, including released memory that still has mappings. The key is the
        handle."""
        self.leaked: list[Pages] = []

    # Calls ------------------------------------------------------------------------------------

    def call(self, called: Entry, values: list[Any]) -> tuple[int, Any]:
        """Call a function of the emulation. Return its result code, and its result or None.

        If the function fails, the result is None, and the code is kept for ``getLastError``. Some
        editions do not keep the code "not ready" (HIP-E20).
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
        """Handle a call of a function that always fails, and return the result code.

        As in every call, the emulation first makes its common checks, such as the check for a
        visible device. If a check refuses the call, the result is the code of this refusal. If no
        check refuses the call, the result is ``status``.
        """

        def function(_process: "HipProcess") -> None:
            raise Refused(status, f"{name} always fails with {status}")

        return self.call(Entry(name, name, (), function), [])[0]

    def _turn(self, called: Entry) -> threading.RLock:
        """Return the lock that a call holds while it runs.

        If the parent of a forked child has used the library, the child's calls that need a device
        are refused, except CUDA's ``getDeviceCount``. If the parent has not used the library, the
        child gets a new lock and a new state.
        """
        if self._generation != forks.generation():
            is_count = called.name == "getDeviceCount" and not self.profile.is_hip
            if self.is_used and called.needs_device and not is_count:
                raise Refused(
                    Status.NOT_INITIALIZED,
                    "the library was used before this process was forked",
                    "HIP-E18",
                )
            if self.is_used:
                # Another thread may have held the old lock at the fork. No thread of this child can
                # release that lock, so the call gets another lock.
                return threading.RLock()
            self._generation = forks.generation()
            self._begin()
        if called.name == "ipcOpenMemHandle" and self.has(Quirk.SLOW_OPEN):
            # The sleep happens without the lock, so other calls do not wait.
            time.sleep(_SLOW_OPEN_S)
        return self.lock

    def _work(self, called: Entry, values: list[Any]) -> Any:
        if called.needs_device:
            # Another thread may fork a child during this call. The child cannot use the emulated
            # host, but refuses calls only if ``is_used`` is True. So this statement comes before
            # the call reads the host's state.
            self.is_used = True
            if called.name not in _WITHOUT_CONTEXT:
                self.thread.has_context = True
        code = self.faults.take(called.name)
        if code is not None:
            raise Refused(code, f"{called.name} was made to fail with {code}")
        if called.needs_device and not self.setup.visible:
            # ROCm 5 returns "no device" only from getDeviceCount.
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
        """Refuse or record a call of the library, if a callback makes the call.

        A callback is a function that a stream runs on the host. The vendors forbid such calls. The
        emulation of CUDA refuses them, and the emulation of HIP only records them.
        """
        if getattr(self.thread, "callback", None) is None:
            return
        text = "the library was called by a function that a stream runs on the host"
        if not self.profile.is_hip:
            raise Refused(Status.NOT_PERMITTED, text, "HIP-E25")
        self.violate(called.name, "HIP-E25", text)

    def violate(self, call: str, rule: str, text: str) -> None:
        """Record a call that the vendor forbids or leaves undefined, if the emulation is strict."""
        if self.setup.strict:
            # A process that cannot use the emulated host, such as a forked child, loses the record.
            with suppress(HostLostError, sqlite3.OperationalError):
                self.journal.record(call, rule, text)

    def _violate_order(self, call: str, text: str) -> None:
        self.violate(call, "HIP-X13", text)

    @property
    def fault(self) -> CrossmemError | None:
        """The emulation's own error in this thread's last failed call.

        None if the call failed with a code of the vendor.
        """
        return getattr(self.thread, "fault", None)

    def last_error(self, *, is_cleared: bool) -> int:
        """Return the code of this thread's last failure, or 0. Clear the code if ``is_cleared``."""
        if self.profile.is_hip and not self.setup.visible:
            # If no device is visible, AMD's functions for the last error also fail with this code.
            return int(self.profile.no_device)
        status: int = getattr(self.thread, "last_error", 0)
        if is_cleared:
            self.thread.last_error = 0
        return status

    def last_status(self) -> int:
        """Return the code of this thread's last call, or 0 for a success. Then forget the code."""
        status: int = getattr(self.thread, "last_status", 0)
        self.thread.last_status = 0
        return status

    # Checks and look-ups that most functions need ---------------------------------------------

    def has(self, quirk: str) -> bool:
        """Whether the option ``hip_quirks`` selects a quirk."""
        return quirk in self.setup.quirks

    @property
    def has_thread_context(self) -> bool:
        """Whether the calling thread has called a function that creates a context."""
        return getattr(self.thread, "has_context", False)

    def primary_of(self, device: int) -> Context:
        """Return the primary context of a device. The first call for the device makes it."""
        context = self.primary.get(device)
        if context is None:
            context = self.primary[device] = self.new_context(device, is_primary=True)
        return context

    def new_context(self, device: int, *, is_primary: bool) -> Context:
        """Return a new context of a device."""
        context = Context(next(self.handles), device, is_primary)
        self.contexts[context.handle] = context
        return context

    def current(self) -> Context:
        """Return this thread's current context, by default the primary context of device 0."""
        handle = getattr(self.thread, "context", 0)
        if self.profile.has_contexts:
            # Another thread may have destroyed some contexts of the stack. They are skipped.
            bound = [one for one in self.stack() if one in self.contexts]
            handle = bound[-1] if bound else handle
        context = self.contexts.get(handle)
        return self.primary_of(0) if context is None else context

    def stack(self) -> list[int]:
        """Return the context stack of the calling thread, the current context last."""
        stack: list[int] | None = getattr(self.thread, "stack", None)
        if stack is None:
            stack = self.thread.stack = []
        return stack

    def check_device(self, device: int) -> int:
        """Return a device's host-wide index. Refuse a number that no device has in this process."""
        if not 0 <= device < len(self.setup.visible):
            raise Refused(
                Status.INVALID_DEVICE,
                f"there is no device {device}; this process sees {len(self.setup.visible)} devices",
            )
        return self.setup.visible[device]

    def ordinal_of(self, index: int) -> int | None:
        """Return a device's number in this process, or None if this process does not see it.

        ``index`` is the device's host-wide index.
        """
        visible = self.setup.visible
        return visible.index(index) if index in visible else None

    def can_reach(self, index: int, other: int) -> bool:
        """Whether the device ``index`` can access memory of the device ``other``.

        Both numbers are host-wide indices.
        """
        return index == other or self.setup.has_peers
