# SPDX-License-Identifier: Apache-2.0
"""The fork servers of this process, which fork peers for the tests.

A server reads some environment variables before it forks. There is one server for each combination
of their values.
"""

import atexit
import os
import socket
import threading
from typing import Final

from crossmem.conformance.forkserver import ForkedProcess, ForkServer, server_variables

__all__ = ["fork_peer", "preload", "server_descriptors"]

_servers: Final[dict[frozenset[tuple[str, str]], ForkServer]] = {}
_starting: Final = threading.Lock()
_preloaded: Final[dict[str, None]] = {"crossmem.conformance.actions": None}


def fork_peer(environment: dict[str, str], stream: socket.socket, output: int) -> ForkedProcess:
    """Start a peer that serves the calls that arrive on ``stream``.

    The peer's standard output and standard error go to the descriptor ``output``.
    """
    variables = server_variables(environment)
    key = frozenset(variables.items())
    with _starting:
        if key in _servers and not _servers[key].is_running:
            _servers.pop(key).close()
        server = _servers.get(key) or ForkServer(variables)
        _servers[key] = server
    return server.fork(_preloaded, environment, stream, output)


def preload(*modules: str) -> None:
    """Let the fork servers import modules, so that their children need not import them.

    The import of a module must have no side effect. Peers with ``fresh=True`` start without these
    modules.
    """
    _preloaded.update(dict.fromkeys(modules))


def server_descriptors() -> frozenset[int]:
    """Return the descriptors of this process's connections to the fork servers."""
    return frozenset(server.descriptor for server in _servers.values())


@atexit.register
def _close_servers() -> None:
    """End the fork servers. In a forked child, only close the connections to them."""
    while _servers:
        _servers.popitem()[1].close()


# This process has a socket to each server. A server ends when all descriptors of its socket are
# closed. A forked child inherits the sockets, and closes them, so that the servers end with this
# process.
os.register_at_fork(after_in_child=_close_servers)
