# SPDX-License-Identifier: Apache-2.0
"""The state of ACL's queues (TDT) in one process: the queues and buffers that the process uses."""

import ctypes
from collections import deque
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from crossmem_emulated.addresses import Piece
from crossmem_emulated.pages import Pages

__all__ = [
    "LONGEST_NAME",
    "USER_NBYTES",
    "Block",
    "Buffer",
    "Processor",
    "QueueAttr",
    "Route",
    "TdtState",
]

LONGEST_NAME: Final = 127
"""Longest name of a queue in bytes, without the NUL at its end."""
USER_NBYTES: Final = 256
"""Size in bytes of the driver's area for the user data of a buffer. ``set_buf_user_data`` and
``get_buf_user_data`` can access the first 96 bytes. With the published drivers, ``enqueue_data``
and ``dequeue_data`` can access the whole area."""
_DEFAULT_DEPTH: Final = 8
_REMEMBERED: Final = 4096


class Processor(StrEnum):
    """The implementation of TDT that serves a process."""

    HOST = "host"
    """For programs on the host. This implementation has queues that copy data, but no buffers
    and no grants."""
    DEVICE = "device"
    """For programs on the device that share nothing with other processes."""
    SHARE_GROUP = "share group"
    """For programs on the device that share a memory group."""


@dataclass(slots=True, eq=False)
class Block:
    """The data of buffers: one allocation, which several buffers and processes can share."""

    number: int
    """The block's number on the host."""
    nbytes: int
    """The capacity that the program requested, in bytes."""
    address: int
    """The address at which each process maps the block if the address is free."""
    span: int
    """Size of the block's address range in bytes."""
    pages: Pages
    is_own: bool
    """Whether this process allocated the block. If so, this process keeps the block until no buffer
    of any process refers to the block."""
    piece: Piece | None = None
    """The mapping; None while the block is not mapped in this process."""
    headers: int = 0
    """The number of this process's buffers that refer to the block."""

    @property
    def device(self) -> int:
        """Host-wide index of the device."""
        return self.pages.device


@dataclass(slots=True, eq=False)
class Buffer:
    """An Mbuf: a header that refers to a block."""

    handle: int
    number: int
    """The header's number on the host."""
    block: Block
    length: int = 0
    user: bytearray = field(default_factory=lambda: bytearray(USER_NBYTES))
    is_user_set: bool = False
    chain: list["Buffer"] = field(default_factory=list)
    """The buffers of the chain, from the head on. All buffers of a chain share the same list."""


@dataclass(slots=True, eq=False)
class QueueAttr:
    """The attributes of a queue to create."""

    name: Any = field(default_factory=lambda: ctypes.create_string_buffer(LONGEST_NAME + 1))
    """The name, in a C string whose address the program can get."""
    depth: int = _DEFAULT_DEPTH


@dataclass(slots=True, eq=False)
class Route:
    """A route from one queue to another. ``source`` and ``target`` are the ids of the queues."""

    source: int
    target: int
    status: int = 0


@dataclass(slots=True, eq=False)
class TdtState:
    """The state of TDT in one process."""

    processor: Processor | None = None
    """The implementation; None before the first call, which chooses it."""
    next_id: int = 0
    """The id at which the search for a free id begins."""
    blocks: dict[int, Block] = field(default_factory=dict)
    """The blocks that this process has open. The key is the block's number on the host."""
    buffers: dict[int, Buffer] = field(default_factory=dict)
    """The buffers of this process. The key is the handle."""
    handed_over: deque[int] = field(default_factory=lambda: deque(maxlen=_REMEMBERED))
    """The handles of the buffers that this process enqueued most recently. The process must not use
    these buffers any more."""
    objects: dict[int, Any] = field(default_factory=dict)
    """The attributes, routes, lists and queries that the program created. The key is the handle."""
    dequeuing: set[int] = field(default_factory=set)
    """The ids of the queues for which a thread of this process is inside ``dequeue_data``."""
    has_router: bool = False
    """Whether this process has called ``bind_queue_routes``, which starts the router."""
    recycled_s: float = 0.0
    """The time of the last periodic search for dead processes, on the monotonic clock."""
