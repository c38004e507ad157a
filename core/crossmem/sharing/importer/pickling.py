# SPDX-License-Identifier: Apache-2.0
"""The pickling of memory. A pickle contains a handle's bytes; unpickling attaches the handle.

This module registers the pickling functions of allocations, adoptions and mappings, because the
modules of these classes cannot import the module of ``attach``. The module of ``attach`` imports
the modules of mappings, so an import in the other direction would close a cycle. The modules of
allocations and adoptions are part of the exporter, which must not import modules of the importer.
"""

import copyreg
from typing import Any

from crossmem.sharing.exporter.adoption import Adoption
from crossmem.sharing.exporter.allocation import Allocation
from crossmem.sharing.importer.attach import attach
from crossmem.sharing.importer.block_mapping import BlockMapping
from crossmem.sharing.importer.mapping import Mapping, Readonly, asked_readonly

__all__ = ["attach_again"]


def attach_again(blob: bytes, readonly: Readonly) -> Mapping:
    """Return a new mapping of the memory whose handle a pickle contains."""
    return attach(blob, readonly=readonly)


def _reduce_mapping(mapping: Mapping) -> tuple[Any, ...]:
    return attach_again, (mapping.handle.to_bytes(), asked_readonly(mapping))


def _reduce_allocation(allocation: Allocation) -> tuple[Any, ...]:
    return attach_again, (allocation.export().to_bytes(), False)


copyreg.pickle(Mapping, _reduce_mapping)
copyreg.pickle(BlockMapping, _reduce_mapping)
copyreg.pickle(Allocation, _reduce_allocation)
copyreg.pickle(Adoption, _reduce_allocation)
