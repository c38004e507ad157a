# SPDX-License-Identifier: Apache-2.0
"""Ends a child process when its parent ends, even if the parent is killed."""

import ctypes
import os

__all__ = ["end_with"]

_PR_SET_PDEATHSIG = 1


def end_with(parent: int, number: int) -> None:
    """Let the kernel send a signal to this process when its parent ends.

    A pipe from the parent does not suffice, because a child sees the end of the pipe only while it
    reads the pipe.

    Parameters
    ----------
    parent
        The pid of the parent.
    number
        The signal.

    Raises
    ------
    EOFError
        The parent has already ended.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)
    if os.getppid() != parent:
        msg = "the parent has ended"
        raise EOFError(msg)
