# SPDX-License-Identifier: Apache-2.0
"""How this process and each exporter of this host order their accesses to shared words."""

import select
from contextlib import suppress
from pathlib import Path
from typing import Final

from crossmem.cli.reports import BarrierReport, NeighbourReport
from crossmem.control import barrier
from crossmem.control.endpoint import new_socket, server_paths
from crossmem.control.processes import peer_credentials
from crossmem.control.slots import REGISTERED
from crossmem.control.wire import MAX_MESSAGE_NBYTES, PROTOCOL_VERSION, ProtocolError, unpack_hello

__all__ = ["look_at_barriers"]

_TIMEOUT_S: Final = 1.0


def look_at_barriers(run_dir: Path) -> BarrierReport:
    """Return the mode of this process, and its mode with each exporter of a run directory.

    The mode says how accesses to shared words are ordered. An exporter is omitted if its lease
    server cannot be reached, does not reply within a second, or has another protocol version.
    """
    found = (_ask(path) for path in server_paths(run_dir))
    return BarrierReport(
        mode="membarrier" if barrier.IS_REGISTERED else "fence",
        reason=barrier.WHY_NOT,
        exporters=tuple(one for one in found if one is not None),
    )


def _ask(path: Path) -> NeighbourReport | None:
    with new_socket() as connection, suppress(OSError, ProtocolError):
        connection.connect(str(path))
        poller = select.poll()
        poller.register(connection, select.POLLIN)
        if poller.poll(_TIMEOUT_S * 1000):
            hello = unpack_hello(connection.recv(MAX_MESSAGE_NBYTES))
            if hello.version == PROTOCOL_VERSION:
                is_shared = barrier.IS_REGISTERED and hello.mode == REGISTERED
                pid, _uid = peer_credentials(connection)
                return NeighbourReport(pid=pid, mode="membarrier" if is_shared else "fence")
    return None
