# SPDX-License-Identifier: Apache-2.0
"""Versions of shared trees: the writer publishes, and the readers wait and acknowledge."""

import threading
from typing import Any, Final

from crossmem.errors import (
    ClosedError,
    ConfigurationError,
    OwnerGoneError,
    StaleHandleError,
    UnsupportedError,
    WaitTimeoutError,
)
from crossmem.guards import is_within, plain_integer, shorten
from crossmem.sharing.base.ending import leave_to_references
from crossmem.sharing.base.process import Process
from crossmem.sharing.base.streams import stream_of
from crossmem.sharing.device import Device
from crossmem.sharing.timelines.timeline import Timeline, open_timeline
from crossmem.trees.message import Message

__all__ = ["Published"]

_MOST: Final = 2**63 - 3
"""The largest version."""


class Published:
    """The methods of a shared tree for its versions. A version is a value of a timeline."""

    __slots__ = (
        "_devices",
        "_is_own",
        "_is_taken",
        "_lock",
        "_timeline",
        "copied_nbytes",
        "message",
    )

    _devices: set[Device]
    """The devices that hold the arrays. :meth:`publish` without a stream waits for all work of this
    process on these devices."""
    _is_own: bool
    """Whether :func:`crossmem.share` made this object, and the tree has versions."""
    _is_taken: bool
    """Whether ``value``, ``update`` or ``receive`` has used the shared arrays of this object.

    Before the first use, this process has only the originals, so it has not written to the copies.
    """
    _lock: threading.RLock
    _process: Process
    _timeline: Timeline | None
    copied_nbytes: int
    message: Message

    def check(self) -> None:
        """Raise if this object may not be used any more."""
        raise NotImplementedError

    @property
    def version(self) -> int:
        """The number of times that the tree was published; 0 after :func:`crossmem.share`.

        Raises
        ------
        ClosedError
            This process, or the process that shares the tree, has closed the tree.
        UnsupportedError
            The tree has no versions.
        OwnerGoneError, OwnerUnresponsiveError
            The process that shares the tree does not reply, or is dead and its last version is
            unknown.
        """
        timeline = self._look(None)
        version = timeline.value
        if timeline.void:
            record = timeline._usable()
            if not record.is_closed and not record.is_owner_alive:
                msg = "the process that shares this tree is dead, and its last version is unknown"
                raise OwnerGoneError(msg, operation="version")
            raise _closed("version")
        return version

    def publish(self, *, stream: Any = None) -> int:
        """Tell readers that the tree has new contents, and return the new version.

        Call this method after the last write. A reader that sees the new version sees every earlier
        write. Publishing does not wait for readers: see :meth:`update` and
        :meth:`wait_for_readers`.

        Parameters
        ----------
        stream
            The stream that writes the contents: a stream of CuPy, PyTorch or torch-npu, or its
            handle. The version is published when the work that was issued on the stream is
            complete. The call waits for that work only if the device's timelines have the level
            ``"host"``. None: the call waits for all work of this process on the devices that hold
            the arrays.

        Raises
        ------
        UnsupportedError
            Another process shares the tree, or the tree has no versions. Or ``stream`` was passed,
            and the arrays are not all on one device with streams. Or :func:`crossmem.share` copied
            arrays, and this process has written only to the originals: it has neither used
            :attr:`value` nor called :meth:`update`.
        ConfigurationError
            ``stream`` is not a stream.
        ClosedError, ForkedProcessError
            This object was closed, or a forked child made this call.
        """
        timeline = self._own("publish")
        if self.copied_nbytes and not self._is_taken:
            msg = (
                f"share() copied {self.copied_nbytes} bytes, and the program writes to the "
                "originals, not to the shared arrays"
            )
            hint = "write to shared.value, or call shared.update(tree)"
            raise UnsupportedError(msg, operation="publish", hint=hint)
        if stream is not None:
            return timeline.signal_next(stream_of(stream))
        for one in self._devices:
            one.synchronize()
        return timeline.signal_next(None)

    def wait(self, after: int, *, stream: Any = None, timeout: float | None = None) -> int:
        """Wait until a version newer than ``after`` is published, and return that version.

        Parameters
        ----------
        after
            The version that the caller knows already; 0 waits for the first version.
        stream
            The stream that uses the arrays. Its later work waits for the version ``after + 1``,
            and the call returns this version. The level of the device's timelines decides whether
            the host waits, too; see :meth:`crossmem.Timeline.wait`. None: only the host waits.
        timeout
            Time limit in seconds; None: ``CROSSMEM_TIMEOUT``. 0 checks once. For another process's
            tree, the first call also sends a request to the owner. Even with 0, this request may
            take up to ``CROSSMEM_TIMEOUT``.

        Raises
        ------
        WaitTimeoutError
            No newer version was published before the time limit.
        OwnerUnresponsiveError
            The owner does not reply to the request of the first call.
        OwnerGoneError
            The process that shares the tree is dead.
        ClosedError, ForkedProcessError
            The owner closed the tree, this object was closed, or a forked child made this call.
        UnsupportedError
            The tree has no versions. Or ``stream`` was passed, and the arrays are not all on one
            device with streams.
        ConfigurationError
            ``after`` is not a version, or ``stream`` is not a stream.
        """
        after = plain_integer(after)
        if not is_within(after, 0, _MOST):
            msg = f"after must be a version, not {shorten(after)}"
            raise ConfigurationError(msg, operation="wait")
        timeline = self._look(timeout or None)
        try:
            return timeline.wait(after + 1, stream=stream, timeout=timeout)
        except WaitTimeoutError as error:
            limit_s = self._process.settings.timeout_s if timeout is None else timeout
            msg = f"no version after {after} was published within {limit_s:g} s"
            if after > (newest := timeline._usable().level.issued):
                msg = f"{msg}; the newest version is {newest}"
            raise WaitTimeoutError(msg, operation="wait", hint=error.hint) from None
        except ClosedError:
            self.check()
            raise _closed("wait") from None

    def _own(self, operation: str) -> Timeline:
        timeline = self._look(None)
        if not self._is_own:
            msg = f"only the process that shares this tree can call {operation}()"
            raise UnsupportedError(msg, operation=operation)
        return timeline

    def _look(self, timeout: float | None) -> Timeline:
        self.check()
        timeline = self._timeline
        if timeline is None:
            if self.message.timeline is None:
                msg = f"{self!r} has no version"
                raise UnsupportedError(msg)
            # close() takes the lock and must not wait for the exporter. So this request runs
            # without the lock.
            try:
                made = leave_to_references(open_timeline(self.message.timeline, timeout=timeout))
            except StaleHandleError as error:
                raise _closed("wait") from error
            with self._lock:
                # Another thread may have closed this object, or opened the timeline first.
                self.check()
                self._timeline = timeline = self._timeline or made
        return timeline

    def done(self, version: int, *, stream: Any = None) -> None:
        """Acknowledge a version: this process does not use its contents any more.

        A process counts as one reader of a tree, even if it has several objects for the tree. If
        the writer does not know the number of its readers, each reader calls ``done(0)`` before the
        first version is published. The writer then waits for this reader. A reader that joins later
        calls ``done(0)``, and then acknowledges the current version without using the contents,
        because the writer may already be changing the arrays.

        Parameters
        ----------
        version
            A version that was published, or 0. Earlier versions are acknowledged, too.
        stream
            The stream that uses the arrays. The version is acknowledged when the work that was
            issued on the stream is complete. The call waits for that work, unless the device's
            timelines have the level ``"word"``.

        Raises
        ------
        UnsupportedError
            This process shares the tree, or the tree has no versions. Or ``stream`` was passed,
            and the arrays are not all on one device with streams.
        ConfigurationError
            ``version`` is not a version, or ``stream`` is not a stream.
        ClosedError, ForkedProcessError
            This process has closed the tree, or a forked child made this call. Or the writer has
            closed the tree, and this object has not used versions before. If this object has used
            versions before, a call has no effect after the writer has closed the tree or died.
        OwnerGoneError, OwnerUnresponsiveError
            This object has not used versions before, and the writer is dead or does not reply.
        """
        version, timeline = plain_integer(version), self._look(None)
        if self._is_own:
            msg = "the process that shares this tree cannot acknowledge its versions"
            hint = "call done() in a process that has received the tree"
            raise UnsupportedError(msg, operation="done", hint=hint)
        record = timeline._usable()
        if is_within(version, record.known + 1, _MOST):
            # A program may pass a version of an earlier tree by mistake. A number that is larger
            # than the newest version of this tree would acknowledge later versions in advance.
            newest = record.level.issued
            msg = f"version {version} cannot be acknowledged: the newest version is {newest}"
            hint = "acknowledge a version that wait() has returned; each new tree begins at 0"
            raise ConfigurationError(msg, operation="done", hint=hint)
        timeline.done(version, stream=stream)

    def wait_for_readers(
        self, version: int, *, readers: int | None = None, timeout: float | None = None
    ) -> int:
        """Wait until the readers are done with a version, and return the number of readers.

        Parameters
        ----------
        version
            The version that the readers must have acknowledged.
        readers
            The smallest number of readers. None means 0. A process is a reader from its first
            acknowledgement on, until it closes the tree or dies. The call returns when there are at
            least this many readers, and all readers have acknowledged the version.
        timeout
            Time limit in seconds; None: ``CROSSMEM_TIMEOUT``. 0 checks once.

        Raises
        ------
        WaitTimeoutError
            The readers did not acknowledge in time. The message says how many have acknowledged.
        ConfigurationError
            ``version`` or ``readers`` is not an integer in the valid range.
        UnsupportedError
            Another process shares the tree, or the tree has no versions.
        ClosedError, ForkedProcessError
            This object was closed, or a forked child made this call.
        """
        timeline = self._own("wait_for_readers")
        try:
            return timeline.wait_for_readers(version, readers=readers, timeout=timeout)
        except ClosedError:
            # Another thread may have closed this object. Then check() raises an error that names
            # this object. The original error names the timeline, which the caller does not know.
            self.check()
            raise


def _closed(operation: str) -> ClosedError:
    msg = "the process that shares this tree closed it"
    return ClosedError(msg, operation=operation)
