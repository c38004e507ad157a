# SPDX-License-Identifier: Apache-2.0
"""A model of sleeping and waking: a signalling process, two waiters, every order of their accesses.

The words are those of :mod:`crossmem.sharing.timelines.cell`. The model explores every interleaving
of loads and stores, with stores that become visible late. Each part of the protocol can be left
out: some interleaving then ends in a :class:`LostWakeError`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

__all__ = ["LostWakeError", "Rules", "explore"]

VALUE, WAITING, SEQUENCE, CARE = 0, 1, 2, 3
"""Addresses."""
_LOAD: Final = -1
"""In place of an address: a load of the sequence that takes effect late."""

SIGNALLER: Final = 0
WAITERS: Final = (1, 2)
VALUES: Final = 2
TARGETS: Final = {1: (1, 2), 2: (2,)}
"""The values for which each waiter waits, one after another."""


class LostWakeError(AssertionError):
    """A waiter sleeps although its value was signalled, and no wake-up is on its way."""


@dataclass(frozen=True)
class Rules:
    """What the processes do. The defaults are the protocol; each field can break it.

    Parameters
    ----------
    order
        Stores of one process become visible as they were made (``"tso"``, x86-64), or in any order
        but for those to one word, and loads may be late (``"weak"``, aarch64).
    is_fenced
        The signalling process is not registered for the barrier, and uses a fence of its own.
    has_fence
        It really does.
    has_barrier
        The first waiter takes the barrier between the flag and its second look.
    settles_late
        It says so after the barrier, not before it.
    trusts_pending
        Another waiter relies on a barrier that may not be complete.
    has_care
        The signalling process takes a fence after it has seen that a waiter slept.
    has_waiter_fence
        A later waiter takes a fence between the flag and its second look.
    looks_again
        A waiter looks once more after it has set the flag.
    has_sequence
        The signalling process increments the sequence before it wakes.
    clears_first
        The flag is cleared before the increment, not after the wake-up.
    reads_sequence_first
        A waiter reads the sequence before it sets the flag, not after its second look.
    observes_sequence
        No later access of the waiter comes before that read.
    has_release
        The increment comes after the clearing of the flag.
    """

    order: Literal["tso", "weak"] = "tso"
    is_fenced: bool = False
    has_fence: bool = True
    has_barrier: bool = True
    settles_late: bool = True
    trusts_pending: bool = False
    has_care: bool = True
    has_waiter_fence: bool = True
    looks_again: bool = True
    has_sequence: bool = True
    clears_first: bool = True
    reads_sequence_first: bool = True
    observes_sequence: bool = True
    has_release: bool = True


class State(NamedTuple):
    """One moment; everything that is known of the processes and the memory."""

    memory: tuple[int, ...]
    pending: tuple[tuple[tuple[int, int], ...], ...]
    """For each process: address and value of each access that is not visible yet."""
    steps: tuple[int, ...]
    seen: tuple[int, ...]
    """For each process: the sequence that it has read."""
    turns: tuple[int, ...]
    """For each process: how many values it has signalled, or has waited for."""
    awaited: tuple[frozenset[int] | None, ...]
    """For each process: whose accesses its barrier waits for; None outside of a barrier."""
    asleep: frozenset[int]
    careful: tuple[bool, ...]
    """For each process: whether it relies on fences."""


def _put(values: tuple[Any, ...], index: int, value: Any) -> tuple[Any, ...]:
    return (*values[:index], value, *values[index + 1 :])


def _signaller(rules: Rules) -> tuple[str, ...]:
    clear, wake = ("clear", "release"), ("increment", "wake")
    order = (*clear, *wake) if rules.clears_first else (*wake, *clear)
    return ("idle", "signal", "unless_alone", "fence", "unless_waiting", *order, "again")


def _waiter(rules: Rules) -> tuple[str, ...]:
    read = "read", "observed"
    settle = ("barrier", "settle") if rules.settles_late else ("settle", "barrier")
    look = "care", "mark", "set", *settle, "look"
    return (
        ("begin", *read, *look, "sleep")
        if rules.reads_sequence_first
        else (
            "begin",
            *look,
            *read,
            "sleep",
        )
    )


class _Model:
    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.programs = (_signaller(rules), _waiter(rules), _waiter(rules))

    def start(self) -> State:
        nobody: frozenset[int] = frozenset()
        return State(
            (0, 0, 0, 0),
            ((), (), ()),
            (0, 0, 0),
            (0, 0, 0),
            (0, 0, 0),
            (None, None, None),
            nobody,
            (False, False, False),
        )

    def following(self, state: State) -> Iterator[State]:
        """Yield each moment that can come next."""
        for who in (SIGNALLER, *WAITERS):
            yield from self.accesses(state, who)
            after = self.step(state, who)
            if after is not None:
                yield after

    def check(self, state: State) -> None:
        """Raise if a waiter sleeps although no wake-up is on its way."""
        if self.programs[SIGNALLER][state.steps[SIGNALLER]] != "idle" or state.pending[SIGNALLER]:
            return
        for who in state.asleep:
            if state.memory[VALUE] >= TARGETS[who][state.turns[who]]:
                msg = f"waiter {who} sleeps, and the value is {state.memory[VALUE]}"
                raise LostWakeError(msg)

    # Memory -----------------------------------------------------------------------------------

    def load(self, state: State, who: int, address: int) -> int:
        """Return the newest store of the process itself, else what all see."""
        for one, value in reversed(state.pending[who]):
            if one == address:
                return value
        return state.memory[address]

    def accesses(self, state: State, who: int) -> Iterator[State]:
        """Yield what follows when one pending access takes effect."""
        earlier: set[int] = set()
        for index, (address, value) in enumerate(state.pending[who]):
            if address not in earlier:
                rest = state.pending[who][:index] + state.pending[who][index + 1 :]
                after = state._replace(pending=_put(state.pending, who, rest))
                if not rest:
                    after = after._replace(
                        awaited=tuple(one and one - {who} for one in after.awaited)
                    )
                if address == _LOAD:
                    yield after._replace(seen=_put(after.seen, who, state.memory[SEQUENCE]))
                else:
                    yield after._replace(memory=_put(after.memory, address, value))
            if self.rules.order == "tso":
                return
            earlier.add(address)

    # Processes ----------------------------------------------------------------------------------

    def step(self, state: State, who: int) -> State | None:
        """Return the moment after a process's next step, None if it waits, sleeps or has ended."""
        turns = VALUES if who == SIGNALLER else len(TARGETS[who])
        if who in state.asleep or state.turns[who] == turns:
            return None
        name = self.programs[who][state.steps[who]]
        after: State | None = getattr(self, name)(state, who)
        return after

    def next(self, state: State, who: int) -> State:
        return state._replace(steps=_put(state.steps, who, state.steps[who] + 1))

    def restart(self, state: State, who: int) -> State:
        return state._replace(steps=_put(state.steps, who, 0))

    def store(self, state: State, who: int, address: int, value: int) -> State:
        pending = _put(state.pending, who, (*state.pending[who], (address, value)))
        return self.next(state._replace(pending=pending), who)

    def drained(self, state: State, who: int) -> State | None:
        """Go on when all accesses of the process are visible."""
        return None if state.pending[who] else self.next(state, who)

    # The signalling process

    def idle(self, state: State, who: int) -> State | None:
        """Begin a signal; elsewhere than on x86-64 with a fence."""
        return self.next(state, who) if self.rules.order == "tso" else self.drained(state, who)

    def signal(self, state: State, who: int) -> State:
        return self.store(state, who, VALUE, state.turns[who] + 1)

    def unless_alone(self, state: State, who: int) -> State:
        """Go on if a waiter has slept, or the barrier does not reach this process."""
        goes_on = self.rules.is_fenced or self.load(state, who, CARE)
        return self.next(state, who) if goes_on else self.again(state, who)

    def fence(self, state: State, who: int) -> State | None:
        is_used = self.rules.has_fence if self.rules.is_fenced else self.rules.has_care
        return self.drained(state, who) if is_used else self.next(state, who)

    def unless_waiting(self, state: State, who: int) -> State:
        return self.next(state, who) if self.load(state, who, WAITING) else self.again(state, who)

    def clear(self, state: State, who: int) -> State:
        return self.store(state, who, WAITING, 0)

    def release(self, state: State, who: int) -> State | None:
        is_used = self.rules.has_release and self.rules.order == "weak"
        return self.drained(state, who) if is_used else self.next(state, who)

    def increment(self, state: State, who: int) -> State:
        if not self.rules.has_sequence:
            return self.next(state, who)
        return self.store(state, who, SEQUENCE, self.load(state, who, SEQUENCE) + 1)

    def wake(self, state: State, who: int) -> State | None:
        """Wake all. The system call comes after all earlier accesses."""
        if state.pending[who]:
            return None
        for one in state.asleep:
            state = self.restart(state, one)
        return self.next(state._replace(asleep=frozenset()), who)

    def again(self, state: State, who: int) -> State:
        return self.restart(state._replace(turns=_put(state.turns, who, state.turns[who] + 1)), who)

    # A waiter

    def begin(self, state: State, who: int) -> State:
        return self.next(state, who)

    def read(self, state: State, who: int) -> State:
        if self.rules.order == "weak":
            return self.store(state, who, _LOAD, 0)
        return self.next(state._replace(seen=_put(state.seen, who, state.memory[SEQUENCE])), who)

    def observed(self, state: State, who: int) -> State | None:
        is_used = self.rules.observes_sequence
        return self.drained(state, who) if is_used else self.next(state, who)

    def care(self, state: State, who: int) -> State:
        """Find out whether the signalling process takes fences."""
        found = self.load(state, who, CARE)
        is_careful = found == 2 or (self.rules.trusts_pending and found == 1)
        return self.next(state._replace(careful=_put(state.careful, who, is_careful)), who)

    def mark(self, state: State, who: int) -> State:
        return self.next(state, who) if state.careful[who] else self.store(state, who, CARE, 1)

    def settle(self, state: State, who: int) -> State:
        return self.next(state, who) if state.careful[who] else self.store(state, who, CARE, 2)

    def set(self, state: State, who: int) -> State:
        return self.store(state, who, WAITING, 1)

    def barrier(self, state: State, who: int) -> State | None:
        """Order all accesses of this process, and those of each registered one."""
        following = self.next(state, who)
        if state.careful[who]:
            return self.drained(state, who) if self.rules.has_waiter_fence else following
        if not self.rules.has_barrier:
            return following
        awaited = state.awaited[who]
        if awaited is None:
            if state.pending[who]:
                return None
            others = {SIGNALLER, *WAITERS} - {who}
            if self.rules.is_fenced:
                others.discard(SIGNALLER)
            # Each process executes its part at some moment of its own.
            awaited = frozenset(one for one in others if state.pending[one])
            return state._replace(awaited=_put(state.awaited, who, awaited))
        return None if awaited else following._replace(awaited=_put(state.awaited, who, None))

    def look(self, state: State, who: int) -> State:
        target = TARGETS[who][state.turns[who]]
        if self.rules.looks_again and self.load(state, who, VALUE) >= target:
            return self.again(state, who)
        return self.next(state, who)

    def sleep(self, state: State, who: int) -> State | None:
        """Sleep, unless the sequence has moved. The kernel compares it when all is visible."""
        if state.pending[who]:
            return None
        if state.memory[SEQUENCE] != state.seen[who]:
            return self.restart(state, who)
        return state._replace(asleep=state.asleep | {who})


def explore(rules: Rules) -> int:
    """Explore all that can happen, and return how many moments there are.

    Raises
    ------
    LostWakeError
        With the first wake-up that is lost.
    """
    model = _Model(rules)
    todo = [model.start()]
    seen = set(todo)
    while todo:
        state = todo.pop()
        model.check(state)
        for after in model.following(state):
            if after not in seen:
                seen.add(after)
                todo.append(after)
    return len(seen)
