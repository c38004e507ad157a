# SPDX-License-Identifier: Apache-2.0
"""What peers do for the tests of pools: give blocks, hold blocks, and die at a chosen access."""

import contextlib
import itertools
import os
import random
import signal
import struct
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final

import pytest
import step_actions
import word_actions
from life_actions import occupied

import crossmem
from crossmem.conformance import actions
from crossmem.control import words
from crossmem.control.arenas import Arena
from crossmem.control.segments import WORDS
from crossmem.sharing.base.process import current
from crossmem.sharing.importer import blocks as importer_blocks
from crossmem.sharing.importer.block_holds import ArenaImport
from crossmem.sharing.importer.blocks import PoolImports
from crossmem.sharing.importer.messages import discard, reserve

objects = actions.objects
STAMP: Final = struct.Struct("<QQ")


def make(name: str, block_nbytes: int, blocks: int, spec: str = "host", **options: Any) -> None:
    """Make a pool."""
    objects[name] = crossmem.device(spec).pool(block_nbytes, blocks, **options)


def give(name: str, pool: str, data: bytes = b"", timeout: float = 0.0) -> bytes:
    """Allocate a block, write into it and export it; return the handle's bytes."""
    block = objects[name] = objects[pool].allocate(timeout=timeout)
    block.write(data * (block.nbytes // max(1, len(data))))
    blob: bytes = block.export().to_bytes()
    return blob


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


def generation_of(name: str) -> int:
    """Return the generation of a block's handle."""
    generation: int = objects[name].export().generation
    return generation


def arena_of(pool: str) -> Arena:
    """Return what the owner knows of a pool's blocks."""
    arena: Arena = objects[pool]._record.arena
    return arena


# Crash points -------------------------------------------------------------------------------------


def stay_untidy() -> None:
    """Let the thread that looks at open pools sleep: its accesses are in no operation."""
    importer_blocks._TIDY_S = 3600.0  # type: ignore[misc]


def count(fatal: int = 0, death: int = signal.SIGKILL) -> None:
    """As :func:`word_actions.count`; the owner's look at all rows is one access more."""
    word_actions.ACCESSES = (*word_actions.ACCESSES, "busy")
    busy = Arena._busy

    def looked(arena: Arena, indices: Sequence[int]) -> set[int]:
        words.busy()  # type: ignore[attr-defined]
        return busy(arena, indices)

    words.busy = lambda: None  # type: ignore[attr-defined]
    Arena._busy = looked  # type: ignore[method-assign]
    word_actions.count(fatal, death)


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
    return word_actions.made()


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


def end_waiting(pool: str, after_s: float, name: str) -> float:
    """Wait for a block of an exhausted pool, in which another thread frees one; return how long."""
    timer = threading.Timer(after_s, objects[name].free)
    timer.start()
    start = time.monotonic()
    with objects[pool].allocate(timeout=20):
        took_s = time.monotonic() - start
    timer.join()
    return took_s


def seconds_of_allocate(name: str, pool: str, timeout_s: float) -> float:
    """Wait for a block, and return how long that took."""
    start = time.monotonic()
    objects[name] = objects[pool].allocate(timeout=timeout_s)
    return time.monotonic() - start


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


# Lives --------------------------------------------------------------------------------------------


class Steps(step_actions.Steps):
    """Counts also the barriers."""

    def __init__(self) -> None:
        super().__init__()
        self.barriers = 0

    def count(self, operation: Callable[[], object]) -> "Steps":
        """Count the steps of an operation."""
        barrier = words.barrier

        def counted() -> None:
            self.barriers += 1
            barrier()

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(words, "barrier", counted)
            super().count(operation)
        # The barrier is no step of its own.
        for name in [one for one in self.calls if "barrier.py" in one]:
            del self.calls[name]
        return self


def steps_of_owner(pool: str, lives: int) -> tuple[list[str], int, int]:
    """Give blocks lives; return the calls to the kernel, the barriers, and the calls of core."""
    one = objects[pool]

    def live() -> None:
        for _ in range(lives):
            block = one.allocate()
            block.export().to_bytes()
            block.free()

    live()
    steps = Steps().count(live)
    return steps.kernel, steps.barriers, steps.calls.total()


def steps_of_importer(blobs: Sequence[bytes]) -> tuple[list[str], int, int]:
    """Attach and unmap blocks, import, map and close; return as :func:`steps_of_owner`."""

    def live() -> None:
        for blob in blobs:
            crossmem.attach(blob).unmap()
            with crossmem.import_handle(blob) as imported, imported.map():
                pass

    live()
    # Not at the moment at which it looks for its owner.
    live()
    steps = Steps().count(live)
    return steps.kernel, steps.barriers, steps.calls.total()


def own_lives(path: Any, lives: int, early: int) -> list[dict[str, int]]:
    """Give blocks so many lives; return what this process occupied early and at the end."""
    import life_actions

    pool = crossmem.device("host").pool(4096, 64)
    found = []
    with life_actions.connect(path, listens=True) as importer:
        for life in range(lives):
            blocks = [pool.allocate() for _ in range(1 + life % 3)]
            importer.send(b"".join(one.export().to_bytes() for one in blocks))
            if life % 2:
                # Freed while it is held, or before it is.
                for one in blocks:
                    one.free()
            assert importer.recv(100) == b"seen"
            for one in blocks:
                one.free()
            if life == early:
                found.append(occupied())
        importer.send(b"")
        assert pool.stats().free == 64
        found.append(occupied())
    pool.close()
    return found


def import_lives(path: Any, early: int) -> list[dict[str, int]]:
    """Attach each block that is offered; return what this process occupied early and at the end."""
    import life_actions

    found = []
    life = 0
    with life_actions.connect(path, listens=False) as owner:
        while message := owner.recv(10_000):
            (nbytes,) = struct.unpack_from("<I", message, 8)
            for at in range(0, len(message), nbytes):
                blob = message[at : at + nbytes]
                try:
                    mapping = crossmem.attach(blob)
                except crossmem.StaleHandleError:
                    continue
                mapping.unmap()
            owner.send(b"seen")
            if life == early:
                found.append(occupied())
            life += 1
        found.append(occupied())
    return found


# Threads ------------------------------------------------------------------------------------------


def work_in_threads(  # noqa: C901 - one life after the other
    pool: str, threads: int, seconds: float
) -> Counter[str]:
    """Allocate, export, attach, reserve, withdraw, free in threads; return what went wrong."""
    one, end = objects[pool], time.monotonic() + seconds
    wrong: Counter[str] = Counter()
    numbers = itertools.count(1)

    def work(number: int) -> None:
        chance = random.Random(number)
        kept: list[Any] = []
        while time.monotonic() < end:
            try:
                block = one.allocate(timeout=0.01)
            except crossmem.OutOfMemoryError:
                while kept:
                    kept.pop().unmap()
                continue
            stamp = STAMP.pack(next(numbers), number)
            block.write(stamp)
            handle = block.export()
            step = chance.randrange(5)
            if step == 0:
                block.withdraw(handle)
                wrong["withdrawn"] += not attach_unless("StaleHandleError", handle.to_bytes())
                handle = block.export()
            mapping = crossmem.attach(handle.to_bytes())
            if step == 1:
                discard([(handle, reserve([handle])[0])])
            ends = [threading.Thread(target=block.free) for _ in range(step == 2)]
            for thread in ends:
                thread.start()
            block.free()
            for thread in ends:
                thread.join()
            wrong["other bytes"] += mapping.read(STAMP.size) != stamp
            if step == 3:
                kept.append(mapping)
            else:
                mapping.unmap()
            wrong["a stale handle"] += mapping.closed and not attach_unless(
                "StaleHandleError", handle.to_bytes()
            )
        while kept:
            kept.pop().unmap()

    for error in actions.in_threads(threads, work):
        if error is not None:
            wrong[repr(error)] += 1
    return +wrong


# Random deaths ------------------------------------------------------------------------------------


def serve_blocks(pool: str, path: str, seed: int, seconds: float = 1e9) -> int:
    """Give blocks stamps and lives, and their handles to who asks; return how many lives.

    Each block is filled with a stamp. A block is written only before it is exported: so whoever
    holds it reads one stamp, the one that came with its handle.
    """
    end = time.monotonic() + seconds
    import socket

    chance = random.Random(seed)
    one = objects[pool]
    lives = itertools.count(1)
    live: list[tuple[crossmem.Block, bytes, bytes]] = []
    server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    server.bind(path)
    server.listen(64)
    server.settimeout(0.002)
    while time.monotonic() < end:
        with contextlib.suppress(crossmem.OutOfMemoryError):
            while len(live) < one.blocks // 2:
                block = one.allocate()
                stamp = STAMP.pack(os.getpid(), next(lives))
                block.write(stamp * (block.nbytes // STAMP.size))
                live.append((block, stamp, block.export().to_bytes()))
        with contextlib.suppress(OSError):
            asking, _ = server.accept()
            with asking:
                asking.settimeout(1)
                chosen = chance.sample(live, min(4, len(live)))
                asking.send(b"".join(stamp + blob for _, stamp, blob in chosen))
        chance.shuffle(live)
        for _ in range(chance.randrange(len(live) + 1)):
            live.pop()[0].free()
    server.close()
    os.unlink(path)  # noqa: PTH108
    while live:
        live.pop()[0].free()
    return next(lives)


def visit_owners(folder: str, seed: int, seconds: float) -> dict[str, int]:
    """Attach blocks of whichever owners live, and check each stamp right before the end."""
    import socket
    from pathlib import Path

    chance = random.Random(seed)
    found: Counter[str] = Counter()
    held: list[tuple[Any, bytes]] = []
    end = time.monotonic() + seconds

    def look(mapping: Any, stamp: bytes) -> None:
        found["looked at"] += 1
        seen = mapping.read()
        if seen != stamp * (mapping.nbytes // STAMP.size):
            found["other bytes"] += 1
            print("other bytes:", STAMP.unpack(seen[: STAMP.size]), STAMP.unpack(stamp), flush=True)
            # The test looks for the end of each importer.
            os.abort()

    while time.monotonic() < end:
        paths = [str(one) for one in Path(folder).glob("owner*")]
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as asking:
                asking.settimeout(1)
                asking.connect(chance.choice(paths))
                message = asking.recv(10_000)
        except (OSError, IndexError):
            time.sleep(0.01)
            continue
        at = 0
        while at < len(message):
            stamp = message[at : at + STAMP.size]
            at += STAMP.size
            (nbytes,) = struct.unpack_from("<I", message, at + 8)
            blob = message[at : at + nbytes]
            at += nbytes
            try:
                mapping = crossmem.attach(blob, timeout=5)
            except (crossmem.StaleHandleError, crossmem.OwnerGoneError) as error:
                found[type(error).__name__] += 1
                continue
            look(mapping, stamp)
            held.append((mapping, stamp))
        chance.shuffle(held)
        while len(held) > 3:
            mapping, stamp = held.pop()
            look(mapping, stamp)
            mapping.unmap()
    for mapping, stamp in held:
        look(mapping, stamp)
        mapping.unmap()
    return dict(found)


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


def is_next_life_untouched(pool: str, by: str) -> bool:
    """Use a block that another thread frees meanwhile; whether its next life is as it was."""
    block = objects[pool].allocate()
    handle = block.export()
    lives: list[Any] = []

    def free_and_reuse(*_: object) -> bool:
        if not lives:
            thread = threading.Thread(target=block.free)
            thread.start()
            thread.join()
            while not lives or lives[-1].ptr != pointer_of:
                lives.append(objects[pool].allocate())
        return False

    pointer_of = block.ptr
    with pytest.MonkeyPatch.context() as patch:
        if by == "withdraw":
            decoded = crossmem.ShareableHandle.from_bytes

            def decode(blob: bytes) -> Any:
                free_and_reuse()
                return decoded(blob)

            patch.setattr(crossmem.ShareableHandle, "from_bytes", decode)
            assert unless("ClosedError", block.withdraw, handle.to_bytes())
        else:
            patch.setattr(Arena, "is_held", free_and_reuse)
            block.free(busy="wait")
    generation = handle.generation
    arena = lives[-1]._record.arena
    now = words.load(arena.words, arena.at + lives[-1]._record.index)
    for one in lives:
        one.free()
    return bool(now == generation + 1)


def is_freed_once_by_two_threads() -> bool:
    """Free a block in two threads at once, the first of which is late; whether it is freed once."""
    pool = crossmem.device("host").pool(4096, 1)
    block = pool.allocate()
    handle = block.export()
    record, leave = type(block._record), type(block._record).leave_to_others
    entered, go = threading.Event(), threading.Event()

    def late(self: Any) -> bool:
        if not entered.is_set():
            entered.set()
            go.wait(1)
        return bool(leave(self))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(record, "leave_to_others", late)
        first = threading.Thread(target=block.free)
        first.start()
        entered.wait()
        # It finds the record among what is ready to be given back.
        second = threading.Thread(target=crossmem.collect)
        second.start()
        second.join(0.3)
        go.set()
        first.join()
        second.join()
    again = pool.allocate()
    try:
        return bool(again.export().generation == handle.generation + 2) and pool.stats().free == 0
    finally:
        again.free()
        pool.close()


def free_while_it_is_reserved(pool: str, name: str) -> bool:
    """Free a block at the moment at which a message enters it; whether it is known to be freed."""
    arena, block = arena_of(pool), objects[name]
    handle = block.export()
    is_first = True

    class Entering(dict[int, Any]):
        def get(self, key: int, default: Any = None) -> Any:
            nonlocal is_first
            found = super().get(key, default)
            if is_first:
                is_first = False
                freeing = threading.Thread(target=block.free)
                freeing.start()
                freeing.join()
            return found

    arena.reserved = Entering()
    assert unless("StaleHandleError", reserve, [handle])
    return bool(arena.reserved[handle.index].is_retired)
