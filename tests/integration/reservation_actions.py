# SPDX-License-Identifier: Apache-2.0
"""What peers do for the tests of reservations, beside crossmem.conformance.actions."""

import gc
import time
from collections.abc import Sequence
from typing import Any

import crossmem
from crossmem.conformance import actions
from crossmem.conformance.peers import Peer
from crossmem.conformance.pool import settle
from crossmem.sharing.importer.attach import attach_reserved
from crossmem.sharing.importer.messages import discard, reserve

Message = list[tuple[bytes, int]]


def offer_many(count: int, nbytes: int) -> list[str]:
    """Allocate and export so much; return the names."""
    names = [f"memory{number}" for number in range(count)]
    for name in names:
        actions.offer(name, nbytes, b"data")
    return names


def put(names: Sequence[str], *, drop: bool = False, timeout: float | None = None) -> Message:
    """Make a message that reserves allocations and mappings; perhaps drop them then."""
    handles = []
    for name in names:
        memory = actions.objects[name]
        owned = isinstance(memory, crossmem.Allocation)
        handles.append(memory.export() if owned else memory.handle)
    numbers = reserve(handles, timeout=timeout)
    if drop:
        for name in names:
            memory = actions.objects.pop(name)
            if isinstance(memory, crossmem.Allocation):
                memory.free()
            else:
                memory.unmap()
    return [(handle.to_bytes(), number) for handle, number in zip(handles, numbers, strict=True)]


def put_for(name: str, seconds: float) -> tuple[str, float]:
    """Send one message more, waiting so long for room; return how that ended, and when."""
    start = time.monotonic()
    try:
        put([name], timeout=seconds)
    except crossmem.CrossmemError as error:
        return f"{type(error).__name__}: {error}", time.monotonic() - start
    return "sent", time.monotonic() - start


def put_bytes(blob: bytes) -> Message:
    """Make a message of what may not be open here."""
    return [(blob, reserve([crossmem.ShareableHandle.from_bytes(blob)])[0])]


def get(names: Sequence[str], message: Message, **options: Any) -> list[bytes]:
    """Receive a message and return the first bytes of each."""
    mappings = attach_reserved(message, **options)
    actions.objects.update(zip(names, mappings, strict=True))
    return [one.read(4) for one in mappings]


def get_and_drop(message: Message, times: int = 1) -> list[bytes]:
    """Receive a message so many times and keep nothing."""
    found = []
    for _ in range(times):
        found = get(["received"] * len(message), message)
        for mapping in set(actions.objects.values()):
            if isinstance(mapping, crossmem.Mapping):
                mapping.unmap()
    return found


def send_over_and_over(_number: int, blob: bytes, times: int) -> None:
    """Send to this process itself and receive, so many times."""
    handle = crossmem.ShareableHandle.from_bytes(blob)
    for _ in range(times):
        (mapping,) = attach_reserved([(handle, reserve([handle])[0])])
        assert mapping.read(4) == b"data"
        mapping.unmap()


def throw_away(message: Message, **options: Any) -> None:
    """Discard a message."""
    discard(
        [(crossmem.ShareableHandle.from_bytes(blob), number) for blob, number in message],
        **options,
    )


def send_and_forget(nbytes: int) -> Message:
    """Send what this process then drops: to be the last thing that it does."""
    actions.offer("sent", nbytes, b"data")
    message = put(["sent"], drop=True)
    gc.collect()
    return message


def attach_and_tell(name: str, blob: bytes) -> int:
    """Attach and return the generation that is held, which is nobody else's business."""
    actions.attach(name, blob)
    (leased,) = actions.objects[name]._record.record.leases.values()
    return int(leased.generation)


def send_to_myself(nbytes: int) -> tuple[bytes, bytes, list[bool], int]:
    """Send to this process itself, and drop the memory.

    Return what is received through one mapping, then after a second message for the same memory
    was received while the first is open; what holds the memory in between; and how many blocks
    are left at the end.
    """
    actions.offer("own", nbytes, b"mine")
    first, second = put(["own"]), put(["own"], drop=True)
    (one,) = get(["one"], first)
    held = [lease.in_message for info in crossmem.exports() for lease in info.leases]
    (two,) = get(["two"], second)
    actions.unmap("one", "two")
    crossmem.collect()
    return one, two, sorted(held), actions.live()["blocks"]


# What tests ask of exporters --------------------------------------------------------------------


def leases_of(exporter: Peer) -> list[tuple[int, bool]]:
    """Return who holds what an exporter shares, and whether in a message."""
    found = exporter.call(actions.exports)
    return [(lease.pid, lease.in_message) for info in found for lease in info.leases]


def comes_to(exporter: Peer, *expected: tuple[int, bool]) -> bool:
    """Whether that is soon what holds an exporter's memory."""

    def others() -> list[str]:
        found = leases_of(exporter)
        return [] if found == list(expected) else [str(found)]

    return settle(others) == []


def is_all_free(exporter: Peer) -> bool:
    """Whether an exporter soon has no memory any more."""

    def left() -> list[str]:
        exporter.call(actions.collect)
        return ["block"] * exporter.call(actions.live)["blocks"]

    return settle(left) == []
