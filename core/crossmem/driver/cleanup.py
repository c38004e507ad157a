# SPDX-License-Identifier: Apache-2.0
"""Cleanup steps that run despite a failure, and that do not hide the failure."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from crossmem.errors import CrossmemError

__all__ = ["in_any_case", "noting", "on_failure"]


@contextmanager
def on_failure(step: Callable[[], object]) -> Iterator[None]:
    """Run a step if the ``with`` block raises.

    A ``CrossmemError`` of the step becomes a note on the error of the ``with`` block.
    """
    try:
        yield
    except BaseException as error:
        try:
            step()
        except CrossmemError as failure:
            error.add_note(f"cleaning up failed too: {failure}")
        raise


@contextmanager
def in_any_case(step: Callable[[], object]) -> Iterator[None]:
    """Run a step after the ``with`` block, even if the block raises.

    If the block raises, a ``CrossmemError`` of the step becomes a note; see :func:`on_failure`.
    """
    with on_failure(step):
        yield
    step()


@contextmanager
def noting(error: BaseException) -> Iterator[None]:
    """Run a ``with`` block that cleans up after ``error``.

    A ``CrossmemError`` of the block becomes a note on ``error``, and is not raised.
    """
    try:
        yield
    except CrossmemError as failure:
        error.add_note(f"cleaning up failed too: {failure}")
