# SPDX-License-Identifier: Apache-2.0
"""The functions that import handles."""

from collections.abc import Iterable
from contextlib import ExitStack

from crossmem.errors import ConfigurationError, UnsupportedError, WrongHostError
from crossmem.guards import check_timeout
from crossmem.models import Access, ProcessIdentity, ShareableHandle
from crossmem.sharing.device import Device, device, find_by_identity, runtime_in_use
from crossmem.sharing.entry import Entry
from crossmem.sharing.holds import check_hold
from crossmem.sharing.mapping import Import, Mapping, Readonly
from crossmem.sharing.process import Process, drain
from crossmem.sharing.table import Wish

__all__ = [
    "Readonly",
    "attach",
    "attach_held",
    "attach_many",
    "check_device",
    "import_handle",
    "reattach",
]

Handle = ShareableHandle | bytes | bytearray | memoryview


def import_handle(
    handle: Handle,
    *,
    device: Device | str | None = None,
    readonly: Readonly = False,
    timeout: float | None = None,
) -> Import:
    """Import memory that another process exported.

    Parameters
    ----------
    handle
        A handle or its bytes.
    device
        For which device; None: the one that holds the memory. Another one works where the
        capability ``peer_access`` says so; the memory stays where it is (C24).
    readonly
        True: only reading, enforced by the device or kernel. ``"advisory"``: only reading, as
        far as crossmem's own API goes. Handles of read-only exports are always read-only.
    timeout
        How long the exporter may take to answer, in seconds; ``CROSSMEM_TIMEOUT`` where None.

    Returns
    -------
    Import
        Holds the memory until it is closed.

    Raises
    ------
    InvalidHandleError
        No export made these bytes (C14).
    StaleHandleError
        The memory was freed (C6).
    OwnerGoneError, OwnerUnresponsiveError
        The exporter is dead (C12), or lives but does not answer (C26).
    AccessDeniedError
        The exporter does not admit this process (C13).
    WrongHostError, BackendNotFoundError, BackendUnavailableError, DeviceNotFoundError
        The memory is out of this process's reach; the message says what is missing (C15).
    UnsupportedError
        The backend does not offer what was asked for.
    """
    process, found, entry = _acquire(handle, device, readonly, timeout)
    return Import(process, entry, found, readonly=_is_readonly(entry, readonly))


def attach(
    handle: Handle,
    *,
    device: Device | str | None = None,
    readonly: Readonly = False,
    timeout: float | None = None,
) -> Mapping:
    """Import and map in one step; unmapping closes the import.

    Parameters and errors are those of :func:`import_handle`.
    """
    process, found, entry = _acquire(handle, device, readonly, timeout)
    return _map(process, found, entry, readonly)


def reattach(blob: bytes, readonly: Readonly) -> Mapping:
    """Attach what was pickled as the bytes of its handle."""
    return attach(blob, readonly=readonly)


def attach_many(
    handles: Iterable[Handle],
    *,
    device: Device | str | None = None,
    readonly: Readonly = False,
    timeout: float | None = None,
) -> list[Mapping]:
    """Attach any number of handles with one round trip to each exporter; all or none.

    Parameters and errors are those of :func:`import_handle`; the mappings come in the order of
    the handles.
    """
    process = drain()
    check_device(device)
    wishes = [_wish(process, _decode(one), device, readonly) for one in handles]
    return _attach_all(process, wishes, readonly, timeout)[0]


def attach_held(
    message: Iterable[tuple[Handle, int]],
    *,
    device: Device | str | None = None,
    readonly: Readonly = False,
    timeout: float | None = None,
) -> list[Mapping]:
    """Receive a message: attach its handles as :func:`attach_many` does, and end its holds.

    Freed memory that the message holds is attached too. Where this raises, the message still
    holds what it held: try again, or discard it (see :mod:`crossmem.sharing.holds`).

    Parameters
    ----------
    message
        The handles with the numbers of their holds; 0 for a handle that is not held, or that is
        another part of an export whose hold is there already.
    device, readonly, timeout
        As for :func:`import_handle`.
    """
    process = drain()
    pairs = [(_decode(one), check_hold(number)) for one, number in message]
    # Parts of one export need one hold between them.
    shown: dict[bytes, int] = {}
    for handle, number in pairs:
        if number:
            shown.setdefault(handle.core, number)
    wishes = [
        _wish(process, handle, device, readonly, shown.get(handle.core, 0)) for handle, _ in pairs
    ]
    mappings, entries = _attach_all(process, wishes, readonly, timeout)
    ended: dict[ProcessIdentity, tuple[Entry, list[int]]] = {}
    for (handle, number), entry in zip(pairs, entries, strict=True):
        if number and handle.raw is None:
            ended.setdefault(handle.owner, (entry, []))[1].append(number)
    for entry, numbers in ended.values():
        entry.end_holds(numbers)
    return mappings


