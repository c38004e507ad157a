# SPDX-License-Identifier: Apache-2.0
"""The operations of pools and of their blocks, for interrupted.py and alarms.py."""

import gc
import warnings
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.reduction import ForkingPickler
from typing import Any, Final

import numpy as np
from interrupted_world import BLOCKS, NBYTES, HeldThere, Step, World, both, operation, put

# isort: split
import pool_actions  # type: ignore[import-not-found]
from typing_extensions import override

import crossmem
from crossmem.conformance import blocks
from crossmem.multiprocessing import discard as discard_pickled
from crossmem.sharing.base.process import current
from crossmem.sharing.importer.attach import attach_reserved
from crossmem.sharing.importer.blocks import PoolImports
from crossmem.sharing.importer.messages import discard, reserve

SOON_S: Final = 0.002
"""How long a peer keeps a block that this process waits for."""

Steps = Callable[..., None]


class Held(HeldThere):
    """A block of this process in the other process."""

    @override
    def release(self) -> None:
        """End the hold, and close the pool there."""
        super().release()
        self.peer.call(blocks.close_idle)


class HeldForAMoment(Held):
    """A block that the other process soon releases."""

    def __init__(self, world: World, handle: crossmem.ShareableHandle) -> None:
        super().__init__(world, handle)
        self.pending = self.peer.start(pool_actions.unmap_after, "held", SOON_S)

    @override
    def release(self) -> None:
        """Wait until the hold has ended, and close the pool there."""
        self.pending.result()
        self.peer.call(blocks.close_idle)


class Sent:
    """A message with reservations."""

    def __init__(self) -> None:
        self.pairs: list[tuple[crossmem.ShareableHandle, int]] = []

    def release(self) -> None:
        """End the reservations, if no receiver has."""
        discard(self.pairs)


class Pickled:
    """A message of multiprocessing."""

    def __init__(self, obj: object) -> None:
        self.blob = bytes(ForkingPickler.dumps(obj))

    def release(self) -> None:
        """End the reservations, if no receiver has."""
        discard_pickled(self.blob)


def reserved(_world: World, kept: dict[str, Any]) -> None:
    """Reserve a block for a message."""
    sent = kept["message"] = Sent()
    reserve([kept["handle"]], message=sent.pairs)


def reserved_there(world: World, kept: dict[str, Any]) -> None:
    """Let the other process reserve blocks for a message."""
    sent = kept["message"] = Sent()
    for blob, number in world.peer.call(pool_actions.send, ["b0", "b1"]):
        sent.pairs.append((crossmem.ShareableHandle.from_bytes(blob), number))


def then_free(_world: World, kept: dict[str, Any]) -> None:
    """Free a block."""
    kept["block"].free()


def then_close(_world: World, kept: dict[str, Any]) -> None:
    """Close a pool."""
    kept["pool"].close()


def then_unmap(_world: World, kept: dict[str, Any]) -> None:
    """End a mapping."""
    kept["mapping"].unmap()


