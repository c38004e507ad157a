# SPDX-License-Identifier: Apache-2.0
"""The detection of forked children, and the release of inherited memory."""

import os

from crossmem_emulated import memory

__all__ = ["expect", "generation"]

_generation = 0
_is_expected = False


def generation() -> int:
    """Return a number that is larger by 1 in a forked child than in its parent."""
    return _generation


def expect() -> None:
    """Let every child that is forked later release the memory that it inherits.

    The child closes the inherited descriptors of memory, and unmaps inherited device memory. If the
    child kept them, the memory would stay allocated even when the parent releases it. Descriptors
    that the application made inheritable stay open.
    """
    global _is_expected  # noqa: PLW0603 - one value for the process
    _is_expected = True


def _after_fork_in_child() -> None:
    global _generation  # noqa: PLW0603
    _generation += 1
    if _is_expected:
        memory.close_inherited()
        memory.unmap_inherited()


os.register_at_fork(after_in_child=_after_fork_in_child)
