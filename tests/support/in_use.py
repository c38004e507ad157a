# SPDX-License-Identifier: Apache-2.0
"""What this process has of shared memory, to see that everything was freed."""

from pathlib import Path

import crossmem
from crossmem.conformance.pool import settle
from crossmem.sharing.base.process import current
from crossmem.sharing.timelines.memory import Page, Pages
from crossmem.sharing.timelines.record import TimelineRecord

__all__ = ["assert_in_use", "in_use"]


def in_use() -> list[str]:
    """Return the shared memory that this process has mapped, and what it exports.

    Pages of timelines are left out: a full one stays until its last timeline ends, and another one
    is opened meanwhile.
    """
    crossmem.collect()
    pages = _pages()
    addresses = {page.allocation.ptr for page in pages}
    handles = [page.handle for page in pages]
    maps = Path("/proc/self/maps").read_text("utf-8").splitlines()
    # The words of leases come with the first export, and stay.
    lines = [line for line in maps if "memfd:" in line and "memfd:crossmem-" not in line]
    ranges = [line.split()[0] for line in lines]
    return [
        *(one for one in ranges if int(one.split("-")[0], 16) not in addresses),
        *(repr(one.handle) for one in crossmem.exports() if one.handle not in handles),
    ]


def _pages() -> list[Page]:
    found = current().part(Pages)
    used = [one.page for one in list(found.signalled) if isinstance(one, TimelineRecord)]
    return [*found._open.values(), *(one for one in used if one is not None)]


def assert_in_use(before: list[str]) -> None:
    """Check that as much is in use as before, once a thread has freed what nobody views."""
    assert settle(lambda: [] if in_use() == before else in_use()) == []
