# SPDX-License-Identifier: Apache-2.0
"""The functions that import handles."""

from collections.abc import Iterable, Sequence

from crossmem.errors import ConfigurationError, CrossmemError
from crossmem.guards import check_timeout
from crossmem.models import BlockHandle, ProcessIdentity, ReadyHandle, ShareableHandle
from crossmem.models.block_handle import BLOCK_START
from crossmem.sharing.base.devices import LocalDevice, check_device
from crossmem.sharing.base.process import Process, drain, open_pools
from crossmem.sharing.importer.block_holds import ArenaImport, BlockHold
from crossmem.sharing.importer.block_mapping import (
    BlockImport,
    attach_bytes,
    mapping_of,
)
from crossmem.sharing.importer.blocks import hold_block
from crossmem.sharing.importer.mapping import Import, Mapping, Readonly
from crossmem.sharing.importer.messages import check_reservation
from crossmem.sharing.importer.record import ImportRecord, Use
from crossmem.sharing.importer.request import check_readonly, request_of
from crossmem.sharing.importer.table import ImportTable
from crossmem.sharing.importer.watcher import (
    KEEP,
    OnOwnerDeath,
    asks_for_release,
    end_with_owner,
)

__all__ = [
    "Readonly",
    "attach",
    "attach_many",
    "attach_reserved",
    "import_handle",
]

Handle = ShareableHandle | bytes | bytearray | memoryview


def import_handle(
    handle: Handle,
    *,
    device: LocalDevice | str | None = None,
    readonly: Readonly = False,
    timeout: float | None = None,
    on_owner_death: OnOwnerDeath = KEEP,
) -> Import:
    """Import memory that another process exported.

    Parameters
    ----------
    handle
        A handle or its bytes.
    device
        The device that uses the memory; None: the device that holds the memory. Another device
        needs the capability ``peer_access``. The memory stays on its device (C24).
    readonly
        True: the device or kernel refuses writes. ``"advisory"``: only crossmem's own methods
        refuse writes. Imports of read-only exports are always read-only.
    timeout
        How long the exporter may take to reply, in seconds; None: ``CROSSMEM_TIMEOUT``.
    on_owner_death
        The effect of the exporter's death. ``"keep"``: the import stays until it is closed.
        ``"release"``: a thread of crossmem closes the import and its mappings within a second
        (C29). A live view or array of the memory delays the close until the view or array ends.
        Uses of the closed objects raise :class:`ClosedError`.

    Returns
    -------
    Import
        An object that holds the memory until you close it.

    Raises
    ------
    InvalidHandleError
        The bytes are not the handle of any export (C14).
    StaleHandleError
        The memory was freed (C6), or the handle was withdrawn (C28).
    OwnerGoneError, OwnerUnresponsiveError
        The exporter is dead (C12) or exiting, or does not reply (C26).
    AccessDeniedError
        The exporter does not admit this process (C13).
    WrongHostError, BackendNotFoundError, BackendUnavailableError, DeviceNotFoundError
        This process cannot reach the memory; the message names the missing part (C15).
    UnsupportedError
        The backend does not offer the requested import. Or ``"release"`` was requested for a raw
        handle, whose importers cannot notice the exporter's death.
    DriverError, OutOfMemoryError
        A vendor's call failed, in this process or in the exporter.
    """
    process = drain()
    found = handle if type(handle) is ShareableHandle else _decode(handle)
    ends_with_owner = on_owner_death is not KEEP and asks_for_release(on_owner_death, (found,))
    if isinstance(found, BlockHandle):
        return _import_block(
            process, found, device, readonly, timeout, ends_with_owner=ends_with_owner
        )
    if isinstance(found, ReadyHandle):
        imported = import_handle(
            found.base,
            device=device,
            readonly=readonly,
            timeout=timeout,
            on_owner_death=on_owner_death,
        )
        imported.handle = found
        return imported
    use = Use(process, found.core)
    try:
        table = process.part(ImportTable)
        record = table.join(use, device, readonly)
        if record is None:
            record = _open(table, found, use, device, readonly, timeout)
        is_readonly = record.access == "ro" or readonly is not False
        imported = Import(use, record, found, readonly=is_readonly)
        if ends_with_owner:
            end_with_owner(imported, use, use)
        return imported
    except BaseException as error:
        _give_up(process, (use,), error)
        raise


