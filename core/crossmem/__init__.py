# SPDX-License-Identifier: Apache-2.0
"""Share device memory between the processes of one host, without copying it.

One process exports an allocation, and other processes attach it::

    allocation = crossmem.device("host").allocate(nbytes)
    blob = allocation.export().to_bytes()      # send these bytes in any way

    with crossmem.attach(blob) as mapping:     # in another process
        mapping.view()

A lease keeps the exporter from freeing memory that an importer still uses. The capability
``survives_owner`` says whether importers keep the memory when the exporter exits or dies. Every
backend keeps the laws C1 to C30, which the documentation lists.
"""

import typing

from crossmem import lazy
from crossmem._version import __version__

# This import registers the process for membarrier.
from crossmem.control import barrier as _barrier  # noqa: F401 - see above

if typing.TYPE_CHECKING:
    from crossmem.activation import install
    from crossmem.control.records import Allow
    from crossmem.errors import (
        AccessDeniedError,
        BackendNotFoundError,
        BackendUnavailableError,
        BusyError,
        ClosedError,
        ConfigurationError,
        CrossmemError,
        DeviceNotFoundError,
        DriverError,
        ForkedProcessError,
        InvalidHandleError,
        InvalidSizeError,
        OutOfMemoryError,
        OwnerGoneError,
        OwnerUnresponsiveError,
        QueueEmptyError,
        QueueFullError,
        StaleHandleError,
        UnsupportedError,
        WaitTimeoutError,
        WrongHostError,
    )
    from crossmem.models import Capabilities, DeviceInfo, ShareableHandle, TimelineHandle
    from crossmem.models.queue_handle import QueueHandle
    from crossmem.sharing.device import Device, device, devices
    from crossmem.sharing.exporter.adoption import Adoption
    from crossmem.sharing.exporter.allocation import Allocation
    from crossmem.sharing.exporter.pool_report import PoolStats
    from crossmem.sharing.exporter.report import ExportInfo, LeaseInfo, collect, exports
    from crossmem.sharing.exporter.share_report import ShareReport, ShareWay, how_can_share
    from crossmem.sharing.importer.attach import attach, attach_many, import_handle
    from crossmem.sharing.importer.mapping import Import, Mapping
    from crossmem.sharing.pools.block import Block
    from crossmem.sharing.pools.pool import Pool
    from crossmem.sharing.queues.buffer import SharedBuffer
    from crossmem.sharing.queues.making import open_queue
    from crossmem.sharing.queues.queue import Queue
    from crossmem.sharing.queues.stats import QueueStats
    from crossmem.sharing.ranges.address_range import AddressRange, Piece
    from crossmem.sharing.timelines.timeline import Timeline, open_timeline
    from crossmem.trees.new_arrays import empty, empty_like
    from crossmem.trees.receive import receive
    from crossmem.trees.share import share
    from crossmem.trees.shared import Shared
else:
    # The first use of a name imports the name's module. So a framework that imports crossmem
    # without using it loses almost no time.
    __getattr__, __dir__ = lazy.names(
        __name__,
        {
            "crossmem.activation": ("install",),
            "crossmem.control.records": ("Allow",),
            "crossmem.errors": (
                "AccessDeniedError",
                "BackendNotFoundError",
                "BackendUnavailableError",
                "BusyError",
                "ClosedError",
                "ConfigurationError",
                "CrossmemError",
                "DeviceNotFoundError",
                "DriverError",
                "ForkedProcessError",
                "InvalidHandleError",
                "InvalidSizeError",
                "OutOfMemoryError",
                "OwnerGoneError",
                "OwnerUnresponsiveError",
                "QueueEmptyError",
                "QueueFullError",
                "StaleHandleError",
                "UnsupportedError",
                "WaitTimeoutError",
                "WrongHostError",
            ),
            "crossmem.models": (
                "Capabilities",
                "DeviceInfo",
                "ShareableHandle",
                "TimelineHandle",
            ),
            "crossmem.sharing.device": ("Device", "device", "devices"),
            "crossmem.models.queue_handle": ("QueueHandle",),
            "crossmem.sharing.exporter.adoption": ("Adoption",),
            "crossmem.sharing.exporter.allocation": ("Allocation",),
            "crossmem.sharing.exporter.pool_report": ("PoolStats",),
            "crossmem.sharing.exporter.report": ("ExportInfo", "LeaseInfo", "collect", "exports"),
            "crossmem.sharing.exporter.share_report": ("ShareReport", "ShareWay", "how_can_share"),
            "crossmem.sharing.importer.attach": ("attach", "attach_many", "import_handle"),
            "crossmem.sharing.importer.mapping": ("Import", "Mapping"),
            "crossmem.sharing.pools.block": ("Block",),
            "crossmem.sharing.pools.pool": ("Pool",),
            "crossmem.sharing.queues.buffer": ("SharedBuffer",),
            "crossmem.sharing.queues.making": ("open_queue",),
            "crossmem.sharing.queues.queue": ("Queue",),
            "crossmem.sharing.queues.stats": ("QueueStats",),
            "crossmem.sharing.ranges.address_range": ("AddressRange", "Piece"),
            "crossmem.sharing.timelines.timeline": ("Timeline", "open_timeline"),
            "crossmem.trees.new_arrays": ("empty", "empty_like"),
            "crossmem.trees.receive": ("receive",),
            "crossmem.trees.share": ("share",),
            "crossmem.trees.shared": ("Shared",),
        },
    )

__all__ = [
    "AccessDeniedError",
    "AddressRange",
    "Adoption",
    "Allocation",
    "Allow",
    "BackendNotFoundError",
    "BackendUnavailableError",
    "Block",
    "BusyError",
    "Capabilities",
    "ClosedError",
    "ConfigurationError",
    "CrossmemError",
    "Device",
    "DeviceInfo",
    "DeviceNotFoundError",
    "DriverError",
    "ExportInfo",
    "ForkedProcessError",
    "Import",
    "InvalidHandleError",
    "InvalidSizeError",
    "LeaseInfo",
    "Mapping",
    "OutOfMemoryError",
    "OwnerGoneError",
    "OwnerUnresponsiveError",
    "Piece",
    "Pool",
    "PoolStats",
    "Queue",
    "QueueEmptyError",
    "QueueFullError",
    "QueueHandle",
    "QueueStats",
    "ShareReport",
    "ShareWay",
    "ShareableHandle",
    "Shared",
    "SharedBuffer",
    "StaleHandleError",
    "Timeline",
    "TimelineHandle",
    "UnsupportedError",
    "WaitTimeoutError",
    "WrongHostError",
    "__version__",
    "attach",
    "attach_many",
    "collect",
    "device",
    "devices",
    "empty",
    "empty_like",
    "exports",
    "how_can_share",
    "import_handle",
    "install",
    "open_queue",
    "open_timeline",
    "receive",
    "share",
]
