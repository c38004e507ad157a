# SPDX-License-Identifier: Apache-2.0
"""The origins of memory at device addresses in ACL."""

from enum import StrEnum

from crossmem_emulated.addresses import Piece
from crossmem_emulated.pages import HOST

__all__ = ["Origin", "device_of"]


class Origin(StrEnum):
    """The origin of memory at an address."""

    MALLOC = "malloc"
    PHYSICAL = "malloc_physical"
    IMPORTED = "mem_import_from_shareable_handle"
    KEY = "ipc_mem_import_by_key"


def device_of(piece: Piece) -> int:
    """Return the host-wide index of the device for which memory is mapped.

    It is ``HOST`` for memory of the host, even if a device imported it.
    """
    if piece.origin is Origin.MALLOC or piece.pages.device == HOST:
        return piece.pages.device
    return int(piece.source.device)
