# SPDX-License-Identifier: Apache-2.0
"""The process whose operations are interrupted: its devices, its peer, and what must not change.

It is imported before any other module of crossmem, because it takes note of all locks.
"""

import gc
import mmap
import os
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from typing_extensions import override

import crossmem.locks

ROOT: Final = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests" / "integration"))

_locks: list[Any] = []
_ordered_lock = crossmem.locks.ordered_lock


def _noted(rank: Any) -> Any:
    lock = _ordered_lock(rank)
    _locks.append(weakref.ref(lock))
    return lock


# Before any other module takes the name.
crossmem.locks.ordered_lock = _noted

import pool_actions  # type: ignore[import-not-found]  # noqa: E402
import tree_actions  # type: ignore[import-not-found]  # noqa: E402

import crossmem  # noqa: E402
from crossmem.conformance import actions  # noqa: E402
from crossmem.conformance.interrupts import Interrupted, Interrupts  # noqa: E402
from crossmem.conformance.peers import Peer  # noqa: E402
from crossmem.control import descriptors  # noqa: E402
from crossmem.control.segments import HEADER_WORDS  # noqa: E402
from crossmem.sharing.base.process import current, open_pools  # noqa: E402
from crossmem.sharing.exporter.record import Allocations  # noqa: E402
from crossmem.sharing.importer.blocks import PoolImports  # noqa: E402
from crossmem.sharing.timelines.memory import Pages  # noqa: E402

CORE: Final = f"{ROOT}/core/crossmem/"
UNCOUNTED: Final = tuple(f"{CORE}{name}/" for name in ("bench", "cli", "conformance"))
EMULATIONS: Final = f"{ROOT}/plugins/emulated/"
DRIVERS: Final = (
    f"{ROOT}/plugins/hip/",
    f"{ROOT}/plugins/ascend/",
    *(f"{EMULATIONS}crossmem_emulated/{one}.py" for one in ("driver", "host", "memfd", "memory")),
)
NBYTES: Final = 5000
BLOCKS: Final = 8
"""Number of blocks of a pool."""
CANARY: Final = b"canary"
CLOSED_WITHIN_S: Final = 5.0
RELEASED_WITHIN_S: Final = 2.0
"""Limit for the reaper, and for the notice of a peer's release."""


def counts(path: str) -> bool | None:
    """Whether places in a file count; None where its caller decides."""
    if path.startswith(EMULATIONS) and not path.startswith(DRIVERS):
        return False
    if path.startswith(DRIVERS) or (path.startswith(CORE) and not path.startswith(UNCOUNTED)):
        return True
    return None


