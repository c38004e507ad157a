# SPDX-License-Identifier: Apache-2.0
"""Versions of shared trees: numbers in host memory that readers poll without a request.

A cell has two words: the number of its tree and the version. The number is 0 after the tree was
closed. Each word is written atomically, as aligned words are on every machine that runs Linux.
"""

import os
import threading
import time
from collections.abc import Callable
from typing import Final
from weakref import WeakKeyDictionary

from crossmem.control.records import Allow
from crossmem.errors import ClosedError, OwnerGoneError, StaleHandleError, WaitTimeoutError
from crossmem.models import Access
from crossmem.sharing.base.deferred import Call
from crossmem.sharing.base.memory import leave_to_views
from crossmem.sharing.base.process import Process
from crossmem.sharing.device import Device
from crossmem.sharing.exporter.allocation import Allocation
from crossmem.sharing.importer.attach import attach
from crossmem.trees.message import CELL_NBYTES, Cell

__all__ = ["OwnCell", "RemoteCell", "new_cell", "wait_until_newer"]

_BOARD_NBYTES: Final = 4096
_CELLS: Final = _BOARD_NBYTES // CELL_NBYTES
_SHORTEST_S: Final = 20e-6
_LONGEST_S: Final = 2e-3
"""The longest sleep of a waiting reader between two polls."""


class _Board:
    """Cells in one allocation of this process, which readers of any tree import once."""

    def __init__(self, process: Process, allocation: Allocation, allow: Allow | None) -> None:
        leave_to_views(allocation)
        self.process = process
        self.allow = allow
        self.words = allocation.view().cast("Q")
        self.free = list(range(_CELLS))
        access: Access = "ro" if allocation.device.capabilities.readonly_exports else "rw"
        self.handle = allocation.export(allow=allow, access=access)


class OwnCell:
    """The version of a tree of this process."""

    def __init__(self, board: _Board, index: int) -> None:
        self._board = board
        self._index = index
        tree = int.from_bytes(os.urandom(8), "little") | 1
        board.words[2 * index + 1] = 0
        board.words[2 * index] = tree
        self.cell = Cell(board.handle, index * CELL_NBYTES, tree)

    def read(self) -> int:
        """Return the version.

        Raises
        ------
        ClosedError
            Another thread closed the tree meanwhile.
        """
        version = self._board.words[2 * self._index + 1]
        if self._board.words[2 * self._index] != self.cell.tree:
            msg = "another thread closed this tree"
            raise ClosedError(msg, operation="wait")
        return version

    def bump(self) -> int:
        """Increment the version and return it. Readers see all earlier writes before it.

        Raises
        ------
        ClosedError
            As for :meth:`read`.
        """
        # The lock excludes close(), after which the cell may belong to another tree.
        with self._board.process.lock:
            version = self.read() + 1
            _order_memory()
            self._board.words[2 * self._index + 1] = version
        return version

    def close(self) -> None:
        """Tell readers that no version will follow, and make the cell available to another tree."""
        board = self._board
        if board.process.is_inside:
            # A finaliser may run in a thread that holds locks while a forking thread, which has the
            # process's lock, waits for them. So the close is deferred.
            board.process.deferred.ready[Call(self.close)] = None
            return
        with board.process.lock:
            if board.words[2 * self._index] != self.cell.tree:
                return
            board.words[2 * self._index] = 0
            board.free.append(self._index)
            # An empty board with an access list is dropped, because the lists vary between trees.
            # The board for all processes is reused.
            if board.allow is not None and len(board.free) == _CELLS:
                boards = _boards[board.process][board.allow]
                boards.remove(board)
                if not boards:
                    del _boards[board.process][board.allow]


class RemoteCell:
    """The version of a tree of another process."""

    def __init__(self, cell: Cell, timeout: float | None) -> None:
        self._tree = cell.tree
        self._first = cell.offset // 8
        try:
            self._mapping = attach(cell.handle, readonly="advisory", timeout=timeout)
        except StaleHandleError as error:
            raise _closed() from error
        leave_to_views(self._mapping)
        self._words = self._mapping.view().cast("Q")

    def read(self) -> int:
        """Return the version.

        Raises
        ------
        ClosedError
            The owner closed the tree.
        """
        version = self._words[self._first + 1]
        # Later reads must not be older than the version: the tree's number and its contents.
        _order_memory()
        if self._words[self._first] != self._tree:
            raise _closed()
        return version

    def check_owner(self) -> None:
        """Raise if the owner is dead.

        Raises
        ------
        OwnerGoneError
            The message names the owner's pid.
        """
        if not self._mapping.owner_alive:
            msg = f"process {self._mapping.handle.owner.pid}, which shares this tree, is dead"
            raise OwnerGoneError(msg, operation="wait")


def _order_memory() -> None:
    """Order all memory accesses before this call before all accesses after it, on any processor.

    Python offers no fence, but releasing a lock and acquiring it again acts as one.
    """
    lock = threading.Lock()
    lock.acquire()
    lock.release()
    lock.acquire()


def _closed() -> ClosedError:
    msg = "the process that shares this tree closed it"
    return ClosedError(msg, operation="wait")


def wait_until_newer(
    read: Callable[[], int], check: Callable[[], None], after: int, timeout_s: float
) -> int:
    """Return the version as soon as it is larger than ``after``.

    Raises
    ------
    WaitTimeoutError
        No newer version is published within ``timeout_s``; 0 checks once.
    """
    end = time.monotonic() + timeout_s
    pause = _SHORTEST_S
    while True:
        version = read()
        if version > after:
            return version
        check()
        left = end - time.monotonic()
        if left <= 0:
            msg = f"no version after {after} was published within {timeout_s:g} s"
            raise WaitTimeoutError(msg, operation="wait", hint="give a longer timeout")
        time.sleep(min(pause, left))
        pause = min(2 * pause, _LONGEST_S)


def new_cell(process: Process, allow: Allow | None, host: Callable[[], Device]) -> OwnCell:
    """Return a cell for a new tree, in memory that the tree's readers may import."""
    with process.lock:
        for board in _boards.get(process, {}).get(allow, ()):
            if board.free:
                return OwnCell(board, board.free.pop())
    # Outside the lock, because the driver allocates and observers receive events here.
    board = _Board(process, host().allocate(_BOARD_NBYTES), allow)
    with process.lock:
        _boards.setdefault(process, {}).setdefault(allow, []).append(board)
        return OwnCell(board, board.free.pop())


# A weak key: the boards end with their process state, and a forked child makes its own.
_boards: WeakKeyDictionary[Process, dict[Allow | None, list[_Board]]] = WeakKeyDictionary()
