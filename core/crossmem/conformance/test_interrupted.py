# SPDX-License-Identifier: Apache-2.0
"""Law C30: if a signal handler raises, no resource is lost, wherever the handler runs."""

import gc
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import pytest

import crossmem
from crossmem.conformance import actions, resources
from crossmem.conformance.interrupts import Interrupted, Interrupts
from crossmem.conformance.peers import Peer
from crossmem.conformance.pool import settle
from crossmem.driver import Driver, TracingDriver, native

NBYTES: Final = 5000
STRIDE: Final = 5
"""This module interrupts core at every fifth place where CPython runs signal handlers. The tests of
the tier ``long`` in crossmem's repository interrupt core at every such place."""

_CORE: Final = Path(crossmem.__file__).parent
_KIT: Final = str(_CORE / "conformance")
_ONE_STEP: Final = {str(_CORE / "driver" / "tracing.py"), str(_CORE / "locks.py")}
"""The file of the tracing driver, and the file of the locks that are written in Python. This driver
and these locks are used only in tests, so the tests interrupt no call into the two files."""


def counts(path: str) -> bool | None:
    """Return False for a file of ``_ONE_STEP``, True for another file of core, None for the rest.

    The files of the kit do not belong to core.
    """
    if path in _ONE_STEP:
        return False
    return True if path.startswith(f"{_CORE}/") and not path.startswith(_KIT) else None


def files_of(driver: Driver) -> set[str]:
    """Return the files of the loaded modules in a driver's package.

    Modules that use ``crossmem.driver.native`` are left out. They contain bindings in Python, which
    may lose the result of an interrupted call.
    """
    package = type(driver).__module__.partition(".")[0]
    modules = [
        module
        for name, module in list(sys.modules.items())
        if name.partition(".")[0] == package and getattr(module, "__file__", None)
    ]
    return {str(one.__file__) for one in modules if not _makes_a_binding(one)}


def _makes_a_binding(module: ModuleType) -> bool:
    found = [getattr(value, "__module__", None) for value in list(vars(module).values())]
    return native.__name__ in found


def resources_of(tracer: TracingDriver) -> dict[str, Any]:
    """Count this process's driver objects, descriptors and shared mappings."""
    shared = [line for line in resources.mappings() if line.split()[1].endswith("s")]
    return {
        "live": tracer.live,
        "descriptors": len(resources.descriptors()),
        "shared mappings": len(shared),
    }


@pytest.mark.parametrize("operation", ["allocate", "attach", "unmap", "free"])
@pytest.mark.crossmem_core
def test_c30_an_interrupted_call_loses_nothing(
    operation: str, device: crossmem.Device, tracer: TracingDriver, peer: Peer
) -> None:
    check(operation, device, tracer, peer, counts, STRIDE)


@pytest.mark.crossmem_not_of_blocks("a driver allocates and imports whole pools")
@pytest.mark.parametrize("operation", ["allocate", "attach", "unmap", "free"])
def test_c30_an_interrupted_driver_loses_nothing(
    operation: str, device: crossmem.Device, tracer: TracingDriver, peer: Peer
) -> None:
    files = files_of(tracer.inner)
    if not files:
        pytest.skip("all Python modules of the driver use crossmem.driver.native")
    check(operation, device, tracer, peer, lambda path: path in files or None, 1)


def check(
    operation: str,
    device: crossmem.Device,
    tracer: TracingDriver,
    peer: Peer,
    counts: Callable[[str], bool | None],
    stride: int,
) -> None:
    """Interrupt an operation at each ``stride``-th counted place; check that nothing is lost.

    :class:`Interrupts` explains ``counts`` and ``innermost``. If ``stride`` is 1, ``innermost`` is
    True.
    """
    blob = peer.call(actions.offer, "interrupted", NBYTES, b"interrupted")
    crossmem.attach(blob).unmap()
    device.allocate(NBYTES).free()
    gc.collect()
    crossmem.collect()
    is_driver = stride == 1
    before = resources_of(tracer)
    number, made = 1, 0
    while True:
        kept: list[Any] = []
        if operation == "unmap":
            kept.append(crossmem.attach(blob))
        elif operation == "free":
            kept.append(device.allocate(NBYTES))
        with warnings.catch_warnings():
            # An interrupted call drops objects, whose finalisers emit warnings.
            warnings.simplefilter("ignore", ResourceWarning)
            interrupts = Interrupts(number, counts, innermost=is_driver)
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
        lost = settle(lambda: [] if resources_of(tracer) == before else [str(resources_of(tracer))])
        assert lost == [], (interrupts.place, before)
        if not interrupts.place:
            break
        number += stride

    assert made > 0
    crossmem.attach(blob).unmap()
    peer.call(actions.free, "interrupted")