def attach(
    handle: Handle,
    *,
    device: LocalDevice | str | None = None,
    readonly: Readonly = False,
    timeout: float | None = None,
    on_owner_death: OnOwnerDeath = KEEP,
) -> Mapping:
    """Import memory and map it in one step. Unmapping closes the import.

    Parameters and errors are those of :func:`import_handle`.
    """
    if type(handle) is bytes and on_owner_death is KEEP and readonly is False and device is None:
        # If this process has already opened a pool, a block of the pool is attached without a
        # message.
        arena: ArenaImport | None = open_pools.get(handle[BLOCK_START:])
        if arena is not None:
            if arena.ready or arena.idle:
                drain()
            block = attach_bytes(arena, handle)
            if block is not None:
                return block
    process = drain()
    found = handle if type(handle) is ShareableHandle else _decode(handle)
    ends_with_owner = on_owner_death is not KEEP and asks_for_release(on_owner_death, (found,))
    if isinstance(found, BlockHandle):
        return _attach_block(
            process, found, device, readonly, timeout, ends_with_owner=ends_with_owner
        )
    if isinstance(found, ReadyHandle):
        ((mapping, _use),) = _attach_all(
            process, ((found, 0),), device, readonly, timeout, ends_with_owner=ends_with_owner
        )
        return mapping
    use = Use(process, found.core)
    try:
        table = process.part(ImportTable)
        record = table.join(use, device, readonly)
        if record is None:
            record = _open(table, found, use, device, readonly, timeout)
        base = record.map(use, remappable=False)
        is_readonly = record.access == "ro" or readonly is not False
        mapping = Mapping(use, record, found, base, readonly=is_readonly)
        if ends_with_owner:
            end_with_owner(mapping, use, use)
        return mapping
    except BaseException as error:
        _give_up(process, (use,), error)
        raise


def attach_many(
    handles: Iterable[Handle],
    *,
    device: LocalDevice | str | None = None,
    readonly: Readonly = False,
    timeout: float | None = None,
    on_owner_death: OnOwnerDeath = KEEP,
) -> list[Mapping]:
    """Attach any number of handles with few requests.

    A request contains up to 1024 handles of one exporter and one backend. For each pool that is not
    open yet, the call sends a separate request. If one handle cannot be attached, the call attaches
    none. The mappings have the order of the handles. Parameters and errors are those of
    :func:`import_handle`.
    """
    process = drain()
    check_device(device)
    check_readonly(readonly)
    if isinstance(handles, str | bytes | bytearray | memoryview) or not isinstance(
        handles, Iterable
    ):
        msg = f"handles must be an iterable of handles, not {type(handles).__name__}"
        hint = "for one handle use crossmem.attach()"
        raise ConfigurationError(msg, operation="attach_many", hint=hint)
    found = [_decode(one) for one in handles]
    ends_with_owner = on_owner_death is not KEEP and asks_for_release(on_owner_death, found)
    wanted = [(one, 0) for one in found]
    users = _attach_all(process, wanted, device, readonly, timeout, ends_with_owner=ends_with_owner)
    return [mapping for mapping, _use in users]


def attach_reserved(
    message: Iterable[tuple[Handle, int]],
    *,
    device: LocalDevice | str | None = None,
    readonly: Readonly = False,
    timeout: float | None = None,
) -> list[Mapping]:
    """Receive a message: attach its handles as :func:`attach_many` does, and end its reservations.

    Freed memory is attached, too, if the message reserves it. If the call raises, the message keeps
    its reservations. The receiver may try again or discard the message (see
    :mod:`crossmem.sharing.importer.messages`).

    Parameters
    ----------
    message
        The handles with their reservation numbers. The number is 0 for a handle without a
        reservation. If several handles name the same export, only one of them needs a number.
    device, readonly, timeout
        As for :func:`import_handle`.
    """
    process = drain()
    check_device(device)
    check_readonly(readonly)
    pairs = [(_decode(one), check_reservation(number)) for one, number in message]
    # One reservation is enough for all slices of an export.
    shown: dict[tuple[bytes, int], int] = {}
    for handle, number in pairs:
        if number:
            shown.setdefault((handle.core, handle.export), number)
    wanted = [(one, shown.get((one.core, one.export), 0)) for one, _ in pairs]
    users = _attach_all(process, wanted, device, readonly, timeout)
    ended: dict[ProcessIdentity, tuple[ImportRecord, list[int]]] = {}
    for (handle, number), (_mapping, use) in zip(pairs, users, strict=True):
        if number and handle.raw is None and use.record is not None:
            ended.setdefault(handle.owner, (use.record, []))[1].append(number)
    for record, numbers in ended.values():
        record.end_reservations(numbers)
    return [mapping for mapping, _use in users]


