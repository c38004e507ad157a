# SPDX-License-Identifier: Apache-2.0
"""A worker of test_storm.py: what storm_worker.py does, interrupted, forking and measured.

:func:`main` runs in a peer. Commands arrive one a line: ``release``, ``free``, ``exit``, and the
faults that tests make on purpose.
"""

import contextlib
import faulthandler
import json
import os
import signal
import sys
import threading
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterable
from io import RawIOBase
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from typing_extensions import override

import crossmem
from crossmem.conformance.speed import SLOWNESS
from crossmem.driver import TracingDriver
from crossmem.sharing.base.process import current

if TYPE_CHECKING:
    from tests.integration import (
        storm_children,
        storm_interrupts,
        storm_pools,
        storm_watch,
        storm_worker,
    )
else:
    import storm_children
    import storm_interrupts
    import storm_pools
    import storm_watch
    import storm_worker

LONGEST_S: Final = 1.0
"""How long an operation may last that waits for no other process: the limit for the lease server's
thread to catch up."""

MAX_GROWTH_NBYTES: Final = 64 << 20
_PROBE_CHANCE: Final = 0.2
_PROBE_WITHIN_S: Final = 60.0 * SLOWNESS
_HANDLES_FOR_S: Final = 0.3


class StormActor(storm_pools.PoolActor):
    """One thread's share of the activity, each call of crossmem with a timeout and measured."""

    max_nbytes = 20_000
    max_own = 4
    max_held = 12
    pause_s = 0.06

    def __init__(
        self, board: Path, seed: int, watch: storm_watch.Watch, *, interruptible: bool
    ) -> None:
        super().__init__(board, seed)
        self.watch = watch
        self.interruptible = interruptible
        self.children = storm_children.Children(self)
        self._found: tuple[float, list[Path]] = (0.0, [])
        self.steps += [
            (1, self.attach_rogue),
            (0.2, self.fork),
            (1, self.reap),
        ]

    @override
    def step(self) -> None:
        try:
            try:
                if self.interruptible:
                    storm_interrupts.arm(self.chance)
                super().step()
            finally:
                if self.interruptible:
                    storm_interrupts.disarm()
        except storm_interrupts.Interrupted as interrupted:
            # What its frames hold ends here.
            traceback.clear_frames(interrupted.__traceback__)
            interrupted.__traceback__ = None
            self.counts["interrupted"] += 1
            self.watch.end()
            if self.chance.random() < _PROBE_CHANCE:
                self.probe()
            self.unlink_lost()

    @override
    def call(self, function: Any, *arguments: Any, **options: Any) -> Any:
        if function in (crossmem.attach_many, crossmem.import_handle, crossmem.attach):
            options.setdefault("timeout", self.chance.choice((0.2, 1.0, 3.0)))
        timeout_s = options.get("timeout", LONGEST_S)
        self.watch.begin(getattr(function, "__qualname__", str(function)), timeout_s)
        try:
            return function(*arguments, **options)
        finally:
            self.watch.end()
            self.counts["operations"] += 1

    @override
    def handles(self) -> Iterable[Path]:
        now = time.monotonic()
        if now > self._found[0]:
            self._found = (now + _HANDLES_FOR_S, list(super().handles()))
        return self._found[1]

    @override
    def give_back(self, memory: storm_worker.Memory) -> None:
        if (busy := self.chance.choice(("defer", "raise", "wait"))) != "defer":
            timeout_s = self.chance.choice((0.2, 1.0))
            with contextlib.suppress(crossmem.BusyError):
                self.call(memory.free, busy=busy, timeout=timeout_s)
                self.counts["freed when idle"] += 1
        # Whoever holds it delays that.
        self.call(memory.free)

    @override
    def attach_with(
        self,
        attach: Callable[[], list[crossmem.Mapping]],
        handles: list[crossmem.ShareableHandle],
    ) -> None:
        try:
            super().attach_with(attach, handles)
            self.counts["imported"] += 1
        except crossmem.OwnerUnresponsiveError:
            # It may be stopped; or a flood of requests came first.
            self.counts["unanswered"] += 1

    def attach_rogue(self) -> None:
        """Import from an owner that is hostile: that raises in time, or gives what it likes."""
        rogues = sorted(self.board.glob("rogue-*"))
        if rogues:
            path = self.chance.choice(rogues)
            with contextlib.suppress(FileNotFoundError):
                blob = path.read_bytes()
                try:
                    self.call(self.call(crossmem.attach, blob, timeout=0.3).unmap)
                except crossmem.OwnerGoneError:
                    if self.chance.random() < 0.3:
                        path.unlink(missing_ok=True)
                except crossmem.CrossmemError:
                    self.counts["rogues refused"] += 1

    def unlink_lost(self) -> None:
        """Take away the handles of memory that an interrupt made this actor lose."""
        mine = {path for _, _, path in self.own}
        for path in self.board.glob(f"handle-{os.getpid()}-*"):
            if path not in mine:
                with contextlib.suppress(FileNotFoundError):
                    handle = crossmem.ShareableHandle.from_bytes(path.read_bytes())
                    if not self.is_exported(handle):
                        path.unlink(missing_ok=True)

    def probe(self) -> None:
        """Use everything on another thread, which any lock that was left held would block."""
        thread = threading.Thread(target=self._live_once, name="storm-probe", daemon=True)
        thread.start()
        thread.join(_PROBE_WITHIN_S)
        if thread.is_alive():
            self.problem("a thread that begins after an interrupt does not end")

    def _live_once(self) -> None:
        try:
            with self.call(self.device.allocate, 100) as allocation:
                handle = self.call(allocation.export)
                with self.call(crossmem.attach, handle) as mapping:
                    mapping.write(b"data")
            self.call(crossmem.collect)
            self.call(crossmem.exports)
            for mapping in self.held[:]:
                # On its owner's word, over the connection.
                self.call(lambda one=mapping: one.owner_alive)
        except crossmem.ClosedError:
            pass
        except Exception as error:  # noqa: BLE001 - the thread has nobody else to tell
            self.problem(f"a thread after an interrupt raised {error!r}")

    # Forking --------------------------------------------------------------------------------

    def fork(self) -> None:
        """Fork a child of one of the kinds that there are."""
        self.children.start()

    def reap(self) -> None:
        """Look after the children."""
        self.children.tend()

    @override
    def release(self) -> None:
        self.children.end()
        super().release()


