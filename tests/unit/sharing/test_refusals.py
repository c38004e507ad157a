# SPDX-License-Identifier: Apache-2.0
"""Each refusal of a lease is one line that says why, and has a hint."""

import pytest

from crossmem.control.wire import Refusal, Status
from crossmem.models import ProcessIdentity, ShareableHandle
from crossmem.sharing.importer.errors import error_of

HANDLE = ShareableHandle(
    backend="host", mechanism="memfd", device="host", allocation=1, export=0, secret=bytes(16),
    owner=ProcessIdentity.of_this_process(), nbytes=1, capacity=4096, access="rw",
)  # fmt: skip


@pytest.mark.parametrize("status", [one for one in Status if one is not Status.GRANTED])
@pytest.mark.parametrize("reason", ["user 7 is not admitted", "x" * 300])
def test_a_refusal_is_one_line_with_a_hint(status: Status, reason: str) -> None:
    error = error_of(Refusal(status, reason), HANDLE)

    assert len(error.message) <= 200
    assert "\n" not in error.message
    assert str(HANDLE.owner.pid) in error.message
    assert error.hint
    assert len(error.hint) <= 200
    # What does not fit is not lost.
    if "..." in error.message:
        assert error.details == reason
