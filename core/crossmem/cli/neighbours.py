# SPDX-License-Identifier: Apache-2.0
"""How this process and each exporter of this host order their accesses to shared words."""

import select
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
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
    """Return a report about the mode in which this process orders its accesses to shared words.

    The report contains the mode of this process, and the mode between this process and each
    exporter of a run directory. The mode of this process is ``"membarrier"`` if the kernel has
    registered the process for ``membarrier``, and ``"fence"`` if not. The mode with an exporter is:

    - ``"membarrier"`` if the kernel has registered both processes
    - ``"fence"`` if at least one of the two processes is not registered
    - None if the exporter's lease server does not reply

    All lease servers together have one second for their replies. An exporter is omitted if its
    lease server cannot be reached, sends an invalid reply, or has another protocol version.
    """
    exporters: list[NeighbourReport] = []
    with ExitStack() as stack:
        waiting: dict[int, socket.socket] = {}
        for path in server_paths(run_dir):
            # If a connection fails, the exporter is omitted: the exporter is dead, or this process
            # has no descriptor left.
            with suppress(OSError):
                connection = stack.enter_context(new_socket())
                connection.connect(str(path))
                waiting[connection.fileno()] = connection
        deadline = time.monotonic() + _TIMEOUT_S
        poller = select.poll()
        for descriptor in waiting:
            poller.register(descriptor, select.POLLIN)
        while waiting and (ready := poller.poll(max(0.0, deadline - time.monotonic()) * 1000)):
            for descriptor, _ in ready:
                poller.unregister(descriptor)
                exporters += _read(waiting.pop(descriptor))
        exporters += (
            NeighbourReport(pid=peer_credentials(silent)[0], mode=None)
            for silent in waiting.values()
        )
    return BarrierReport(
        mode="membarrier" if barrier.IS_REGISTERED else "fence",
        reason=barrier.WHY_NOT,
        exporters=tuple(exporters),
    )


def _read(connection: socket.socket) -> Iterator[NeighbourReport]:
    """Yield a report about the exporter at the other end of a connection.

    If the reply is invalid or has another protocol version, yield nothing.
    """
    with suppress(OSError, ProtocolError):
        hello = unpack_hello(connection.recv(MAX_MESSAGE_NBYTES))
        if hello.version == PROTOCOL_VERSION:
            is_shared = barrier.IS_REGISTERED and hello.mode == REGISTERED
            pid, _uid = peer_credentials(connection)
            yield NeighbourReport(pid=pid, mode="membarrier" if is_shared else "fence")
