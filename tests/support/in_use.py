# SPDX-License-Identifier: Apache-2.0
"""What this process has of shared memory, to see that everything was freed."""

from pathlib import Path

import crossmem
from crossmem.conformance.pool import settle

__all__ = ["assert_in_use", "in_use"]


def in_use() -> list[str]:
    """Return the shared memory that this process has mapped, and what it exports."""
    crossmem.collect()
    maps = Path("/proc/self/maps").read_text("utf-8").splitlines()
    # The words of leases come with the first export, and stay.
    lines = [line for line in maps if "memfd:" in line and "memfd:crossmem-" not in line]
    return [line.split()[0] for line in lines] + [repr(one.handle) for one in crossmem.exports()]


def assert_in_use(before: list[str]) -> None:
    """Check that as much is in use as before, once a thread has freed what nobody views."""
    assert settle(lambda: [] if in_use() == before else in_use()) == []
