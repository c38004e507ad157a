# SPDX-License-Identifier: Apache-2.0
"""The operations of Ascend's own queues that are interrupted, and their world."""

import os
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from typing_extensions import override

# isort: split
from interrupted_world import Step, World, both, operation, put

# isort: split
import gc

import crossmem
from crossmem.conformance import queues_of_tests as queues
from crossmem.conformance.peers import Peer
from crossmem.conformance.resources import collect_of_vendor
from crossmem.sharing.base.process import current
from crossmem.sharing.queues.places import TakenPlaces
from crossmem.sharing.queues.vendor_buffer import VendorBuffers
from crossmem.sharing.queues.vendor_record import VendorQueueTable

VARIABLES: Final = {
    "CROSSMEM_EMULATED_ACL_PROFILE": "310b-rc",
    "CROSSMEM_EMULATED_ACL_GROUP": "group",
    "SHAREGROUP_PRECONFIG": "1",
}
"""Programs on the device's own processor, in one memory group."""


class QueueWorld(World):
    """A device that has only queues, and the owner of another queue in another process."""

    def __init__(self, backend: str, mechanism: str) -> None:
        os.environ.update(VARIABLES)
        device = f"{backend}:0"
        self.device = crossmem.device(device, runtime="emulated", mechanism=mechanism)
        self.peer = Peer(device, runtime="emulated", mechanism=mechanism, tracing=False, fresh=True)
        self.roles = self.peer.call(queues.make, "queue", 64)
        # The lease server and the connection stay open, and so do those of the peer.
        with crossmem.open_queue(self.roles["consume"], device=self.device):
            self.device.queue(1, 64, consumers=1).close()
        gc.collect()
        crossmem.collect()
        gc.freeze()
        self.baseline = self.state()

    @override
    def state(self) -> dict[str, Any]:
        """Return what an interrupt must not change for good."""
        process = current()
        # Memory of buffers goes back with the vendor's next call.
        collect_of_vendor(self.device)
        driver: Any = self.device.driver
        emulated = driver._vendor.acl._process
        with emulated.machine.transaction() as tables:
            counts = {
                name: tables.execute(f"SELECT count(*) FROM {name}").fetchone()[0]  # noqa: S608
                for name in ("acl_queue", "acl_mbuf")
            }
        return {
            **self.common_state(),
            **counts,
            "violations": driver.violations(),
            "buffers": len(emulated.tdt.buffers),
            "objects": len(emulated.tdt.objects),
            "buffers here": len(process.part(VendorBuffers).live),
            "queues here": len(process.part(VendorQueueTable).live),
            "places": len(process.part(TakenPlaces).taken),
        }


queue = put("queue", lambda w, _k: w.device.queue(2, 64, consumers=1))
buffer = put("buffer", lambda _w, k: k["queue"].allocate())
received = put("received", lambda _w, k: k["queue"].get(timeout=0))


def opened(world: World, kept: dict[str, Any]) -> None:
    """Open the other process's queue."""
    assert isinstance(world, QueueWorld)
    kept["opened"] = crossmem.open_queue(world.roles["consume"], device=world.device)


def copied(_world: World, kept: dict[str, Any]) -> None:
    """Put a copy into the own queue."""
    kept["queue"].put(b"data", copy="allow", timeout=0)


def handed_over(_world: World, kept: dict[str, Any]) -> None:
    """Put the buffer, and check that it is either the application's or handed over."""
    mine = kept["buffer"]
    try:
        kept["queue"].put(mine, timeout=0)
    finally:
        if not mine.closed:
            mine.write(b"still mine")


def sent(world: World, _kept: dict[str, Any]) -> None:
    """Let the other process put a buffer into its queue."""
    world.peer.call(queues.put, "queue", [1])


def got(_world: World, kept: dict[str, Any]) -> None:
    """Receive what the other process has put, at most once."""
    found = kept["opened"].get(timeout=0)
    found.release()


def drained(world: World, _kept: dict[str, Any]) -> None:
    """Let the other process take what was not received."""
    world.peer.call(_drain, "queue")


def _drain(name: str) -> None:
    with suppress(crossmem.QueueEmptyError):
        while True:
            queues.get(name, timeout=0)


def nothing(_world: World, kept: dict[str, Any]) -> None:
    """Wait in vain."""
    with suppress(crossmem.QueueEmptyError):
        kept["queue"].get(timeout=0.002)


class Got(Step):
    """Receive what another process has put."""

    @override
    def prepare(self) -> None:
        both(opened, sent)(self.world, self.kept)

    @override
    def run(self) -> None:
        got(self.world, self.kept)

    @override
    def end(self) -> None:
        super().end()
        crossmem.collect()
        drained(self.world, self.kept)


VENDOR_QUEUES: Final[dict[str, Callable[[World], Step]]] = {
    "make": operation(queue),
    "open": operation(opened),
    "allocate": operation(buffer, queue),
    "allocate again": operation(buffer, both(queue, lambda _w, k: k["queue"].allocate().release())),
    "write": operation(lambda _w, k: k["buffer"].write(b"abc"), both(queue, buffer)),
    "put": operation(handed_over, both(queue, buffer)),
    "put a copy": operation(copied, queue),
    "get": operation(received, both(queue, copied)),
    "get of another": Got,
    "get many": operation(
        put("received", lambda _w, k: k["queue"].get_many(2, timeout=0)),
        both(queue, copied, copied),
    ),
    "get nothing": operation(nothing, both(queue, copied, received)),
    "release": operation(lambda _w, k: k["received"].release(), both(queue, copied, received)),
    "release unput": operation(lambda _w, k: k["buffer"].release(), both(queue, buffer)),
    "close": operation(lambda _w, k: k["queue"].close(), both(queue, copied)),
    "close opened": operation(lambda _w, k: k["opened"].close(), opened),
    "export": operation(lambda _w, k: k["queue"].export(role="produce"), queue),
}
