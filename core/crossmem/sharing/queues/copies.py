# SPDX-License-Identifier: Apache-2.0
"""Copies of bytes, arrays and tensors into buffers of a queue."""

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, NamedTuple

from crossmem.errors import InvalidSizeError, UnsupportedError
from crossmem.forks import MODULES
from crossmem.guards import check_choice, shorten
from crossmem.sharing.base import views
from crossmem.sharing.base.ending import leave_to_references
from crossmem.sharing.queues.buffer import SharedBuffer

__all__ = ["copied"]


class _Copy(NamedTuple):
    """A planned copy."""

    nbytes: int
    copy_into: Callable[[SharedBuffer], object]


def copied(
    item: Any, nbytes: int, allocate: Callable[[], SharedBuffer], *, copy: str | bool | None
) -> SharedBuffer:
    """Copy ``item`` into a free buffer, and return the buffer.

    Parameters
    ----------
    nbytes
        Capacity of a buffer.
    allocate
        A function that returns a free buffer. The function is called only if ``item`` can be copied
        and fits.
    copy
        The argument ``copy`` of :meth:`crossmem.Queue.put`.

    Raises
    ------
    UnsupportedError
        The caller allows no copy, or ``item`` is neither contiguous bytes nor an array.
    InvalidSizeError
        ``item`` does not fit.
    """
    if copy is not None and copy is not True and copy is not False:
        check_choice("copy", copy, ("allow",), "put")
    if not copy:
        msg = f"{shorten(item, 60)} is not a buffer of this queue"
        hint = "to put bytes or an array, pass copy='allow', or fill a buffer from queue.allocate()"
        raise UnsupportedError(msg, operation="put", hint=hint)
    planned = _copy_of_array(item) or _copy_of_bytes(item)
    if planned.nbytes > nbytes:
        msg = f"{shorten(item, 60)} has {planned.nbytes} bytes, and a buffer has {nbytes}"
        hint = "make the queue with larger buffers, or put the object in parts"
        raise InvalidSizeError(msg, operation="put", hint=hint)
    made = allocate()
    with ExitStack() as undo:
        undo.push(made)
        planned.copy_into(made)
        made.data_length = planned.nbytes
        undo.pop_all()
    return leave_to_references(made)


def _copy_of_bytes(item: Any) -> _Copy:
    try:
        view = memoryview(item)
        contents = view.cast("B") if view.nbytes else memoryview(b"")
    except (TypeError, ValueError, BufferError) as error:
        msg = f"{shorten(item, 60)} is neither contiguous bytes nor an array, and cannot be copied"
        hint = "write its contents into a buffer from queue.allocate()"
        raise UnsupportedError(msg, operation="put", hint=hint) from error
    return _Copy(contents.nbytes, lambda buffer: buffer.write(contents))


def _copy_of_array(item: Any) -> _Copy | None:
    """Plan a copy, in C order, of an array or tensor. Return None for other objects."""
    # These imports are not at the top, because a program that puts no arrays needs none of them.
    with MODULES:
        from crossmem.arrays import Layout
        from crossmem.arrays.adapters import ADAPTERS, describe
        from crossmem.arrays.libraries import require

    info = describe(item)
    if info is None:
        return None
    layout = Layout(info.layout.dtype, info.layout.shape)

    def copy_into(buffer: SharedBuffer) -> None:
        is_host = buffer.device.capabilities.host_visible
        if info.kind == "numpy" or (info.kind == "cupy" and is_host):
            # write() copies host bytes into a buffer of any device. The array is viewed as bytes,
            # because memoryviews do not know the formats of some dtypes.
            whole = item if info.kind == "numpy" else require("cupy").asnumpy(item)
            whole = require("numpy").ascontiguousarray(whole)
            buffer.write(whole.reshape(-1).view("uint8"))
            return
        target = views.maker(buffer, info.kind)(layout)
        ADAPTERS[info.kind].copy_to(target, item)

    return _Copy(layout.nbytes, copy_into)
