# SPDX-License-Identifier: Apache-2.0
"""Log lines about peers: at most one line a second about each peer, and ten a second in total."""

import logging
import time
from typing import Final

__all__ = ["PeerLog"]

_EVERY_S: Final = 1.0
_MAX_PEERS: Final = 1024
_MAX_LINES: Final = 10
"""Maximum number of lines a second about all peers. Without this limit, a peer that forks often
could cause many lines, because each child counts as another peer."""


class PeerLog:
    """Limits the rate of log lines, for each peer and in total, and counts the omitted lines."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._written: dict[int, tuple[float, int]] = {}
        """The time of the last line about each pid, and the number of lines omitted since then."""
        self._second = 0.0
        """Start of the current second."""
        self._lines = 0
        """Number of lines in this second, including those beyond ``_MAX_LINES``."""
        self._unwritten = 0
        """Number of omitted lines that are not in ``_written``. The next log line reports it."""

    def warning(self, pid: int, text: str, error: BaseException | None = None) -> None:
        """Log a line about a peer, or count the line as omitted.

        Parameters
        ----------
        pid
            Pid of the peer; 0 if this process does not know the pid.
        text
            The text that follows the name of the peer in the line.
        error
            The exception; its traceback is logged at debug level.
        """
        now = time.monotonic()
        if now - self._second >= _EVERY_S:
            self._second, self._lines = now, 0
        at, left_out = self._written.pop(pid, (-_EVERY_S, 0))
        if now - at < _EVERY_S:
            self._written[pid] = (at, left_out + 1)
            return
        self._lines += 1
        if self._lines > _MAX_LINES:
            self._unwritten += 1 + left_out
            return
        while len(self._written) >= _MAX_PEERS:
            del self._written[next(iter(self._written))]
        self._written[pid] = (now, 0)
        who = f"process {pid}" if pid else "a process that is not visible here"
        more = f" ({left_out} more lines about it were left out)" if left_out else ""
        if self._unwritten:
            more += f" ({self._unwritten} other lines were left out)"
            self._unwritten = 0
        self._log.warning("%s: %s%s", who, text, more)
        if error is not None:
            self._log.debug("%s: %s", who, text, exc_info=error)
