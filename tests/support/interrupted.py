# SPDX-License-Identifier: Apache-2.0
"""Interrupts every operation of crossmem at every place where CPython runs signal handlers.

    python tests/support/interrupted.py BACKEND MECHANISM [STRIDE [OPERATION ...]]

The first place of an operation is chosen at random below the stride; later ones follow by it.
Prints a line for each operation, and what each interrupt left behind. It has a process of its own,
because it looks at all locks, descriptors and mappings.
"""

import gc
import json
import mmap
import os
import random
import sys
import tempfile
import threading
import time
import warnings
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np
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

import tree_actions  # type: ignore[import-not-found]  # noqa: E402

import crossmem  # noqa: E402
from crossmem.conformance import actions  # noqa: E402
from crossmem.conformance.interrupts import Interrupted, Interrupts  # noqa: E402
from crossmem.conformance.peers import Peer  # noqa: E402
from crossmem.control import descriptors  # noqa: E402
from crossmem.sharing.base.process import current  # noqa: E402
from crossmem.sharing.exporter.record import Allocations  # noqa: E402

CORE: Final = f"{ROOT}/core/crossmem/"
UNCOUNTED: Final = tuple(f"{CORE}{name}/" for name in ("bench", "cli", "conformance"))
EMULATIONS: Final = f"{ROOT}/plugins/emulated/"
DRIVERS: Final = (
    f"{ROOT}/plugins/hip/",
    f"{ROOT}/plugins/ascend/",
    *(f"{EMULATIONS}crossmem_emulated/{one}.py" for one in ("driver", "memory")),
)
NBYTES: Final = 5000
CANARY: Final = b"canary"
CLOSED_WITHIN_S: Final = 5.0


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
        runtime = None if backend == "emulated" else "emulated"
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
        gc.collect()
        crossmem.collect()
        self.baseline = self.state()

    def state(self) -> dict[str, Any]:
        """Return what an interrupt must not change for good."""
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
        state["leases there"] = sum(len(one.leases) for one in self.peer.call(actions.exports))
        driver: Any = self.device.driver
        if self.device.backend == "emulated":
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
    "view",
    "piece",
    "range",
    "mapping",
    "mappings",
    "import",
    "adopted",
    "memory",
    "shared",
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


def _put(name: str, make: Callable[[World, dict[str, Any]], Any]) -> Callable[..., None]:
    def do(world: World, kept: dict[str, Any]) -> None:
        kept[name] = make(world, kept)

    return do


def _both(*steps: Callable[..., object]) -> Callable[..., None]:
    def do(world: World, kept: dict[str, Any]) -> None:
        for step in steps:
            step(world, kept)

    return do


memory = _put("memory", lambda w, _k: w.device.allocate(NBYTES))
exported = _put("handle", lambda _w, k: k["memory"].export())
attached = _put("mapping", lambda w, _k: crossmem.attach(w.theirs[0]))
imported = _put("import", lambda w, _k: crossmem.import_handle(w.theirs[0]))
mapped = _put("mapping", lambda _w, k: k["import"].map())
reserved = _put("range", lambda w, _k: w.device.reserve(8 << 20))
placed = _put("piece", lambda _w, k: k["range"].map(k["memory"], at=0))
viewed = _put("view", lambda _w, k: k["mapping"].view())
leased = _put("mapping", lambda _w, k: crossmem.attach(k["handle"]))


def withdrawn(_world: World, kept: dict[str, Any]) -> None:
    """Withdraw what was exported, again if a handler raised."""
    kept["memory"].withdraw(kept["handle"])


class HeldThere:
    """An import of this process's memory in the other process."""

    def __init__(self, world: World, handle: crossmem.ShareableHandle) -> None:
        self.peer = world.peer
        self.peer.call(actions.attach, "held", handle.to_bytes())

    def release(self) -> None:
        """Let it end."""
        self.peer.call(actions.unmap, "held")


let_go = _put("mapping", lambda w, _k: crossmem.attach(w.theirs[0], on_owner_death="release"))


def adopted(world: World, kept: dict[str, Any]) -> None:
    """Adopt memory that crossmem's core does not know."""
    block = world.foreign
    kept["adopted"] = world.device.adopt(block.pointer, block.capacity, owner=world)


def dropped(world: World, kept: dict[str, Any]) -> None:
    """Drop a mapping, an import and memory that was never freed."""
    _both(memory, imported, attached)(world, kept)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        kept.clear()
        gc.collect()


def freed_while_leased(world: World, kept: dict[str, Any]) -> None:
    """Free memory that another process holds, and let that process end its lease."""
    _both(memory, exported)(world, kept)
    world.peer.call(actions.attach, "held", kept["handle"].to_bytes())
    kept.pop("memory").free()
    world.peer.call(actions.unmap, "held")


