# SPDX-License-Identifier: Apache-2.0
"""What a lease can carry."""

import pytest

import crossmem
from crossmem.control import wire
from crossmem.control.records import Allow, Export, Unit
from crossmem.control.wire import MAX_GRANT_DESCRIPTORS, MAX_GRANT_NBYTES, MAX_PAYLOAD_NBYTES
from crossmem.driver import Exported
from crossmem.models import ProcessIdentity, ShareableHandle

HANDLE = ShareableHandle(
    backend="emulated", mechanism="memfd", device="host:0", allocation=1, export=0,
    secret=bytes(16), owner=ProcessIdentity.of_this_process(), nbytes=100, capacity=4096,
    access="rw",
)  # fmt: skip
LARGEST = bytes(MAX_PAYLOAD_NBYTES - 4)


def export(exported: Exported) -> Export:
    return Export(Unit(1, None, lambda: None), HANDLE, Allow(), exported)


@pytest.mark.parametrize(
    "exported",
    [
        Exported((LARGEST + b"x",)),
        Exported((b"",) * (MAX_PAYLOAD_NBYTES // 4 + 1)),
        Exported((), tuple(range(MAX_GRANT_DESCRIPTORS + 1))),
    ],
    ids=["bytes", "payloads", "descriptors"],
)
def test_an_export_that_no_lease_carries_is_refused(exported: Exported) -> None:
    with pytest.raises(crossmem.UnsupportedError, match="a lease carries"):
        export(exported)


def test_a_lease_carries_the_largest_export() -> None:
    exported = export(Exported((LARGEST,), tuple(range(MAX_GRANT_DESCRIPTORS)))).exported
    grant = wire.Grant(1, 1, True, 100, 4096, MAX_GRANT_DESCRIPTORS, exported.payloads)

    record = wire.pack_grant(grant, HANDLE.secret, b"context")

    assert len(record) <= MAX_GRANT_NBYTES
    assert len(wire.pages(wire.MessageType.REPLY, 1, record)) <= wire.max_pages(1)
