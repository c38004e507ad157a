# SPDX-License-Identifier: Apache-2.0
"""The origin of memory at a device address, and the device for which the memory is mapped."""

from enum import StrEnum

from crossmem_emulated.addresses import Piece
from crossmem_emulated.pages import HOST

__all__ = ["Origin", "device_of"]


class Origin(StrEnum):
    """The function by which the program obtained the memory at an address."""

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
