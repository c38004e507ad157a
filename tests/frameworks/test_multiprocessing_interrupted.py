# SPDX-License-Identifier: Apache-2.0
"""A receive that does not succeed reserves nothing in the sender."""

import pickle
from multiprocessing.reduction import ForkingPickler

import pytest
from typing_extensions import override

import crossmem
import crossmem.multiprocessing

pytest.importorskip("numpy")
crossmem.install()


def held() -> int:
    """Return how many messages of this process hold its memory."""
    return sum(one.in_message for export in crossmem.exports() for one in export.leases)


@pytest.mark.parametrize("step", ["register", "attach_reserved", "build"])
def test_a_receive_that_a_signal_handler_interrupts_reserves_nothing(
    step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    array = crossmem.empty(10, "uint8")
    before = held()
    message = ForkingPickler.dumps(array)

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(crossmem.multiprocessing, step, interrupted)
    with pytest.raises(KeyboardInterrupt):
        pickle.loads(message)  # noqa: S301 - this test made it

    assert held() == before


class Unreadable:
    """Cannot be unpickled, like an object whose class the receiver lacks."""

    @override
    def __reduce__(self) -> tuple[object, ...]:
        return fail, ()


def fail() -> None:
    raise LookupError


@pytest.mark.parametrize("is_first", [True, False])
def test_a_message_that_cannot_be_unpickled_reserves_nothing(*, is_first: bool) -> None:
    arrays = [crossmem.empty(10, "uint8") for _ in range(3)]
    before = held()
    message = ForkingPickler.dumps([Unreadable(), *arrays] if is_first else [*arrays, Unreadable()])

    with pytest.raises(LookupError):
        ForkingPickler.loads(message)

    assert held() == before
