# SPDX-License-Identifier: Apache-2.0
"""The interface of a runtime: the part of pyACL that the driver uses.

Arguments are positional. A function returns its code, which is 0 for success. A function that also
has a result returns a pair: the result and the code. Pointers, handles, contexts and streams are
integers.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol, TypeVar

from crossmem.errors import BackendUnavailableError, CrossmemError
from crossmem.guards import clause
from crossmem_ascend.errors import BACKEND, REPEAT_INITIALIZE, SUCCESS, error_for

__all__ = [
    "COMMON",
    "KEY",
    "NOTIFIES",
    "PEER_ACCESS",
    "SHAREABLE",
    "STREAM_VALUES",
    "Acl",
    "Rt",
    "Vendor",
]

T = TypeVar("T")

COMMON: Final = frozenset(
    {
        "create_context",
        "create_stream",
        "destroy_context",
        "destroy_stream",
        "device_get_bare_tgid",
        "get_context",
        "get_device",
        "get_device_count",
        "memcpy",
        "memcpy_async",
        "set_context",
        "set_device",
        "synchronize_device",
        "synchronize_stream",
    }
)
"""Functions of ``acl.rt`` that the mechanisms ``shareable`` and ``key`` need."""

SHAREABLE: Final = frozenset(
    {
        "free_physical",
        "malloc_physical",
        "map_mem",
        "mem_export_to_shareable_handle",
        "mem_get_allocation_granularity",
        "mem_import_from_shareable_handle",
        "mem_set_pid_to_shareable_handle",
        "release_mem_address",
        "reserve_mem_address",
        "unmap_mem",
    }
)
"""Functions of ``acl.rt`` that shareable handles need."""

KEY: Final = frozenset(
    {
        "free",
        "ipc_mem_close",
        "ipc_mem_get_export_key",
        "ipc_mem_import_by_key",
        "ipc_mem_set_import_pid",
        "malloc",
    }
)
"""Functions of ``acl.rt`` that keys need."""

PEER_ACCESS: Final = frozenset(
    {"device_can_access_peer", "device_enable_peer_access", "device_peer_access_status"}
)
"""Functions of ``acl.rt`` that are needed to import memory of one device for another device."""


STREAM_VALUES: Final = frozenset({"host_register", "host_unregister", "value_wait", "value_write"})
"""Functions of ``acl.rt`` by which streams write values to host memory and wait for values there.
On a product without this feature, the functions return 207000."""

NOTIFIES: Final = frozenset(
    {
        "create_notify",
        "destroy_notify",
        "notify_get_export_key",
        "notify_import_by_key",
        "notify_set_import_pid",
        "record_notify",
        "wait_and_reset_notify",
    }
)
"""Functions of ``acl.rt`` that are needed to share notifies between processes. On a product without
this feature, ``notify_get_export_key`` returns 207000."""


class Rt(Protocol):
    """The functions of ``acl.rt`` that the driver uses. Only those of `COMMON` always exist."""

    # Devices and contexts.
    def get_run_mode(self) -> tuple[int, int]: ...
    def get_device_count(self) -> tuple[int, int]: ...
    def set_device(self, device: int, /) -> int: ...
    def get_device(self) -> tuple[int, int]: ...
    def create_context(self, device: int, /) -> tuple[int, int]: ...
    def get_context(self) -> tuple[int, int]: ...
    def set_context(self, context: int, /) -> int: ...
    def destroy_context(self, context: int, /) -> int: ...
    def synchronize_device(self) -> int: ...
    def device_get_bare_tgid(self) -> tuple[int, int]: ...
    def device_get_uuid(self, device: int, /) -> tuple[Mapping[str, list[int]], int]: ...
    def device_can_access_peer(self, device: int, peer: int, /) -> tuple[int, int]: ...
    def device_enable_peer_access(self, peer: int, flags: int, /) -> int: ...
    def device_peer_access_status(self, device: int, peer: int, /) -> tuple[int, int]: ...

    # Copies.
    def create_stream(self) -> tuple[int, int]: ...
    def synchronize_stream(self, stream: int, /) -> int: ...
    def destroy_stream(self, stream: int, /) -> int: ...
    def memcpy(self, target: int, room: int, source: int, count: int, kind: int, /) -> int: ...
    def memcpy_async(
        self, target: int, room: int, source: int, count: int, kind: int, stream: int, /
    ) -> int: ...

    # Shareable handles.
    def mem_get_allocation_granularity(
        self, prop: dict[str, Any], option: int, /
    ) -> tuple[int, int]: ...
    def malloc_physical(
        self, size: int, prop: dict[str, Any], flags: int, /
    ) -> tuple[int, int]: ...
    def free_physical(self, handle: int, /) -> int: ...
    def reserve_mem_address(
        self, size: int, alignment: int, expected: int, flags: int, /
    ) -> tuple[int, int]: ...
    def release_mem_address(self, pointer: int, /) -> int: ...
    def map_mem(self, pointer: int, size: int, offset: int, handle: int, flags: int, /) -> int: ...
    def unmap_mem(self, pointer: int, /) -> int: ...
    def mem_export_to_shareable_handle(
        self, handle: int, handle_type: int, flags: int, /
    ) -> tuple[int, int]: ...
    def mem_set_pid_to_shareable_handle(self, share: int, pids: list[int], /) -> int: ...
    def mem_import_from_shareable_handle(self, share: int, device: int, /) -> tuple[int, int]: ...

    # Keys.
    def malloc(self, size: int, policy: int, /) -> tuple[int, int]: ...
    def free(self, pointer: int, /) -> int: ...
    def ipc_mem_get_export_key(
        self, pointer: int, size: int, length: int, flags: int, /
    ) -> tuple[str, int]: ...
    def ipc_mem_set_import_pid(self, key: str, pids: list[int], /) -> int: ...
    def ipc_mem_import_by_key(self, key: str, flags: int, /) -> tuple[int, int]: ...
    def ipc_mem_close(self, key: str, /) -> int: ...

    # Values and notifies.
    def host_register(self, pointer: int, size: int, kind: int, /) -> tuple[int, int]:
        """Register memory of the program, and return its device address.

        Kind 0 is ``ACL_HOST_REGISTER_MAPPED``, which gives devices an address for the memory.
        """
        ...

    def host_unregister(self, pointer: int, /) -> int: ...
    def value_write(self, pointer: int, value: int, flag: int, stream: int, /) -> int: ...
    def value_wait(self, pointer: int, value: int, flag: int, stream: int, /) -> int:
        """Let a stream wait until the word at ``pointer`` fulfils a condition.

        With flag 0, the condition is that the difference ``word - value``, taken as a signed 64-bit
        number, is not negative.
        """
        ...

    def create_notify(self, flag: int, /) -> tuple[int, int]: ...
    def destroy_notify(self, notify: int, /) -> int: ...
    def record_notify(self, notify: int, stream: int, /) -> int: ...
    def wait_and_reset_notify(self, notify: int, stream: int, timeout_s: int, /) -> int:
        """Let a stream wait until the notify is recorded, and then reset the notify.

        Timeout 0 means no limit.
        """
        ...

    def notify_get_export_key(self, notify: int, length: int, flags: int, /) -> tuple[str, int]: ...
    def notify_set_import_pid(self, notify: int, pids: list[int], /) -> int: ...
    def notify_import_by_key(self, key: str, flags: int, /) -> tuple[int, int]: ...


class Acl(Protocol):
    """The module ``acl``.

    A runtime may also have ``get_soc_name``, ``get_recent_err_msg`` and ``tdt``. An emulation may
    also have ``crossmem_fault`` and ``violations``.
    """

    @property
    def rt(self) -> Rt: ...
    def init(self) -> int: ...


class Vendor:
    """A runtime with checked results: every failure becomes a typed error.

    Parameters
    ----------
    acl
        The runtime. This class initialises the runtime, but never finalises the runtime, because
        other code may use it.

    Raises
    ------
    BackendUnavailableError
        The runtime lacks a function of `COMMON`.
    DriverError
        The runtime cannot be initialised.
    """

    def __init__(self, acl: Acl) -> None:
        self.acl = acl
        self.rt = acl.rt
        if missing := self.missing(COMMON):
            raise BackendUnavailableError(
                f"this runtime lacks {clause(', '.join(missing))} of acl.rt",
                hint="install CANN 8.0 or later",
                details="\n".join(missing),
                backend=BACKEND,
            )
        code = acl.init()
        if code != REPEAT_INITIALIZE:
            self.check("init", code)

    def missing(self, functions: frozenset[str]) -> list[str]:
        """Return the names of the given functions that this runtime's ``acl.rt`` lacks."""
        return sorted(name for name in functions if not hasattr(self.rt, name))

    def has(self, function: str) -> bool:
        """Whether the runtime has a function of ``acl.rt``."""
        return hasattr(self.rt, function)

    def check(self, call: str, code: int) -> None:
        """Raise if a call did not succeed.

        Parameters
        ----------
        call
            Name of the function in the module ``acl``, such as ``"rt.map_mem"``.
        code
            The result code.
        """
        if code != SUCCESS:
            # An emulation can fail in ways for which the vendor has no code. After such a failure,
            # crossmem_fault() returns the error.
            told: Callable[[], CrossmemError | None] | None
            told = getattr(self.acl, "crossmem_fault", None)
            fault = told() if told is not None else None
            if fault is not None:
                raise fault
            recent = getattr(self.acl, "get_recent_err_msg", None)
            # The text has several lines, but a message has only one.
            detail = " ".join((recent() or "").split()) if recent is not None else ""
            raise error_for(call, code, detail)

    def value(self, call: str, result: tuple[T, int]) -> T:
        """Return the value of a call's result, or raise if the call did not succeed."""
        value, code = result
        self.check(call, code)
        return value
