# SPDX-License-Identifier: Apache-2.0
"""Hints about the limits of this process."""

import resource
from typing import Final

__all__ = ["FILE_SIZE_HINT", "descriptor_hint"]

FILE_SIZE_HINT: Final = "raise the limit on the size of a file (ulimit -f) for this process"


def descriptor_hint() -> str:
    """Return the hint for a process that is out of descriptors. The hint names the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        return (
            f"the limit is {soft} open files: raise it with `ulimit -n {hard}` before the program "
            "starts, or share parts of a few large allocations"
        )
    return (
        f"the limit is {hard} open files, and only root can raise it (LimitNOFILE= of a service, "
        "--ulimit nofile= of a container); without root, share parts of a few large allocations"
    )