def _attach_all(
    process: Process,
    wanted: Sequence[tuple[ShareableHandle, int]],
    device: LocalDevice | str | None,
    readonly: Readonly,
    timeout: float | None,
    *,
    ends_with_owner: bool = False,
) -> list[tuple[Mapping, Use]]:
    """Attach all handles or none. In ``wanted``, each handle has its reservation number, or 0."""
    timeout_s = check_timeout(timeout, default_s=process.settings.timeout_s)
    named = [one for one, _number in wanted]
    wanted = [(one.base if isinstance(one, ReadyHandle) else one, n) for one, n in wanted]
    requests = [
        request_of(process, one, device, readonly, number)
        for one, number in wanted
        if not isinstance(one, BlockHandle)
    ]
    uses = [Use(process, one.handle.core) for one in requests]
    holds: list[BlockHold] = []
    made: list[tuple[Mapping, Use]] = []
    try:
        if requests:
            process.part(ImportTable).acquire(requests, uses, timeout_s)
        is_linked = ends_with_owner
        # All blocks are held before the first mapping, so a refusal leaves nothing to unmap.
        taken = [
            hold_block(one, device, readonly, timeout, holds, number, is_linked=is_linked)
            for one, number in wanted
            if isinstance(one, BlockHandle)
        ]
        opened, held = iter(uses), iter(taken)
        for handle, _number in wanted:
            use: Use
            if isinstance(handle, BlockHandle):
                use = hold = next(held)
                mapping = mapping_of(hold, handle, readonly)
            else:
                use = next(opened)
                record = use.record
                assert record is not None  # noqa: S101 - acquire() has set it
                base = record.map(use, remappable=False)
                is_readonly = record.access == "ro" or readonly is not False
                mapping = Mapping(use, record, handle, base, readonly=is_readonly)
            made.append((mapping, use))
            if ends_with_owner:
                end_with_owner(mapping, use, use)
        for (mapping, _use), name in zip(made, named, strict=True):
            if isinstance(name, ReadyHandle):
                mapping._rename(name)
    except BaseException as error:
        try:
            _give_up(process, [*uses, *holds], error)
        finally:
            for mapping, _use in made:
                # The caller never gets this mapping, so its finaliser must not warn.
                mapping._record = None
        raise
    return made


def _attach_block(
    process: Process,
    handle: BlockHandle,
    device: LocalDevice | str | None,
    readonly: Readonly,
    timeout: float | None,
    *,
    ends_with_owner: bool,
) -> Mapping:
    holds: list[BlockHold] = []
    try:
        hold = hold_block(handle, device, readonly, timeout, holds, is_linked=ends_with_owner)
        mapping = mapping_of(hold, handle, readonly)
        if ends_with_owner:
            end_with_owner(mapping, hold, hold)
        return mapping
    except BaseException as error:
        _give_up(process, holds, error)
        raise


def _import_block(
    process: Process,
    handle: BlockHandle,
    device: LocalDevice | str | None,
    readonly: Readonly,
    timeout: float | None,
    *,
    ends_with_owner: bool,
) -> Import:
    holds: list[BlockHold] = []
    try:
        hold = hold_block(handle, device, readonly, timeout, holds, is_linked=True)
        record = hold.arena.record
        is_readonly = record.access == "ro" or readonly is not False
        imported = BlockImport(hold, record, handle, readonly=is_readonly)
        if ends_with_owner:
            end_with_owner(imported, hold, hold)
        return imported
    except BaseException as error:
        _give_up(process, holds, error)
        raise


def _open(
    table: ImportTable,
    handle: ShareableHandle,
    use: Use,
    device: LocalDevice | str | None,
    readonly: Readonly,
    timeout: float | None,
) -> ImportRecord:
    """Add a use to an import, open the import if necessary, and return the import's record."""
    process = use.process
    timeout_s = check_timeout(timeout, default_s=process.settings.timeout_s)
    request = request_of(process, handle, device, readonly)
    table.acquire((request,), (use,), timeout_s)
    record = use.record
    assert record is not None  # noqa: S101 - acquire() has set it
    table.remember((handle.core, device, readonly), record)
    return record


def _give_up(process: Process, uses: Sequence[Use], error: BaseException) -> None:
    """End the uses of a call that raises. If a release fails, later calls of crossmem repeat it.

    The deadline of the call may have passed, so this function does not wait for the lock of an
    import. If another thread holds such a lock, the reaper ends the use later.
    """
    ready = process.deferred.ready
    for use in uses:
        ready[use] = None
    for use in uses:
        try:
            process.deferred.run(use, blocking=False)
        except CrossmemError as failure:
            error.add_note(f"cleaning up failed too: {failure}")


def _decode(handle: Handle) -> ShareableHandle:
    return handle if isinstance(handle, ShareableHandle) else ShareableHandle.from_bytes(handle)
