# SPDX-License-Identifier: Apache-2.0
"""The vendor's model of shared queues through crossmem: one primary, and three secondaries."""

from typing import TYPE_CHECKING, Any

import pytest

import crossmem
from crossmem.conformance import actions
from crossmem.conformance import queues_of_tests as queues

if TYPE_CHECKING:
    from tests.integration.conftest import StartNpuPeer

pytestmark = pytest.mark.ci


@pytest.mark.parametrize("profile", ["310b-rc", "310b-rc-driver"])
@pytest.mark.parametrize("slow_streams", ["0", "1"])
def test_a_primary_and_three_secondaries(
    start_npu_peer: "StartNpuPeer", profile: str, slow_streams: str
) -> None:
    primary, *secondaries = (
        start_npu_peer(
            "acltdt",
            CROSSMEM_EMULATED_ACL_PROFILE=profile,
            CROSSMEM_EMULATED_ACL_GROUP="group",
            CROSSMEM_EMULATED_SLOW_STREAMS=slow_streams,
            SHAREGROUP_PRECONFIG="1",
        )
        for _ in range(4)
    )
    handle = primary.call(queues.make, "queue", 8)["consume"]
    # The vendor's page: a buffer of 1024 bytes, of which 512 are valid.
    primary.call(put_as_documented, "queue", 3)
    for number, one in enumerate(secondaries):
        one.call(queues.open_, "queue", handle)
        with pytest.raises(crossmem.AccessDeniedError):
            one.call(queues.put, "queue", [9])
        found = one.call(get_as_documented, "queue")

        assert found == (512, bytes([number]) * 512, f"frame {number}".encode())
    for one in secondaries:
        one.call(actions.call, "queue", "close")
    primary.call(actions.call, "queue", "close")

    assert primary.call(violations) == []


def put_as_documented(name: str, count: int) -> None:
    """Allocate, fill, set length and user data, and put."""
    queue = actions.objects[name]
    for number in range(count):
        buffer = queue.allocate()
        buffer.write(bytes([number]) * 512)
        buffer.data_length, buffer.user_data = 512, f"frame {number}".encode()
        queue.put(buffer, timeout=5)


def get_as_documented(name: str) -> tuple[int, bytes, bytes]:
    """Get, read length, data and user data, and free."""
    with actions.objects[name].get(timeout=5) as buffer:
        data: bytes = buffer.read(buffer.data_length)
        return buffer.data_length, data, buffer.user_data.rstrip(b"\0")


def violations() -> list[str]:
    """Return the misuses that the emulation has recorded."""
    driver: Any = actions.device().driver
    found: list[str] = driver.violations()
    return found
