# SPDX-License-Identifier: Apache-2.0
"""Data types whose values pass between processes, or between core and plugins."""

from crossmem.models.block_handle import BlockHandle, PoolCore
from crossmem.models.capabilities import TIMELINE_LEVELS, Capabilities, LeaseEnd, TimelineLevel
from crossmem.models.device import DeviceInfo
from crossmem.models.events import Event, EventKind
from crossmem.models.handle import MAX_HANDLE_NBYTES, ShareableHandle
from crossmem.models.handle_core import Access
from crossmem.models.identity import ProcessIdentity, process_start_time
from crossmem.models.queue_handle import QueueRole
from crossmem.models.ready_handle import ReadyHandle
from crossmem.models.timeline_handle import TimelineHandle

__all__ = [
    "MAX_HANDLE_NBYTES",
    "TIMELINE_LEVELS",
    "Access",
    "BlockHandle",
    "Capabilities",
    "DeviceInfo",
    "Event",
    "EventKind",
    "LeaseEnd",
    "PoolCore",
    "ProcessIdentity",
    "QueueRole",
    "ReadyHandle",
    "ShareableHandle",
    "TimelineHandle",
    "TimelineLevel",
    "process_start_time",
]
