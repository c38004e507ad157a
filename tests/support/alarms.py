# SPDX-License-Identifier: Apache-2.0
"""Real timers end operations of crossmem on the backend `emulated` with an exception.

    python tests/support/alarms.py COUNT [SEED]

Prints how many alarms raised, and what they left behind. It has a process of its own, because it
looks at all locks, descriptors and mappings.
"""

import gc
import random
import signal
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable
from typing import Final

from interrupted import HOST, OPERATIONS, RANGES
from interrupted_pools import HOST_POOLS, POOLS
from interrupted_world import Step, World, end, own_machine, settled

import crossmem

MOST_S: Final = 0.002
LOOK_EVERY: Final = 50

armed: list[bool] = []
"""Empty while no alarm may raise."""


class Alarm(BaseException):
    """What the handler raises."""


def main(count: int, seed: int) -> int:
    """Let alarms raise; return how often something was left behind."""
    warnings.simplefilter("ignore")
    # An alarm in a finaliser is printed by CPython and goes no further.
    sys.unraisablehook = lambda _: None
    state = own_machine()
    chosen = random.Random(seed)
    world = World("emulated", "memfd")
    operations: dict[str, Callable[[World], Step]] = OPERATIONS | HOST | RANGES | POOLS | HOST_POOLS
    took_s: dict[str, float] = {}
    raised: Counter[str] = Counter()
    faults = 0

    def ring(_number: int, _frame: object) -> None:
        # Another thread of this process may take the signal, and take it late.
        if armed:
            raised[name] += 1
            raise Alarm

    name = ""
    signal.signal(signal.SIGALRM, ring)
    for name in operations:
        took_s[name] = min(run(world, operations[name], None)[0] for _ in range(3))
    world.baseline = world.state()
    for turn in range(1, 100 * count):
        name = chosen.choice(list(operations))
        delay_s = chosen.uniform(1e-6, min(MOST_S, 1.5 * took_s[name]))
        wrong = run(world, operations[name], delay_s)[1]
        if turn % LOOK_EVERY == 0:
            wrong += look(world)
        if wrong:
            faults += 1
            print(name, turn, wrong)
            world.baseline = world.state()
        if raised.total() >= count:
            break
    world.peer.destroy()
    state.cleanup()
    print(f"{raised.total()} alarms raised, {faults} times something was left behind")
    print(", ".join(f"{name} {number}" for name, number in raised.most_common()))
    return 1 if faults or raised.total() < count else 0


def run(
    world: World, make: Callable[[World], Step], delay_s: float | None
) -> tuple[float, list[str]]:
    """Run an operation that an alarm may end; return its time and what is wrong."""
    step = make(world)
    step.prepare()
    begin = time.perf_counter()
    try:
        try:
            if delay_s is not None:
                armed.append(True)
                signal.setitimer(signal.ITIMER_REAL, delay_s)
            step.run()
        finally:
            del armed[:]
            signal.setitimer(signal.ITIMER_REAL, 0)
    except Alarm as alarm:
        alarm.__traceback__ = None
    took_s = time.perf_counter() - begin
    # There are too many for the garbage collector; look() runs it.
    return took_s, end(step, with_garbage=False)


def look(world: World) -> list[str]:
    """Return what differs from before."""
    gc.collect()
    crossmem.collect()
    held = [f"lock {one} is held" for one in world.held_locks()]
    before, after = world.baseline, settled(world)
    differ = [f"{name}: {after[name]} (was {before[name]})" for name in after]
    return held + [
        one for one, name in zip(differ, after, strict=True) if after[name] != before[name]
    ]


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int((sys.argv[2:] or ["1"])[0])))
