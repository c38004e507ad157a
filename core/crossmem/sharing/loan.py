# SPDX-License-Identifier: Apache-2.0
"""What an allocation or import gives an address range to show."""

import threading
from collections.abc import Callable
from typing import NamedTuple

from crossmem.driver import Block, Imported
from crossmem.sharing.memory import Uses

__all__ = ["Loan"]


class Loan(NamedTuple):
    """Whole memory of the device, for one piece of an address range.

    Parameters
    ----------
    memory
        What the driver maps.
    home
        Identity of the device that holds it.
    lock
        Held while the driver works on that memory.
    uses
        What else is done with it.
    readonly
        Whether the piece refuses to write.
    end
        Tells the lender, which it keeps alive, that the piece is unmapped.
    """

    memory: Block | Imported
    home: str
    lock: threading.RLock
    uses: Uses
    readonly: bool
    end: Callable[[], None]

    @property
    def is_own(self) -> bool:
        """Whether this process allocated the memory, under whatever name it was lent."""
        return isinstance(self.memory, Block)
