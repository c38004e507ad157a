# SPDX-License-Identifier: Apache-2.0
"""The children that a worker of test_storm.py forks."""

import contextlib
import math
import multiprocessing
import os
import random
import signal
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import crossmem
from crossmem.conformance import forks
from crossmem.conformance.speed import SLOWNESS

if TYPE_CHECKING:
    from tests.integration import storm_interrupts, storm_participant, storm_worker
else:
    import storm_interrupts
    import storm_worker

MAX_LIFE_S: Final = 3.0
_WITHIN_S: Final = 30.0 * SLOWNESS
"""How long a child may take to end after that."""

_MOST: Final = 3
_KINDS: Final = ("idle", "importing", "multiprocessing", "without handlers")
_FAILED: Final = 9


class Child(NamedTuple):
    """A process that a worker has forked."""

    pid: int
    kind: str
    killed_at: float
    begun_s: float
    """On the clock of the worker that stands still while the worker cannot run."""


class Children:
    """The children of one actor.

    Parameters
    ----------
    actor
        Whose they are.
    within_s
        How long one may live until it hangs.
    """

    def __init__(
        self,
        actor: "storm_participant.StormActor",
        *,
        within_s: float = MAX_LIFE_S + _WITHIN_S,
    ) -> None:
        self._actor = actor
        self._within_s = within_s
        self._alive: list[Child] = []
        self._killed_s: dict[int, float] = {}
        """By pid: when a child was killed, on the clock of ``begun_s``."""
        self._processes: list[Any] = []

    def start(self, kind: str = "") -> None:
        """Fork one child, if there is room for it."""
        if len(self._alive) + len(self._processes) >= _MOST:
            return
        actor = self._actor
        kind = kind or actor.chance.choice(_KINDS)
        actor.counts[f"forks {kind}"] += 1
        # Half of them are killed while they do something, the others end by themselves.
        killed_at = time.monotonic() + actor.chance.expovariate(2 / MAX_LIFE_S)
        if kind == "hanging":
            killed_at = math.inf
        seed = actor.chance.getrandbits(32)
        if kind == "multiprocessing":
            with storm_interrupts.undisturbed():
                context = multiprocessing.get_context("fork")
                process = context.Process(target=_in_process, args=(actor, seed))
                process.start()
                self._processes.append((process, killed_at, actor.watch.fair_s))
            return
        if kind == "without handlers":
            with storm_interrupts.undisturbed():
                pid = forks.sleeping_child(with_handlers=False)
                self._alive.append(Child(pid, kind, killed_at, actor.watch.fair_s))
            return
        # An exception in a handler that runs after a fork is lost, and so is what the handler would
        # have done: logging, for one, keeps its lock then.
        with storm_interrupts.undisturbed():
            pid = os.fork()
            if not pid:
                _run(_JOBS[kind], actor, seed)
            self._alive.append(Child(pid, kind, killed_at, actor.watch.fair_s))

    def tend(self) -> None:
        """Kill those whose time has come, and check how the others ended."""
        now, fair_s = time.monotonic(), self._actor.watch.fair_s
        with storm_interrupts.undisturbed():
            for child in self._alive[:]:
                since_s = child.begun_s
                if now > child.killed_at:
                    # Nobody may have looked here for long.
                    since_s = self._killed_s.setdefault(child.pid, fair_s)
                    _kill(child.pid)
                pid, status = _wait(child.pid)
                if pid:
                    self._alive.remove(child)
                    self._killed_s.pop(pid, None)
                    self._check(child.kind, os.waitstatus_to_exitcode(status))
                elif fair_s - since_s > self._within_s:
                    self._alive.remove(child)
                    self._give_up(child.pid, child.kind)
            for one in self._processes[:]:
                process, killed_at, begun_s = one
                if now > killed_at:
                    process.kill()
                if process.exitcode is not None:
                    self._processes.remove(one)
                    self._check("multiprocessing", process.exitcode)
                    process.close()
                elif fair_s - begun_s > self._within_s:
                    self._processes.remove(one)
                    self._give_up(process.pid, "multiprocessing")

    def _check(self, kind: str, code: int) -> None:
        if code not in {0, -signal.SIGKILL}:
            self._actor.problem(f"a forked child ({kind}) ended with {code}")
        self._actor.counts["children killed" if code else "children ended"] += 1

    def _give_up(self, pid: int, kind: str) -> None:
        os.kill(pid, storm_worker.STACKS_SIGNAL)
        time.sleep(0.5)
        _kill(pid)
        self._actor.problem(f"hung: a forked child ({kind}, {pid}) does not end")

    def end(self) -> None:
        """Wait for the end of all of them."""
        while self._alive or self._processes:
            self.tend()
            time.sleep(0.05)


def reap_lost() -> None:
    """Wait for the children that no list has, because an interrupt came when they were forked."""
    end = time.monotonic() + MAX_LIFE_S + _WITHIN_S
    while time.monotonic() < end:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not pid:
            time.sleep(0.05)


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _wait(pid: int) -> tuple[int, int]:
    try:
        return os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        # Another actor of this process has waited for it.
        return pid, 0


# In the child ---------------------------------------------------------------------------------


def _run(job: "Job", actor: "storm_participant.StormActor", seed: int) -> None:
    """Do a job in a child that was forked, and end it."""
    code = _FAILED
    try:
        job(actor, seed)
        code = 0
    except BaseException as error:  # noqa: BLE001 - the child must end here
        actor.problem(f"a forked child raised {error!r}")
    finally:
        os._exit(code)


def _idle(_actor: "storm_participant.StormActor", seed: int) -> None:
    """Touch nothing for a while."""
    time.sleep(random.Random(seed).uniform(0.0, MAX_LIFE_S))


def _hang(_actor: "storm_participant.StormActor", _seed: int) -> None:
    """End never."""
    while True:
        signal.pause()


def _import(actor: "storm_participant.StormActor", seed: int) -> None:
    """Import what workers offer, as the process of its own that a child is."""
    chance = random.Random(seed)
    end = time.monotonic() + chance.uniform(0.0, MAX_LIFE_S)
    for mapping in actor.held[:1]:
        try:
            mapping.read(1)
            actor.problem("a forked child reads through a mapping of its parent")
        except crossmem.ForkedProcessError:
            pass
        except crossmem.ClosedError:
            pass
    while time.monotonic() < end:
        paths = sorted(actor.board.glob("handle-*"))
        with contextlib.suppress(
            FileNotFoundError,
            IndexError,
            crossmem.StaleHandleError,
            crossmem.OwnerGoneError,
            crossmem.OwnerUnresponsiveError,
        ):
            blob = chance.choice(paths).read_bytes()
            with crossmem.attach(blob, timeout=0.5) as mapping:
                if storm_worker.damage(mapping, mapping.handle):
                    actor.problem(f"a forked child imported damaged memory: {mapping!r}")
        time.sleep(chance.expovariate(1 / 0.1))


def _in_process(actor: "storm_participant.StormActor", seed: int) -> None:
    """Import in a child of multiprocessing, which ends as those do."""
    try:
        _import(actor, seed)
    except BaseException as error:
        actor.problem(f"a child of multiprocessing raised {error!r}")
        raise


Job = Callable[["storm_participant.StormActor", int], None]
_JOBS: Final[dict[str, Job]] = {"idle": _idle, "importing": _import, "hanging": _hang}