def resident_nbytes() -> int:
    """Return how much memory this process has in use, files that it maps left out."""
    status = Path("/proc/self/status").read_text("ascii")
    return int(status.split("RssAnon:")[1].split()[0]) * 1024


class Participant:
    """What a worker is between its commands."""

    def __init__(self, board: Path, seed: int, survivors: int) -> None:
        self.board = board
        self.survivors = survivors
        self.settles_within_s = 20.0 * SLOWNESS
        self.tally = storm_watch.Tally(board)
        self.watch = storm_watch.Watch(self.problem, self.tally)
        # TracingDriver is Python that an interrupt ends anywhere; its records would be wrong.
        interruptible = seed % 3 != 0
        self.tracers: list[TracingDriver] = [] if interruptible else storm_worker.traced()
        self.actors = [
            StormActor(
                board, seed * 10 + number, self.watch, interruptible=interruptible and not number
            )
            for number in range(1 + seed % 2)
        ]
        for actor in self.actors:
            actor.counts = self.tally.counts
        # What everybody opens once: the server, and a connection.
        with self.actors[0].device.allocate(1) as allocation:
            allocation.export()
        self.free_nbytes = self._free_nbytes()
        self.before = self._other_descriptors()
        self.resident_nbytes = resident_nbytes()
        self.watch.start()

    def problem(self, text: str) -> None:
        """Write down what is wrong."""
        self.actors[0].problem(text)

    def _free_nbytes(self) -> int:
        driver: Any = self.actors[0].device.driver
        return int(getattr(driver, "inner", driver)._accounts[0].free_nbytes)

    def _other_descriptors(self) -> Counter[str]:
        """Return the descriptors that nothing in the footprint is about."""
        found: Counter[str] = Counter()
        for entry in Path("/proc/self/fd").iterdir():
            with contextlib.suppress(OSError):
                target = str(entry.readlink())
                if not target.startswith(("socket:", "/memfd:", "anon_inode:[pidfd]", "pipe:")):
                    found[target] += not target.startswith("/proc")
                elif target.startswith("pipe:"):
                    found["pipe"] += 1
        return found

    def footprint(self) -> dict[str, Any]:
        """Return what this process holds that it should not."""
        found = storm_worker.footprint(self.tracers, self.survivors)
        if more := self._other_descriptors() - self.before:
            found["descriptors"] = more
        if (free := self._free_nbytes()) != self.free_nbytes:
            found["lost"] = self.free_nbytes - free
        if (grown := resident_nbytes() - self.resident_nbytes) > MAX_GROWTH_NBYTES:
            found["grown"] = grown
        deferred = current().deferred
        if deferred.ready or deferred.idle or deferred.waiting:
            found["deferred"] = [len(deferred.ready), len(deferred.idle), len(deferred.waiting)]
        return found

    def _on_a_thread(self, work: Any) -> None:
        """Do something where every lock that the main thread holds would show."""
        raised: list[BaseException] = []

        def run() -> None:
            try:
                work()
            except BaseException as error:  # noqa: BLE001 - raised again below
                raised.append(error)

        thread = threading.Thread(target=run, name="storm-end", daemon=True)
        thread.start()
        thread.join(_PROBE_WITHIN_S)
        if thread.is_alive():
            self.problem("the last thread does not end: a lock is held")
        if raised:
            raise raised[0]

    def release(self) -> str:
        """End what is held of others."""
        self._on_a_thread(lambda: storm_worker.release(self.actors))
        storm_children.reap_lost()
        self.tally.counts["fair ms"] = int(self.watch.fair_s * 1000)
        self.tally.counts["real ms"] = int(self.watch.real_s * 1000)
        return json.dumps(self.tally.counts)

    def free(self) -> str:
        """Free everything, and return what is left."""
        self._on_a_thread(lambda: storm_worker.free(self.actors))
        self.watch.stop()
        found = storm_worker.settled(self.footprint, self.settles_within_s)
        if "held" in found or "grown" in found:
            faulthandler.dump_traceback()
        return json.dumps(found)

    # Faults that are made on purpose ------------------------------------------------------

    def be_late(self) -> str:
        """Exceed a timeout."""
        self.actors[0].call(_sleep, 2 * storm_watch.ALLOWED_S, timeout=0.1)
        return "late"

    def open_descriptor(self) -> str:
        """Leave a descriptor open."""
        self.settles_within_s = 1.0
        os.open(os.devnull, os.O_RDONLY)
        return "opened"

    def damage(self) -> str:
        """Change memory that others hold."""
        actor = self.actors[0]
        actor.share()
        actor.own[-1][0].write(b"damage")
        return "damaged"

    def damage_block(self) -> str:
        """Change a block that others hold."""
        actor = self.actors[0]
        while not actor.own_blocks:
            actor.share_block()
        actor.own[actor.own_blocks[0]][0].write(b"damage")
        return "damaged"

    def lose_block(self) -> str:
        """Allocate a block that nobody frees."""
        actor = self.actors[0]
        self.settles_within_s = actor.idle_within_s = 1.0
        actor.share_block()
        assert actor.pool is not None
        self.lost = actor.pool.allocate()
        return "lost"

    def keep_lock(self) -> str:
        """Keep a lock, as an interrupt could, and do what is done after an interrupt."""
        current().state.acquire()
        thread = threading.Thread(target=self.actors[0].probe, daemon=True)
        thread.start()
        thread.join(5 * SLOWNESS)
        current().state.release()
        thread.join()
        return "kept"

    def lose_memory(self) -> str:
        """Allocate memory that nobody frees."""
        self.settles_within_s = 1.0
        device = self.actors[0].device
        device.driver.allocate(0, 1, device.mechanism)
        return "lost"

    def hang_in_child(self) -> str:
        """Fork a child that does not end, and look after it."""
        children = storm_children.Children(self.actors[0], within_s=0.5)
        children.start("hanging")
        children.end()
        return "hung"