class World:
    """A device, an exporter in another process, and what must be the same after each interrupt."""

    def __init__(self, backend: str, mechanism: str) -> None:
        runtime = None if backend in {"emulated", "host"} else "emulated"
        self.device = crossmem.device(f"{backend}:0", runtime=runtime, mechanism=mechanism)
        self.peer = Peer(
            self.device.name, runtime=runtime, mechanism=mechanism, tracing=False, fresh=True
        )
        self.memory = self.device.allocate(NBYTES)
        self.handle = self.memory.export()
        self.theirs = [
            crossmem.ShareableHandle.from_bytes(
                self.peer.call(actions.offer, f"m{n}", NBYTES, b"x")
            )
            for n in range(3)
        ]
        self.pool = self.device.pool(NBYTES, BLOCKS)
        self.peer.call(pool_actions.make_here, "pool", NBYTES, BLOCKS)
        self.peer.call(pool_actions.make_here, "single", NBYTES, 1)
        self.blocks = [self.peer.call(pool_actions.give, f"b{n}", "pool") for n in range(3)]
        self.foreign: Any = None
        if self.device.capabilities.foreign_memory:
            unit = self.device.capabilities.granularity_nbytes
            self.foreign = self.device.driver.allocate(0, unit, mechanism)
        self.tree = b""
        if self.device.capabilities.host_visible:
            self.tree = self.peer.call(tree_actions.share, "tree", 1)
            # The connection for messages stays open, too.
            crossmem.receive(self.tree)
        # Connections stay open, and so do those of the peer.
        crossmem.attach_many(self.theirs)[0].unmap()
        crossmem.attach_many(self.blocks)[0].unmap()
        gc.collect()
        crossmem.collect()
        # Each interrupt collects garbage, and needs no look at the modules.
        gc.freeze()
        self.baseline = self.state()

    def state(self) -> dict[str, Any]:
        """Return what an interrupt must not change for good."""
        process = current()
        pools = process.part(PoolImports)
        # The arena of a pool stays open after the last mapping of a block.
        pools.close_idle()
        if None not in process.part(Pages)._open:
            # A call that was interrupted after it left a full page of timelines leaves no page, and
            # the next timeline opens one. So that states differ by no page, one is opened now.
            self.device.timeline().close()
        state = self.common_state()
        leases = process.start_server().leases
        state["arenas"] = len(leases.pools.arenas)
        state["imported arenas"] = len(pools.arenas), len(pools._holders), len(open_pools)
        state["own holds"] = sum(
            bool(word)
            for row in leases.pools.own_rows.values()
            for word in row[: HEADER_WORDS + leases.slots._count]
        )
        state["pool"] = str(self.pool.stats())
        state["pools there"] = [
            str(self.peer.call(pool_actions.stats, one)) for one in ("pool", "single")
        ]
        state["leases there"] = sum(len(one.leases) for one in self.peer.call(actions.exports))
        driver: Any = self.device.driver
        if self.device.backend == "host":
            pass
        elif self.device.backend == "emulated":
            state["free"] = [one.free_nbytes for one in driver._accounts]
        else:
            state["violations"] = driver.violations()
            vendor = driver._vendor
            inner = vendor.rt if self.device.backend == "hip" else vendor.acl
            emulated = inner._process
            visible = emulated.setup.visible if hasattr(emulated, "setup") else emulated.visible
            state["used"] = [emulated.store.used_nbytes(one) for one in visible]
            state["regions"] = len(emulated.space.regions)
            state["pieces"] = len(emulated.space.pieces)
            for name in ("imports", "physical", "opened_keys", "streams"):
                state[name] = len(getattr(emulated, name, ()))
        return state

    def common_state(self) -> dict[str, Any]:
        """Return what an interrupt must not change for good, whatever the device has."""
        process = current()
        # Threads of their own close what a peer sent.
        end = time.monotonic() + CLOSED_WITHIN_S
        while descriptors.is_closing() and time.monotonic() < end:
            time.sleep(0.001)
        links = []
        for name in os.listdir("/proc/self/fd"):  # noqa: PTH208
            try:
                links.append(os.readlink(f"/proc/self/fd/{name}").split(":[")[0])  # noqa: PTH115
            except FileNotFoundError:
                continue
        maps = Path("/proc/self/maps").read_text("utf-8").splitlines()
        state: dict[str, Any] = {
            "descriptors": sorted(one for one in links if not one.startswith("/proc")),
            "mappings": sum("memfd:crossmem" in one for one in maps),
            "ready": len(process.deferred.ready) + len(process.deferred.idle),
            "waiting": len(process.deferred.waiting),
            "leases": sum(len(one.leases) for one in crossmem.exports()),
            "exports": len(crossmem.exports()),
            "exported": len(process.part(Allocations).exported),
            "slots": len(process.start_server().leases.granted),
        }
        return state

    def held_locks(self) -> list[str]:
        """Return which of crossmem's locks another thread cannot have."""
        held: list[str] = []

        def look() -> None:
            for reference in _locks:
                lock = reference()
                if lock is None:
                    continue
                if lock.acquire(timeout=1):
                    lock.release()
                else:
                    held.append(repr(lock))

        looking = threading.Thread(target=look)
        looking.start()
        looking.join()
        return held


ENDED: Final = (
    "received",
    "buffer",
    "opened",
    "queue",
    "message",
    "view",
    "array",
    "piece",
    "range",
    "mapping",
    "mappings",
    "import",
    "adopted",
    "memory",
    "shared",
    "block",
    "blocks",
    "pool",
)


