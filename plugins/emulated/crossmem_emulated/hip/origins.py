# SPDX-License-Identifier: Apache-2.0
"""The origin of memory at a device address."""

from enum import StrEnum

__all__ = ["Origin"]


class Origin(StrEnum):
    """The function that mapped memory at an address."""

    MALLOC = "malloc"
    POOL = "mallocAsync"
    IPC = "ipcOpenMemHandle"
    VIRTUAL = "memMap"
