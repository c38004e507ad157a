# SPDX-License-Identifier: Apache-2.0
"""Law C30: if a signal handler raises, no resource is lost, wherever the handler runs."""

import gc
import warnings
from pathlib import Path
from typing import Any, Final

import pytest

import crossmem
from crossmem.conformance import actions
from crossmem.conformance.interrupts import Interrupted, Interrupts
from crossmem.conformance.peers import Peer
from crossmem.conformance.pool import settle
from crossmem.driver import TracingDriver

NBYTES: Final = 5000
STRIDE: Final = 5
"""The kit interrupts at every fifth place. crossmem's own tests interrupt at every place."""

_CORE: Final = Path(crossmem.__file__).parent
_KIT: Final = str(_CORE / "conformance")
_ONE_STEP: Final = {str(_CORE / "driver" / "tracing.py"), str(_CORE / "locks.py")}
"""Calls into these files are not interrupted. Only test runs use the tracer and the locks that are
written in Python."""


def counts(path: str) -> bool | None:
    """Return True for a file of core, False for a file of ``_ONE_STEP``, else None."""
    if path in _ONE_STEP:
        return False
    return True if path.startswith(f"{_CORE}/") and not path.startswith(_KIT) else None


@pytest.mark.parametrize("operation", ["allocate", "attach", "unmap", "free"])
@pytest.mark.crossmem_core
def test_c30_an_interrupted_call_loses_nothing(
    operation: str, device: crossmem.Device, tracer: TracingDriver, peer: Peer
) -> None:
    blob = peer.call(actions.offer, "interrupted", NBYTES, b"interrupted")
    crossmem.attach(blob).unmap()
    gc.collect()
    crossmem.collect()
    before = tracer.live
    number, made = 1, 0
    while True:
        kept: list[Any] = []
        if operation == "unmap":
            kept.append(crossmem.attach(blob))
        elif operation == "free":
            kept.append(device.allocate(NBYTES))
        with warnings.catch_warnings():
            # The finalisers of objects that an interrupted call drops emit warnings.
            warnings.simplefilter("ignore", ResourceWarning)
            interrupts = Interrupts(number, counts)
            try:
                with interrupts:
                    if operation == "allocate":
                        kept.append(device.allocate(NBYTES))
                    elif operation == "attach":
                        kept.append(crossmem.attach(blob))
                    else:
                        getattr(kept[0], operation)()
            except Interrupted as error:
                error.__traceback__ = None
                made += 1
            while kept:
                one = kept.pop()
                one.unmap() if isinstance(one, crossmem.Mapping) else one.free()
                del one
            gc.collect()
            crossmem.collect()

        # The interrupted call may have left work to the reaper, so the test waits.
        lost = settle(lambda: [] if tracer.live == before else [str(tracer.live)])
        assert lost == [], (interrupts.place, before)
        if not interrupts.place:
            break
        number += STRIDE

    assert made > 0
    crossmem.attach(blob).unmap()
    peer.call(actions.free, "interrupted")