class Step:
    """One operation: what it needs, the operation itself, and how what it left is ended."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.kept: dict[str, Any] = {}

    def prepare(self) -> None:
        """Make what the operation needs."""

    def run(self) -> None:
        """Do what is interrupted."""

    def end(self) -> None:
        """End what is open still, through the public API, and let the objects go."""
        # Views first: what they show is not given back before them.
        for name in ENDED:
            found = self.kept.pop(name, None)
            for one in found if isinstance(found, list) else [found]:
                if one is None:
                    continue
                for method in ("unmap", "release", "close", "free"):
                    if hasattr(one, method):
                        getattr(one, method)()
                        break
        self.kept.clear()


def operation(
    run: Callable[[World, dict[str, Any]], object],
    prepare: Callable[[World, dict[str, Any]], object] = lambda _world, _kept: None,
) -> Callable[[World], Step]:
    """Return a class of steps for two functions."""

    class Made(Step):
        @override
        def prepare(self) -> None:
            prepare(self.world, self.kept)

        @override
        def run(self) -> None:
            run(self.world, self.kept)

    return Made


def put(name: str, make: Callable[[World, dict[str, Any]], Any]) -> Callable[..., None]:
    def do(world: World, kept: dict[str, Any]) -> None:
        kept[name] = make(world, kept)

    return do


def both(*steps: Callable[..., object]) -> Callable[..., None]:
    def do(world: World, kept: dict[str, Any]) -> None:
        for step in steps:
            step(world, kept)

    return do


class HeldThere:
    """An import of this process's memory in the other process."""

    def __init__(self, world: World, handle: crossmem.ShareableHandle) -> None:
        self.peer = world.peer
        self.peer.call(actions.attach, "held", handle.to_bytes())

    def release(self) -> None:
        """Let it end."""
        self.peer.call(actions.unmap, "held")


def canaries() -> tuple[list[mmap.mmap], list[int]]:
    """Take addresses and descriptors that crossmem may have just given back."""
    maps = [mmap.mmap(-1, 2 << 20) for _ in range(2)]
    for one in maps:
        one[: len(CANARY)] = CANARY
    return maps, [os.open("/dev/null", os.O_RDONLY) for _ in range(3)]


def check_canaries(maps: list[mmap.mmap], descriptors: list[int]) -> list[str]:
    """Return what was taken from us."""
    wrong = [f"memory {one!r}" for one in maps if one[: len(CANARY)] != CANARY]
    for descriptor in descriptors:
        try:
            if os.readlink(f"/proc/self/fd/{descriptor}") != "/dev/null":  # noqa: PTH115
                wrong.append(f"descriptor {descriptor}")
            os.close(descriptor)
        except OSError as error:
            wrong.append(f"descriptor {descriptor}: {error}")
    for one in maps:
        one.close()
    return wrong


def end(step: Step, *, with_garbage: bool = True) -> list[str]:
    """End what an operation began; return what is wrong, and what was taken from others."""
    taken = canaries()
    wrong: list[str] = []
    try:
        step.end()
    except crossmem.CrossmemError as error:
        wrong.append(f"ending: {error!r}")
    if with_garbage:
        gc.collect()
    crossmem.collect()
    return wrong + check_canaries(*taken)


def settled(world: World) -> dict[str, Any]:
    """Return the state when it is as before, or after a while."""
    deadline = time.monotonic() + RELEASED_WITHIN_S
    while (after := world.state()) != world.baseline and time.monotonic() < deadline:
        crossmem.collect()
        # A driver gives back with its next call what a thread had of the vendor for one call.
        world.device.synchronize()
    return after


def interrupt(
    world: World, make: Callable[[World], Step], number: int
) -> tuple[bool, str, list[str]]:
    """Run an operation with one interrupt; return whether it ended before, and what is wrong."""
    step = make(world)
    step.prepare()
    ended = False
    interrupts = Interrupts(number, counts)
    try:
        with interrupts:
            step.run()
        ended = True
    except Interrupted as error:
        error.__traceback__ = None
    faults = end(step)
    del step
    faults += [f"lock {one} is held" for one in world.held_locks()]
    after = settled(world)
    faults += [
        f"{name}: {value} (was {world.baseline[name]})"
        for name, value in after.items()
        if value != world.baseline[name]
    ]
    if after != world.baseline:
        world.baseline = after
    return ended, interrupts.place, faults


def own_machine() -> "tempfile.TemporaryDirectory[str]":
    """Make emulated devices of this process's own: what others do there would be counted."""
    state = tempfile.TemporaryDirectory(prefix="crossmem-", dir="/dev/shm")
    os.environ["CROSSMEM_EMULATED_STATE"] = state.name
    return state
