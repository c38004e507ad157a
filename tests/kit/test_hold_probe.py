# SPDX-License-Identifier: Apache-2.0
"""The barrier of an exporter protects its importers: a probe in C, which has no fence, tells."""

import ctypes
import mmap
import os
import shutil
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from compilers import cached

from crossmem.conformance.speed import SLOWNESS
from crossmem.control import barrier, segments
from crossmem.control.slots import SlotTable
from crossmem.driver.buffers import HostBuffer

Probe = tuple[Path, Callable[..., int]]

pytestmark = [
    pytest.mark.ci,
    pytest.mark.skipif(not barrier.IS_REGISTERED, reason=f"no barrier: {barrier.WHY_NOT}"),
]

HOLDS = 4_000_000
TURNS = 10
LIMIT_S = 60 * SLOWNESS
PROBE = Path(__file__).with_name("hold_probe.c")


@pytest.fixture
def probe(compiled: Path) -> Probe:
    """Return the importer, which is a program, and the exporter, which is a function."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("there is no C compiler: neither cc nor gcc")
    command: list[str | Path] = [compiler, "-O2", "-Wall", "-Wextra", "-Werror", PROBE]
    library = cached(compiled, [*command, "-shared", "-fPIC"], [PROBE], ".so")
    exporter = ctypes.CDLL(str(library)).own
    exporter.restype = ctypes.c_long
    return cached(compiled, command, [PROBE]), exporter


def share(probe: Probe, *, has_barrier: bool) -> tuple[int, int]:
    """Free and reuse one block as long as an importer holds and reads it, on real segments.

    Returns
    -------
    tuple
        How often the block was reused, and how many holds read another life.
    """
    importer, exporter = probe
    made: list[int] = []
    table = SlotTable()
    slot = table.take()
    row = segments.create("crossmem-row", made, is_written_by_maker=False)
    made.append(os.memfd_create("block"))
    os.ftruncate(made[1], mmap.PAGESIZE)
    (control,) = table.descriptors
    is_over = ctypes.c_int(0)
    lives: list[int] = []
    with mmap.mmap(made[1], 0) as block:
        addresses = [HostBuffer(one).address for one in (table.segments[0].words, row.words, block)]

        def own() -> None:
            where = *map(ctypes.c_void_p, addresses), ctypes.c_long(slot.at)
            lives.append(exporter(*where, int(has_barrier), ctypes.byref(is_over)))

        owner = threading.Thread(target=own)
        with subprocess.Popen(
            [importer, *map(str, (control, *made, slot.at, HOLDS))],
            pass_fds=(control, *made),
            stdout=subprocess.PIPE,
            text=True,
        ) as running:
            owner.start()
            printed, _ = running.communicate(timeout=LIMIT_S)
            is_over.value = 1
            owner.join()
    for descriptor in (control, *made):
        os.close(descriptor)
    assert running.returncode == 0
    return lives[0], int(printed)


def test_with_the_barrier_no_hold_reads_another_life(probe: Probe) -> None:
    reuses, wrong = share(probe, has_barrier=True)

    assert reuses > 1000
    assert wrong == 0


def test_without_it_some_do(probe: Probe) -> None:
    found = [share(probe, has_barrier=False)]
    while len(found) < TURNS and not found[-1][1]:
        found.append(share(probe, has_barrier=False))

    assert found[-1][1] > 0
