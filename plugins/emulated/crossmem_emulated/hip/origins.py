# SPDX-License-Identifier: Apache-2.0
"""How memory comes to stand behind device addresses in HIP."""

from enum import StrEnum

__all__ = ["Origin"]


class Origin(StrEnum):
    """The function that put memory behind an address."""

    MALLOC = "malloc"
    POOL = "mallocAsync"
    IPC = "ipcOpenMemHandle"
    VIRTUAL = "memMap"
