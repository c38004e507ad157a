# SPDX-License-Identifier: Apache-2.0
"""The peers of the benchmark: a class for each way to share memory, such as multiprocessing."""

from abc import ABC, abstractmethod
from importlib import import_module
from types import MappingProxyType
from typing import Any, ClassVar, Final

__all__ = ["PEERS", "Peer", "peer_class"]


class Peer(ABC):
    """One way to share memory. The producer and the consumer each make an object of the class.

    The producer calls :meth:`serve`, and the consumer calls :meth:`connect` with the result. The
    five timed operations follow: :meth:`create`, :meth:`export` and :meth:`free` in the producer,
    :meth:`attach` and :meth:`detach` in the consumer. :meth:`create` returns the memory for
    :meth:`export`, :meth:`free` and :meth:`view`. :meth:`attach` returns the mapping for
    :meth:`detach` and :meth:`view`. Each class chooses the types of memory and mapping.

    Parameters
    ----------
    device
        The crossmem device of the run. Only the peers ``crossmem`` and ``pool`` use the device.
    """

    title: ClassVar[str]
    """The peer's name in the tables."""

    distribution: ClassVar[str | None] = None
    """The Python distribution whose version the report shows."""

    touches_memory: ClassVar[bool] = False
    """Whether :meth:`create` writes to every page. If so, large memory takes long and needs RAM."""

    is_read_only: ClassVar[bool] = False
    """Whether the attached memory is read-only in the consumer."""

    needs_reader: ClassVar[bool] = False
    """Whether exported memory can be freed only after the consumer has attached it."""

    asks_exporter: ClassVar[bool] = True
    """Whether an attach sends a request to the producer and waits for the answer."""

    def __init__(self, device: str) -> None:
        self.device = device

    @classmethod
    def missing(cls) -> str | None:
        """Return the reason for which this peer cannot run here, or None if the peer can run.

        An override must not import a large module.
        """
        return None

    def serve(self) -> bytes:
        """Prepare the producer. Return the argument for the consumer's :meth:`connect`."""
        return b"-"

    def connect(self, hello: bytes) -> None:  # noqa: B027 - most peers need no connection
        """Prepare the consumer."""

    @abstractmethod
    def create(self, nbytes: int) -> Any:
        """Allocate and map shareable memory. Access its pages only if ``touches_memory`` is set."""

    @abstractmethod
    def export(self, memory: Any) -> bytes:
        """Return the token: the bytes by which the consumer finds the memory."""

    @abstractmethod
    def attach(self, token: bytes) -> Any:
        """Map the memory in the consumer. Do not access its pages."""

    @abstractmethod
    def detach(self, mapping: Any) -> None:
        """Unmap the memory and release all resources of :meth:`attach`."""

    @abstractmethod
    def free(self, memory: Any) -> None:
        """Unmap the memory in the producer and free it."""

    @abstractmethod
    def view(self, memory: Any) -> memoryview:
        """Return a view of the memory. ``memory`` comes from :meth:`create` or :meth:`attach`."""


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
"""The module and the class of each peer. The key is the peer's name."""


def peer_class(name: str) -> type[Peer]:
    """Return the class of a peer.

    Raises
    ------
    KeyError
        No peer has that name.
    """
    module, attribute = PEERS[name]
    found: type[Peer] = getattr(import_module(module), attribute)
    return found
