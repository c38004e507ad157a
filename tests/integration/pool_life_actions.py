# SPDX-License-Identifier: Apache-2.0
"""What peers do for the tests of pools: many lives of blocks, threads, races and visits."""

import contextlib
import itertools
import os
import random
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import pytest
from typing_extensions import override

import crossmem
from crossmem.conformance import actions
from crossmem.control import words
from crossmem.control.arenas import Arena
from crossmem.sharing.importer.messages import discard, reserve
from crossmem.sharing.pools.block_record import BlockRecord

if TYPE_CHECKING:
    from tests.integration import life_actions, step_actions
    from tests.integration.pool_actions import STAMP, arena_of, attach_unless, objects, unless
else:
    import life_actions
    import step_actions
    from pool_actions import STAMP, arena_of, attach_unless, objects, unless


# Lives --------------------------------------------------------------------------------------------


class Steps(step_actions.Steps):
    """Counts also the barriers."""

    def __init__(self) -> None:
        super().__init__()
        self.barriers = 0

    @override
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
                found.append(life_actions.occupied())
        importer.send(b"")
        assert pool.stats().free == 64
        found.append(life_actions.occupied())
    pool.close()
    return found


def import_lives(path: Any, early: int) -> list[dict[str, int]]:
    """Attach each block that is offered; return what this process occupied early and at the end."""
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
                found.append(life_actions.occupied())
            life += 1
        found.append(life_actions.occupied())
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


# Races ---


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
    record, leave = BlockRecord, BlockRecord.leave_to_others
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
        @override
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
