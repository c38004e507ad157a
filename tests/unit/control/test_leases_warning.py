# SPDX-License-Identifier: Apache-2.0
"""What a process logs at its exit about memory that other processes still use."""

from types import SimpleNamespace
from typing import Any

import pytest

from crossmem.control.leases import warn_of_leases


def unit(allocation: int, pid: int, *, in_message: bool = False) -> Any:
    lease = SimpleNamespace(holder=SimpleNamespace(pid=pid), in_message=in_message)
    return SimpleNamespace(allocation=allocation), (), [lease]


@pytest.mark.parametrize(
    ("report", "expected"),
    [
        ([], []),
        ([(unit(1, 5)[0], (), [])], []),
        ([unit(1, 5)], ["exiting while allocation 1 is leased by process 5"]),
        (
            [unit(1, 5), unit(2, 5), unit(3, 6, in_message=True)],
            [
                (
                    "exiting while 3 allocations (1, 2, 3) are leased by "
                    "process 5 and an unreceived message of process 6"
                )
            ],
        ),
    ],
)
def test_one_line_names_all_memory(
    report: Any, expected: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    warn_of_leases(report)

    assert caplog.messages == expected


def test_a_line_about_much_memory_is_short(caplog: pytest.LogCaptureFixture) -> None:
    warn_of_leases([unit(number, number) for number in range(1, 1000)])

    (message,) = caplog.messages
    assert "999 allocations (1, 2, 3, " in message
    assert len(message) < 300
