# SPDX-License-Identifier: Apache-2.0
"""Access of one device to the memory of another, which has to be enabled first."""

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
    """What this process has enabled.

    Parameters
    ----------
    vendor
        The runtime.
    contexts
        The devices.
    """

    def __init__(self, vendor: Vendor, contexts: Contexts) -> None:
        self._vendor = vendor
        self._contexts = contexts
        self._enabled: set[tuple[int, int]] = set()

    def exists(self, ordinal: int, peer: int) -> bool:
        """Whether the machine lets a device use another one's memory."""
        can = self._vendor.rt.device_can_access_peer(ordinal, peer)
        return self._vendor.value("rt.device_can_access_peer", can) == 1

    def enable(self, ordinal: int, peer: int) -> None:
        """Let a device use the memory of another one; once is enough for a process.

        Raises
        ------
        DriverError
            Where the driver, which does this in the background, is not done in time.
        """
        if (ordinal, peer) in self._enabled:
            return
        vendor, rt = self._vendor, self._vendor.rt
        with self._contexts.on(ordinal):
            # Others in this process may have enabled it, torch_npu for example.
            if not self._is_enabled(ordinal, peer):
                vendor.check("rt.device_enable_peer_access", rt.device_enable_peer_access(peer, 0))
            deadline = time.monotonic() + _TIMEOUT_S
            while not self._is_enabled(ordinal, peer):
                if time.monotonic() > deadline:
                    raise DriverError(
                        f"device {ordinal} got no access to the memory of device {peer} within "
                        f"{_TIMEOUT_S:g} seconds",
                        hint="import on the device that holds the memory",
                        backend=BACKEND,
                    )
                time.sleep(_PERIOD_S)
        self._enabled.add((ordinal, peer))

    def enable_all(self, ordinal: int) -> None:
        """Let a device and every other one that this process uses reach each other's memory."""
        for peer in self._contexts.opened:
            if peer != ordinal:
                self.enable(ordinal, peer)
                self.enable(peer, ordinal)

    def _is_enabled(self, ordinal: int, peer: int) -> bool:
        status = self._vendor.rt.device_peer_access_status(ordinal, peer)
        return self._vendor.value("rt.device_peer_access_status", status) == 1
