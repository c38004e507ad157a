# SPDX-License-Identifier: Apache-2.0
"""Data types whose values go to other processes, or to plugins and back."""

from crossmem.models.block_handle import BlockHandle, PoolCore
from crossmem.models.capabilities import Capabilities, LeaseEnd
from crossmem.models.device import DeviceInfo
from crossmem.models.events import Event, EventKind
from crossmem.models.handle import MAX_HANDLE_NBYTES, ShareableHandle
from crossmem.models.handle_core import Access
from crossmem.models.identity import ProcessIdentity, process_start_time

__all__ = [
    "MAX_HANDLE_NBYTES",
    "Access",
    "BlockHandle",
    "Capabilities",
    "DeviceInfo",
    "Event",
    "EventKind",
    "LeaseEnd",
    "PoolCore",
    "ProcessIdentity",
    "ShareableHandle",
    "process_start_time",
]
