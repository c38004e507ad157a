# SPDX-License-Identifier: Apache-2.0
"""Shared trees: nested arrays and tensors that other processes receive without a copy."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Generic, Self, TypeVar

from typing_extensions import override

from crossmem.errors import ClosedError, StaleHandleError
from crossmem.sharing.base.deferred import Call
from crossmem.sharing.base.memory import leave_to_views
from crossmem.sharing.base.process import Process, drain, is_current, refuse_foreign
from crossmem.sharing.importer.attach import attach_reserved
from crossmem.sharing.importer.mapping import Mapping
from crossmem.sharing.timelines.timeline import Timeline
from crossmem.trees.building import attach_all, build
from crossmem.trees.contents import Contents
from crossmem.trees.message import Message
from crossmem.trees.pool_blocks import let_go
from crossmem.trees.publishing import Published
from crossmem.trees.tree_memory import TreeMemory

__all__ = ["Shared", "refusing_closed"]

# The type variable is covariant, so no parameter of a method can have this type. update() therefore
# takes any tree, and refuses a tree with another structure.
_T_co = TypeVar("_T_co", covariant=True)


@contextmanager
def refusing_closed(shared: "Shared[Any]") -> Iterator[None]:
    """If the block fails because ``shared`` was closed, raise an error that names ``shared``.

    The original error names only the closed memory or the stale handle.
    """
    try:
        yield
    except (ClosedError, StaleHandleError):
        # Another thread may have closed the object after the caller's check.
        shared.check()
        raise


class Shared(Published, Generic[_T_co]):
    """Nested arrays and tensors, ready to be received by other processes.

    :func:`crossmem.share` makes this object; in other processes, :meth:`from_bytes` makes one. The
    object that :func:`crossmem.share` returns keeps the arrays that were shared in place, and owns
    the copies of the other arrays. Keep this object until the other processes have received the
    tree. Then close it, or use it as a context manager.
    Received arrays stay valid after the close. A pickle of this object contains the bytes of
    :meth:`to_bytes`.

    Attributes
    ----------
    copied_nbytes
        Number of bytes that were copied because they could not be shared in place.
    """

    __slots__ = (
        "__weakref__",
        "_blob",
        "_contents",
        "_is_closed",
        "_kept",
        "_owned",
        "_process",
        "_received",
        "_value",
    )

    def __init__(
        self,
        process: Process,
        message: Message,
        *,
        timeline: Timeline | None = None,
        tree_memory: TreeMemory | None = None,
        contents: Contents | None = None,
        kept: object = None,
        received: Sequence[Mapping] = (),
    ) -> None:
        self._process = process
        self.message = message
        self._blob: bytes | None = None
        # The lock is reentrant, because a signal handler may close this object while the
        # interrupted thread holds the lock.
        self._lock = threading.RLock()
        self._is_closed = False
        self._devices = tree_memory.devices if tree_memory is not None else set()
        self._owned = tree_memory.owned if tree_memory is not None else []
        self.copied_nbytes = tree_memory.copied_nbytes if tree_memory is not None else 0
        # The shared originals and copies of arrays; None if this object was made from bytes.
        self._contents = contents
        self._is_taken = False
        self._value: tuple[_T_co] | None = None
        self._kept = kept
        self._received = list(received)
        self._is_own = timeline is not None
        self._timeline = timeline

    @classmethod
    def from_bytes(cls, blob: bytes | bytearray | memoryview) -> "Shared[Any]":
        """Return a shared tree from the bytes of :meth:`to_bytes`. This call imports no memory.

        Raises
        ------
        InvalidHandleError
            The bytes are not a shared tree.
        """
        return cls(drain(), Message.from_bytes(blob))

    @classmethod
    def from_reserved(cls, blob: bytes, numbers: Sequence[int]) -> "Shared[Any]":
        """Return the tree of a message with reservations. The returned tree holds the memory.

        Parameters
        ----------
        blob
            The bytes that :meth:`to_bytes` returned.
        numbers
            For each handle, the number of its reservation.
        """
        message = Message.from_bytes(blob)
        received = attach_reserved(zip(message.handles, numbers, strict=True))
        for mapping in received:
            leave_to_views(mapping)
        return cls(drain(), message, received=received)

    def to_bytes(self) -> bytes:
        """Return the bytes with which other processes receive the tree.

        The bytes are a credential: a process that has them and passes the exporter's access check
        can import the memory.
        """
        if self._blob is None:
            self._blob = self.message.to_bytes()
        return self._blob

    @override
    def __repr__(self) -> str:
        nbytes = sum(row.layout.nbytes for row in self.message.rows)
        copied = f", {self.copied_nbytes} of them copied" if self.copied_nbytes else ""
        state = ", closed" if self._is_closed else ""
        return (
            f"<Shared tree of {len(self.message.rows)} arrays, {nbytes} bytes{copied}, in "
            f"{len(self.message.handles)} allocations{state}>"
        )

    # Contents -----------------------------------------------------------------------------

    @property
    def value(self) -> _T_co:
        """The tree in shared memory. Readers see all writes to its arrays.

        The value has new containers. It has the original of each array that was shared in place.
        For each copied array, it has a new array over the copy. The copy of a PyTorch ``Parameter``
        is a plain tensor. In another process, the value is the result of :func:`crossmem.receive`,
        and this object keeps the result.

        The arrays stay valid after :meth:`close`, as received arrays do.

        Raises
        ------
        ClosedError, ForkedProcessError
            This object was closed, or a forked child made this call.
        CrossmemError
            Another process shares the tree, and the tree cannot be received; see
            :func:`crossmem.receive`.
        """
        contents, found = self._contents, self._value
        message = self.take()
        if found is None:
            # close() takes the lock and must not wait for the exporter. attach_all() may wait for
            # the exporter, so this block runs without the lock.
            with refusing_closed(self):
                made = contents.tree() if contents else build(message, attach_all(message))
            with self._lock:
                self.check()
                self._value = found = self._value or (made,)
        return found[0]

    def update(self, tree: Any) -> int:
        """Copy the arrays of a tree into the shared memory. Publish and return a new version.

        An array of ``tree`` that is the shared array itself is not copied.

        The update does not wait for readers. A reader that uses the arrays during an update may see
        torn data: old elements beside new ones, and elements that are half old. Readers therefore
        call :meth:`wait` and :meth:`done`, and the owner calls :meth:`wait_for_readers` before the
        next update. Only one thread may update or publish at a time.

        Parameters
        ----------
        tree
            A tree with the same containers as the shared tree, and with arrays of the same
            libraries, dtypes and shapes. The plain values of both trees must be equal, because an
            update does not change the bytes from which readers take the plain values. ``tree`` may
            contain the arrays of :attr:`value` at other places, because every array is read before
            it is overwritten. If shared arrays overlap, several arrays of ``tree`` have a value for
            the same element. The last of these arrays sets the element.

        Raises
        ------
        ConfigurationError
            The structure or a plain value differs, or a shared array cannot be overwritten. Or one
            shared array is at two places of the tree, and the new arrays at these places differ.
            The message names the place. The shared memory has not changed.
        UnsupportedError
            Another process shares the tree, the tree has no versions, or something in ``tree``
            cannot be shared.
        ClosedError, ForkedProcessError
            This object was closed, or a forked child made this call.
        """
        self._own("update")
        contents = self._contents
        # Another thread may have closed this object after the check in _own().
        self.take()
        assert contents is not None  # noqa: S101 - set with the timeline
        with refusing_closed(self):
            contents.overwrite(tree)
        return self.publish()

    def take(self) -> Message:
        """Return the message, for a caller that uses the memory in this process.

        Raises
        ------
        ClosedError, ForkedProcessError
            This object was closed, or a forked child made this call.
        """
        self.check()
        self._is_taken = True
        return self.message

    # The end ------------------------------------------------------------------------------

    @override
    def check(self) -> None:
        """Raise if this object may not be used any more.

        Raises
        ------
        ClosedError, ForkedProcessError
            This object was closed, or a forked child made this call.
        """
        refuse_foreign(self._process, self)
        if self._is_closed:
            msg = f"{self!r} cannot be used any more"
            raise ClosedError(msg)

    @property
    def kept(self) -> object:
        """The objects that keep the memory. :meth:`close` frees the copies and adoptions."""
        return self._owned, self._contents, self._kept, self._received

    @property
    def closed(self) -> bool:
        """Whether this object was closed."""
        return self._is_closed

    def close(self) -> None:
        """Release the shared memory and free the copies. A second call does nothing.

        Other processes keep the arrays that they have received. Memory that was copied or adopted
        for this tree is freed when this object is closed and all arrays of :attr:`value` are
        deleted. After the memory is freed, :func:`crossmem.receive` of this tree raises
        :class:`crossmem.StaleHandleError`.
        """
        timeline = self._timeline
        has_timeline = timeline is not None and not timeline.closed
        # If an exception interrupted an earlier call, this call releases the rest.
        if self._is_closed and not (self._owned or self._received or has_timeline):
            return
        if is_current(self._process) and self._process.is_closed:
            return
        refuse_foreign(self._process, self)
        with self._lock:
            self._is_closed = True
        self._kept = self._contents = self._value = None
        with ExitStack() as steps:
            # If one step raises, the others still run.
            while True:
                if not self._owned:
                    break
                steps.callback(let_go, self._owned.pop())
            while True:
                if not self._received:
                    break
                steps.callback(self._received.pop().unmap)
            if self._timeline is not None:
                # The last callback runs first, so readers see that the tree is closed before the
                # memory is released.
                steps.callback(self._timeline.close)
            if self._process.is_inside:
                # This call runs in a finaliser or signal handler, and its thread holds a lock. If
                # this call executed the steps, it could wait for that lock forever. So another
                # thread executes the steps.
                deferred = self._process.deferred
                deferred.ready[Call(steps.pop_all().close)] = None
                deferred.start_reaper()

    def __enter__(self) -> Self:
        self.check()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @override
    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (self.to_bytes(),)


def _restore(blob: bytes) -> "Shared[Any]":
    # This function is not a method, because cloudpickle would put a method's code into the pickle.
    return Shared.from_bytes(blob)
