# SPDX-License-Identifier: Apache-2.0
"""A process exits while another of its threads is inside a call."""

from typing import Final

import pytest
from programs import run_script

import crossmem

NBYTES = 4096

PROGRAM: Final = """
import os, sys
from importlib import import_module
from concurrent.futures import ThreadPoolExecutor

from halts import DEADLINE_S, Halt, inside

import crossmem
from crossmem.sharing.base.process import current
from crossmem.sharing.importer.block_holds import ArenaImport
from crossmem.sharing.importer.record import ImportRecord
from crossmem.sharing.ranges.record import PieceRecord

call, memory, first, second = sys.argv[1], *map(bytes.fromhex, sys.argv[2:])
imported = crossmem.import_handle(memory)
mapping = None if call == "pool" else crossmem.attach(first)
addresses = imported.device.reserve(1 << 21)
halted, halt = {
    "map": (ImportRecord, "map"),
    "attach": (ImportRecord, "map"),
    "range": (PieceRecord, "map"),
    "block": (import_module("crossmem.sharing.importer.attach"), "attach_bytes"),
    "pool": (ArenaImport, "__init__"),
}[call], Halt()
calls = {
    "map": imported.map,
    "attach": lambda: crossmem.attach(memory),
    "range": lambda: addresses.map(imported, at=0),
    "block": lambda: crossmem.attach(second),
    "pool": lambda: crossmem.attach(second),
}
setattr(*halted, halt.before(getattr(*halted)))
with ThreadPoolExecutor(1) as threads:
    with inside(threads, halt, calls[call]) as caller:
        current().shut_down()
    print(type(caller.exception(DEADLINE_S)).__name__, flush=True)
os._exit(0)
"""


@pytest.mark.parametrize("call", ["map", "attach", "range", "block", "pool"])
def test_an_exit_beside_a_call_that_maps_memory(call: str) -> None:
    device = crossmem.device("emulated:0")
    with (
        device.allocate(NBYTES) as memory,
        device.pool(NBYTES, 2) as pool,
        pool.allocate() as first,
        pool.allocate() as second,
    ):
        handles = [one.export().to_bytes().hex() for one in (memory, first, second)]
        done = run_script(PROGRAM, call, *handles)

    assert (done.returncode, done.stdout, done.stderr) == (0, "ClosedError\n", "")


LATE_END: Final = """
import os, sys

import crossmem

mapping = crossmem.attach(bytes.fromhex(sys.argv[1]))
process, hold = mapping._process, mapping._record
process.shut_down()
with process.state:
    print(hold.leave_to_others(), flush=True)
os._exit(0)
"""


def test_a_thread_that_has_begun_to_unmap_a_block_may_end_after_the_exit() -> None:
    with crossmem.device("host:0").pool(NBYTES, 1) as pool, pool.allocate() as block:
        done = run_script(LATE_END, block.export().to_bytes().hex())

    assert (done.returncode, done.stdout, done.stderr) == (0, "True\n", "")