pooled = put("pool", lambda w, _k: w.device.pool(NBYTES, 2))
block = put("block", lambda w, _k: w.pool.allocate())
block_of_pooled = put("block", lambda _w, k: k["pool"].allocate())
exported = put("handle", lambda _w, k: k["block"].export())
made = both(pooled, block_of_pooled, exported)
shared = both(block, exported)
opened = put("view", lambda w, _k: crossmem.attach(w.blocks[1]))
attached = put("mapping", lambda w, _k: crossmem.attach(w.blocks[0]))
decoded = put(
    "mapping",
    lambda w, _k: crossmem.attach(crossmem.ShareableHandle.from_bytes(w.blocks[0])),
)
readonly = put("mapping", lambda w, _k: crossmem.attach(w.blocks[0], readonly=True))
attached_many = put("mappings", lambda w, _k: crossmem.attach_many(w.blocks))
attached_all = put("mappings", lambda w, _k: crossmem.attach_many([*w.theirs, *w.blocks]))
imported = put("import", lambda w, _k: crossmem.import_handle(w.blocks[0]))
mapped = put("mapping", lambda _w, k: k["import"].map())
leased = put("mapping", lambda _w, k: crossmem.attach(k["handle"]))
let_go = put("mapping", lambda w, _k: crossmem.attach(w.blocks[0], on_owner_death="release"))
others = put("blocks", lambda _w, k: [k["pool"].allocate()])
held = put("view", lambda w, k: Held(w, k["handle"]))
held_for_a_moment = put("view", lambda w, k: HeldForAMoment(w, k["handle"]))
pickled = put("message", lambda _w, k: Pickled(k["block"]))
pickled_mapping = put("message", lambda _w, k: Pickled(k["mapping"]))
received = put("mappings", lambda _w, k: attach_reserved(k["message"].pairs))
filled = put("array", lambda w, _k: crossmem.empty(8, "uint8", pool=w.pool))
tree = put("shared", lambda w, _k: crossmem.share(np.ones(8), copy=True, pool=w.pool))


