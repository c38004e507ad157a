# SPDX-License-Identifier: Apache-2.0
"""Arrays of NumPy in children of multiprocessing that were started with fork."""

from typing import TYPE_CHECKING

import pytest
from programs import DEADLINE_S, run_script

from crossmem.conformance import actions

if TYPE_CHECKING:
    from tests.integration.conftest import StartPeer

np = pytest.importorskip("numpy", reason="NumPy is not installed")

START = f"""
import gc, multiprocessing, os, sys
import numpy as np
import crossmem

context = multiprocessing.get_context("fork")
started = []

def start(function, *arguments):
    process = context.Process(target=function, args=arguments)
    process.start()
    started.append(process)
    return process

def joined(process):
    process.join({DEADLINE_S / 2})
    alive = process.is_alive()
    if alive:
        process.kill()
        process.join()
    return -1 if alive else process.exitcode

def answer(queue):
    return queue.get(timeout={DEADLINE_S / 2})
"""

SENDS = """
if sys.argv[1] == "installed":
    crossmem.install()
array = crossmem.empty((256, 4), "int64")
array[:] = 1
part = array[10:20, ::-2]

def work(queue, given):
    array[0, 0] += 1
    given[0, 0] += 1
    queue.put(int(array.sum()))
    # Nobody but the parent can export the memory, so these are messages with copies.
    queue.put(array)
    queue.put(given)
    queue.put({"part": part})

queue = context.Queue()
worker = start(work, queue, part)
assert answer(queue) == 256 * 4 + 2
whole, given, tree = answer(queue), answer(queue), answer(queue)
assert joined(worker) == 0
# What the child wrote is here.
assert (array[0, 0], array[10, 3]) == (2, 2)
assert (whole == array).all() and (given == part).all() and (tree["part"] == part).all()
array[:] = 5
assert (whole.max(), given.max()) == (2, 2)
"""

POOL = """
if sys.argv[1] == "installed":
    crossmem.install()
array = crossmem.empty(1000, "float64")
array[:] = range(1000)

def work(number):
    array[number] = -array[number]
    return array[number : number + 2]

with context.Pool(2) as pool:
    parts = pool.map_async(work, range(0, 1000, 2)).get(timeout=30)
assert [part.tolist() for part in parts] == [[-n, n + 1] for n in range(0, 1000, 2)]
assert array.sum() == 500
"""

SHARES = """
array = crossmem.empty(100, "int32")
array[:] = 7

def work(queue, done):
    try:
        crossmem.share(array)
    except crossmem.UnsupportedError as error:
        queue.put(str(error))
    with crossmem.share(array, copy="allow") as shared:
        queue.put((shared.copied_nbytes, shared.to_bytes()))
        done.get(timeout=30)

queue, done = context.Queue(), context.Queue()
worker = start(work, queue, done)
assert "ordinary host memory" in answer(queue)
copied_nbytes, blob = answer(queue)
copy = crossmem.receive(blob)
array[:] = 8
assert copied_nbytes == 400
assert (copy == 7).all()
del copy
crossmem.collect()
done.put(None)
assert joined(worker) == 0
"""

OUTLIVES = """
array = crossmem.empty(1000, "uint8")
array[:] = 3

def work(queue, go):
    go.get(timeout=30)
    queue.put(bytes(array[:4]))
    array[:] = 9

queue, go = context.Queue(), context.Queue()
worker = start(work, queue, go)
del array
gc.collect()
crossmem.collect()
assert crossmem.exports() == []
others = [crossmem.empty(1000, "uint8") for _ in range(5)]
for one in others:
    one[:] = 1
go.put(None)
assert answer(queue) == bytes([3] * 4)
assert joined(worker) == 0
assert all((one == 1).all() for one in others)
"""

RECEIVED = """
array = crossmem.attach(bytes.fromhex(sys.argv[1])).as_array(100, "uint8")

def grandchild(queue):
    array[1] = 11
    queue.put(int(array[0]))

def work(queue):
    array[0] = 10
    # A child of a child has it, too.
    inner = start(grandchild, queue)
    assert joined(inner) == 0

queue = context.Queue()
worker = start(work, queue)
assert answer(queue) == 10
assert joined(worker) == 0
assert array[:3].tolist() == [10, 11, ord("c")]
"""


@pytest.mark.parametrize("way", ["plain", "installed"])
@pytest.mark.parametrize("script", [SENDS, POOL], ids=["process", "pool"])
def test_a_child_works_on_inherited_arrays_and_sends_copies(way: str, script: str) -> None:
    ended = run_script(START + script, way)

    assert ended.returncode == 0, ended.stderr


def test_a_child_shares_an_inherited_array_as_any_other() -> None:
    ended = run_script(START + SHARES)

    assert ended.returncode == 0, ended.stderr


def test_an_inherited_array_outlives_the_parents() -> None:
    ended = run_script(START + OUTLIVES)

    assert ended.returncode == 0, ended.stderr


def test_a_child_works_on_what_its_parent_received(start_peer: "StartPeer") -> None:
    exporter = start_peer(tracing=False)
    blob = exporter.call(actions.offer, "a", 100, b"abc")
    folder = exporter.call(run_dir)

    ended = run_script(START + RECEIVED, blob.hex(), environment={"CROSSMEM_RUN_DIR": folder})

    assert ended.returncode == 0, ended.stderr
    assert exporter.call(actions.read, "a", 3) == b"\x0a\x0bc"


def run_dir() -> str:
    """Return where the lease servers of the test are reached."""
    import os

    return os.environ["CROSSMEM_RUN_DIR"]
