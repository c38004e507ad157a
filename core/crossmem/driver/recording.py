# SPDX-License-Identifier: Apache-2.0
"""A function that records the result of a call before a signal handler can raise (law C30).

CPython runs signal handlers at the entry of a Python function, at a backward jump and after a call
of C code. So ``descriptor = os.open(...)`` loses the descriptor if a handler raises between the
call and the assignment. :func:`call_into` stores the result in a list before the interpreter can
run a handler.

A call that releases a resource does not need :func:`call_into`. No handler can run between a
statement that clears a reference and a C call in the next statement::

    descriptor, block.descriptor = block.descriptor, None
    os.close(descriptor)
"""

from collections.abc import Callable
from itertools import starmap
from typing import TypeVar

__all__ = ["call_into"]

_T = TypeVar("_T")


def call_into(box: list[_T], call: Callable[..., _T], *arguments: object) -> _T:
    """Call a function, and append its result to ``box`` before a signal handler can run.

    Parameters
    ----------
    box
        The list in which the caller finds the result even if this function raises.
    call, arguments
        ``call`` is a function that returns a resource or the resource's number. ``arguments`` are
        the arguments for ``call``. If ``call`` is a Python function and raises before its
        ``return``, ``call`` itself must release the resource.
    """
    box.extend(starmap(call, (arguments,)))
    return box[-1]
