# SPDX-License-Identifier: Apache-2.0
"""The error for a process that is out of descriptors."""

import errno
import resource
from collections.abc import Iterator
from contextlib import contextmanager

from crossmem.errors import DriverError

__all__ = ["name_descriptor_limit", "no_descriptors"]


def no_descriptors(call: str) -> DriverError:
    """Return the error for a process that is out of descriptors; it names the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return DriverError(
        "this process has no descriptor left for shared memory",
        call=call,
        code=errno.EMFILE,
        name="EMFILE",
        backend="host",
        hint=f"raise the limit of {soft} open files (hard limit {hard}) with ulimit -n",
    )


@contextmanager
def name_descriptor_limit(call: str) -> Iterator[None]:
    """Turn the system's error for too many open files into one that names the limit."""
    try:
        yield
    except OSError as error:
        if error.errno in {errno.EMFILE, errno.ENFILE}:
            raise no_descriptors(call) from error
        raise
