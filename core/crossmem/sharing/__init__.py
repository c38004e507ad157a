# SPDX-License-Identifier: Apache-2.0
"""What applications use: devices, allocations, imports and mappings.

Whichever of its modules is imported first, devices are of the class that applications have.
"""

from crossmem.sharing.device import Device

__all__ = ["Device"]
