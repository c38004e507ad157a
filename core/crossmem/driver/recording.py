# SPDX-License-Identifier: Apache-2.0
"""Calls whose result must not be lost to an exception of a signal handler (law C30).

CPython runs signal handlers at the entry of a Python function, at a backward jump and after a call
of C code. So ``descriptor = os.open(...)`` can lose the descriptor: the handler raises between
the call and the assignment. Here the result is in a list before the interpreter gets there.

The other direction needs no helper. A statement that forgets a resource, followed at once by the
one C call that gives it back, cannot be separated by a handler::

    descriptor, block.descriptor = block.descriptor, None
    os.close(descriptor)
"""

from collections.abc import Callable
from itertools import starmap
from typing import TypeVar

__all__ = ["call_into"]

_T = TypeVar("_T")


def call_into(box: list[_T], call: Callable[..., _T], *arguments: object) -> _T:
    """Call something, and append its result to ``box`` before a signal handler can run.

    Parameters
    ----------
    box
        Where the caller finds the result although this function raises.
    call, arguments
        What returns a resource as a number. If it is Python itself, its own code must be safe up to
        its ``return``.
    """
    box.extend(starmap(call, (arguments,)))
    return box[-1]
