# SPDX-License-Identifier: Apache-2.0
"""What is compared: one small class for each way of sharing memory between processes."""

from abc import ABC, abstractmethod
from importlib import import_module
from types import MappingProxyType
from typing import Any, ClassVar, Final

__all__ = ["PEERS", "Peer", "peer_class"]


class Peer(ABC):
    """One way of sharing memory, in the producer or in the consumer.

    Each process makes its own object. The producer calls :meth:`serve`, and the consumer
    :meth:`connect` with what that returned. After that come the five operations that are timed:
    :meth:`create`, :meth:`export` and :meth:`free` in the producer, :meth:`attach` and
    :meth:`detach` in the consumer. What they pass to each other is their own affair.

    Parameters
    ----------
    device
        The crossmem device of the run; other peers ignore it.
    """

    title: ClassVar[str]
    """Name in the tables."""

    distribution: ClassVar[str | None] = None
    """The Python distribution whose version is reported."""

    touches_memory: ClassVar[bool] = False
    """Whether creating fills every page, so that big sizes take long and need room."""

    is_read_only: ClassVar[bool] = False
    """Whether the consumer must not write into what it attached."""

    needs_reader: ClassVar[bool] = False
    """Whether memory that was exported can be freed only after the consumer attached it."""

    asks_exporter: ClassVar[bool] = True
    """Whether attaching waits for code of the producer to run, as it does for a server thread.

    Such a peer cannot be measured beside a producer that is stopped.
    """

    def __init__(self, device: str) -> None:
        self.device = device

    @classmethod
    def missing(cls) -> str | None:
        """Return why this peer cannot run here, None where it can. Imports nothing heavy."""
        return None

    def serve(self) -> bytes:
        """Prepare the producer and return what the consumer needs to connect."""
        return b"-"

    def connect(self, hello: bytes) -> None:  # noqa: B027 - most peers need no connection
        """Prepare the consumer."""

    @abstractmethod
    def create(self, nbytes: int) -> Any:
        """Allocate memory that can be shared and map it, without touching it."""

    @abstractmethod
    def export(self, memory: Any) -> bytes:
        """Return the bytes by which the consumer finds the memory."""

    @abstractmethod
    def attach(self, token: bytes) -> Any:
        """Map the memory in the consumer, without touching it."""

    @abstractmethod
    def detach(self, mapping: Any) -> None:
        """Unmap it and give up all that :meth:`attach` took."""

    @abstractmethod
    def free(self, memory: Any) -> None:
        """Unmap it in the producer and give it back."""

    @abstractmethod
    def view(self, memory: Any) -> memoryview:
        """Return the bytes of what :meth:`create` or :meth:`attach` returned."""


_HERE: Final = "crossmem.bench."
PEERS: Final = MappingProxyType(
    {
        "floor": (_HERE + "peer_floor", "FloorPeer"),
        "crossmem": (_HERE + "peer_crossmem", "CrossmemPeer"),
        "pool": (_HERE + "peer_pool", "PoolPeer"),
        "mp": (_HERE + "peer_mp", "SharedMemoryPeer"),
        "posix_ipc": (_HERE + "peer_posix_ipc", "PosixIpcPeer"),
        "umf-proxy": (_HERE + "peer_umf", "UmfProxyPeer"),
        "umf-disjoint": (_HERE + "peer_umf", "UmfDisjointPeer"),
        "iceoryx2": (_HERE + "peer_iceoryx2", "Iceoryx2Peer"),
        "torch": (_HERE + "peer_torch", "TorchPeer"),
    }
)
"""Module and class of every peer, by its name."""


def peer_class(name: str) -> type[Peer]:
    """Return the class of a peer.

    Raises
    ------
    KeyError
        Where no peer has that name.
    """
    module, attribute = PEERS[name]
    found: type[Peer] = getattr(import_module(module), attribute)
    return found
