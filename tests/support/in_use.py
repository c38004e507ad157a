# SPDX-License-Identifier: Apache-2.0
"""What this process has of shared memory, to see that everything was freed."""

from pathlib import Path

import crossmem
from crossmem.conformance import actions
from crossmem.conformance.pool import settle
from crossmem.sharing.base.process import current
from crossmem.sharing.timelines.memory import Pages

__all__ = ["assert_in_use", "in_use"]


def in_use() -> list[str]:
    """Return the shared memory that this process has mapped, and what it exports.

    The open pages of timelines are left out: a full one is replaced by another.
    """
    crossmem.collect()
    pages = [page.allocation.ptr for page in current().part(Pages)._open.values()]
    maps = Path("/proc/self/maps").read_text("utf-8").splitlines()
    # The words of leases come with the first export, and stay.
    lines = [line for line in maps if "memfd:" in line and "memfd:crossmem-" not in line]
    ranges = [line.split()[0] for line in lines]
    return [
        *(one for one in ranges if int(one.split("-")[0], 16) not in pages),
        *(repr(one.handle) for one in actions.exports()),
    ]


def assert_in_use(before: list[str]) -> None:
    """Check that as much is in use as before, once a thread has freed what nobody views."""
    assert settle(lambda: [] if in_use() == before else in_use()) == []
