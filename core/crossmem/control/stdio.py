# SPDX-License-Identifier: Apache-2.0
"""The descriptors 0, 1 and 2, which crossmem must not use for memory or connections."""

import os
from contextlib import suppress
from typing import Final

__all__ = ["occupy"]

_LAST: Final = 2


def occupy() -> None:
    """Open the null device at each closed descriptor from 0 to 2.

    Otherwise a memfd could get the number of standard error, and the next message of a C library
    would overwrite shared data.
    """
    for descriptor in range(_LAST + 1):
        try:
            os.fstat(descriptor)
        except OSError:
            # Some systems have no null device.
            with suppress(OSError):
                _open_null_device()


def _open_null_device() -> None:
    # The kernel gives the lowest free number. This number is above 2 if another thread has taken
    # the number of the closed descriptor in the meantime.
    opened = os.open(os.devnull, os.O_RDWR)
    if opened > _LAST:
        os.close(opened)
    else:
        os.set_inheritable(opened, True)  # noqa: FBT003 - standard streams are inheritable
