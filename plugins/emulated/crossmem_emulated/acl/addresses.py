# SPDX-License-Identifier: Apache-2.0
"""How memory at a device address was made, and for which device it is mapped."""

from enum import StrEnum

from crossmem_emulated.addresses import Piece
from crossmem_emulated.pages import HOST

__all__ = ["Origin", "device_of"]


class Origin(StrEnum):
    """The function that made memory at an address available."""

    MALLOC = "malloc"
    PHYSICAL = "malloc_physical"
    IMPORTED = "mem_import_from_shareable_handle"
    KEY = "ipc_mem_import_by_key"
    BUFFER = "alloc_buf"


def device_of(piece: Piece) -> int:
    """Return the host-wide index of the device for which memory is mapped.

    For host memory, the result is ``HOST``, even if the memory was imported for a device.
    """
    if piece.origin is Origin.MALLOC or piece.pages.device == HOST:
        return piece.pages.device
    return int(piece.source.device)
