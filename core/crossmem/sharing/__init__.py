# SPDX-License-Identifier: Apache-2.0
"""The objects of applications: devices, allocations, imports and mappings.

The import of any module of this package also registers :class:`crossmem.Device` with
``sharing.base``, which creates every device object with this class.
"""

from crossmem.sharing.device import Device

__all__ = ["Device"]