OPERATIONS: dict[str, Callable[[World], Step]] = {
    "allocate": operation(memory),
    "export": operation(exported, memory),
    "import": operation(imported),
    "map": operation(mapped, imported),
    "attach": operation(attached),
    "attach again": operation(
        _put("mappings", lambda w, _k: [crossmem.attach(w.theirs[0])]), attached
    ),
    "attach own": operation(leased, _both(memory, exported)),
    "attach many": operation(_put("mappings", lambda w, _k: crossmem.attach_many(w.theirs))),
    "write": operation(lambda _w, k: k["mapping"].write(b"abc"), attached),
    "read": operation(lambda _w, k: k["mapping"].read(3), attached),
    "unmap": operation(lambda _w, k: k["mapping"].unmap(), attached),
    "unmap one of two": operation(
        lambda _w, k: k["mapping"].unmap(),
        _both(attached, _put("mappings", lambda w, _k: [crossmem.attach(w.theirs[0])])),
    ),
    "unmap mapped": operation(lambda _w, k: k["mapping"].unmap(), _both(imported, mapped)),
    "close": operation(lambda _w, k: k["import"].close(), imported),
    "free": operation(lambda _w, k: k["memory"].free(), memory),
    "free exported": operation(lambda _w, k: k["memory"].free(), _both(memory, exported)),
    "free and wait": operation(
        lambda _w, k: k["memory"].free(busy="wait"), _both(memory, exported)
    ),
    "free leased": operation(lambda _w, k: k["memory"].free(), _both(memory, exported, leased)),
    "collect dropped": operation(lambda _w, _k: crossmem.collect(), dropped),
    "collect freed": operation(lambda _w, _k: crossmem.collect(), freed_while_leased),
    "withdraw": operation(withdrawn, _both(memory, exported)),
    "withdraw leased": operation(
        _both(withdrawn, lambda _w, kept: kept["mapping"].unmap()),
        _both(memory, exported, leased),
    ),
    "unmap withdrawn": operation(
        lambda _w, k: k["mapping"].unmap(), _both(memory, exported, leased, withdrawn)
    ),
    "withdraw held": operation(
        withdrawn, _both(memory, exported, _put("view", lambda w, k: HeldThere(w, k["handle"])))
    ),
    "attach to let go": operation(let_go),
    "unmap to let go": operation(lambda _w, k: k["mapping"].unmap(), let_go),
    "map to let go": operation(
        mapped,
        _put("import", lambda w, _k: crossmem.import_handle(w.theirs[0], on_owner_death="release")),
    ),
    "exports": operation(lambda _w, _k: crossmem.exports(), _both(memory, exported)),
}
HOST: dict[str, Callable[[World], Step]] = {
    "view": operation(viewed, attached),
    "share": operation(
        _put("shared", lambda w, _k: crossmem.share(np.ones(8), copy="allow", device=w.device))
    ),
    "receive": operation(_put("received", lambda w, _k: crossmem.receive(w.tree))),
}
FOREIGN: dict[str, Callable[[World], Step]] = {
    "adopt": operation(adopted),
    "export adopted": operation(lambda _w, k: k["adopted"].export(), adopted),
    "free adopted": operation(
        lambda _w, k: k["adopted"].free(),
        _both(adopted, lambda _w, k: k["adopted"].export()),
    ),
}
RANGES: dict[str, Callable[[World], Step]] = {
    "reserve": operation(reserved),
    "map at": operation(placed, _both(memory, reserved)),
    "unmap piece": operation(lambda _w, k: k["piece"].unmap(), _both(memory, reserved, placed)),
    "release": operation(lambda _w, k: k["range"].release(), reserved),
}


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
    after = world.state()
    if after != world.baseline:
        crossmem.collect()
        # A driver gives back with its next call what a thread had of the vendor for one call.
        world.device.synchronize()
        after = world.state()
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


def main(backend: str, mechanism: str, stride: int, names: list[str]) -> int:
    """Interrupt operations; return how many interrupts left something behind."""
    warnings.simplefilter("ignore")
    state = own_machine()
    world = World(backend, mechanism)
    found = dict(OPERATIONS)
    capabilities = world.device.capabilities
    if capabilities.host_visible:
        found |= HOST
    if capabilities.foreign_memory:
        found |= FOREIGN
    if capabilities.address_ranges:
        found |= RANGES
    total = failures = 0
    for name, make in found.items():
        if names and name not in names:
            continue
        # Once without an interrupt: modules that are imported at their first use are in place then.
        interrupt(world, make, 0)
        world.baseline = world.state()
        number = random.randint(1, stride)
        places = 0
        while True:
            ended, place, faults = interrupt(world, make, number)
            if faults:
                failures += 1
                print(json.dumps([name, number, place, faults]))
            if ended:
                break
            places += 1
            number += stride
        total += places
        print(f"{name}: {places} interrupts")
    world.peer.destroy()
    state.cleanup()
    print(f"{total} interrupts, {failures} left something behind")
    return 1 if failures or not total else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], int((sys.argv[3:] or ["1"])[0]), sys.argv[4:]))
