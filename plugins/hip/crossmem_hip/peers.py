# SPDX-License-Identifier: Apache-2.0
"""Access of one device to the memory of another."""

from collections.abc import Sequence

from crossmem_hip.errors import PEER_ACCESS_ALREADY_ENABLED
from crossmem_hip.runtime import Vendor

__all__ = ["PeerAccess"]


class PeerAccess:
    """The machine's peer access, and the calls that enable it."""

    def __init__(self, vendor: Vendor) -> None:
        self._vendor = vendor

    def reach_each_other(self, ordinal: int, others: Sequence[int]) -> bool:
        """Whether ``ordinal`` and each device in ``others`` can access each other's memory.

        If ``others`` is empty, the result is False.
        """
        return bool(others) and all(
            self._can(ordinal, one) and self._can(one, ordinal) for one in others
        )

    def enable(self, peer: int) -> None:
        """Let the current device use the memory of another device.

        According to the vendors' documents, opening a handle enables the access. AMD's runtime did
        not enable the access before ROCm 7.0. So this method enables the access on AMD, and does
        nothing on NVIDIA. On AMD, each call of this method enables the access again, because other
        code in the process may have disabled the access. crossmem never disables the access,
        because other code may rely on the access.
        """
        if not self._vendor.family.is_hip:
            return
        try:
            self._vendor.rt.deviceEnablePeerAccess(peer)
        except self._vendor.error as error:
            if getattr(error, "status", None) != PEER_ACCESS_ALREADY_ENABLED:
                raise self._vendor.refusal("deviceEnablePeerAccess", error) from error

    def _can(self, ordinal: int, peer: int) -> bool:
        with self._vendor.calling("deviceCanAccessPeer"):
            return bool(self._vendor.rt.deviceCanAccessPeer(ordinal, peer))
