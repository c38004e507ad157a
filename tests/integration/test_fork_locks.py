# SPDX-License-Identifier: Apache-2.0
"""Inherited objects refuse at once, whatever locks other threads held when the process forked."""

from typing import TYPE_CHECKING

import pytest

import crossmem
from crossmem.conformance import actions
from crossmem.locks import Rank

if TYPE_CHECKING:
    from tests.integration import fork_actions
    from tests.integration.conftest import StartPeer
else:
    import fork_actions

DATA = {
    *("closed", "copied_nbytes", "device", "handle", "kept", "message", "nbytes", "offset"),
    *("readonly", "to_bytes", "backend", "capabilities", "driver", "identity", "info"),
    *(
        "access",
        "allow",
        "block_nbytes",
        "blocks",
        "is_block",
        "mechanism",
        "name",
        "ordinal",
        "public",
        "runtime",
    ),
    *("for_mechanism", "__dlpack_device__"),
}
"""What an object says of itself without its process."""

SPECIAL = {
    # These stay in their process, and an allocation would have to be exported.
    **dict.fromkeys(("pickled imported", "pickled addresses", "pickled piece"), "UnsupportedError"),
    "pickled pool": "UnsupportedError",
    "pickled allocation": "ForkedProcessError",
    "pickled block": "ForkedProcessError",
    "own memory": "1",
}


def expected(what: str) -> str:
    """Return what comes of the use of an inherited object."""
    name, _, member = what.partition(".")
    if what in SPECIAL or not member:
        return SPECIAL.get(what, "no error")
    return "no error" if name == "handle" or member in DATA else "ForkedProcessError"


@pytest.mark.parametrize("rank", [None, *(one.name for one in Rank if one.name != "FOREIGN")])
def test_inherited_objects_wait_for_no_lock(start_peer: "StartPeer", rank: str | None) -> None:
    other, peer = start_peer(tracing=False), start_peer(tracing=False)
    array = other.call(actions.offer, "a", 4096)
    tree = other.call(share_a_tree)
    peer.call(fork_actions.set_up, array, tree)

    found = peer.call(fork_actions.outcomes_under, rank)

    assert rank is None or rank in peer.call(fork_actions.ranks)
    assert sum("." in what for what in found) > 100
    assert found == {what: expected(what) for what in found}


def share_a_tree() -> bytes:
    """Share a tree, and keep it."""
    shared = actions.objects["tree"] = crossmem.share({"a": crossmem.empty(8)})
    return shared.to_bytes()
