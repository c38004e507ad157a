# SPDX-License-Identifier: Apache-2.0
"""A plugin: the emulated backend once more, with memory that can be adopted.

Its exports are payloads alone, as those of vendors are: which descriptor of which process.
"""

import os
import sys
from dataclasses import replace
from typing import Any

from typing_extensions import override

from crossmem.driver import Block, Driver, Exported, Foreign, Imported
from crossmem.errors import StaleHandleError
from crossmem.models import Access, Capabilities
from crossmem.plugin import Availability, Backend, hookimpl
from crossmem_emulated.driver import EmulatedDriver
from crossmem_emulated.options import Options

BACKEND = "foreign"


class ForeignDriver(EmulatedDriver):
    """Whatever was allocated here can be adopted, also behind crossmem's back."""

    backend = BACKEND

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self._capabilities = replace(
            self._capabilities,
            foreign_memory=True,
            raw_handles=True,
            readonly_exports=False,
            other_users=False,
        )
        self._allocated: dict[int, Block] = {}
        self.obstacles: dict[int, str] = {}
        """What is the matter with memory that begins at an address; for tests."""
        self.slab_nbytes = 1
        """Of what the memory that an export opens is a multiple."""
        self.generation: int | None = None
        """What tells allocations at one address apart."""
        self.tail_nbytes = 0
        """How much at the end of a block is no part of the allocation that is found."""

    @override
    def capabilities(self, ordinal: int, mechanism: str | None) -> Capabilities:
        return self._capabilities

    @override
    def allocate(self, ordinal: int, nbytes: int, mechanism: str) -> Block:
        block = super().allocate(ordinal, nbytes, mechanism)
        self._allocated[block.pointer] = block
        return block

    @override
    def free(self, block: Block) -> None:
        self._allocated.pop(block.pointer, None)
        super().free(block)

    @override
    def export(self, block: Block, mechanism: str, access: Access, *, raw: bool) -> Exported:
        return Exported((b"%d:%d" % (os.getpid(), block.reference),))

    @override
    def release_export(self, block: Block, exported: Exported) -> None:
        pass

    @override
    def import_(
        self, ordinal: int, exported: Exported, *, capacity: int, **options: Any
    ) -> Imported:
        (payload,) = exported.payloads
        pid, descriptor = map(int, payload.split(b":"))
        try:
            opened = os.open(f"/proc/{pid}/fd/{descriptor}", os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            raise StaleHandleError(f"there is no memory {payload!r}") from error
        actual = os.fstat(opened).st_size
        received = Exported((), (opened,))
        try:
            imported = super().import_(ordinal, received, capacity=actual, **options)
        except BaseException:
            for left in received.descriptors:
                os.close(left)
            raise
        imported.capacity = capacity
        return imported

    def inspect(self, ordinal: int, pointer: int, mechanism: str) -> Foreign:
        """Look for the allocation around an address."""
        for block in list(self._allocated.values()):
            if block.pointer <= pointer < block.pointer + block.capacity:
                break
        else:
            return Foreign(obstacle="is unknown to the vendor")
        if block.ordinal != ordinal:
            return Foreign(obstacle=f"is on device {block.ordinal}")
        nbytes = block.capacity - self.tail_nbytes
        slab, end = self.slab_nbytes, block.pointer + nbytes
        first, last = block.pointer // slab * slab, -(-end // slab) * slab
        return Foreign(
            block.pointer,
            nbytes,
            first,
            last - first,
            self.obstacles.get(block.pointer),
            self.generation,
        )

    def adopt(self, ordinal: int, foreign: Foreign, mechanism: str) -> Block:
        """Make a block for what was found."""
        file = self._allocated[foreign.base].reference
        return Block(ordinal, foreign.base, foreign.nbytes, foreign.nbytes, file)

    def disown(self, block: Block) -> None:
        """Forget the block."""
        block.reference = None


def load(runtime: str | None) -> Driver:
    del runtime
    return ForeignDriver(Options.from_environ(os.environ))


@hookimpl
def crossmem_backends() -> list[Backend]:
    assert sys.platform == "linux"
    return [
        Backend(
            name=BACKEND,
            summary="memory that others allocated",
            api_version=1,
            probe=lambda: Availability("available"),
            load=load,
        )
    ]
