# SPDX-License-Identifier: Apache-2.0
"""The segments, buffers, eventfds and handles of a queue, in the process that owns it."""

import base64
import json
import os
import weakref
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from typing import Final

from crossmem.control.limits import name_limit
from crossmem.control.records import Allow, Export
from crossmem.driver import Exported
from crossmem.models import Access, ShareableHandle
from crossmem.models.queue_handle import ROLES, QueueRole
from crossmem.sharing.base.devices import LocalDevice, find_device
from crossmem.sharing.base.memory import Memory, leave_to_views, usage_of
from crossmem.sharing.base.process import Process
from crossmem.sharing.exporter.allocation import Allocation, allocate
from crossmem.sharing.queues.layout import Terms
from crossmem.sharing.queues.opened import Opened

__all__ = ["LENGTH_NBYTES", "Segments"]

_HOST: Final = "host"
LENGTH_NBYTES: Final = 8
"""Size in bytes of the length field at the start of a directory. The directory's text follows."""


class Segments:
    """The memory and the eventfds of a queue that this process owns.

    Parameters
    ----------
    process, device
        This process, and the device of the buffers.
    allow
        The processes that may open the queue.
    """

    def __init__(
        self, process: Process, device: LocalDevice, terms: Terms, allow: Allow | None
    ) -> None:
        self._process = process
        self._allow = allow
        self._memory: list[Memory] = []
        self._views: list[memoryview] = []
        self._bells: list[int] = []
        self._shared: list[tuple[Export, Exported]] = []
        """The exports that carry a bell. Beside each export is its original :class:`Exported`, to
        which the bell was not added."""
        self.exclusive: list[Export] = []
        """The exports of the rings, then of the places. The process that holds such an export has
        the ring or place."""
        self.directories: dict[QueueRole, ShareableHandle] = {}
        """For each role, the handle of the directory."""
        try:
            for nwords in terms.sizes:
                self._add_segment(bytes(8 * nwords))
            arena = allocate(process, device, terms.stride * terms.depth * terms.producers)
            self._memory.append(arena)
            for role in ROLES:
                self.directories[role] = self._make_directory(role, terms, arena)
        except BaseException:
            self._take_bells_back()
            for view in self._views:
                view.release()
            for memory in self._memory:
                memory._end()
            _close_all(self._bells)
            raise
        control, *segments = (view.cast("Q") for view in self._views)
        self.opened = Opened(
            process,
            device,
            terms,
            control,
            segments,
            self._bells[0],
            self._bells[1:],
            arena.ptr,
            usage_of(arena),
            self._memory,
            lambda: True,
        )
        # A buffer of this process may outlive the queue, and the release of the buffer rings a
        # bell. So the bells stay open until no buffer refers to ``opened``.
        weakref.finalize(self.opened, _close_all, self._bells).atexit = False

    def _add_memory(self, contents: bytes) -> Allocation:
        made = allocate(self._process, find_device(self._process, _HOST, None), len(contents))
        self._memory.append(made)
        made.write(contents)
        return made

    def _add_segment(self, contents: bytes) -> None:
        memory, is_control = self._add_memory(contents), not self._bells
        self._views.append(memory.view())
        with name_limit("eventfd"):
            self._bells.append(os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK))
        shared = self._export(memory, "ro")
        # A process that imports the segment also receives the bell of the segment.
        self._shared.append((shared, shared.exported))
        descriptors = (*shared.exported.descriptors, self._bells[-1])
        shared.exported = Exported(shared.exported.payloads, descriptors)
        if not is_control:
            own = self._export(memory, "rw")
            own.is_exclusive = True
            self.exclusive.append(own)

    def _export(self, memory: Allocation, access: Access) -> Export:
        handle = memory.export(allow=self._allow, access=access)
        return self._process.start_server().leases.exports.get(handle.allocation, handle.export)

    def _make_directory(self, role: QueueRole, terms: Terms, arena: Allocation) -> ShareableHandle:
        is_reader = role == "consume" and terms.delivery == "each"
        is_guarded = is_reader and arena.device.capabilities.readonly_exports
        named = [self._export(arena, "ro" if is_guarded else "rw")]
        named += [shared for shared, _exported in self._shared]
        places = slice(terms.producers) if role == "produce" else slice(terms.producers, None)
        text = json.dumps(
            {
                "role": role,
                "terms": asdict(terms),
                "shared": [_text(one) for one in named],
                "mine": [_text(one) for one in self.exclusive[places]],
            }
        ).encode()
        made = self._add_memory(len(text).to_bytes(LENGTH_NBYTES, "little") + text)
        return made.export(allow=self._allow, access="ro")

    def watch(self, on_bell: Callable[[], object], on_death: Callable[[int], object]) -> None:
        """Register the functions that handle the owner's bell and the deaths of processes.

        Parameters
        ----------
        on_bell
            The lease server's thread calls this function after the owner's bell has rung.
        on_death
            Called after the death of a process that was granted a ring or place. The argument is
            the index of this ring or place in ``exclusive``. Any thread may call this function.
        """
        for place, export in enumerate(self.exclusive):
            export.on_death = partial(on_death, place)
        self._process.start_server().watch(self._bells[0], on_bell)

    def free(self) -> None:
        """Free the memory as soon as neither this process nor an importer uses it."""
        self._process.start_server().unwatch(self._bells[0])
        for export in self.exclusive:
            export.on_death = None
        self._take_bells_back()
        for memory in self._memory:
            leave_to_views(memory)

    def _take_bells_back(self) -> None:
        for shared, exported in self._shared:
            shared.exported = exported


def _text(export: Export) -> str:
    return base64.b64encode(export.handle.to_bytes()).decode()


def _close_all(descriptors: list[int]) -> None:
    while descriptors:
        os.close(descriptors.pop())