def _attach_all(
    process: Process, wishes: list[Wish], readonly: Readonly, timeout: float | None
) -> tuple[list[Mapping], list[Entry]]:
    if not wishes:
        return [], []
    timeout_s = check_timeout(timeout, default_s=process.settings.timeout_s)
    entries = process.imports.acquire(wishes, timeout_s)
    mappings: list[Mapping] = []
    try:
        for wish, entry in zip(wishes, entries, strict=True):
            mappings.append(_map(process, wish.handle, entry, readonly))
    except BaseException:
        with ExitStack() as undo:
            # The one that failed has released its entry already.
            for entry in entries[len(mappings) + 1 :]:
                undo.callback(process.imports.release, entry)
            for mapping in mappings:
                undo.callback(mapping.unmap)
        raise
    return mappings, entries


def _acquire(
    handle: Handle, device: Device | str | None, readonly: Readonly, timeout: float | None
) -> tuple[Process, ShareableHandle, Entry]:
    process = drain()
    found = handle if type(handle) is ShareableHandle else _decode(handle)
    check_device(device)
    if not isinstance(readonly, bool | str):
        raise _unknown_readonly(readonly)
    shortcut = (found.core, device, readonly)
    entry = process.imports.join(shortcut)
    if entry is None:
        timeout_s = check_timeout(timeout, default_s=process.settings.timeout_s)
        wish = _wish(process, found, device, readonly)
        (entry,) = process.imports.acquire((wish,), timeout_s)
        process.imports.remember(shortcut, entry)
    return process, found, entry


def check_device(device: object) -> None:
    """Refuse what names no device.

    Raises
    ------
    ConfigurationError
        Where it is neither a device nor a text nor None.
    """
    if device is not None and not isinstance(device, Device | str):
        msg = f"device must be a crossmem.Device, its name or None, not {device!r}"
        raise ConfigurationError(msg, operation="import")


def _decode(handle: Handle) -> ShareableHandle:
    return handle if isinstance(handle, ShareableHandle) else ShareableHandle.from_bytes(handle)


def _wish(
    process: Process,
    handle: ShareableHandle,
    target: Device | str | None,
    readonly: Readonly,
    hold: int = 0,
) -> Wish:
    if handle.owner.boot_id != process.identity.boot_id:
        msg = (
            f"process {handle.owner.pid} exported this on another host, or before this host's "
            f"last boot (boot id {handle.owner.boot_id.hex()}, here "
            f"{process.identity.boot_id.hex()})"
        )
        raise WrongHostError(msg, hint="a handle is valid on the host where it was made")
    if readonly is not True and readonly is not False and readonly != "advisory":
        raise _unknown_readonly(readonly)
    home = find_by_identity(process, handle.backend, handle.device, target)
    chosen = home
    if target is not None:
        if isinstance(target, str):
            runtime = runtime_in_use(process, target.partition(":")[0])
            chosen = device(target, runtime=runtime)
        else:
            chosen = target
        chosen.check_usable()
        if chosen.backend != handle.backend:
            msg = f"{chosen.name} does not offer memory of backend {handle.backend!r}"
            raise UnsupportedError(msg, operation="import", backend=chosen.backend)
    # What holds for the memory is decided by how it was made, not by what the target prefers.
    chosen = chosen.for_mechanism(handle.mechanism)
    capabilities = chosen.capabilities
    refused = None
    if chosen.ordinal != home.ordinal and not capabilities.peer_access:
        refused = f"memory of {home.name} (capability peer_access)"
    elif readonly is True and handle.access == "rw" and not capabilities.readonly_imports:
        refused = 'read-only imports (capability readonly_imports); ask for readonly="advisory"'
    elif handle.raw is not None and not capabilities.raw_handles:
        refused = "raw handles (capability raw_handles)"
    if refused is not None:
        msg = f"{chosen.name} does not offer {refused}"
        raise UnsupportedError(msg, operation="import", backend=chosen.backend)
    access: Access = "ro" if readonly is True else handle.access
    return Wish(handle, chosen, access, home=home.ordinal, hold=hold)


def _unknown_readonly(readonly: object) -> ConfigurationError:
    msg = f'readonly must be True, False or "advisory", not {readonly!r}'
    return ConfigurationError(msg, operation="import")


def _is_readonly(entry: Entry, readonly: Readonly) -> bool:
    return entry.access == "ro" or bool(readonly)


def _map(process: Process, handle: ShareableHandle, entry: Entry, readonly: Readonly) -> Mapping:
    """Return a mapping that owns one use of the entry; release that use where it fails."""
    with ExitStack() as undo:
        undo.callback(process.imports.release, entry)
        base = entry.map(remappable=False)
        undo.callback(entry.unmap)
        advised = _is_readonly(entry, readonly)
        undo.pop_all()
    # Not in the block: from when the object exists on, it alone gives the use back. An interrupt
    # may leave one use too many, and must never take one that another mapping relies on.
    return Mapping(process, entry, handle, base, None, readonly=advised)
