# SPDX-License-Identifier: Apache-2.0
"""Packets between the processes of a benchmark."""

import json
import socket
import struct
from collections.abc import Iterator, Sequence
from typing import Any, Final, Self

__all__ = ["Channel", "ChannelError"]

_END: Final = b"\0end"
# A packet must fit into the kernel's default socket buffer.
_BATCH_NBYTES: Final = 32 * 1024


class ChannelError(Exception):
    """The other process has ended, or did not read or answer in time."""


class Channel:
    """One end of a Unix socket that preserves packet boundaries.

    Parameters
    ----------
    sock
        A connected ``SOCK_SEQPACKET`` socket, which :meth:`close` closes.
    timeout_s
        Longest wait of one send or receive, in seconds; None if the wait has no limit. The kernel
        enforces the limit, so a send or receive is still one system call.
    """

    def __init__(self, sock: socket.socket, *, timeout_s: float | None = None) -> None:
        self._sock = sock
        if timeout_s is not None:
            limit = struct.pack("@ll", int(timeout_s), int(timeout_s % 1 * 1e6))
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)

    @classmethod
    def couple(cls, *, timeout_s: float | None = None) -> tuple[Self, socket.socket]:
        """Return a channel for this process, and the socket at the other end, for a child."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        return cls(ours, timeout_s=timeout_s), theirs

    def fileno(self) -> int:
        """Return the socket's descriptor, for polling."""
        return self._sock.fileno()

    def send(self, packet: bytes) -> None:
        """Send one packet, which must not be empty."""
        try:
            self._sock.send(packet)
        except BlockingIOError:
            msg = "the other process did not read in time"
            raise ChannelError(msg) from None
        except OSError as error:
            msg = f"the other process has gone ({error})"
            raise ChannelError(msg) from error

    def receive(self) -> bytes:
        """Return the next packet."""
        try:
            packet = self._sock.recv(1 << 20)
        except BlockingIOError:
            msg = "the other process did not answer in time"
            raise ChannelError(msg) from None
        except OSError as error:
            msg = f"the other process has gone ({error})"
            raise ChannelError(msg) from error
        if not packet:
            msg = "the other process has gone"
            raise ChannelError(msg)
        return packet

    def send_json(self, value: object) -> None:
        """Send a value that JSON can express."""
        data = json.dumps(value).encode()
        self.send_all([data[i : i + _BATCH_NBYTES] for i in range(0, len(data), _BATCH_NBYTES)])

    def receive_json(self) -> Any:
        """Return the value that the other process sent with :meth:`send_json`."""
        return json.loads(b"".join(self.receive_all()))

    def send_all(self, packets: Sequence[bytes]) -> None:
        """Send many packets, to be read with :meth:`receive_all`."""
        for packet in packets:
            self.send(packet)
        self.end()

    def receive_all(self) -> list[bytes]:
        """Return the packets that the other process sent with one call of :meth:`send_all`."""
        return list(self.stream())

    def end(self) -> None:
        """End the iteration of :meth:`stream` in the other process."""
        self.send(_END)

    def stream(self) -> Iterator[bytes]:
        """Yield packets until the other process calls :meth:`end`."""
        while (packet := self.receive()) != _END:
            yield packet

    def meet(self) -> None:
        """Wait until the other process has called this method, too."""
        self.send(b"here")
        self.receive()

    def close(self) -> None:
        """Close the socket. A second call does nothing."""
        self._sock.close()
