# SPDX-License-Identifier: Apache-2.0
"""A model of holds in shared memory: an owner, two importers, and every order of their accesses.

A hold is a word that an importer writes into its row; the owner reads the rows before it reuses a
block. The model explores every interleaving of loads and stores, with stores that become visible
late, and of crashes. Each barrier can be left out: some interleaving then ends in a
:class:`ViolationError`, which says what the barrier is for.

The memory has eight words: the generation of the block's slot, a word in the row of each importer,
the data of the block, and for each importer whether its death is proven.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

__all__ = ["Rules", "ViolationError", "explore"]

GENERATION, ROW, DATA, DEAD, WORDS = 0, 0, 4, 5, 8
"""Addresses; those of ROW and DEAD are counted from importer 1 on."""

OWNER: Final = 0
IMPORTERS: Final = (1, 2)
FREES: Final = 2
TURNS: Final = {1: (1, 2), 2: (1,)}
"""The lives of the block that each importer holds, one after another."""

_LOAD: Final = -1
"""In place of an address: a load of the block's data whose value is needed late."""


class ViolationError(AssertionError):
    """An importer's hold did not protect the block, or the owner sleeps for ever."""


@dataclass(frozen=True)
class Rules:
    """What the processes do. The defaults are the protocol; each field can break it.

    Parameters
    ----------
    order
        Stores of one process become visible as they were made (``"tso"``, x86-64), or in any order
        but for those to one word (``"weak"``, aarch64).
    is_fenced
        Each side uses a fence of its own in place of the owner's barrier, and an importer ends a
        hold by a store that comes after all earlier accesses.
    barriers
        Which barriers the owner uses: after the next generation, before the reuse.
    holds_first
        An importer writes its row before it reads the generation.
    new_generations
        No generation comes twice.
    has_last_fence
        With fences, an importer has one between the end of a hold and its look at the generation.
    """

    order: Literal["tso", "weak"] = "tso"
    is_fenced: bool = False
    barriers: frozenset[str] = frozenset({"free", "reuse"})
    holds_first: bool = True
    new_generations: bool = True
    has_last_fence: bool = True


_Step = tuple[Any, ...]

_OWNER: Final[tuple[_Step, ...]] = (
    ("label", "free"),
    ("store", GENERATION, "retired"),
    ("barrier", "free"),
    ("label", "again"),
    ("read", 1),
    ("read", 2),
    ("unless_held", "reuse"),
    ("sleep",),
    ("label", "reuse"),
    ("barrier", "reuse"),
    ("begin",),
    ("store", DATA, "life"),
    ("store", GENERATION, "generation"),
    ("offer",),
)

_HOLD: Final[tuple[_Step, ...]] = (("hold", "generation"), ("fence",))
_CHECK: Final[tuple[_Step, ...]] = (("check",),)
_REST: Final[tuple[_Step, ...]] = (
    ("use",),
    ("store", DATA, "life"),
    ("fence",),
    ("label", "end"),
    ("hold", 0),
    ("last fence",),
    ("ring",),
)


class State(NamedTuple):
    """One moment; everything that is known of the processes and the memory."""

    memory: tuple[int, ...]
    pending: tuple[tuple[tuple[int, int, int], ...], ...]
    """For each process: address, value and life of each access that is not visible yet."""
    steps: tuple[int, ...]
    """For each process; an importer that was killed has -1."""
    life: int
    """Which life of the block the owner has begun."""
    offered: int
    """The newest life whose handle the owner has sent."""
    held: bool
    """What the owner has read of the rows."""
    awaited: frozenset[int] | None
    """Importers whose accesses the owner's barrier waits for; None outside of a barrier."""
    is_rung: bool
    """A message waits for the owner."""
    turns: tuple[int, ...]
    """For each process: how many of its holds have ended."""


def _put(values: tuple[Any, ...], index: int, value: Any) -> tuple[Any, ...]:
    return (*values[:index], value, *values[index + 1 :])


