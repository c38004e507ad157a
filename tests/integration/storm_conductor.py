# SPDX-License-Identifier: Apache-2.0
"""Conducts the storm of test_storm.py: kills, stops, interrupts and replaces its processes."""

import contextlib
import json
import os
import signal
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from typing_extensions import override

from crossmem.conformance.peers import Peer
from crossmem.conformance.speed import SLOWNESS

if TYPE_CHECKING:
    from tests.integration import storm_hostile, storm_interrupts, storm_participant
    from tests.integration.storm_processes import Storm, Worker
else:
    import storm_hostile
    import storm_interrupts
    import storm_participant
    from storm_processes import Storm, Worker

NOBODY: Final = 65534

_KILLS_S: Final = 1 / 48
"""How often something happens to a worker, by the second."""
_STOPS_S: Final = 1 / 24
_INTERRUPTS_S: Final = 0.5
_HOSTILE_LIFE_S: Final = (4.0, 20.0)
_ORPHANS_FOR_S: Final = 2.0
_FRESH: Final = 0.05
_TURN_S: Final = 0.01
_LONGER_S: Final = 1.0
"""How long the storm rages on where something has not happened. Workers count every second."""
_STARTERS: Final = 2


class HostileProcess:
    """A process of the storm that does harm."""

    def __init__(self, storm: "Weather", number: int, kind: str, user: int | None) -> None:
        self.peer = Peer("emulated:0", environment=storm.changes, tracing=False)
        self.peer.start(
            storm_hostile.main,
            storm.board,
            storm.run_dir,
            number,
            kind,
            user,
            within=storm.within_s,
        )
        self.ends_at = 0.0

    def kill(self) -> None:
        self.peer.destroy()


