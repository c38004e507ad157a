# SPDX-License-Identifier: Apache-2.0
"""The objects of applications: devices, allocations, imports and mappings.

The import of any module of this package registers the public class of devices.
"""

from crossmem.sharing.device import Device

__all__ = ["Device"]
