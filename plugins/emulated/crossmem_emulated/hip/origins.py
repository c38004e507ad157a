# SPDX-License-Identifier: Apache-2.0
"""The origin of memory at a device address."""

from enum import StrEnum

__all__ = ["Origin"]


class Origin(StrEnum):
    """The vendor's function by which the memory at an address became available."""

    MALLOC = "malloc"
    POOL = "mallocAsync"
    IPC = "ipcOpenMemHandle"
    VIRTUAL = "memMap"
