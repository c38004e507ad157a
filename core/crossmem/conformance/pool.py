# SPDX-License-Identifier: Apache-2.0
"""Peers that serve many tests, and the checks that no test leaves resources behind."""

import gc
import itertools
import signal
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final, Self

import crossmem
from crossmem.conformance import actions, blocks, streams_of_tests
from crossmem.conformance.peers import Peer, PeerDiedError, PeerTimeoutError, kit_descriptors
from crossmem.conformance.speed import SLOWNESS

__all__ = [
    "SOON_S",
    "LeakError",
    "PeerPool",
    "State",
    "TestTimeoutError",
    "deadline",
    "leftovers",
    "settle",
]

SOON_S: Final = 4.0 * SLOWNESS
"""The time limit, in seconds, for events that the laws promise within one second.

The limit is longer, because an overloaded machine may delay a process by some seconds.
"""

_SHOWN_LEAKS: Final = 10

State = dict[str, Any]
"""The resources of a process: the result of :func:`crossmem.conformance.actions.state`."""


class LeakError(AssertionError):
    """A test left resources behind."""

    @classmethod
    def of(cls, where: str, problems: Sequence[str]) -> Self:
        """Return an error that shows at most ten problems, and counts the others."""
        shown = list(problems[:_SHOWN_LEAKS])
        if more := len(problems) - len(shown):
            shown.append(f"and {more} more")
        return cls(f"in {where}: " + "; ".join(shown))


class TestTimeoutError(Exception):
    """A test exceeded the time limit of the kit."""

    __test__ = False


class PeerPool:
    """Starts peers once, gives the same peers to many tests, and cleans them after each test.

    Parameters
    ----------
    device, runtime, mechanism
        As for :class:`crossmem.conformance.peers.Peer`.
    forks
        Whether peers are forked. Some vendors' libraries do not survive a fork.
    environment
        Environment variables for every peer.
    """

    def __init__(
        self,
        device: str,
        *,
        runtime: str | None,
        mechanism: str | None,
        forks: bool,
        environment: Mapping[str, str],
    ) -> None:
        self.device = device
        self.runtime = runtime
        self.mechanism = mechanism
        self.forks = forks
        self.environment = dict(environment)
        self._peers: list[Peer] = []
        self._clean: dict[Peer, State] = {}

    def new(self, *, tracing: bool = True, fresh: bool = False, **environment: str | None) -> Peer:
        """Start and return a peer that is not pooled. The caller destroys it."""
        return Peer(
            self.device,
            runtime=self.runtime,
            mechanism=self.mechanism,
            environment={**self.environment, **environment},
            tracing=tracing,
            fresh=fresh or not self.forks,
        )

    def ensure(self, count: int) -> list[Peer]:
        """Replace dead peers and start missing peers. Return the first ``count`` peers."""
        for peer in [one for one in self._peers if one.exitcode is not None]:
            self.discard(peer)
        while len(self._peers) < count:
            peer = self.new()
            self._acquaint(peer)
            self._peers.append(peer)
            for one in self._peers:
                self._clean[one] = one.call(actions.state)
        return self._peers[:count]

    def _acquaint(self, peer: Peer) -> None:
        """Connect the peer with this process and with all other peers of the pool.

        Processes keep connections, so a first connection in a test would count as a leak.
        """
        blob = peer.call(actions.offer, "hello", 1)
        # The first timeline opens a page, which stays open like the connections.
        peer.call(streams_of_tests.make, "first")
        peer.call(streams_of_tests.open_event_files)
        with blocks.allocate(actions.device(), 1) as mine:
            crossmem.attach(blob).unmap()
            peer.call(actions.attach, "mine", mine.export().to_bytes())
            for other in self._peers:
                other.call(actions.attach, "hello", blob)
                peer.call(actions.attach, "theirs", other.call(actions.offer, "mine", 1))
                other.call(actions.reset)
            peer.call(actions.reset)

    def reset(self, peer: Peer) -> None:
        """Clean a peer after a test.

        Raises
        ------
        LeakError
            The peer died, did not reply, or kept resources of the test. In each case, this method
            has ended the peer.
        """
        if peer not in self._clean:
            return
        try:
            peer.call(actions.reset)
            problems = settle(lambda: leftovers(self._clean[peer], peer.call(actions.state)))
        except (PeerDiedError, PeerTimeoutError) as error:
            problems = [str(error)]
        if problems:
            self.discard(peer)
            raise LeakError.of(repr(peer), problems)

    def discard(self, peer: Peer) -> None:
        """End a peer that cannot be used any more."""
        peer.destroy()
        self._clean.pop(peer, None)
        if peer in self._peers:
            self._peers.remove(peer)

    def close(self) -> None:
        """End all peers."""
        for peer in list(self._peers):
            self.discard(peer)


def own_state() -> State:
    """Return the resources of this process, except those of the kit."""
    gc.collect()
    state = actions.state(kit_descriptors())
    # The emulation's list of breaches covers all processes. Only this process reports the list, so
    # that no peer is blamed for another peer's breach.
    state["violations"] += actions.vendor_violations() or []
    return state


def leftovers(before: State, after: State) -> list[str]:
    """Return messages about the resources that a process has gained during a test."""
    found = [
        f"{count - before['live'][kind]} {kind} are left"
        for kind, count in after["live"].items()
        if count > before["live"][kind]
    ]
    for kind in ("descriptors", "threads", "violations"):
        more: Counter[str] = Counter(after[kind]) - Counter(before[kind])
        found.extend(f"{kind}: {count} x {what}" for what, count in sorted(more.items()))
    return found


def settle(check: Any, *, within: float = SOON_S) -> list[str]:
    """Repeat a check until it finds nothing, or until ``within`` seconds have passed.

    Return the findings of the last check.
    """
    end = time.monotonic() + within
    for pause in itertools.chain((0.001, 0.005, 0.02), itertools.repeat(0.05)):
        # The clock is read before the check. So this function gives up only after a check that
        # began after the time limit, even if this process was delayed.
        is_last = time.monotonic() > end
        found: list[str] = check()
        if not found or is_last:
            return found
        time.sleep(pause)
    raise AssertionError


@contextmanager
def deadline(seconds: float) -> Iterator[None]:
    """Raise :class:`TestTimeoutError` if the ``with`` block takes longer than ``seconds``.

    Do nothing if another plugin has set an alarm already.
    """
    if signal.getitimer(signal.ITIMER_REAL)[0]:
        yield
        return

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise TestTimeoutError(f"the test took longer than {seconds} s")

    previous = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