def all_but_one_of_a_batch(world: World, kept: dict[str, Any]) -> None:
    """Allocate all blocks of a pool, and free so many that the next one begins a read of rows."""
    kept["pool"] = world.device.pool(NBYTES, BLOCKS)
    taken = kept["blocks"] = [kept["pool"].allocate() for _ in range(BLOCKS)]
    for one in taken:
        one.export()
    for one in taken[1 : BLOCKS // 2]:
        one.free()


def withdrawn(_world: World, kept: dict[str, Any]) -> None:
    """Withdraw the handle of a block."""
    kept["block"].withdraw(kept["handle"])


def refused(error: type[crossmem.CrossmemError], call: Steps) -> Steps:
    """Return a call that may be refused."""

    def do(world: World, kept: dict[str, Any]) -> None:
        with suppress(error):
            call(world, kept)

    return do


def awaited(world: World, kept: dict[str, Any]) -> None:
    """Hold a block that its owner has freed, and has waited for."""
    blob = world.peer.call(pool_actions.give, "s", "single", timeout=5.0)
    kept["mapping"] = crossmem.attach(blob)
    assert world.peer.call(pool_actions.wait_in_vain, "single", "s")


def dropped(world: World, kept: dict[str, Any]) -> None:
    """Drop a pool with a block, a block that was sent, a mapping and an import."""
    both(made, attached, imported, held)(world, kept)
    there = kept.pop("view")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        kept.clear()
        gc.collect()
    there.release()


POOLS: dict[str, Callable[[World], Step]] = {
    "make pool": operation(pooled),
    "close pool": operation(then_close, pooled),
    "close used pool": operation(then_close, both(pooled, block_of_pooled)),
    "close leased pool": operation(then_close, both(made, held, then_free)),
    "close pool with a message": operation(then_close, both(made, reserved, then_free)),
    "free last block": operation(then_free, both(made, then_close)),
    "free last held block": operation(then_free, both(made, held, then_close)),
    "allocate block": operation(block_of_pooled, pooled),
    "allocate after free": operation(block_of_pooled, all_but_one_of_a_batch),
    "allocate in vain": operation(
        refused(
            crossmem.OutOfMemoryError,
            put("memory", lambda _w, k: k["pool"].allocate(timeout=0.001)),
        ),
        both(made, others, leased, then_free),
    ),
    "allocate and wait": operation(
        put("memory", lambda _w, k: k["pool"].allocate(timeout=5.0)),
        both(made, others, held_for_a_moment, then_free),
    ),
    "export block": operation(exported, block),
    "free block": operation(then_free, block),
    "free exported block": operation(then_free, both(pooled, block_of_pooled, exported)),
    "free leased block": operation(then_free, both(shared, leased)),
    "free batch": operation(lambda _w, k: k["blocks"][0].free(), all_but_one_of_a_batch),
    "free held block": operation(then_free, both(shared, held)),
    "free held block or raise": operation(
        refused(crossmem.BusyError, lambda _w, k: k["block"].free(busy="raise")),
        both(shared, held),
    ),
    "free block and wait": operation(
        lambda _w, k: k["block"].free(busy="wait", timeout=5.0), both(shared, held_for_a_moment)
    ),
    "free reserved block": operation(then_free, both(shared, reserved)),
    "withdraw block": operation(withdrawn, shared),
    "withdraw held block": operation(both(withdrawn, exported), both(shared, held)),
    "withdraw reserved block": operation(withdrawn, both(shared, reserved)),
    "pool stats": operation(
        lambda _w, k: (k["pool"].stats(), k["pool"].exports(), crossmem.exports()),
        all_but_one_of_a_batch,
    ),
    "attach own block": operation(leased, shared),
    "attach first block": operation(attached),
    "attach block": operation(attached, opened),
    "attach block again": operation(
        decoded, both(opened, put("mappings", lambda w, _k: [crossmem.attach(w.blocks[0])]))
    ),
    "attach block by handle": operation(decoded, opened),
    "attach first blocks": operation(attached_many),
    "attach many blocks": operation(attached_many, opened),
    "attach blocks and others": operation(attached_all),
    "import first block": operation(imported),
    "import block": operation(imported, opened),
    "map block": operation(mapped, imported),
    "close block": operation(lambda _w, k: k["import"].close(), imported),
    "close mapped block": operation(
        both(then_unmap, lambda _w, k: k["import"].close()), both(imported, mapped)
    ),
    "unmap block": operation(then_unmap, attached),
    "unmap mapped block": operation(then_unmap, both(imported, mapped)),
    "unmap leased block": operation(then_unmap, both(shared, leased, then_free)),
    "unmap awaited block": operation(then_unmap, awaited),
    "attach block to let go": operation(let_go, opened),
    "unmap block to let go": operation(then_unmap, let_go),
    "close idle pools": operation(
        lambda _w, _k: current().part(PoolImports).close_idle(),
        both(attached, lambda _w, k: k.pop("mapping").unmap()),
    ),
    "collect dropped blocks": operation(lambda _w, _k: crossmem.collect(), dropped),
    "reserve block": operation(reserved, shared),
    "receive blocks": operation(received, reserved_there),
    "receive own block": operation(received, both(shared, reserved, then_free)),
    "discard block": operation(
        lambda _w, k: k["message"].release(), both(shared, reserved, then_free)
    ),
}
STREAM_POOLS: dict[str, Callable[[World], Step]] = {
    "export block on a stream": operation(
        put("handle", lambda _w, k: k["block"].export(stream=0)), block
    ),
    "free block on a stream": operation(
        lambda _w, k: k["block"].free(stream=0), both(pooled, block_of_pooled, exported)
    ),
}
PICKLES: dict[str, Callable[[World], Step]] = {
    "pickle block": operation(pickled, block),
    "pickle mapped block": operation(pickled_mapping, attached),
}
"""Not for alarms: they may end the code of multiprocessing that has got the message."""
HOST_POOLS: dict[str, Callable[[World], Step]] = {
    "attach readonly block": operation(readonly, opened),
    "write block": operation(lambda _w, k: k["block"].write(b"abc"), block),
    "read mapped block": operation(lambda _w, k: k["mapping"].read(3), attached),
    "view block": operation(put("view", lambda _w, k: k["mapping"].view()), attached),
    "empty in pool": operation(filled),
    "share in pool": operation(tree),
    "close shared in pool": operation(lambda _w, k: k["shared"].close(), tree),
}
HOST_PICKLES: dict[str, Callable[[World], Step]] = {
    "pickle array in pool": operation(put("message", lambda _w, k: Pickled(k["array"])), filled),
}
crossmem.install()
