# SPDX-License-Identifier: Apache-2.0
"""How memory comes to stand behind device addresses in ACL."""

from enum import StrEnum

__all__ = ["Origin"]


class Origin(StrEnum):
    """How memory came to stand behind an address."""

    MALLOC = "malloc"
    PHYSICAL = "malloc_physical"
    IMPORTED = "mem_import_from_shareable_handle"
    KEY = "ipc_mem_import_by_key"
