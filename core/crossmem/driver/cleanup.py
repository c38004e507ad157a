# SPDX-License-Identifier: Apache-2.0
"""Steps that a failure must not skip, and that must not hide the failure."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from crossmem.errors import CrossmemError

__all__ = ["in_any_case", "noting", "on_failure"]


@contextmanager
def on_failure(step: Callable[[], object]) -> Iterator[None]:
    """Take a step where the block raises; what the step raises is only noted on the error."""
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
    """Take a step after the block. Where both raise, the block's error is the one."""
    with on_failure(step):
        yield
    step()


@contextmanager
def noting(error: BaseException) -> Iterator[None]:
    """Run a block that cleans up after an error; what the block raises is only noted on that."""
    try:
        yield
    except CrossmemError as failure:
        error.add_note(f"cleaning up failed too: {failure}")