class _Model:
    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        first, second = (_HOLD, _CHECK) if rules.holds_first else (_CHECK, _HOLD)
        importer = (*first, *second, *_REST)
        self.programs = (_OWNER, importer, importer)
        self.labels = [
            {step[1]: index for index, step in enumerate(program) if step[0] == "label"}
            for program in self.programs
        ]
        names = {step[0] for program in self.programs for step in program}
        self.operations: dict[str, Any] = {
            name: getattr(self, name.replace(" ", "_")) for name in names
        }

    def start(self) -> State:
        memory = _put(_put((0,) * WORDS, GENERATION, self.generation(1)), DATA, 1)
        return State(memory, ((), (), ()), (0, 0, 0), 1, 1, False, None, False, (0, 0, 0))

    def generation(self, life: int) -> int:
        return 2 * life - 1 if self.rules.new_generations else 1

    def following(self, state: State) -> Iterator[State]:
        """Yield each moment that can come next."""
        for who in (OWNER, *IMPORTERS):
            yield from self.accesses(state, who)
            after = self.step(state, who)
            if after is not None:
                yield after
        for who in IMPORTERS:
            if state.steps[who] >= 0:
                yield state._replace(
                    steps=_put(state.steps, who, -1),
                    pending=_put(
                        state.pending,
                        who,
                        tuple(one for one in state.pending[who] if one[0] != _LOAD),
                    ),
                )
            elif not state.pending[who] and not state.memory[DEAD + who]:
                # The kernel ends a process after its stores. The proof of a death wakes the owner.
                yield state._replace(memory=_put(state.memory, DEAD + who, 1), is_rung=True)

    # Memory -----------------------------------------------------------------------------------

    def load(self, state: State, who: int, address: int) -> int:
        """Return the newest store of the process itself, else what all see."""
        for one, value, _life in reversed(state.pending[who]):
            if one == address:
                return value
        return state.memory[address]

    def accesses(self, state: State, who: int) -> Iterator[State]:
        """Yield what follows when one pending access takes effect."""
        earlier: set[int] = set()
        for index, (address, value, life) in enumerate(state.pending[who]):
            if address not in earlier:
                yield self.visible(state, who, index, address, value, life)
            if self.rules.order == "tso":
                return
            earlier.add(address)

    def visible(
        self, state: State, who: int, index: int, address: int, value: int, life: int
    ) -> State:
        rest = state.pending[who][:index] + state.pending[who][index + 1 :]
        awaited = state.awaited
        if awaited and not rest:
            awaited -= {who}
        state = state._replace(pending=_put(state.pending, who, rest), awaited=awaited)
        if address in (_LOAD, DATA) and who and (life != state.life or state.memory[DATA] != life):
            verb = "reads" if address == _LOAD else "writes"
            msg = f"importer {who}, which holds life {life}, {verb} in life {state.life}"
            raise ViolationError(msg)
        if address == _LOAD:
            return state
        return state._replace(memory=_put(state.memory, address, value))

    # Processes ----------------------------------------------------------------------------------

    def step(self, state: State, who: int) -> State | None:
        """Return the moment after a process's next step, None if it waits or has ended."""
        program, life = self.programs[who], state.life
        if state.steps[who] < 0 or state.steps[who] == len(program):
            return None
        if who:
            turn = state.turns[who]
            if turn == len(TURNS[who]) or TURNS[who][turn] > state.offered:
                return None
            life = TURNS[who][turn]
        name, *arguments = program[state.steps[who]]
        after: State | None = self.operations[name](state, who, life, *arguments)
        return after

    def next(self, state: State, who: int) -> State:
        return state._replace(steps=_put(state.steps, who, state.steps[who] + 1))

    def label(self, state: State, who: int, _life: int, _name: str) -> State:
        return self.next(state, who)

    def store(self, state: State, who: int, life: int, address: int, value: Any) -> State:
        generation = self.generation(life)
        words = {"generation": generation, "retired": generation + 1, "life": life}
        stored = (address, words.get(value, value), life)
        pending = _put(state.pending, who, (*state.pending[who], stored))
        return self.next(state._replace(pending=pending), who)

    def hold(self, state: State, who: int, life: int, value: Any) -> State:
        """Write the importer's row."""
        return self.store(state, who, life, ROW + who, value)

    def fence(self, state: State, who: int, _life: int) -> State | None:
        """Let all earlier accesses of the process come first, if it uses fences."""
        return None if self.rules.is_fenced and state.pending[who] else self.next(state, who)

    def last_fence(self, state: State, who: int, life: int) -> State | None:
        """Let the end of a hold come before the look at the generation."""
        return self.fence(state, who, life) if self.rules.has_last_fence else self.next(state, who)

    def read(self, state: State, who: int, _life: int, importer: int) -> State:
        """Read a row; the first one forgets what was read before."""
        counts = self.load(state, who, ROW + importer) and not state.memory[DEAD + importer]
        held = bool(counts) or (importer != IMPORTERS[0] and state.held)
        return self.next(state._replace(held=held), who)

    def unless_held(self, state: State, who: int, _life: int, label: str) -> State:
        return self.next(state, who) if state.held else self.go(state, who, label)

    def sleep(self, state: State, who: int, _life: int) -> State | None:
        return self.go(state._replace(is_rung=False), who, "again") if state.is_rung else None

    def begin(self, state: State, who: int, life: int) -> State:
        return self.next(state._replace(life=life + 1), who)

    def offer(self, state: State, who: int, life: int) -> State | None:
        """Send the handle of the new life; the message makes all earlier stores visible."""
        if state.pending[who]:
            return None
        state = state._replace(offered=life)
        return self.go(state, who, "free") if life <= FREES else self.next(state, who)

    def check(self, state: State, who: int, life: int) -> State:
        is_right = self.load(state, who, GENERATION) == self.generation(life)
        return self.next(state, who) if is_right else self.go(state, who, "end")

    def use(self, state: State, who: int, life: int) -> State:
        """Read the block's data; on x86-64 no load is delayed past a later store."""
        loaded = (*state.pending[who], (_LOAD, 0, life))
        state = state._replace(pending=_put(state.pending, who, loaded))
        if self.rules.order == "tso":
            state = self.visible(state, who, len(loaded) - 1, _LOAD, 0, life)
        return self.next(state, who)

    def ring(self, state: State, who: int, life: int) -> State | None:
        """End the turn, with a message if the owner has moved on."""
        is_awaited = self.load(state, who, GENERATION) != self.generation(life)
        if is_awaited and state.pending[who]:
            # Sending a message makes all earlier stores visible.
            return None
        return state._replace(
            turns=_put(state.turns, who, state.turns[who] + 1),
            is_rung=state.is_rung or is_awaited,
            steps=_put(state.steps, who, 0),
        )

    def go(self, state: State, who: int, label: str) -> State:
        return state._replace(steps=_put(state.steps, who, self.labels[who][label] + 1))

    def is_asleep_for_ever(self, state: State) -> bool:
        """Whether the owner waits for a message although no importer is on its way to send one."""
        if _OWNER[min(state.steps[OWNER], len(_OWNER) - 1)] != ("sleep",) or state.is_rung:
            return False
        return all(
            state.memory[DEAD + who]
            or (state.steps[who] == 0 and not state.pending[who] and not state.memory[ROW + who])
            for who in IMPORTERS
        )

    def barrier(self, state: State, who: int, _life: int, name: str) -> State | None:
        """Order all accesses of all processes; with fences, those of the owner alone."""
        following = self.next(state, who)
        if name not in self.rules.barriers:
            return following
        if state.awaited is None:
            if state.pending[who]:
                return None
            if self.rules.is_fenced:
                return following
            # Each importer executes its part at some moment of its own.
            return state._replace(awaited=frozenset(i for i in IMPORTERS if state.pending[i]))
        return None if state.awaited else following._replace(awaited=None)


def explore(rules: Rules) -> int:
    """Explore all that can happen, and return how many moments there are.

    Raises
    ------
    ViolationError
        With the first thing that must not happen.
    """
    model = _Model(rules)
    todo = [model.start()]
    seen = set(todo)
    while todo:
        state = todo.pop()
        if model.is_asleep_for_ever(state):
            raise ViolationError("the owner sleeps, nobody holds the block, and nobody rings")
        for after in model.following(state):
            if after not in seen:
                seen.add(after)
                todo.append(after)
    return len(seen)
