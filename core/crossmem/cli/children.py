# SPDX-License-Identifier: Apache-2.0
"""Child processes that have deadlines and never outlive the command."""

import multiprocessing
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import resource_tracker
from multiprocessing.connection import wait
from types import TracebackType
from typing import Any, Final, Self

from crossmem.cli.consumer import Failed, Progress
from crossmem.errors import CrossmemError
from crossmem.guards import clause

__all__ = ["Child", "Children", "ConsumerError"]

_GRACE_S: Final = 5.0


class ConsumerError(CrossmemError):
    """A child process died, reported a failure, or did not meet a deadline."""


class Child:
    """One spawned process and the pipe to it. :class:`Children` starts and ends the process."""

    def __init__(self, name: str, function: Callable[..., None], *arguments: object) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.process = context.Process(
            target=function, args=(theirs, *arguments), name=name, daemon=True
        )
        self.name = name
        with theirs, _without_sigint():
            self.process.start()

    @property
    def pid(self) -> int:
        """The process id of the child."""
        return self.process.pid or 0

    def send(self, message: object) -> None:
        """Send a message to the process.

        Raises
        ------
        ConsumerError
            The process is dead or has closed its connection.
        """
        try:
            self.connection.send(message)
        except OSError:
            raise self._dead() from None

    def receive(self) -> Any:
        """Return the next message. Call this only if a message is ready: the call has no deadline.

        Raises
        ------
        ConsumerError, CrossmemError
            The process is dead, or it sent a :class:`~crossmem.cli.consumer.Failed`.
        """
        try:
            message = self.connection.recv()
        except (EOFError, OSError):
            raise self._dead() from None
        if isinstance(message, Failed):
            if message.error is not None:
                message.error.message = f"{self.name} (pid {self.pid}): {message.error.message}"
                raise message.error
            raise ConsumerError(
                f"{self.name} (pid {self.pid}) failed: {clause(message.message)}",
                details=message.message,
            )
        return message

    def check(self) -> None:
        """Raise if the process died or reported a failure. Call this while no message is expected.

        Raises
        ------
        ConsumerError, CrossmemError
            The process is dead, or it sent a :class:`~crossmem.cli.consumer.Failed`.
        """
        if self.connection.poll():
            self.receive()

    def join(self, timeout: float) -> None:
        """Wait for the process to end normally.

        Raises
        ------
        ConsumerError
            The process does not end within ``timeout`` seconds, or ends with an error.
        """
        self.process.join(timeout)
        if self.process.exitcode is None:
            raise ConsumerError(f"{self.name} (pid {self.pid}) did not end in {timeout:.0f} s")
        if self.process.exitcode != 0:
            raise self._dead()

    def _dead(self) -> ConsumerError:
        self.process.join(_GRACE_S)
        code = self.process.exitcode
        how = f"was killed by signal {-code}" if code and code < 0 else f"ended with code {code}"
        if code is None:
            how = "closed its connection"
        hint = (
            "the kernel kills processes when memory runs out" if code == -signal.SIGKILL else None
        )
        return ConsumerError(f"{self.name} (pid {self.pid}) {how} before it was done", hint=hint)


class Children:
    """Children of one command. At the end of the ``with`` block, each child ends or is killed."""

    def __init__(self) -> None:
        self._all: list[Child] = []

    def start(self, name: str, function: Callable[..., None], *arguments: object) -> Child:
        """Start and return a process that runs ``function(connection, *arguments)``."""
        child = Child(name, function, *arguments)
        self._all.append(child)
        return child

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # A child ends when its pipe is closed. After an error or Ctrl-C, this method does not wait
        # for the child but kills it at once.
        for child in self._all:
            child.connection.close()
        deadline = time.monotonic() + (_GRACE_S if kind is None else 0.0)
        for child in self._all:
            child.process.join(max(0.0, deadline - time.monotonic()))
        for child in self._all:
            if child.process.is_alive():
                child.process.kill()
        for child in self._all:
            child.process.join(_GRACE_S)
            with suppress(ValueError):
                child.process.close()
        self._all.clear()


def gather(
    children: Sequence[Child],
    *,
    timeout: float,
    bar: Callable[[int], object] | None = None,
) -> list[Any]:
    """Wait for one message of each child, in any order.

    Parameters
    ----------
    timeout
        Seconds for all children together.
    bar
        A function that is called with the number of bytes of each :class:`Progress`. A
        :class:`Progress` does not count as the message of its child.

    Returns
    -------
    list
        The messages in the order of ``children``.

    Raises
    ------
    ConsumerError, CrossmemError
        A child died, a child reported a failure, or ``timeout`` has passed.
    """
    deadline = time.monotonic() + timeout
    # The annotation of multiprocessing's wait() allows results of other types than Connection, so
    # the keys have the type Any.
    waiting: dict[Any, int] = {child.connection: index for index, child in enumerate(children)}
    messages: list[Any] = [None] * len(children)
    while waiting:
        ready = wait(list(waiting), max(0.0, deadline - time.monotonic()))
        if not ready:
            names = ", ".join(children[index].name for index in waiting.values())
            raise ConsumerError(f"{clause(names)} did not answer within {timeout:.0f} seconds")
        for connection in ready:
            index = waiting[connection]
            message = children[index].receive()
            if isinstance(message, Progress):
                if bar is not None:
                    bar(message.nbytes)
            else:
                messages[index] = message
                del waiting[connection]
    return messages


@contextmanager
def _without_sigint() -> Iterator[None]:
    """Block SIGINT while a child starts. The child inherits the signal mask, so it ignores Ctrl-C.

    Ctrl-C signals the whole process group, and the child would otherwise print a traceback. In this
    process, the blocked signal is only delayed.
    """
    # The first start of a child also starts the resource tracker of multiprocessing. The start of
    # the tracker unblocks SIGINT in this process, so it happens before SIGINT is blocked.
    resource_tracker.ensure_running()
    previous = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, previous)
