# SPDX-License-Identifier: Apache-2.0
"""The errors for a process that has reached a limit on descriptors, threads or file sizes."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from crossmem.driver.limits import FILE_SIZE_HINT, descriptor_hint
from crossmem.errors import DriverError, OutOfMemoryError

__all__ = ["name_limit", "no_descriptors", "no_thread"]


def no_descriptors(call: str, code: int = errno.EMFILE) -> DriverError:
    """Return the error for a limit on descriptors that the process or the system has reached.

    The hint of the error names the limit.
    """
    is_process = code == errno.EMFILE
    return DriverError(
        f"this {'process' if is_process else 'system'} has no descriptor left for shared memory",
        call=call,
        code=code,
        name=errno.errorcode[code],
        backend="host",
        hint=descriptor_hint() if is_process else "raise fs.file-max, or close files",
    )


def no_thread(name: str) -> DriverError:
    """Return the error for a process that cannot start a thread; the hint names the limit."""
    return DriverError(
        f"the thread {name} cannot be started",
        call="pthread_create",
        code=errno.EAGAIN,
        name="EAGAIN",
        backend="host",
        hint="raise the limit on processes and threads (ulimit -u)",
    )


@contextmanager
def name_limit(call: str) -> Iterator[None]:
    """Turn an ``OSError`` about descriptors or a file's size into an error that names the limit.

    Other exceptions pass unchanged.

    Parameters
    ----------
    call
        The name of the system call.
    """
    try:
        yield
    except OSError as error:
        if error.errno in {errno.EMFILE, errno.ENFILE}:
            raise no_descriptors(call, error.errno) from error
        if error.errno == errno.EFBIG:
            msg = f"shared memory is larger than the limit on the size of a file: {call} failed"
            raise OutOfMemoryError(msg, backend="host", hint=FILE_SIZE_HINT) from error
        raise
