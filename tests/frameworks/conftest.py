# SPDX-License-Identifier: Apache-2.0
"""Another process with CuPy, where a GPU is present or emulated."""

import multiprocessing
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import crossmem
from crossmem.conformance.speed import SLOWNESS

# Processes that are started by spawn import the modules beside this one.
sys.path.insert(0, str(Path(__file__).parent))

_DEADLINE_S = 60 * SLOWNESS


class Peer:
    """A process that does what ``cupy_actions`` can."""

    def __init__(self) -> None:
        cupy_actions = import_module("cupy_actions")
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=cupy_actions.serve, args=(theirs,))
        self.process.start()
        theirs.close()

    def __call__(self, action: str, *arguments: Any) -> Any:
        self.pipe.send((action, *arguments))
        assert self.pipe.poll(_DEADLINE_S), action
        return self.pipe.recv()

    def end(self) -> None:
        self.pipe.send(None)
        self.process.join(_DEADLINE_S)
        self.process.kill()
        self.pipe.close()


@pytest.fixture(scope="session")
def gpu() -> str:
    """Return the backend of the installed CuPy, where that finds a device."""
    cupy = pytest.importorskip("cupy", reason="CuPy cannot be imported", exc_type=ImportError)
    try:
        count = cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        pytest.skip(f"CuPy finds no device: {error}")
    if not count:
        pytest.skip("CuPy finds no device")
    return "hip" if cupy.cuda.runtime.is_hip else "cuda"


@pytest.fixture(scope="session")
def serving(gpu: str) -> Iterator[Peer]:
    peer = Peer()
    yield peer
    peer.end()
    assert peer.process.exitcode == 0


@pytest.fixture
def peer(serving: Peer) -> Iterator[Peer]:
    """Return the process; what a test left there is dropped after it."""
    yield serving
    serving("clear")
    crossmem.collect()


@pytest.fixture(scope="module")
def slow_peer(gpu: str) -> Iterator[Peer]:
    """Return a process whose device, where it is emulated, works as late as it may."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("CROSSMEM_EMULATED_SLOW_STREAMS", "1")
        peer = Peer()
    yield peer
    peer.end()
    assert peer.process.exitcode == 0


@pytest.fixture
def two_gpus(gpu: str) -> str:
    import cupy

    if cupy.cuda.runtime.getDeviceCount() < 2:
        pytest.skip("needs two devices")
    return gpu
