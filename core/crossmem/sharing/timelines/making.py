# SPDX-License-Identifier: Apache-2.0
"""The function by which a process makes a timeline that it can signal."""

import os

from crossmem.control.records import Allow
from crossmem.errors import UnsupportedError
from crossmem.guards import check_choice
from crossmem.models import TIMELINE_LEVELS, TimelineHandle, TimelineLevel
from crossmem.sharing.base.devices import LocalDevice
from crossmem.sharing.base.process import Process
from crossmem.sharing.timelines.cell import IDENTITY
from crossmem.sharing.timelines.memory import Pages
from crossmem.sharing.timelines.record import TimelineRecord
from crossmem.sharing.timelines.timeline import Timeline

__all__ = ["make_timeline"]


def make_timeline(
    process: Process, device: LocalDevice, level: TimelineLevel | None, allow: Allow | None
) -> Timeline:
    """Make a timeline; see :meth:`crossmem.Device.timeline`."""
    offered = device.capabilities.timeline_levels
    if level is not None:
        check_choice("level", level, TIMELINE_LEVELS, "timeline")
        if level not in offered:
            msg = f"{device.name} does not offer timelines of level {level!r}"
            hint = f"choose one of {', '.join(offered)}, or leave out level="
            raise UnsupportedError(msg, operation="timeline", hint=hint, backend=device.backend)
    chosen = level or offered[0]
    pages = process.part(Pages)
    place = pages.take_page(allow) if chosen == "event" else pages.take(allow)
    identity = int.from_bytes(os.urandom(8), "little") | 1
    place.cell.write(IDENTITY, identity)
    handle = TimelineHandle(place.handle, identity, chosen, device.backend, device.identity)
    record = TimelineRecord(process, handle, place.cell, device, place.page)
    try:
        place.page.users.add(record)
        pages.signalled[record] = None
        return Timeline(record)
    except BaseException:
        process.deferred.ready[record] = None
        process.drain()
        raise
