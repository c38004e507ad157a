# SPDX-License-Identifier: Apache-2.0
"""Interrupts every operation of crossmem at every place where CPython runs signal handlers.

    python tests/support/interrupted.py BACKEND MECHANISM [STRIDE [OPERATION ...]]

The first place of an operation is chosen at random below the stride; later ones follow by it.
Prints a line for each operation, and what each interrupt left behind. It has a process of its own,
because it looks at all locks, descriptors and mappings.
"""

import gc
import json
import random
import sys
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

# It takes note of all locks, so it comes before any other module of crossmem.
from interrupted_world import (
    NBYTES,
    HeldThere,
    Step,
    World,
    both,
    interrupt,
    operation,
    own_machine,
    put,
)

# isort: split
from interrupted_acltdt import VENDOR_QUEUES, QueueWorld
from interrupted_pools import HOST_PICKLES, HOST_POOLS, PICKLES, POOLS, STREAM_POOLS
from interrupted_timelines import EVENTS, HOST_TIMELINES, STREAMS, TIMELINES

import crossmem
from crossmem.conformance import actions
from crossmem.driver.groups import streams_of

memory = put("memory", lambda w, _k: w.device.allocate(NBYTES))
exported = put("handle", lambda _w, k: k["memory"].export())
attached = put("mapping", lambda w, _k: crossmem.attach(w.theirs[0]))
imported = put("import", lambda w, _k: crossmem.import_handle(w.theirs[0]))
mapped = put("mapping", lambda _w, k: k["import"].map())
reserved = put("range", lambda w, _k: w.device.reserve(8 << 20))
placed = put("piece", lambda _w, k: k["range"].map(k["memory"], at=0))
viewed = put("view", lambda _w, k: k["mapping"].view())
leased = put("mapping", lambda _w, k: crossmem.attach(k["handle"]))


def withdrawn(_world: World, kept: dict[str, Any]) -> None:
    """Withdraw what was exported, again if a handler raised."""
    kept["memory"].withdraw(kept["handle"])


let_go = put("mapping", lambda w, _k: crossmem.attach(w.theirs[0], on_owner_death="release"))


def adopted(world: World, kept: dict[str, Any]) -> None:
    """Adopt memory that crossmem's core does not know."""
    block = world.foreign
    kept["adopted"] = world.device.adopt(block.pointer, block.capacity, owner=world)


def dropped(world: World, kept: dict[str, Any]) -> None:
    """Drop a mapping, an import and memory that was never freed."""
    both(memory, imported, attached)(world, kept)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        kept.clear()
        gc.collect()


def freed_while_leased(world: World, kept: dict[str, Any]) -> None:
    """Free memory that another process holds, and let that process end its lease."""
    both(memory, exported)(world, kept)
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
        put("mappings", lambda w, _k: [crossmem.attach(w.theirs[0])]), attached
    ),
    "attach own": operation(leased, both(memory, exported)),
    "attach many": operation(put("mappings", lambda w, _k: crossmem.attach_many(w.theirs))),
    "write": operation(lambda _w, k: k["mapping"].write(b"abc"), attached),
    "read": operation(lambda _w, k: k["mapping"].read(3), attached),
    "unmap": operation(lambda _w, k: k["mapping"].unmap(), attached),
    "unmap one of two": operation(
        lambda _w, k: k["mapping"].unmap(),
        both(attached, put("mappings", lambda w, _k: [crossmem.attach(w.theirs[0])])),
    ),
    "unmap mapped": operation(lambda _w, k: k["mapping"].unmap(), both(imported, mapped)),
    "close": operation(lambda _w, k: k["import"].close(), imported),
    "free": operation(lambda _w, k: k["memory"].free(), memory),
    "free exported": operation(lambda _w, k: k["memory"].free(), both(memory, exported)),
    "free and wait": operation(lambda _w, k: k["memory"].free(busy="wait"), both(memory, exported)),
    "free leased": operation(lambda _w, k: k["memory"].free(), both(memory, exported, leased)),
    "collect dropped": operation(lambda _w, _k: crossmem.collect(), dropped),
    "collect freed": operation(lambda _w, _k: crossmem.collect(), freed_while_leased),
    "withdraw": operation(withdrawn, both(memory, exported)),
    "withdraw leased": operation(
        both(withdrawn, lambda _w, kept: kept["mapping"].unmap()),
        both(memory, exported, leased),
    ),
    "unmap withdrawn": operation(
        lambda _w, k: k["mapping"].unmap(), both(memory, exported, leased, withdrawn)
    ),
    "withdraw held": operation(
        withdrawn, both(memory, exported, put("view", lambda w, k: HeldThere(w, k["handle"])))
    ),
    "attach to let go": operation(let_go),
    "unmap to let go": operation(lambda _w, k: k["mapping"].unmap(), let_go),
    "map to let go": operation(
        mapped,
        put("import", lambda w, _k: crossmem.import_handle(w.theirs[0], on_owner_death="release")),
    ),
    "exports": operation(lambda _w, _k: crossmem.exports(), both(memory, exported)),
}
HOST: dict[str, Callable[[World], Step]] = {
    "view": operation(viewed, attached),
    "share": operation(
        put("shared", lambda w, _k: crossmem.share(np.ones(8), copy="allow", device=w.device))
    ),
    "receive": operation(put("received", lambda w, _k: crossmem.receive(w.tree))),
}
FOREIGN: dict[str, Callable[[World], Step]] = {
    "adopt": operation(adopted),
    "export adopted": operation(lambda _w, k: k["adopted"].export(), adopted),
    "free adopted": operation(
        lambda _w, k: k["adopted"].free(),
        both(adopted, lambda _w, k: k["adopted"].export()),
    ),
}
RANGES: dict[str, Callable[[World], Step]] = {
    "reserve": operation(reserved),
    "map at": operation(placed, both(memory, reserved)),
    "unmap piece": operation(lambda _w, k: k["piece"].unmap(), both(memory, reserved, placed)),
    "release": operation(lambda _w, k: k["range"].release(), reserved),
}


def operations_of(world: World) -> dict[str, Callable[[World], Step]]:
    """Return the operations that a device has."""
    if isinstance(world, QueueWorld):
        return VENDOR_QUEUES
    found = OPERATIONS | POOLS | PICKLES | TIMELINES
    capabilities = world.device.capabilities
    if capabilities.host_visible:
        found |= HOST | HOST_POOLS | HOST_PICKLES | HOST_TIMELINES
    if streams_of(world.device.driver) is not None:
        found |= STREAMS | STREAM_POOLS
    if "event" in capabilities.timeline_levels:
        found |= EVENTS
    if capabilities.foreign_memory:
        found |= FOREIGN
    if capabilities.address_ranges:
        found |= RANGES
    return found


def main(backend: str, mechanism: str, stride: int, names: list[str]) -> int:
    """Interrupt operations; return how many interrupts left something behind."""
    warnings.simplefilter("ignore")
    state = own_machine()
    world = (QueueWorld if mechanism == "acltdt" else World)(backend, mechanism)
    total = failures = 0
    for name, make in operations_of(world).items():
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
