# SPDX-License-Identifier: Apache-2.0
"""Log lines about peers, which a peer cannot make more of than one a second."""

import logging
import time
from typing import Final

__all__ = ["PeerLog"]

_EVERY_S: Final = 1.0
_MAX_PEERS: Final = 1024


class PeerLog:
    """Writes at most one line a second about each process, and counts those that it leaves out.

    Parameters
    ----------
    log
        Gets the lines.
    """

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._written: dict[int, tuple[float, int]] = {}
        """By pid: when the last line was written, and how many were left out since."""

    def warning(self, pid: int, text: str, error: BaseException | None = None) -> None:
        """Write a line.

        Parameters
        ----------
        pid
            The process, 0 if it is not visible here.
        text
            What it did.
        error
            What was raised; its traceback is logged for debugging.
        """
        now = time.monotonic()
        at, left_out = self._written.pop(pid, (-_EVERY_S, 0))
        if now - at < _EVERY_S:
            self._written[pid] = (at, left_out + 1)
            return
        while len(self._written) >= _MAX_PEERS:
            del self._written[next(iter(self._written))]
        self._written[pid] = (now, 0)
        who = f"process {pid}" if pid else "a process that is not visible here"
        more = f" ({left_out} more lines about it were left out)" if left_out else ""
        self._log.warning("%s: %s%s", who, text, more)
        if error is not None:
            self._log.debug("%s: %s", who, text, exc_info=error)
