# SPDX-License-Identifier: Apache-2.0
"""Hints about the limits of this process."""

import resource

__all__ = ["descriptor_hint"]


def descriptor_hint() -> str:
    """Return the hint for a process that is out of descriptors. The hint names the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        return (
            f"the limit is {soft} open files: raise it with `ulimit -n {hard}` before the program "
            "starts, or share parts of fewer allocations"
        )
    return (
        f"the limit is {hard} open files, and only root can raise it (LimitNOFILE= of a service, "
        "--ulimit nofile= of a container); or share parts of fewer allocations"
    )
