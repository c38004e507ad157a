# SPDX-License-Identifier: Apache-2.0
"""Shared trees: nested arrays and tensors that other processes receive without a copy."""

import threading
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any, Generic, Self, TypeVar, cast

from typing_extensions import override

from crossmem.arrays.adapters import ADAPTERS
from crossmem.errors import ClosedError, ConfigurationError, UnsupportedError
from crossmem.guards import check_timeout
from crossmem.sharing.base.deferred import Call
from crossmem.sharing.base.memory import leave_to_views
from crossmem.sharing.base.process import Process, drain, is_current, refuse_foreign
from crossmem.sharing.importer.attach import attach_reserved
from crossmem.sharing.importer.mapping import Mapping
from crossmem.trees.message import Message
from crossmem.trees.nodes import read
from crossmem.trees.opening import attach_handles, build, pair_leaves
from crossmem.trees.tree_memory import Leaf, TreeMemory
from crossmem.trees.versions import OwnCell, RemoteCell, wait_until_newer

__all__ = ["Shared"]

_Tree = TypeVar("_Tree")
_ELSEWHERE = "is shared by another process, and only that one writes and publishes it"


class Shared(Generic[_Tree]):
    """Nested arrays and tensors, ready to be received by other processes.

    Made by :func:`crossmem.share`, and in other processes by :meth:`from_bytes`. It keeps what was
    shared, and owns what had to be copied: keep it until the others have received, then close it,
    or use it as a context manager. What they have received stays theirs. Pickles as its bytes.

    Attributes
    ----------
    copied_nbytes
        How many bytes were copied, because they could not be shared where they lay.
    """

    __slots__ = (
        "__weakref__",
        "_blob",
        "_cell",
        "_devices",
        "_is_closed",
        "_is_taken",
        "_kept",
        "_leaves",
        "_lock",
        "_origins",
        "_owned",
        "_process",
        "_received",
        "_value",
        "copied_nbytes",
        "message",
    )

    def __init__(
        self,
        process: Process,
        message: Message,
        *,
        cell: OwnCell | None = None,
        tree_memory: TreeMemory | None = None,
        leaves: Sequence[Leaf] = (),
        kept: object = None,
        received: Sequence[Mapping] = (),
    ) -> None:
        self._process = process
        self.message = message
        self._blob: bytes | None = None
        # Reentrant: a signal handler may close this while its thread is in here.
        self._lock = threading.RLock()
        self._is_closed = False
        self._devices = tree_memory.devices if tree_memory is not None else set()
        self._owned = tree_memory.owned if tree_memory is not None else []
        self.copied_nbytes = tree_memory.copied_nbytes if tree_memory is not None else 0
        self._origins = tree_memory.origins if tree_memory is not None else {}
        self._leaves = leaves
        self._kept = kept
        self._value: _Tree | None = None
        self._is_taken = False
        """Whether somebody has, or has written, the arrays in shared memory."""
        self._received = list(received)
        # Last: from here on, this object gives the cell back.
        self._cell: OwnCell | RemoteCell | None = cell

    @classmethod
    def from_bytes(cls, blob: bytes | bytearray | memoryview) -> "Shared[Any]":
        """Return the tree that another process described in bytes. Nothing is imported yet.

        Raises
        ------
        InvalidHandleError
            Where the bytes are not that.
        """
        return cls(drain(), Message.from_bytes(blob))

    @classmethod
    def from_reserved(cls, blob: bytes, numbers: Sequence[int]) -> "Shared[Any]":
        """Return the tree of a message that holds its memory, which this keeps from now on.

        Parameters
        ----------
        blob
            What :meth:`to_bytes` returned.
        numbers
            The number of the reservation of each handle.
        """
        message = Message.from_bytes(blob)
        received = attach_reserved(zip(message.handles, numbers, strict=True))
        for mapping in received:
            leave_to_views(mapping)
        return cls(drain(), message, received=received)

    def to_bytes(self) -> bytes:
        """Return what other processes receive the tree by. It may travel in any way.

        Whoever holds the bytes and passes the exporter's access check can read the memory, so
        treat them as a credential.
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

    def take_message(self) -> Message:
        """Return the description of the tree to who makes arrays of it.

        Raises
        ------
        ClosedError, ForkedProcessError
            With what happened.
        """
        self.check()
        self._is_taken = True
        return self.message

    @property
    def value(self) -> _Tree:
        """The tree in shared memory.

        In the process that shares it, an array that was copied is an array in the shared memory
        here, and any other is the array that was shared. Go on working with this tree: readers see
        what is written to it. In other processes it is what :func:`crossmem.receive` returns. Each
        use gives the same objects. They keep the memory as arrays of :func:`crossmem.receive` do.

        Raises
        ------
        ClosedError, ForkedProcessError
            This may not be used any more.
        CrossmemError
            In another process than the one that shares it: as :func:`crossmem.receive`.
        """
        message = self.take_message()
        value = self._value
        if value is None:
            if self._leaves:
                arrays = [self._array(number) for number in range(len(message.rows))]
                value = read(message.tree, arrays)
            else:
                value = build(message, attach_handles(message, readonly=False))
            self._value = value
        return cast("_Tree", value)

    def _array(self, number: int) -> Any:
        """Return an array of the tree, in shared memory."""
        row, leaf = self.message.rows[number], self._leaves[number]
        if row.handle is None:
            return leaf.value
        origin = self._origins[self.message.handles[row.handle]]
        if origin.address + row.layout.offset == leaf.found.pointer:
            return leaf.value
        return origin.array(row.kind, row.layout)

    def update(self, tree: _Tree) -> int:
        """Overwrite the tree in shared memory with the contents of another one, and publish it.

        Readers that work with the arrays at that moment see old and new bytes mixed. So let them
        finish before: they say so to this process in any way, and then wait for the version that
        this returns.

        Parameters
        ----------
        tree
            A tree of the same containers, with arrays and tensors of the same shapes and dtypes.
            Plain values in it are not looked at.

        Returns
        -------
        int
            The new version; see :meth:`publish`.

        Raises
        ------
        ConfigurationError
            The trees differ; the message names the first difference. Nothing was written then.
        UnsupportedError
            Another process shares the tree.
        ClosedError, ForkedProcessError
            This may not be used any more.
        """
        self._own_cell("update")
        jobs = []
        for row, source, found, _where in list(pair_leaves(self.message, tree, "tree")):
            if row.handle is not None:
                origin = self._origins[self.message.handles[row.handle]]
                if origin.address + row.layout.offset != found.pointer:
                    jobs.append((found.kind, origin.array(found.kind, row.layout), source))
        for kind, target, source in jobs:
            ADAPTERS[kind].copy_to(target, source)
        self._is_taken = True
        return self.publish()

    # Versions -----------------------------------------------------------------------------

    @property
    def version(self) -> int:
        """How often the tree was published; 0 after :func:`crossmem.share`.

        Raises
        ------
        ClosedError
            Where this, or the tree in the process that shares it, was closed.
        """
        return self._look(None).read()

    def publish(self) -> int:
        """Let readers know that the tree has new contents, and return the new version.

        Call it after the last write. The devices' running work is waited for first, so whoever
        sees the new version sees all that was written before. Writing again while readers still
        read is up to the application: they may see both old and new bytes then.

        Raises
        ------
        UnsupportedError
            Another process shares the tree. Or the tree was copied when it was shared, and nobody
            has its arrays in shared memory: what was written since is elsewhere.
        ClosedError, ForkedProcessError
            This may not be used any more.
        """
        cell = self._own_cell("publish")
        if self.copied_nbytes and not self._is_taken:
            msg = "the tree was copied when it was shared, and nobody has written to the copy since"
            hint = "write to shared.value, or call shared.update(tree) in place of publish()"
            raise UnsupportedError(msg, operation="publish", hint=hint)
        for one in self._devices:
            one.synchronize()
        return cell.bump()

    def _own_cell(self, operation: str) -> OwnCell:
        cell = self._look(None)
        if not isinstance(cell, OwnCell):
            raise UnsupportedError(f"{self!r} {_ELSEWHERE}", operation=operation)
        return cell

    def wait(self, after: int, *, timeout: float | None = None) -> int:
        """Wait until a newer version than ``after`` was published, and return that.

        Parameters
        ----------
        after
            The version that the caller knows already; 0 waits for the first.
        timeout
            How long, in seconds; 0 looks once; ``CROSSMEM_TIMEOUT`` if None.

        Raises
        ------
        WaitTimeoutError
            None was published in that time.
        OwnerGoneError
            Where the process that shares the tree is dead.
        ClosedError
            Where it closed the tree, or this was closed.
        """
        if type(after) is not int or after < 0:
            msg = f"after must be a version, not {after!r}"
            raise ConfigurationError(msg, operation="wait")
        timeout_s = 0.0
        if timeout != 0:
            timeout_s = check_timeout(timeout, default_s=self._process.settings.timeout_s)
        # Looking once may still have to ask the owner for the memory of the version.
        cell = self._look(timeout or None)

        def check() -> None:
            self.check()
            if isinstance(cell, RemoteCell):
                cell.check_owner()

        return wait_until_newer(cell.read, check, after, timeout_s)

    def _look(self, timeout: float | None) -> OwnCell | RemoteCell:
        self.check()
        cell = self._cell
        if cell is None:
            if self.message.cell is None:
                msg = f"{self!r} has no version"
                raise UnsupportedError(msg)
            # Not under the lock, or close() would wait for the exporter.
            cell = RemoteCell(self.message.cell, timeout)
            with self._lock:
                # Another thread may have closed this meanwhile, or been faster.
                self.check()
                self._cell = cell = self._cell or cell
        return cell

    # The end ------------------------------------------------------------------------------

    def check(self) -> None:
        """Raise where this may not be used any more.

        Raises
        ------
        ClosedError, ForkedProcessError
            With what happened.
        """
        refuse_foreign(self._process, self)
        if self._is_closed:
            msg = f"{self!r} cannot be used any more"
            raise ClosedError(msg)

    @property
    def kept(self) -> object:
        """What keeps the memory, apart from this object: for what is to outlive it."""
        return self._owned, self._leaves, self._origins, self._kept, self._received, self._value

    @property
    def closed(self) -> bool:
        """Whether this was closed."""
        return self._is_closed

    def close(self) -> None:
        """Let go what was shared, and free what was copied. Closing twice is harmless.

        Others keep what they have received. Whoever receives later gets a
        :class:`crossmem.StaleHandleError`, where the memory was copied or adopted for this.
        """
        if self._is_closed:
            return
        if is_current(self._process) and self._process.is_closed:
            return
        refuse_foreign(self._process, self)
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
        cell, self._cell = self._cell, None
        if isinstance(cell, OwnCell):
            cell.close()
        self._leaves, self._origins, self._kept, self._value = (), {}, None, None
        with ExitStack() as steps:
            # Whatever one of them raises, the others are given back.
            while self._owned:
                steps.callback(self._owned.pop().free)
            while self._received:
                steps.callback(self._received.pop().unmap)

    def __enter__(self) -> Self:
        self.check()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        cell = getattr(self, "_cell", None)
        if isinstance(cell, OwnCell) and is_current(self._process):
            self._process.deferred.ready[Call(cell.close)] = None

    @override
    def __reduce__(self) -> tuple[Any, ...]:
        return Shared.from_bytes, (self.to_bytes(),)
