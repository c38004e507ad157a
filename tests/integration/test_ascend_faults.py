# SPDX-License-Identifier: Apache-2.0
"""Each failure that ACL documents, once at each call of each operation, between two processes.

Each ends in a typed error that names the call and the code; nothing of it is left, and the next
call works.
"""

from typing import TYPE_CHECKING

import pytest

import crossmem
from crossmem.conformance import actions

if TYPE_CHECKING:
    from tests.integration import ascend_fault_actions
    from tests.integration.conftest import StartNpuPeer
else:
    import ascend_fault_actions

pytestmark = pytest.mark.ci

MECHANISMS = ("shareable", "key")


@pytest.mark.timeout(360)
@pytest.mark.parametrize("name", sorted(ascend_fault_actions.OPERATIONS))
@pytest.mark.parametrize("mechanism", ["shareable", pytest.param("key", marks=pytest.mark.long)])
def test_each_failure_of_each_call(
    start_npu_peer: "StartNpuPeer", mechanism: str, name: str
) -> None:
    if mechanism == "key" and name in ascend_fault_actions.RANGES:
        pytest.skip("memory shared by key is not mapped in address ranges")
    partner, subject = start_npu_peer(mechanism), start_npu_peer(mechanism)
    blob = partner.call(actions.offer, "memory", ascend_fault_actions.NBYTES, b"data")

    count, wrong = subject.call(ascend_fault_actions.fail_everywhere, name, blob, within=300)

    assert not wrong, "\n".join(wrong)
    # A key is opened only where it is mapped: importing and closing it makes no vendor call.
    assert count or mechanism == "key"


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_each_failure_of_granting(start_npu_peer: "StartNpuPeer", mechanism: str) -> None:
    call = {
        "shareable": "rt.mem_set_pid_to_shareable_handle",
        "key": "rt.ipc_mem_set_import_pid",
    }[mechanism]
    exporter = start_npu_peer(mechanism)
    # What is opened once for the process stays.
    exporter.call(actions.allocate, "first", 1)
    exporter.call(actions.call, "first", "free")
    before = exporter.call(ascend_fault_actions.held)
    blob = exporter.call(actions.offer, "memory", ascend_fault_actions.NBYTES, b"data")
    importer = start_npu_peer(mechanism)
    nothing = importer.call(ascend_fault_actions.held)

    for code in ascend_fault_actions.CODES[call]:
        exporter.call(ascend_fault_actions.fail, call, code)
        with pytest.raises(crossmem.CrossmemError, match=str(code)) as caught:
            importer.call(actions.attach, "mapping", blob, timeout=30)
        assert type(caught.value) is not crossmem.CrossmemError
        assert importer.call(ascend_fault_actions.held) == nothing
        assert not [one.leases for one in exporter.call(actions.exports) if one.leases]

    importer.call(actions.attach, "mapping", blob)
    assert importer.call(actions.read, "mapping", 4) == b"data"
    importer.call(actions.unmap, "mapping")
    exporter.call(actions.call, "memory", "free")
    exporter.call(actions.collect)
    assert exporter.call(ascend_fault_actions.held) == before


@pytest.mark.parametrize("code", [107001, 507033, 507899])
def test_a_device_that_cannot_be_opened(start_npu_peer: "StartNpuPeer", code: int) -> None:
    peer = start_npu_peer("shareable")
    peer.call(ascend_fault_actions.fail, "rt.set_device", code)
    with pytest.raises(crossmem.DriverError, match=str(code)):
        peer.call(actions.allocate, "memory", 1)
    peer.call(actions.allocate, "memory", 1)
