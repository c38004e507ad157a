# SPDX-License-Identifier: Apache-2.0
"""Which hosts of ``crossmem emulate`` nobody needs any more."""

import fcntl
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def alone_with_hosts(compiled: Path) -> Iterator[None]:
    """Keep tests of other processes of this session from leaving hosts behind meanwhile."""
    with (compiled / "hosts.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def abandoned() -> set[str]:
    """Return the hosts that were left behind.

    Those that a running command holds are left out: they may be of other tests on this machine.
    """
    found = set()
    for path in Path("/dev/shm").glob("crossmem-emulate-*"):
        with suppress(OSError), (path / "lock").open() as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            found.add(path.name)
    return found