class Weather(Storm):
    """A storm with interrupts, stops, forks and hostile processes, for a time.

    Parameters
    ----------
    folder, seed
        As for :class:`Storm`.
    workers, hostile
        How many processes there are at a time.
    """

    def __init__(self, folder: Path, seed: int, *, workers: int, hostile: int) -> None:
        super().__init__(folder, seed, fresh=False)
        self.board.chmod(0o755)
        # Locks that assert their order are Python, where signal handlers run too.
        self.changes |= {
            "CROSSMEM_TEST_LOCK_ORDER": "0",
            "PYTHONWARNINGS": "ignore::ResourceWarning",
        }
        self.size, self.hostile_size = workers, hostile
        self.hostile: list[HostileProcess] = []
        self.done: Counter[str] = Counter()
        self._starting: list[Future[Worker | HostileProcess]] = []
        self._starters = ThreadPoolExecutor(_STARTERS)
        self._stopped: dict[Worker, float] = {}
        self._dead: list[tuple[float, Worker]] = []
        self._ready: set[Worker] = set()
        self._began = time.monotonic()

    # Starting -------------------------------------------------------------------------------

    def new_worker(self, number: int, *, fresh: bool) -> Worker:
        """Start a worker; it needs a while."""
        return Worker(self, storm_participant.main, self.size, number=number, fresh=fresh)

    def _begin_worker(self) -> None:
        fresh = self.chance.random() < _FRESH
        self.done["fresh workers"] += fresh
        number = next(self.numbers)
        self._starting.append(self._starters.submit(self.new_worker, number, fresh=fresh))

    def _begin_hostile(self) -> None:
        number = next(self.numbers)
        rogue = number % 4 == 0
        kind = self.chance.choice(list(storm_hostile.ROGUES if rogue else storm_hostile.KINDS))
        other_user = not rogue and kind not in storm_hostile.SAME_USER_ONLY and os.getuid() == 0
        user = NOBODY if other_user and self.chance.random() < 0.5 else None
        self._starting.append(self._starters.submit(HostileProcess, self, number, kind, user))

    def _take_in(self) -> None:
        """Take in the processes that have started."""
        for future in self._starting[:]:
            if not future.done():
                continue
            self._starting.remove(future)
            started = future.result()
            if isinstance(started, HostileProcess):
                started.ends_at = time.monotonic() + self.chance.uniform(*_HOSTILE_LIFE_S)
                self.hostile.append(started)
                self.done["hostile processes"] += 1
            else:
                self.workers.append(started)
                self.done["workers"] += 1

    # Conducting -----------------------------------------------------------------------------

    def conduct(self, seconds: float, needed: Sequence[str], at_most_s: float) -> float:
        """Let the storm rage for so long, then let it calm down; return how long it raged.

        Parameters
        ----------
        seconds
            How long it rages where everything needed has happened by then.
        needed
            Names in the totals. The storm rages on until each has happened.
        at_most_s
            When it calms down although something has not happened.
        """
        for _ in range(self.size):
            self._begin_worker()
        for _ in range(self.hostile_size):
            self._begin_hostile()
        begin = now = time.monotonic()
        end = begin + seconds
        while now < end or self._starting:
            before, now = now, time.monotonic()
            if end <= now < begin + at_most_s and self.lacking(needed):
                end = now + _LONGER_S
            self._take_in()
            self.bury()
            self._continue()
            if now < end:
                self._disturb(min(1.0, max(0.0, now - before)))
                self._replace_hostile()
            if begin + seconds / 2 < now < end and self.workers and not self.done["kills"]:
                # One in ten short storms would have to wait for one.
                self._kill(self.chance.choice(self.workers))
            time.sleep(_TURN_S)
        self._calm()
        return time.monotonic() - begin

    def _disturb(self, passed_s: float) -> None:
        """Do to each worker what its time has come for."""
        for worker in self.workers[:]:
            if worker not in self._ready:
                if worker.is_ready():
                    worker.drain()
                    self._ready.add(worker)
                elif self.chance.random() > 0.1:
                    # Some die while they begin.
                    continue
            chance = self.chance.random() / max(passed_s, 1e-9)
            if chance < _KILLS_S:
                self._kill(worker)
            elif worker not in self._ready or worker in self._stopped:
                continue
            elif chance < _KILLS_S + _STOPS_S:
                self.done["stops"] += 1
                self._send(worker, signal.SIGSTOP)
                self._stopped[worker] = time.monotonic() + 10 ** self.chance.uniform(-1.0, 0.7)
            elif chance < _KILLS_S + _STOPS_S + _INTERRUPTS_S:
                self.done["interrupts sent"] += 1
                self._send(worker, self.chance.choice(storm_interrupts.SIGNALS))

    def _send(self, worker: Worker, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(worker.peer._pidfd, number)

    def _kill(self, worker: Worker) -> None:
        self.done["kills"] += 1
        self.workers.remove(worker)
        self._stopped.pop(worker, None)
        # Its children live on for a while.
        worker.peer.kill()
        self._dead.append((time.monotonic() + self.chance.uniform(0.0, _ORPHANS_FOR_S), worker))
        self._begin_worker()

    def _continue(self) -> None:
        """Let those go on that were stopped for long enough."""
        now = time.monotonic()
        for worker, until in list(self._stopped.items()):
            if now > until:
                del self._stopped[worker]
                self._send(worker, signal.SIGCONT)

    @override
    def bury(self) -> None:
        """Nobody ends who was not killed; what the dead have left ends a while after them."""
        for worker in self.workers:
            code = worker.peer.exitcode
            has_ended = code is not None or worker.ended.is_done()
            assert not has_ended, f"a worker ended ({code}):\n{worker.errors}\n{self.problems()}"
        now = time.monotonic()
        for until, worker in self._dead[:]:
            if now > until:
                self._dead.remove((until, worker))
                worker.close()

    def _replace_hostile(self) -> None:
        now = time.monotonic()
        for one in self.hostile[:]:
            if now > one.ends_at or one.peer.exitcode is not None:
                # Each of them fails in its own way, and that is nobody's loss.
                code = one.peer.exitcode
                self.done["hostile processes that failed"] += code not in {None, -signal.SIGKILL}
                self.hostile.remove(one)
                (self.board / f"rogue-{one.peer.pid}").unlink(missing_ok=True)
                one.kill()
                self._begin_hostile()

    def _calm(self) -> None:
        """End the hostile processes, and let every worker run."""
        for one in self.hostile:
            one.kill()
        self.hostile.clear()
        for worker in list(self._stopped):
            self._send(worker, signal.SIGCONT)
        self._stopped.clear()
        for _, worker in self._dead:
            worker.close()
        self._dead.clear()
        self.size = len(self.workers)

    def close(self) -> None:
        """Kill every process that is left, whatever happened."""
        self._starters.shutdown(wait=True, cancel_futures=True)
        for future in self._starting:
            if not future.cancelled() and future.exception() is None:
                future.result().kill()
        for one in self.hostile:
            one.kill()
        for _, worker in self._dead:
            worker.close()
        for worker in self.workers:
            worker.kill()

    # What happened --------------------------------------------------------------------------

    def totals(self) -> Counter[str]:
        """Return what all processes counted, the dead too, and what was done to them."""
        total = Counter(self.done)
        for path in self.board.glob("tally-*"):
            with contextlib.suppress(json.JSONDecodeError):
                total.update(json.loads(path.read_bytes() or b"{}"))
        return total

    def lacking(self, needed: Sequence[str]) -> list[str]:
        """Return what has not happened yet, as far as the processes have told."""
        total = self.totals()
        return [one for one in needed if not total[one]]

    def report(self, seconds: float) -> str:
        """Return the numbers by the minute, as text."""
        total = self.totals()
        fair, real = total.pop("fair ms", 0), total.pop("real ms", 1)
        lines = [f"{name}: {60 * count / seconds:.0f}" for name, count in sorted(total.items())]
        return (
            f"storm of {seconds:.0f} s, slowness {SLOWNESS:.1f}, "
            f"processes ran {100 * fair / max(real, 1):.0f} % of the time; by the minute: "
            + ", ".join(lines)
        )


def outcome(storm: Weather) -> dict[str, Any]:
    """End a storm's workers; return what is wrong."""
    try:
        _counts, left = storm.release_and_free()
    except AssertionError as error:
        return {"problems": [*storm.problems(), str(error)]}
    wrong = {str(number): one for number, one in enumerate(left) if one}
    found: dict[str, Any] = {"left": wrong} if wrong else {}
    if problems := storm.problems():
        found["problems"] = problems
    return found
