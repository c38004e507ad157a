# SPDX-License-Identifier: Apache-2.0
"""What laws C14 and C27 require of drivers."""

from typing import Final

import pytest

import crossmem
from crossmem.conformance import actions, probes, resources
from crossmem.conformance.harness import Allocate, FreshPeer
from crossmem.conformance.peers import Peer
from crossmem.conformance.pool import settle
from crossmem.conformance.test_limits import NOTHING, new_descriptors

_NBYTES: Final = 5000
_ROUNDS: Final = 20
_KEPT: Final = _ROUNDS // 4
"""The largest accepted number of addresses that stay mapped. A driver may keep a few addresses for
reuse, but a driver that never unmaps keeps ``_ROUNDS`` addresses."""


@pytest.mark.crossmem_not_of_blocks("a driver imports whole pools, not their blocks")
@pytest.mark.crossmem_core
def test_c14_a_driver_refuses_exports_that_do_not_fit(
    allocate: Allocate, fresh_peer: FreshPeer, capabilities: crossmem.Capabilities
) -> None:
    importer = fresh_peer()
    blob = allocate(_NBYTES, b"good").export().to_bytes()
    importer.call(actions.attach, "connected", blob)
    importer.call(actions.unmap, "connected")
    before = importer.call(actions.state)
    changes = list(probes.CHANGES)
    if actions.vendor_violations() is not None:
        # If an export has a pipe in place of a descriptor, the driver passes the pipe to the
        # vendor, which refuses the pipe. A strict emulation records the refusal as a breach of the
        # vendor's rules.
        changes.remove("a pipe for a descriptor")
    if not capabilities.host_visible:
        # Not every vendor tells the size of imported device memory, so the driver may be unable to
        # notice a wrong capacity.
        changes.remove("a larger capacity")

    found = {change: outcome(importer, blob, change) for change in changes}

    assert found == dict.fromkeys(changes, "refused")
    assert importer.call(actions.live) == NOTHING
    # Other threads of the importer close descriptors, so the test waits.
    assert settle(lambda: new_descriptors(importer, before)) == []

    importer.call(actions.attach, "m", blob)

    assert importer.call(actions.read, "m", 4) == b"good"

    importer.call(actions.unmap, "m")


def outcome(importer: Peer, blob: bytes, change: str) -> str:
    """Let a peer import a changed export; return "refused", or a text about the fault."""
    importer.call(probes.change_export, change)
    try:
        importer.call(actions.attach, "m", blob)
    except crossmem.CrossmemError:
        return "refused"
    except Exception as error:  # noqa: BLE001 - the result names it
        return f"raised {type(error).__name__}, which is not an error of crossmem"
    return "accepted"


@pytest.mark.crossmem_not_of_blocks("a pool keeps the memory of a freed block")
@pytest.mark.crossmem_requires("host_visible")
@pytest.mark.parametrize("operation", ["free", "unmap"])
@pytest.mark.crossmem_core
def test_c27_released_memory_is_unmapped(
    allocate: Allocate, fresh_peer: FreshPeer, operation: str
) -> None:
    blob = allocate(_NBYTES).export().to_bytes()

    assert fresh_peer().call(still_mapped, operation, blob) <= _KEPT


def still_mapped(operation: str, blob: bytes) -> int:
    """Acquire and release memory in several rounds; return how many addresses stay mapped."""
    pointers = set()
    for _ in range(_ROUNDS):
        if operation == "free":
            actions.allocate("memory", _NBYTES)
        else:
            actions.attach("memory", blob)
        memory = actions.objects.pop("memory")
        pointers.add(memory.ptr)
        getattr(memory, operation)()
    return len(resources.mapped(pointers))
