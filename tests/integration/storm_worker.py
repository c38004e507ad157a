# SPDX-License-Identifier: Apache-2.0
"""A process of test_kill_storm.py: shares and imports at random until it is killed or stopped.

:func:`main` runs in a peer. Commands arrive one a line: ``release``, ``free``, ``leak``, ``exit``.
"""

import contextlib
import faulthandler
import gc
import hashlib
import json
import os
import random
import select
import signal
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from io import RawIOBase
from pathlib import Path
from types import FrameType
from typing import Any

import crossmem
from crossmem.control import processes
from crossmem.driver import Driver, TracingDriver
from crossmem.models import BlockHandle, ProcessIdentity, process_start_time
from crossmem.sharing.base.process import current

MAX_NBYTES = 100_000
MAX_OWN = 8
MAX_HELD = 24
STACKS_SIGNAL = signal.SIGUSR2
"""Makes a worker, or a child of it, write the stacks of its threads."""

Memory = crossmem.Allocation | crossmem.Block
LIBRARY = str(Path(crossmem.__file__).parent)


@lru_cache(maxsize=256)
def pattern(owner: ProcessIdentity, life: tuple[int, ...], nbytes: int) -> bytes:
    """What memory must show for as long as anybody holds it; the rest of it is scratch space."""
    seed = owner.to_bytes() + b"".join(number.to_bytes(8, "little") for number in life)
    return hashlib.shake_128(seed).digest(nbytes - nbytes // 4)


def life_of(handle: crossmem.ShareableHandle) -> tuple[int, ...]:
    """Return the numbers of memory in its process; each life of a block has its own."""
    if isinstance(handle, BlockHandle):
        return handle.allocation, handle.index, handle.generation
    return (handle.allocation,)


def name_of(handle: crossmem.ShareableHandle) -> str:
    """Return the name of the file that offers a handle."""
    return "-".join(map(str, ("handle", handle.owner.pid, *life_of(handle))))


def expected_of(handle: crossmem.ShareableHandle) -> bytes:
    """Return what the whole memory of a handle must show."""
    return pattern(handle.owner, life_of(handle), handle.nbytes)


def damage(memory: Any, handle: crossmem.ShareableHandle) -> bool:
    """Whether memory, the whole or a part of it, shows something else."""
    expected = expected_of(handle)[handle.offset : handle.offset + handle.length]
    return bool(memory.read(len(expected)) != expected)


def is_any_dead(owners: set[ProcessIdentity], *, within_s: float = 10.0) -> bool:
    """Whether one of them is dead, or soon is: its sockets close before it ends."""
    end = time.monotonic() + within_s
    while all(process_start_time(one.pid) == one.start_time for one in owners):
        if time.monotonic() > end:
            return False
        time.sleep(0.005)
    return True


class Actor:
    """One thread's share of the activity."""

    max_nbytes = MAX_NBYTES
    max_own = MAX_OWN
    max_held = MAX_HELD
    pause_s = 0.002
    """The mean time between two steps."""

    def __init__(self, board: Path, seed: int) -> None:
        self.board = board
        self.chance = random.Random(seed)
        self.device = crossmem.device("emulated:0")
        self.own: list[tuple[Memory, crossmem.ShareableHandle, Path]] = []
        self.held: list[crossmem.Mapping] = []
        self.counts: Counter[str] = Counter()
        self.steps: list[tuple[float, Callable[[], object]]] = [
            (4, self.share),
            (2, self.free),
            (8, self.attach),
            (3, self.attach_many),
            (8, self.look),
            (3, self.scribble),
            (4, self.unmap),
            (1, self.look_at_own),
            (1, lambda: self.call(crossmem.collect)),
            (1, lambda: self.call(crossmem.exports)),
        ]

    def step(self) -> None:
        weights = [weight for weight, _ in self.steps]
        (_, act) = self.chance.choices(self.steps, weights)[0]
        act()
        self.counts["steps"] += 1

    def call(self, function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """Call a function of crossmem; for a storm that measures each call."""
        return function(*arguments, **options)

    def give_back(self, memory: Memory) -> None:
        """Free memory in one of the ways that there are."""
        memory.free()

    def problem(self, text: str) -> None:
        # To a file, because this process may be dead before anybody asks it.
        path = self.board / f"problem-{os.getpid()}-{time.monotonic_ns()}"
        path.write_text(text, "utf-8")

    # Exporting -----------------------------------------------------------------------------

    def share(self) -> None:
        if len(self.own) >= self.max_own:
            self.free()
        nbytes = self.chance.randint(8, self.max_nbytes)
        allocation = self.call(self.device.allocate, nbytes)
        access = self.chance.choice(("rw", "rw", "ro"))
        handle = self.call(allocation.export, access=access)
        self.publish(allocation, handle)

    def publish(self, memory: Memory, handle: crossmem.ShareableHandle) -> None:
        """Write what memory must show, and offer its handle."""
        memory.write(expected_of(handle))
        path = self.board / name_of(handle)
        unfinished = path.with_name("." + path.name)
        unfinished.write_bytes(handle.to_bytes())
        unfinished.rename(path)
        self.own.append((memory, handle, path))

    def free(self) -> None:
        if self.own:
            self.free_one(self.chance.randrange(len(self.own)))

    def free_one(self, place: int) -> None:
        memory, _, path = self.own.pop(place)
        if self.chance.random() < 0.5:
            path.unlink(missing_ok=True)
            self.give_back(memory)
        else:
            self.give_back(memory)
            path.unlink(missing_ok=True)

    def look_at_own(self) -> None:
        for allocation, handle, _ in self.own:
            if damage(allocation, handle):
                self.problem(f"own memory is damaged: {handle!r}")

    # Importing -----------------------------------------------------------------------------

    def handles(self) -> Iterable[Path]:
        """Return the files of the handles that workers offer."""
        return self.board.glob("handle-*")

    def found(self) -> crossmem.ShareableHandle | None:
        paths: dict[str, list[Path]] = {}
        for path in self.handles():
            paths.setdefault(path.name.split("-")[1], []).append(path)
        if not paths:
            return None
        # Owners first: those that live longest have the most handles.
        owner = self.chance.choice(sorted(paths))
        try:
            handle = crossmem.ShareableHandle.from_bytes(
                self.chance.choice(paths[owner]).read_bytes()
            )
        except FileNotFoundError:
            return None
        if self.chance.random() < 0.3:
            offset = self.chance.randrange(handle.nbytes)
            handle = handle.slice(offset, self.chance.randint(1, handle.nbytes - offset))
        return handle

    def attach(self) -> None:
        if handle := self.found():
            self.attach_all([handle])

    def attach_many(self) -> None:
        handles = [self.found() for _ in range(self.chance.randint(2, 5))]
        self.attach_all([one for one in handles if one is not None])

    def attach_all(self, handles: list[crossmem.ShareableHandle]) -> None:
        if len(handles) == 1 and self.chance.random() < 0.5:
            self.attach_with(lambda: self.look_once(handles[0]), handles)
            return
        readonly = self.chance.random() < 0.2
        self.attach_with(
            lambda: self.call(crossmem.attach_many, handles, readonly=readonly), handles
        )

    def look_once(self, handle: crossmem.ShareableHandle) -> list[crossmem.Mapping]:
        """Import, map and look, and keep nothing."""
        with (
            self.call(crossmem.import_handle, handle) as imported,
            self.call(imported.map) as mapping,
        ):
            if damage(mapping, handle):
                self.problem(f"imported damaged memory: {handle!r}")
        return []

    def attach_with(
        self,
        attach: Callable[[], list[crossmem.Mapping]],
        handles: list[crossmem.ShareableHandle],
    ) -> None:
        """Attach in one of the ways that there are, and keep the mappings."""
        try:
            mappings = attach()
        except crossmem.StaleHandleError:
            return
        except crossmem.OwnerGoneError as error:
            if not is_any_dead({one.owner for one in handles}):
                self.problem(f"the owner lives: {error!r}")
            self.counts["gone"] += 1
            self.forget_some(handles)
            return
        for mapping in mappings:
            if damage(mapping, mapping.handle):
                self.problem(f"attached damaged memory: {mapping!r}")
        self.held += mappings
        while len(self.held) > self.max_held:
            self.unmap()

    def forget_some(self, handles: list[crossmem.ShareableHandle]) -> None:
        """Take handles of the dead away, or there would soon be no others."""
        for handle in handles:
            if is_any_dead({handle.owner}, within_s=0.0) and self.chance.random() < 0.5:
                (self.board / name_of(handle)).unlink(missing_ok=True)

    def look(self) -> None:
        if self.held:
            mapping = self.chance.choice(self.held)
            if damage(mapping, mapping.handle):
                self.problem(f"held memory is damaged: {mapping!r}")
            self.counts["alive" if mapping.owner_alive else "orphaned"] += 1

    def scribble(self) -> None:
        if self.held:
            mapping = self.chance.choice(self.held)
            handle = mapping.handle
            start = max(handle.nbytes - handle.nbytes // 4, handle.offset)
            room = handle.offset + handle.length - start
            if not mapping.readonly and room > 0:
                mapping.write(self.chance.randbytes(room), offset=start - handle.offset)

    def unmap(self) -> None:
        if self.held:
            self.call(self.held.pop(self.chance.randrange(len(self.held))).unmap)

    # The end -------------------------------------------------------------------------------

    def release(self) -> None:
        for mapping in self.held:
            if damage(mapping, mapping.handle):
                self.problem(f"held memory is damaged at the end: {mapping!r}")
            self.counts["alive" if mapping.owner_alive else "orphaned"] += 1
            self.call(mapping.unmap)
        self.held.clear()

    def free_all(self) -> None:
        self.look_at_own()
        while self.own:
            self.free()


def die_after(lines: int) -> None:
    """Kill this process before a line of crossmem is run, on whatever thread."""
    left = lines

    def trace_line(_frame: FrameType, event: str, _value: Any) -> Any:
        nonlocal left
        if event == "line":
            left -= 1
            if left <= 0:
                os.kill(os.getpid(), signal.SIGKILL)
        return trace_line

    def trace_call(frame: FrameType, _event: str, _value: Any) -> Any:
        return trace_line if frame.f_code.co_filename.startswith(LIBRARY) else None

    threading.settrace(trace_call)
    sys.settrace(trace_call)


def footprint(tracers: list[TracingDriver], survivors: int = 2) -> dict[str, Any]:
    """Return what this process holds that it should not, by name.

    Parameters
    ----------
    tracers
        What counts the driver's objects.
    survivors
        How many processes may still be connected, this one included.
    """
    found: dict[str, Any] = {}
    for tracer in tracers:
        found |= {kind: count for kind, count in tracer.live.items() if count}
        if tracer.violations:
            found["violations"] = tracer.violations
    with Path("/proc/self/maps").open(encoding="utf-8") as maps:
        names = Counter(
            line.split("/memfd:", 1)[1].split()[0] for line in maps if "/memfd:" in line
        )
    descriptors = {}
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            descriptors[int(entry.name)] = str(entry.readlink())
    memories = [one for one in descriptors.values() if one.startswith("/memfd:crossmem (")]
    dead = []
    for number, target in descriptors.items():
        if "[pidfd]" in target:
            info = Path(f"/proc/self/fdinfo/{number}").read_text("ascii")
            if "Pid:\t-1" in info:
                dead.append(target)
        elif target.startswith("socket:"):
            poller = select.poll()
            poller.register(number, select.POLLIN | select.POLLHUP)
            # Neither a connection to a dead process nor a message with descriptors in it.
            if poller.poll(0):
                dead.append(target)
    threads = [one.name for one in threading.enumerate()]
    mapped = names["crossmem"]
    # A control segment of each survivor, and two rows for each of the others.
    rows = 2 * (survivors - 1)
    if names["crossmem-control"] > survivors or names["crossmem-row"] > rows:
        found["words"] = names
    unknown = sorted(set(threads) - {"MainThread", "crossmem-leases"})
    if mapped or memories or dead or unknown or threads.count("crossmem-leases") > 1:
        found["held"] = [mapped, memories, dead, threads]
    waiting = crossmem.exports()
    if waiting:
        found["exports"] = repr(waiting)
    return found


def leak() -> str:
    """Leave behind one of each kind of thing that :func:`footprint` looks for."""
    child = os.posix_spawn("/bin/true", ["true"], os.environ)
    processes._pidfd_open(child)
    os.waitpid(child, 0)
    threading.Thread(target=threading.Event().wait, name="leaked", daemon=True).start()
    device = crossmem.device("emulated:0")
    device.driver.allocate(0, 1, device.mechanism)
    return "leaked"


def settled(look: Callable[[], dict[str, Any]], within_s: float = 20.0) -> dict[str, Any]:
    """Return a footprint once it is empty, or what it is after some seconds."""
    end = time.monotonic() + within_s
    while True:
        gc.collect()
        crossmem.collect()
        found = look()
        if not found or time.monotonic() > end:
            return found
        time.sleep(0.05)


def run(actors: Sequence[Actor], commands: int) -> None:
    """Act, each actor on a thread of its own, until a command arrives."""
    stopping = threading.Event()

    def act(actor: Actor) -> None:
        try:
            while not stopping.is_set():
                actor.step()
                # Leaves room for those that begin, and for others to come in between.
                time.sleep(actor.chance.expovariate(1 / actor.pause_s))
                if actor is actors[0] and select.select([commands], [], [], 0)[0]:
                    return
        except Exception as error:
            actor.problem("raised " + "".join(traceback.format_exception(error)))
            raise

    others = [threading.Thread(target=act, args=(one,), daemon=True) for one in actors[1:]]
    for thread in others:
        thread.start()
    try:
        act(actors[0])
    finally:
        stopping.set()
    for thread in others:
        thread.join()


def main(board: Path, seed: int, lines: int, commands: Path, answers: Path) -> None:
    """Be a worker.

    Parameters
    ----------
    board
        A folder in which workers leave handles and findings for each other.
    lines
        If not 0, the process kills itself before that many lines of crossmem have run, so that it
        dies inside of what other processes can hardly hit.
    commands, answers
        FIFOs.
    """
    faulthandler.register(STACKS_SIGNAL)
    with commands.open("rb", buffering=0) as inbox, answers.open("wb", buffering=0) as outbox:
        take_part(board, seed, lines, inbox, outbox)


def traced() -> list[TracingDriver]:
    """Trace the drivers of this process from now on; return the tracers, which will come."""
    tracers: list[TracingDriver] = []

    def trace(driver: Driver) -> Driver:
        tracers.append(TracingDriver(driver))
        return tracers[-1]

    current().registry.adapt(trace)
    return tracers


def release(actors: Sequence[Actor]) -> str:
    """End what actors hold of others; return what they counted."""
    counts: Counter[str] = Counter()
    for actor in actors:
        actor.release()
        counts += actor.counts
    return json.dumps(counts)


def free(actors: Sequence[Actor]) -> None:
    """Free what actors have."""
    for actor in actors:
        actor.free_all()


def obey(inbox: RawIOBase, outbox: RawIOBase, commands: Mapping[str, Callable[[], str]]) -> None:
    """Do what is asked for, one command a line, until something else comes."""
    for line in inbox:
        command = line.strip().decode()
        if command not in commands:
            return
        outbox.write(commands[command]().encode() + b"\n")


def take_part(board: Path, seed: int, lines: int, inbox: RawIOBase, outbox: RawIOBase) -> None:
    """Act at random, then do what is asked for."""
    tracers = traced()
    outbox.write(b"ready\n")
    if lines:
        die_after(lines)
    actors = [Actor(board, seed * 10 + number) for number in range(1 + seed % 2)]
    run(actors, inbox.fileno())

    def free_all() -> str:
        free(actors)
        return json.dumps(settled(lambda: footprint(tracers)))

    obey(inbox, outbox, {"release": lambda: release(actors), "free": free_all, "leak": leak})
