# SPDX-License-Identifier: Apache-2.0
"""Peer access: a process must enable it before a device can use another device's memory."""

import time
from typing import Final

from crossmem.errors import DriverError
from crossmem_ascend.context import Contexts
from crossmem_ascend.errors import BACKEND
from crossmem_ascend.runtime import Vendor

__all__ = ["PeerAccess"]

_TIMEOUT_S: Final = 3.0
_PERIOD_S: Final = 0.01


class PeerAccess:
    """The peer access that this process has enabled."""

    def __init__(self, vendor: Vendor, contexts: Contexts) -> None:
        self._vendor = vendor
        self._contexts = contexts
        self._enabled: set[tuple[int, int]] = set()

    def exists(self, ordinal: int, peer: int) -> bool:
        """Whether the machine allows a device to use another device's memory."""
        can = self._vendor.rt.device_can_access_peer(ordinal, peer)
        return self._vendor.value("rt.device_can_access_peer", can) == 1

    def enable(self, ordinal: int, peer: int) -> None:
        """Let a device use another device's memory. One call per process and pair is enough.

        Raises
        ------
        DriverError
            The vendor refuses the access, or has not enabled it within 3 seconds. The vendor
            enables the access in the background.
        """
        if (ordinal, peer) in self._enabled:
            return
        vendor, rt = self._vendor, self._vendor.rt
        with self._contexts.on(ordinal):
            # Other code in this process, such as torch_npu, may have enabled the access.
            if not self._is_enabled(ordinal, peer):
                vendor.check("rt.device_enable_peer_access", rt.device_enable_peer_access(peer, 0))
            deadline = time.monotonic() + _TIMEOUT_S
            while True:
                if self._is_enabled(ordinal, peer):
                    break
                if time.monotonic() > deadline:
                    raise DriverError(
                        f"device {ordinal} got no access to the memory of device {peer} within "
                        f"{_TIMEOUT_S:g} seconds",
                        hint="import the memory on the device that holds it",
                        backend=BACKEND,
                    )
                time.sleep(_PERIOD_S)
        self._enabled.add((ordinal, peer))

    def enable_all(self, ordinal: int) -> None:
        """Enable access in both directions between a device and all other open devices."""
        for peer in self._contexts.opened:
            if peer != ordinal:
                self.enable(ordinal, peer)
                self.enable(peer, ordinal)

    def _is_enabled(self, ordinal: int, peer: int) -> bool:
        status = self._vendor.rt.device_peer_access_status(ordinal, peer)
        return self._vendor.value("rt.device_peer_access_status", status) == 1
