# SPDX-License-Identifier: Apache-2.0
"""Importers among exporters that are silent, talk rubbish or lie."""

import time
from typing import TYPE_CHECKING

import pytest

import crossmem
from crossmem.conformance import actions, resources
from crossmem.conformance.pool import settle

if TYPE_CHECKING:
    from tests.integration import rogue_actions
    from tests.integration.conftest import StartPeer
else:
    import rogue_actions

EXPECTED: dict[str, tuple[type[crossmem.CrossmemError], ...]] = {
    "silent": (crossmem.OwnerUnresponsiveError,),
    "deaf": (crossmem.OwnerUnresponsiveError,),
    "chatty": (crossmem.OwnerUnresponsiveError, crossmem.AccessDeniedError),
    "never_ending": (crossmem.OwnerUnresponsiveError, crossmem.AccessDeniedError),
    "closing": (crossmem.OwnerGoneError, crossmem.OwnerUnresponsiveError),
    "closing_when_asked": (crossmem.OwnerGoneError, crossmem.OwnerUnresponsiveError),
    "newer": (crossmem.UnsupportedError,),
    "strange_hello": (crossmem.AccessDeniedError,),
    "babbling": (crossmem.AccessDeniedError,),
    "headless": (crossmem.AccessDeniedError,),
    "ignorant": (crossmem.AccessDeniedError,),
    "stuffing": (crossmem.AccessDeniedError,),
    "empty_handed": (crossmem.AccessDeniedError,),
    "generous": (crossmem.AccessDeniedError,),
    "boasting": (crossmem.InvalidHandleError,),
    "resizable": (crossmem.InvalidHandleError,),
    "lending_a_socket": (crossmem.InvalidHandleError,),
    "without_words": (crossmem.InvalidHandleError,),
    "resizable_words": (crossmem.InvalidHandleError,),
    "small_words": (crossmem.InvalidHandleError,),
    "too_many_words": (crossmem.InvalidHandleError,),
    "words_again": (crossmem.InvalidHandleError,),
    "half_a_row": (crossmem.AccessDeniedError,),
}
# Who never answers, or never stops, is given up soon. All others are given the time to answer.
ENDLESS = {"silent", "deaf", "chatty", "never_ending", "closing", "closing_when_asked"}


def test_every_behaviour_is_expected() -> None:
    assert set(EXPECTED) == {*rogue_actions.GREETINGS, *rogue_actions.ANSWERS}


@pytest.mark.parametrize("kind", EXPECTED)
def test_an_importer_bears_it(start_peer: "StartPeer", kind: str) -> None:
    rogue, importer = start_peer(tracing=False), start_peer()
    importer.call(actions.allocate, "own", 1)
    before = importer.call(resources.descriptors)
    mapped = importer.call(actions.calls).get("map", 0)
    blob = rogue.call(rogue_actions.pretend, kind)

    timeout_s = 0.6 if kind in ENDLESS else 20.0
    for attempt in (actions.attach, actions.import_):
        start = time.monotonic()
        with pytest.raises(EXPECTED[kind]) as caught:
            importer.call(attempt, "never", blob, timeout=timeout_s)
        assert time.monotonic() - start < timeout_s + 10
        assert rogue_actions.SECRET.hex() not in str(caught.value)

    assert importer.call(actions.calls).get("map", 0) == mapped
    assert importer.call(actions.live)["imports"] == 0
    rogue.kill()

    def more() -> list[str]:
        importer.call(actions.collect)
        found: list[str] = importer.call(resources.descriptors)
        return found if len(found) > len(before) else []

    # Whatever it sent is closed; its connection goes when it is dead.
    assert settle(more) == []
    assert importer.call(resources.threads) == ["MainThread"]


def test_what_is_open_does_not_grow_when_the_exporter_says_so(start_peer: "StartPeer") -> None:
    rogue, importer = start_peer(), start_peer()
    right, larger = rogue.call(rogue_actions.offer_in_two_sizes, 1 << 30)
    importer.call(actions.attach, "mapped", right)
    before = importer.call(resources.descriptors)

    for attempt in (actions.attach, actions.import_):
        with pytest.raises(crossmem.InvalidHandleError, match=r"but the open memory has"):
            importer.call(attempt, "never", larger)

    assert importer.call(resources.descriptors) == before
    importer.call(actions.unmap, "mapped")
    with pytest.raises(crossmem.InvalidHandleError):
        importer.call(actions.attach, "never", larger)
