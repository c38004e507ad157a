# SPDX-License-Identifier: Apache-2.0
"""A hostile process of test_storm.py: it does one kind of harm, over and over, until it is killed.

:func:`main` runs in a peer. The pauses between its actions leave the machine able to work.
"""

import contextlib
import os
import random
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

import crossmem
from crossmem.conformance import actions
from crossmem.control import wire
from crossmem.models import ProcessIdentity, process_start_time

if TYPE_CHECKING:
    from tests.integration import (
        lease_actions,
        rogue_actions,
        storm_watch,
        stranger_actions,
        word_actions,
    )
else:
    import lease_actions
    import rogue_actions
    import storm_watch
    import stranger_actions
    import word_actions

_PAUSE_S: Final = 0.3
_MOST_SQUATS: Final = 20
_MOST_SILENT: Final = 60
_MOST_WORDS: Final = 20_000
_FORGET_EVERY: Final = 5


class Hostile:
    """What one hostile process knows of its victims."""

    def __init__(self, board: Path, run_dir: Path | None, seed: int) -> None:
        # Another user can go on using the descriptor of a folder that it cannot name.
        self._board = os.open(board, os.O_RDONLY | os.O_DIRECTORY)
        self._run_dir = run_dir
        self.chance = random.Random(seed)
        self._silent: list[object] = []
        self._owners: dict[ProcessIdentity, None] = {}
        self._squats = 0
        self._turns = 0

    def victim(self) -> bytes:
        """Return a handle that a worker offers."""
        found = os.listdir(self._board)  # noqa: PTH208 - a descriptor
        names = [one for one in found if one.startswith("handle-")]
        descriptor = os.open(self.chance.choice(names), os.O_RDONLY, dir_fd=self._board)
        try:
            return os.read(descriptor, 1 << 16)
        finally:
            os.close(descriptor)

    def act(self, kind: str) -> None:
        """Do harm once."""
        self._turns += 1
        if self._turns % _FORGET_EVERY == 0:
            # Sockets close when nobody refers to them; there is no room for many of these.
            stranger_actions._kept.clear()
            lease_actions._kept.clear()
        KINDS[kind](self)

    def linger(self) -> None:
        """Send sockets whose last close takes a minute."""
        stranger_actions.send_lingering_to_an_exporter(self.victim(), 2, None)

    def talk_rubbish(self) -> None:
        """Send random and mutated requests."""
        blob = self.victim()
        for _ in range(10):
            with lease_actions.connect(blob) as connection:
                good = lease_actions.request(blob, connection.recv(1000))
                for _ in range(self.chance.randrange(1, 6)):
                    connection.send(lease_actions.mutated(good, self.chance))

    def flood_unread(self) -> None:
        """Send the largest requests that are right, and read nothing."""
        lease_actions.ask_without_reading(self.victim(), 20)

    def flood(self) -> None:
        """Send the largest requests that are right, and read the replies."""
        lease_actions.ask_on_and_on(self.victim(), 0.2)

    def squat(self) -> None:
        """Listen where a dead owner listened."""
        for _ in range(5):
            owner = crossmem.ShareableHandle.from_bytes(self.victim()).owner
            self._owners[owner] = None
        dead = [one for one in self._owners if process_start_time(one.pid) != one.start_time]
        if dead and self._squats < _MOST_SQUATS:
            owner = self.chance.choice(dead)
            del self._owners[owner]
            self._squats += 1
            if self.chance.random() < 0.5:
                stranger_actions.greet_with_lingering(owner, None, None)
            else:
                lease_actions.squat(owner, self.chance.choice([self._run_dir, None]))

    def scribble(self) -> None:
        """Write random words into the row that an owner reads."""
        if "mapped" in actions.objects:
            actions.unmap("mapped")
            del actions.objects["mapped"]
        actions.attach("mapped", self.victim(), timeout=2.0)
        word_actions.scribble("mapped", _MOST_WORDS, self.chance.getrandbits(32))

    def keep_silent(self) -> None:
        """Connect and never speak."""
        if len(self._silent) > _MOST_SILENT:
            self._silent.clear()
        self._silent += [lease_actions.connect(self.victim()) for _ in range(3)]


KINDS: Final[dict[str, Callable[[Hostile], None]]] = {
    "linger": Hostile.linger,
    "rubbish": Hostile.talk_rubbish,
    "flood_unread": Hostile.flood_unread,
    "flood": Hostile.flood,
    "squat": Hostile.squat,
    "scribble": Hostile.scribble,
    "silent": Hostile.keep_silent,
}
"""What importers, or strangers, do to the owners of memory."""

ROGUES: Final = (*rogue_actions.LINGERING, *rogue_actions.GREETINGS, *rogue_actions.ANSWERS)
"""What owners do to importers."""

SAME_USER_ONLY: Final = frozenset({"scribble"})
"""What only a process does that is admitted."""


def main(board: Path, run_dir: Path, seed: int, kind: str, user: int | None) -> None:
    """Be hostile in one way until killed.

    Parameters
    ----------
    board, run_dir
        Where workers leave handles, and where their sockets lie.
    seed
        For what is done at random.
    kind
        One of :data:`KINDS` or :data:`ROGUES`.
    user
        Which user to become; None: stay the same.
    """
    tally = storm_watch.Tally(board)
    hostile = Hostile(board, run_dir if user is None else None, seed)
    if kind in ROGUES:
        blob = rogue_actions.pretend(kind)
        unfinished = board / f".rogue-{os.getpid()}"
        unfinished.write_bytes(blob)
        unfinished.rename(board / f"rogue-{os.getpid()}")
    if user is not None:
        os.setgroups([])
        os.setuid(user)
    name = kind if user is None else f"{kind} as {user}"
    failures = (OSError, IndexError, struct.error, wire.ProtocolError, crossmem.CrossmemError)
    while True:
        if kind in ROGUES:
            tally.counts["hostile rogue"] = 1
        else:
            # Its victim may be dead, and the victim's defences end what it does.
            with contextlib.suppress(*failures):
                hostile.act(kind)
                tally.counts[f"hostile {name}"] += 1
        tally.save()
        time.sleep(hostile.chance.expovariate(1 / _PAUSE_S))
