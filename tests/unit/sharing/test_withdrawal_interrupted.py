# SPDX-License-Identifier: Apache-2.0
"""A withdrawal that a signal handler interrupts can be repeated (laws C28 and C30)."""

from pathlib import Path

import pytest

import crossmem
from crossmem.conformance.interrupts import Interrupted, Interrupts
from crossmem.sharing.base.process import current
from crossmem.sharing.exporter.record import Allocations

CORE = Path(crossmem.__file__).parent
UNCOUNTED = {str(CORE / "locks.py")}


def counts(path: str) -> bool | None:
    """Count places of core; locks that assert their order are C code otherwise."""
    if path in UNCOUNTED:
        return False
    return True if path.startswith(f"{CORE}/") else None


@pytest.mark.parametrize("is_held", [False, True])
def test_a_second_attempt_withdraws(*, is_held: bool) -> None:
    with crossmem.device("emulated:0").allocate(4096) as allocation:
        exported = current().part(Allocations).exported
        known = len(exported)
        number, interrupted = 1, 0
        while True:
            handle = allocation.export()
            mapping = crossmem.attach(handle) if is_held else None
            interrupts = Interrupts(number, counts)
            try:
                with interrupts:
                    allocation.withdraw(handle)
            except Interrupted as error:
                error.__traceback__ = None
                interrupted += 1
                allocation.withdraw(handle)
            assert allocation.export() != handle, interrupts.place
            if mapping is not None:
                assert mapping.read(1) == mapping.read(1)
                mapping.unmap()
            with pytest.raises(crossmem.StaleHandleError, match="withdrawn"):
                crossmem.attach(handle)
            allocation.withdraw(handle)
            assert [one.handle for one in crossmem.exports() if one.handle == handle] == []
            # The export that replaced it is all that is left.
            assert len(exported) == known + 1, interrupts.place
            allocation.withdraw(allocation.export())
            if not interrupts.place:
                break
            number += 1
        assert interrupted > 10
    assert len(exported) == known
