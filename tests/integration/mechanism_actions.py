# SPDX-License-Identifier: Apache-2.0
"""What peers do with a driver that shares in two ways; it notes what core tells it."""

import pickle
from dataclasses import replace
from typing import Any

from typing_extensions import override

import crossmem
from crossmem.conformance import actions
from crossmem.driver import Block, Exported, Imported, TracingDriver
from crossmem.errors import UnsupportedError
from crossmem.models import Access, Capabilities
from crossmem.sharing.base.process import current

told: list[tuple[Any, ...]] = []
"""What the driver was told, in order."""


class TwoWays(TracingDriver):
    """Emulated memory under two names: ``memfd``, and ``slow``, which can do less."""

    @override
    def capabilities(self, ordinal: int, mechanism: str | None) -> Capabilities:
        told.append(("capabilities", ordinal, mechanism))
        changes: dict[str, Any] = {"mechanisms": ("memfd", "slow"), "raw_handles": True}
        if mechanism == "slow":
            changes |= {"peer_access": False, "readonly_exports": False}
        return replace(super().capabilities(ordinal, None), **changes)

    @override
    def allocate(self, ordinal: int, nbytes: int, mechanism: str) -> Block:
        told.append(("allocate", ordinal, mechanism))
        return super().allocate(ordinal, nbytes, mechanism)

    @override
    def export(self, block: Block, mechanism: str, access: Access, *, raw: bool) -> Exported:
        told.append(("export", mechanism, access, raw))
        if raw and mechanism == "slow":
            msg = "leased memory cannot become raw"
            raise UnsupportedError(msg)
        return super().export(block, mechanism, access, raw=raw)

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
        told.append(("import_", ordinal, home, mechanism))
        return super().import_(
            ordinal,
            exported,
            home=home,
            mechanism=mechanism,
            nbytes=nbytes,
            capacity=capacity,
            access=access,
        )


def begin() -> None:
    """Use that driver from now on."""
    current().registry.adapt(TwoWays)


def offer(name: str, mechanism: str | None, *, spec: str = "emulated:0", **options: Any) -> bytes:
    """Allocate for a mechanism and export; return the handle's bytes."""
    actions.objects[name] = crossmem.device(spec, mechanism=mechanism).allocate(4096)
    return actions.export(name, **options)


def place(name: str) -> tuple[int, str, bool]:
    """Return for which device, mechanism and reach something is here."""
    where = actions.objects[name].device
    return where.ordinal, where.mechanism, where.capabilities.peer_access


def hear() -> list[tuple[Any, ...]]:
    """Return what the driver was told since the last time."""
    heard = list(told)
    told.clear()
    return heard


def send_device(mechanism: str) -> bytes:
    """Return a device, pickled."""
    return pickle.dumps(crossmem.device("emulated:1", mechanism=mechanism))


def receive_device(pickled: bytes) -> tuple[str, str, bool]:
    """Return what a device is that arrived, and whether it is the one of this process."""
    device: crossmem.Device = pickle.loads(pickled)  # noqa: S301 - this test made it
    mine = crossmem.device("emulated:1", mechanism=device.mechanism)
    return device.name, device.mechanism, device is mine