def _sleep(seconds: float, timeout: float) -> None:
    """Sleep for longer than allowed."""
    time.sleep(timeout + seconds)


def main(board: Path, seed: int, survivors: int, commands: Path, answers: Path) -> None:
    """Be a worker; see :func:`storm_worker.main`.

    Parameters
    ----------
    survivors
        How many workers may be connected with this one at the end.
    """
    # Objects that an interrupt makes a thread lose, and forks of a process with threads.
    warnings.simplefilter("ignore", ResourceWarning)
    warnings.simplefilter("ignore", DeprecationWarning)
    sys.unraisablehook = _ignore_interrupts(sys.unraisablehook)
    faulthandler.register(storm_worker.STACKS_SIGNAL)
    with commands.open("rb", buffering=0) as inbox, answers.open("wb", buffering=0) as outbox:
        _take_part(board, seed, survivors, inbox, outbox)


def _ignore_interrupts(hook: Any) -> Any:
    def ignore(unraisable: Any) -> None:
        if not isinstance(unraisable.exc_value, storm_interrupts.Interrupted):
            hook(unraisable)

    return ignore


def _take_part(board: Path, seed: int, survivors: int, inbox: RawIOBase, outbox: RawIOBase) -> None:
    for number in storm_interrupts.SIGNALS:
        signal.signal(number, storm_interrupts.interrupt)
    one = Participant(board, seed, survivors)
    outbox.write(b"ready\n")
    storm_worker.run(one.actors, inbox.fileno())
    storm_worker.obey(
        inbox,
        outbox,
        {
            "release": one.release,
            "free": one.free,
            "be_late": one.be_late,
            "open_descriptor": one.open_descriptor,
            "damage": one.damage,
            "keep_lock": one.keep_lock,
            "lose_memory": one.lose_memory,
            "damage_block": one.damage_block,
            "lose_block": one.lose_block,
            "hang_in_child": one.hang_in_child,
            "leak": storm_worker.leak,
        },
    )
