# SPDX-License-Identifier: Apache-2.0
"""The objects of applications: devices, allocations, imports and mappings.

Importing any module of this package also registers :class:`crossmem.Device` with ``sharing.base``.
So ``sharing.base`` creates device objects of this class.
"""

from crossmem.sharing.device import Device

__all__ = ["Device"]
