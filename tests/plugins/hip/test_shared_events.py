# SPDX-License-Identifier: Apache-2.0
"""An exception of a signal handler right after the vendor made an event leaves no event behind."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any, cast

import pytest

from crossmem.driver import SharedEvent
from crossmem_hip.runtime import Vendor
from crossmem_hip.streams import StreamOrder


class FakeVendor:
    """Counts the events that exist. Raises after a call, as a signal handler does there."""

    def __init__(self, interrupted: str) -> None:
        self.events: set[int] = set()
        self.rt = SimpleNamespace(
            eventCreateWithFlags=lambda _flags: self.made(1),
            ipcOpenEventHandle=lambda _handle: self.made(2),
            ipcGetEventHandle=lambda _event: bytes(64),
            eventDestroy=self.events.remove,
        )
        self.interrupted = interrupted

    def made(self, event: int) -> int:
        self.events.add(event)
        return event

    @contextmanager
    def calling(self, function: str) -> Iterator[None]:
        yield
        if function == self.interrupted:
            raise KeyboardInterrupt


def on(ordinal: int, operation: str) -> AbstractContextManager[None]:
    return nullcontext()


def make(order: StreamOrder, function: str) -> SharedEvent:
    is_own = function == "eventCreateWithFlags"
    return order.create_event(0) if is_own else order.open_event(0, bytes(64))


@pytest.mark.parametrize("function", ["eventCreateWithFlags", "ipcOpenEventHandle"])
def test_an_interrupted_call_leaves_no_event(function: str) -> None:
    vendor: Any = FakeVendor(function)
    order = StreamOrder(cast("Vendor", vendor), on)

    with pytest.raises(KeyboardInterrupt):
        make(order, function)
    assert vendor.events == set()

    vendor.interrupted = ""
    event = make(order, function)
    assert len(vendor.events) == 1
    order.destroy_event(event)
    assert vendor.events == set()
