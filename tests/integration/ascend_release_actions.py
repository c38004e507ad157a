# SPDX-License-Identifier: Apache-2.0
"""What peers do while releases are refused, and what is left of them."""

import ctypes
import os
from dataclasses import replace
from inspect import signature
from typing import Any

from typing_extensions import override

from crossmem.conformance import actions
from crossmem.driver import Block, Exported, Imported, TracingDriver
from crossmem.models import Access, Capabilities, ShareableHandle
from crossmem.sharing.base.process import current
from crossmem.sharing.exporter.record import Allocations
from crossmem.sharing.importer.table import ImportTable

HOST_TO_DEVICE = 1
_sound: dict[str, Any] = {}


def _acl() -> Any:
    driver: Any = actions.device().driver
    return driver._vendor.acl


def fail(call: str, *, count: int = 1, skip: int = 0) -> None:
    """Let calls of one of the vendor's functions fail in this process."""
    _acl().faults.add(call, 507899, count=count, skip=skip, pid=os.getpid())


def break_(name: str) -> None:
    """Let one of the vendor's functions raise what no vendor's function raises."""
    rt = _acl().rt

    def broken(*_: Any) -> int:
        raise OSError("the vendor's library is broken")

    _sound.setdefault(name, getattr(rt, name))
    setattr(rt, name, broken)


def mend() -> None:
    """Let all of the vendor's functions work again."""
    _acl().faults.clear()
    vars(_acl().rt).update(_sound)
    _sound.clear()


def owned() -> int:
    """Return how many allocations are not free yet."""
    return len(current().part(Allocations).live)


def users() -> list[int]:
    """Return how many users each open import has."""
    return [len(one.uses) for one in current().part(ImportTable)._records.values()]


def begin_copy(name: str) -> None:
    """Let the device work on memory as the application's own work does, without waiting."""
    rt, memory = _acl().rt, actions.objects[name]
    assert rt.set_device(0) == 0
    stream, code = rt.create_stream()
    assert code == 0
    source = actions.objects["source"] = ctypes.create_string_buffer(memory.nbytes)
    address, nbytes = ctypes.addressof(source), memory.nbytes
    code = rt.memcpy_async(memory.ptr, nbytes, address, nbytes, HOST_TO_DEVICE, stream)
    assert code == 0


def forge(blob: bytes) -> bytes:
    """Return a raw handle that names the same memory and carries other bytes of the vendor's."""
    handle = ShareableHandle.from_bytes(blob)
    assert handle.raw
    fields = {name: getattr(handle, name) for name in signature(ShareableHandle).parameters}
    return ShareableHandle(**{**fields, "raw": bytes(one ^ 1 for one in handle.raw)}).to_bytes()


class BothKinds(TracingDriver):
    """Emulated memory that can be exported with leases and raw; the raw bytes say where it is."""

    @override
    def capabilities(self, ordinal: int, mechanism: str | None) -> Capabilities:
        found = super().capabilities(ordinal, mechanism)
        return replace(found, raw_handles=True)

    @override
    def export(self, block: Block, mechanism: str, access: Access, *, raw: bool) -> Exported:
        exported = super().export(block, mechanism, access, raw=False)
        if raw:
            (descriptor,) = exported.descriptors
            return Exported((f"/proc/{os.getpid()}/fd/{descriptor}".encode(),))
        return exported

    @override
    def release_export(self, block: Block, exported: Exported) -> None:
        if exported.descriptors:
            super().release_export(block, exported)

    @override
    def import_(
        self,
        ordinal: int,
        exported: Exported,
        *,
        home: int,
        mechanism: str,
        nbytes: int,
        capacity: int,
        access: Access,
    ) -> Imported:
        if exported.payloads:
            exported = Exported((), (os.open(exported.payloads[0], os.O_RDWR | os.O_CLOEXEC),))
        return super().import_(
            ordinal,
            exported,
            home=home,
            mechanism=mechanism,
            nbytes=nbytes,
            capacity=capacity,
            access=access,
        )


def use_both_kinds() -> None:
    """Use that driver from now on."""
    current().registry.adapt(BothKinds)
