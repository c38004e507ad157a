# SPDX-License-Identifier: Apache-2.0
"""Cleanup steps that run despite a failure, and that do not hide the failure."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from crossmem.errors import CrossmemError

__all__ = ["in_any_case", "noting", "on_failure"]


@contextmanager
def on_failure(step: Callable[[], object]) -> Iterator[None]:
    """Run a step if the block raises. An error of the step becomes a note on the block's error."""
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
    """Run a step after the block, even if the block raises.

    If both raise, the block's error propagates.
    """
    with on_failure(step):
        yield
    step()


@contextmanager
def noting(error: BaseException) -> Iterator[None]:
    """Run a cleanup block after an error. An error of the block becomes a note on ``error``."""
    try:
        yield
    except CrossmemError as failure:
        error.add_note(f"cleaning up failed too: {failure}")
