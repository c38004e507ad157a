# SPDX-License-Identifier: Apache-2.0
"""A shared tree is closed in one thread while another thread is inside a call."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from halts import DEADLINE_S, Halt, inside

import crossmem
from crossmem import ClosedError, Shared
from crossmem.trees import contents
from crossmem.trees.building import maker_of_rows

np = pytest.importorskip("numpy")

pytestmark = pytest.mark.usefixtures("nothing_left")


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as found:
        yield found


@pytest.fixture(params=["host:0", "emulated:0"])
def device(request: pytest.FixtureRequest) -> crossmem.Device:
    return crossmem.device(request.param)


CALLS: dict[str, Callable[[Shared[Any]], object]] = {
    "value": lambda shared: shared.value,
    "receive": crossmem.receive,
    "receive into": lambda shared: crossmem.receive(shared, into={"a": np.zeros(9)}),
    "update": lambda shared: shared.update({"a": np.ones(9)}),
}


@pytest.mark.parametrize("is_pooled", [False, True])
@pytest.mark.parametrize("call", CALLS)
def test_a_call_beside_the_close(
    call: str,
    device: crossmem.Device,
    threads: ThreadPoolExecutor,
    monkeypatch: pytest.MonkeyPatch,
    *,
    is_pooled: bool,
) -> None:
    tree, halt = {"a": np.arange(9.0)}, Halt()
    with device.pool(4096, 2) as pool:
        options: dict[str, Any] = {"pool": pool} if is_pooled else {"device": device}
        shared = crossmem.share(tree, copy=True, **options)
        monkeypatch.setattr(Shared, "take", halt.after(Shared.take))
        with inside(threads, halt, CALLS[call], shared) as caller:
            shared.close()

        with pytest.raises(ClosedError):
            caller.result(DEADLINE_S)


@pytest.mark.parametrize("call", ["value", "update"])
def test_a_close_before_a_copy_gets_an_array(
    call: str,
    device: crossmem.Device,
    threads: ThreadPoolExecutor,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shared, halt = crossmem.share({"a": np.arange(9.0)}, copy=True, device=device), Halt()
    monkeypatch.setattr(contents, "maker_of_rows", halt.before(maker_of_rows))
    with inside(threads, halt, CALLS[call], shared) as caller:
        shared.close()

    with pytest.raises(ClosedError, match="Shared tree"):
        caller.result(DEADLINE_S)


def test_the_owners_close_makes_the_handles_of_others_stale() -> None:
    with crossmem.share({"a": np.arange(9.0)}, copy=True, device="host") as shared:
        other = Shared.from_bytes(shared.to_bytes())

    with pytest.raises(crossmem.StaleHandleError):
        crossmem.receive(other)
    other.close()


class Alarm(Exception):  # noqa: N818 - no failure
    """A signal handler raised it."""


def test_an_interrupted_close_is_continued_by_the_next_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupted() -> None:
        raise Alarm

    shared = crossmem.share(np.arange(64.0), copy=True)
    with monkeypatch.context() as patch:
        patch.setattr("crossmem.trees.shared.ExitStack", interrupted)
        with pytest.raises(Alarm):
            shared.close()
    shared.close()

    # A page of timelines stays.
    assert not [one for one in crossmem.exports() if one.nbytes < 4096]
