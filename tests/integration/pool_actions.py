# SPDX-License-Identifier: Apache-2.0
"""What peers do for the tests of pools: give blocks, hold blocks, and die at a chosen access."""

import contextlib
import itertools
import os
import random
import select
import signal
import struct
import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

import pytest

import crossmem
from crossmem.conformance import actions
from crossmem.control import words
from crossmem.control.arenas import Arena
from crossmem.control.segments import WORDS
from crossmem.sharing.base.process import current
from crossmem.sharing.importer import blocks as importer_blocks
from crossmem.sharing.importer.block_holds import ArenaImport
from crossmem.sharing.importer.blocks import PoolImports
from crossmem.sharing.importer.messages import reserve

if TYPE_CHECKING:
    from tests.integration import word_actions
else:
    import word_actions

objects = actions.objects
STAMP: Final = struct.Struct("<QQ")


def make(name: str, block_nbytes: int, blocks: int, spec: str = "host", **options: Any) -> None:
    """Make a pool."""
    objects[name] = crossmem.device(spec).pool(block_nbytes, blocks, **options)


def make_here(name: str, block_nbytes: int, blocks: int) -> None:
    """Make a pool on the device under test."""
    objects[name] = actions.device().pool(block_nbytes, blocks)


def give(name: str, pool: str, data: bytes = b"", timeout: float = 0.0) -> bytes:
    """Allocate a block, write into it and export it; return the handle's bytes."""
    block = objects[name] = objects[pool].allocate(timeout=timeout)
    block.write(data * (block.nbytes // max(1, len(data))))
    blob: bytes = block.export().to_bytes()
    return blob


def is_held_after_exit(block: str, pid: int, within_s: float) -> bool:
    """Whether a row holds a block after the exit of a process that this one takes no notice of."""
    record, pidfd = objects[block]._record, os.pidfd_open(pid)
    try:
        with record.arena.registry.lock:
            assert select.select([pidfd], [], [], within_s)[0], f"process {pid} still runs"
            held: bool = record.arena.is_held(record.index)
            return held
    finally:
        os.close(pidfd)


def fill(pool: str, data: bytes) -> int:
    """Allocate all blocks that can be had, write into all of each, free them; return how many."""
    taken = []
    with contextlib.suppress(crossmem.OutOfMemoryError):
        while True:
            taken.append(objects[pool].allocate())
            taken[-1].write(data * (taken[-1].nbytes // len(data)))
    for one in taken:
        one.free()
    return len(taken)


def stats(pool: str) -> Any:
    """Return how the blocks of a pool are used."""
    return objects[pool].stats()


def shown(name: str) -> bytes:
    """Return the bytes that a mapping or block shows, each once."""
    return bytes(sorted(set(objects[name].read())))


def arena_of(pool: str) -> Arena:
    """Return what the owner knows of a pool's blocks."""
    arena: Arena = objects[pool]._record.arena
    return arena


# Crash points -------------------------------------------------------------------------------------


def stay_untidy() -> None:
    """Let the thread that looks at open pools sleep: its accesses are in no operation."""
    importer_blocks._TIDY_S = 3600.0  # type: ignore[misc]


def count(fatal: int = 0, death: int = signal.SIGKILL) -> None:
    """As :func:`word_actions.count`; the owner's look at all rows is one access more.

    The hot paths of pools subscript the words of arenas, so those count, too.
    """
    word_actions.ACCESSES = (*word_actions.ACCESSES, "busy")
    busy = Arena._busy

    def looked(arena: Arena, indices: Sequence[int]) -> set[int]:
        words.busy()  # type: ignore[attr-defined]
        return busy(arena, indices)

    words.busy = lambda: None  # type: ignore[attr-defined]
    Arena._busy = looked  # type: ignore[method-assign,assignment]
    counted: Any = word_actions.number(fatal, death)
    server, make, open_ = current().server, Arena.__init__, ArenaImport.__init__

    def of_owner(arena: Any) -> None:
        arena.words = counted(arena.words)

    def of_importer(arena: Any) -> None:
        arena.row, arena.control = counted(arena.row), counted(arena.control)

    def made(arena: Arena, *arguments: Any) -> None:
        make(arena, *arguments)
        of_owner(arena)

    def opened(arena: ArenaImport, *arguments: Any) -> None:
        open_(arena, *arguments)
        of_importer(arena)

    Arena.__init__ = made  # type: ignore[method-assign,assignment]
    ArenaImport.__init__ = opened  # type: ignore[method-assign,assignment]
    for arena in server.leases.pools.arenas.values() if server is not None else ():
        of_owner(arena)
    for one in current().part(PoolImports).arenas.values():
        of_importer(one)


def unless(error: str, call: Callable[..., Any], *arguments: Any, **options: Any) -> bool:
    """Call something; whether it raised the error of that name."""
    try:
        call(*arguments, **options)
    except getattr(crossmem, error):
        return True
    return False


def call_unless(error: str, name: str, method: str, *arguments: Any, **options: Any) -> bool:
    """Call a method of a named object; whether it raised the error of that name."""
    return unless(error, getattr(objects[name], method), *arguments, **options)


def attach_unless(error: str, blob: bytes) -> bool:
    """Attach a handle; whether that raised the error of that name."""
    return unless(error, crossmem.attach, blob)


def made() -> list[str]:
    """Return the accesses since :func:`count`."""
    found: list[str] = word_actions.made()
    return found


def free_all(names: str) -> None:
    """Free blocks, one after the other."""
    for name in names:
        objects[name].free()


def free_in_a_race(name: str) -> bool:
    """Free a block that is seen to be held only after it was retired; whether that is refused."""
    is_held = Arena.is_held
    calls = itertools.count()

    def late(arena: Arena, index: int) -> bool:
        return is_held(arena, index) and bool(next(calls))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Arena, "is_held", late)
        return call_unless("BusyError", name, "free", busy="raise")


def withdraw(name: str) -> None:
    """Withdraw the handle of a block, and export the block anew."""
    block = objects[name]
    block.withdraw(block.export())
    block.export()


def use_up(pool: str, names: str) -> int:
    """Free blocks, and allocate all that can be had; return how many those are."""
    free_all(names)
    taken = []
    with contextlib.suppress(crossmem.OutOfMemoryError):
        while True:
            taken.append(objects[pool].allocate())
    objects["taken"] = taken
    return len(taken)


def wait_in_vain(pool: str, name: str) -> bool:
    """Wait for a block that another process holds; whether that is refused."""
    use_up(pool, name)
    try:
        objects[pool].allocate(timeout=0.01)
    except crossmem.OutOfMemoryError:
        return True
    return False


def close_pool(pool: str, names: str) -> None:
    """Free the blocks of a pool, and close it."""
    free_all(names)
    objects[pool].close()


def map_imported(name: str) -> None:
    """Map what was imported, and unmap it."""
    objects[name].map().unmap()


def seconds_of_allocate(name: str, pool: str, timeout_s: float) -> float:
    """Wait for a block, and return how long that took."""
    start = time.monotonic()
    objects[name] = objects[pool].allocate(timeout=timeout_s)
    return time.monotonic() - start


def unmap_after(name: str, seconds: float) -> None:
    """End a mapping after a while."""
    time.sleep(seconds)
    actions.unmap(name)


def tend() -> None:
    """Give back the pools that their owners have closed."""
    current().part(PoolImports).tend()


def open_pools() -> int:
    """Return how many pools of other processes are open here."""
    return len(current().part(PoolImports).arenas)


# Rubbish ------------------------------------------------------------------------------------------


def scribble(blob: bytes, times: int, seed: int) -> None:
    """Write random words into the row through which a pool's blocks are held here."""
    arena = the_arena(blob)
    chance = random.Random(seed)
    row, at = arena.row, arena.at
    for _ in range(times):
        where = chance.choice(
            [at + chance.randrange(16), at + chance.randrange(16), chance.randrange(WORDS)]
        )
        row[where] = chance.choice([0, 1, 2, 3, chance.getrandbits(64)])


def the_arena(blob: bytes) -> ArenaImport:
    """Return the pool of a handle as it is open here."""
    handle = crossmem.ShareableHandle.from_bytes(blob)
    assert isinstance(handle, crossmem.models.BlockHandle)
    return current().part(PoolImports).arenas[handle.pool.shared, None, False]


def can_write_control(blob: bytes) -> bool:
    """Whether this process can map the owner's control words for writing."""
    import mmap

    owner = crossmem.ShareableHandle.from_bytes(blob).owner
    del owner
    control = the_arena(blob).control
    if not control.readonly:
        return True
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 - names alone
        with contextlib.suppress(OSError, ValueError):
            if "crossmem-control" in os.readlink(f"/proc/self/fd/{name}"):  # noqa: PTH115
                mmap.mmap(int(name), 4096).close()
                return True
    return False


# Forks and exec -----------------------------------------------------------------------------------


def outcomes_of(names: Sequence[str]) -> dict[str, str]:
    """Use each method of named objects; return the name of the error's class by method."""
    calls: dict[str, tuple[Any, ...]] = {
        "allocate": (),
        "close": (),
        "export": (),
        "free": (),
        "map": (),
        "read": (1,),
        "stats": (),
        "unmap": (),
        "view": (),
        "withdraw": (objects.get("handle"),),
        "write": (b"x",),
    }
    found = {}
    for name in names:
        one = objects[name]
        for method, arguments in calls.items():
            if not hasattr(type(one), method):
                continue
            try:
                getattr(one, method)(*arguments)
            except Exception as error:  # noqa: BLE001 - the test compares its class
                found[f"{name}.{method}"] = type(error).__name__
            else:
                found[f"{name}.{method}"] = "no error"
    return found


def is_mapped(address: int) -> bool:
    """Whether this process has memory mapped at an address; what nobody may touch is none."""
    with open("/proc/self/maps", encoding="utf-8") as maps:  # noqa: PTH123
        for line in maps:
            place, rights, *_ = line.split()
            first, last = (int(one, 16) for one in place.split("-"))
            if first <= address < last:
                return rights != "---p"
    return False


def child_of(names: Sequence[str], addresses: Sequence[int], blob: bytes) -> dict[str, Any]:
    """Say what a forked child finds of its parent's pools, and of its own import."""
    found: dict[str, Any] = {
        "outcomes": outcomes_of(names),
        "mapped": [one for one in addresses if is_mapped(one)],
    }
    with crossmem.attach(blob) as mapping:
        found["read"] = bytes(sorted(set(mapping.read())))
    return found


def pointer(name: str) -> int:
    """Return the address of a block or mapping."""
    address: int = objects[name].ptr
    return address


# More of what owners and importers do -------------------------------------------------------------


def seconds_of_attach(blob: bytes) -> float:
    """Attach and unmap a block, and return how long that took."""
    start = time.monotonic()
    crossmem.attach(blob).unmap()
    return time.monotonic() - start


def become(ready: str, then: str) -> None:
    """Become another program, which shares nothing or a pool of its own."""
    code = "import os, sys, time\n"
    if then == "a pool":
        code += "import crossmem\npool = crossmem.device('host').pool(4096, 6)\n"
        code += "blocks = [pool.allocate() for _ in range(6)]\n"
        code += "_ = [one.export() for one in blocks]\n"
    code += "open(sys.argv[1], 'w').close()\ntime.sleep(120)\n"
    os.environ["PYTHONPATH"] = ":".join(sys.path)
    os.execv(sys.executable, [sys.executable, "-c", code, ready])  # noqa: S606


def slots_used() -> int:
    """Return how many slots were ever used."""
    server = current().server
    assert server is not None
    return server.leases.slots._count


def free_if_live(name: str) -> None:
    """Free a block, which may be freed already."""
    objects[name].free()


def give_if_free(name: str, pool: str, data: bytes) -> bool:
    """Give a block; whether there was one."""
    return not unless("OutOfMemoryError", give, name, pool, data)


def send(names: Sequence[str]) -> list[tuple[bytes, int]]:
    """Return a message that reserves blocks or mappings of this process."""
    memories = [objects[name] for name in names]
    handles = [one.export() if isinstance(one, crossmem.Block) else one.handle for one in memories]
    return [
        (handle.to_bytes(), number)
        for handle, number in zip(handles, reserve(handles), strict=True)
    ]


def wait_for_all(pool: str) -> int:
    """Allocate all blocks, wait for one more in vain, and free them; return how many those were."""
    taken = []
    with contextlib.suppress(crossmem.OutOfMemoryError):
        while True:
            taken.append(objects[pool].allocate(timeout=0.05))
    for one in taken:
        one.free()
    return len(taken)
