# SPDX-License-Identifier: Apache-2.0
"""The checks that a process makes before it asks an exporter for an import."""

from crossmem.errors import ConfigurationError, UnsupportedError, WrongHostError
from crossmem.guards import shorten
from crossmem.models import Access, ShareableHandle
from crossmem.sharing.base.devices import (
    LocalDevice,
    find_by_identity,
    find_device,
    refuse_foreign_device,
    runtime_in_use,
)
from crossmem.sharing.base.process import Process
from crossmem.sharing.importer.key import ImportRequest
from crossmem.sharing.importer.mapping import Readonly

__all__ = ["check_readonly", "request_of"]


def check_readonly(readonly: object) -> None:
    """Refuse an invalid value of ``readonly``.

    Raises
    ------
    ConfigurationError
        The value is neither True nor False nor ``"advisory"``.
    """
    if readonly is False or readonly is True:
        return
    if not isinstance(readonly, str) or readonly != "advisory":
        msg = f'readonly must be True, False or "advisory", not {shorten(readonly)}'
        raise ConfigurationError(msg, operation="import")


def request_of(
    process: Process,
    handle: ShareableHandle,
    target: LocalDevice | str | None,
    readonly: Readonly,
    reservation: int = 0,
) -> ImportRequest:
    """Return the request for an import, after all checks that need no reply of the exporter.

    The caller has checked ``readonly`` with :func:`check_readonly`.
    """
    if handle.owner.boot_id != process.identity.boot_id:
        msg = (
            f"process {handle.owner.pid} exported this on another host, or before this host's "
            f"last boot (boot id {handle.owner.boot_id.hex()}, here "
            f"{process.identity.boot_id.hex()})"
        )
        raise WrongHostError(
            msg,
            hint="export the memory on this host: a handle is valid until its host reboots",
        )
    home = find_by_identity(process, handle.backend, handle.device, target)
    chosen = home
    if target is not None:
        if isinstance(target, str):
            runtime = runtime_in_use(process, target.partition(":")[0])
            chosen = find_device(process, target, runtime)
        else:
            chosen = target
        refuse_foreign_device(chosen)
        if chosen.backend != handle.backend:
            msg = f"{chosen.name} cannot import memory of backend {handle.backend!r}"
            hint = f"import on a device of backend {handle.backend!r}"
            raise UnsupportedError(msg, operation="import", backend=chosen.backend, hint=hint)
    # The mechanism of the device object is a default, which may differ from the handle's mechanism.
    if chosen.mechanism != handle.mechanism:
        chosen = chosen.for_mechanism(handle.mechanism)
    capabilities = chosen.capabilities
    refused, hint = None, ""
    if chosen.ordinal != home.ordinal and not capabilities.peer_access:
        refused = f"imports of memory of {home.name} (capability peer_access)"
        hint = f"import on {home.name}, the device of the memory"
    elif readonly is True and handle.access == "rw" and not capabilities.readonly_imports:
        refused = "read-only imports (capability readonly_imports)"
        hint = 'pass readonly="advisory"'
    elif handle.raw is not None and not capabilities.raw_handles:
        refused = "raw handles (capability raw_handles)"
        hint = "import a handle that was exported with lease=True"
    if refused is not None:
        msg = f"{chosen.name} does not offer {refused}"
        raise UnsupportedError(msg, operation="import", backend=chosen.backend, hint=hint)
    access: Access = "ro" if readonly is True else handle.access
    return ImportRequest(handle, chosen, access, home.ordinal, reservation)
