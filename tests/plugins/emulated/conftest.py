# SPDX-License-Identifier: Apache-2.0
"""Drivers to test, and what they hold of the kernel."""

import gc
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pytest
from measuring import UNMEASURED
from programs import DEADLINE_S, run_script

from crossmem.conformance.servers import preload
from crossmem.driver import Block, Exported, Imported
from crossmem.models import Access
from crossmem_emulated.driver import EmulatedDriver
from crossmem_emulated.options import Options

Run = Callable[..., subprocess.CompletedProcess[str]]

preload("crossmem_emulated.driver", "crossmem_emulated.options")

# What a script has at hand; it runs in a process of its own, because it changes limits or dies.
PRELUDE = """
import errno, os, resource, signal, sys
from crossmem_emulated import memory
from crossmem_emulated.driver import EmulatedDriver
from crossmem_emulated.options import Options
from crossmem.driver import Exported
from crossmem.errors import CrossmemError, DriverError, OutOfMemoryError

resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

def descriptors():
    # Less the one that lists the folder.
    return len(os.listdir("/proc/self/fd")) - 1

def mappings():
    with open("/proc/self/maps") as file:
        return sum("/memfd:crossmem" in line for line in file)
"""


class Footprint(NamedTuple):
    """What a process holds of the emulation's memory."""

    descriptors: int
    mappings: int


@pytest.fixture(scope="module")
def _old_objects() -> Iterator[None]:
    """Leave what pytest and its plugins have made out of collections, which take long with it."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture
def footprint(_old_objects: None) -> Callable[[], Footprint]:
    def measure() -> Footprint:
        gc.collect()
        links = []
        for path in Path("/proc/self/fd").iterdir():
            # Other threads, such as those that run the kit's mutants, open and close others.
            with suppress(FileNotFoundError):
                links.append(str(path.readlink()))
        maps = Path("/proc/self/maps").read_text("utf-8").splitlines()
        descriptors, mappings = (
            sum("/memfd:crossmem" in one for one in found) for found in (links, maps)
        )
        return Footprint(descriptors, mappings)

    return measure


@pytest.fixture
def driver() -> EmulatedDriver:
    return EmulatedDriver(Options(capacity_nbytes=64 << 20))


@pytest.fixture
def free_nbytes() -> Callable[[EmulatedDriver, int], int]:
    """How much a device has left, found by asking for it, as an application would."""

    def measure(driver: EmulatedDriver, ordinal: int) -> int:
        return driver._accounts[ordinal].free_nbytes

    return measure


@pytest.fixture
def block(driver: EmulatedDriver) -> Iterator[Block]:
    block = driver.allocate(0, 1000, "memfd")
    yield block
    driver.free(block)


@pytest.fixture
def sent() -> Callable[[Exported], Exported]:
    """Pass an export on as core does: the receiver has descriptors of its own."""

    def pass_on(exported: Exported) -> Exported:
        return Exported(exported.payloads, tuple(map(os.dup, exported.descriptors)))

    return pass_on


@pytest.fixture
def import_block(
    sent: Callable[[Exported], Exported],
) -> Callable[[EmulatedDriver, Block, Exported, Access], Imported]:
    def do(driver: EmulatedDriver, block: Block, exported: Exported, access: Access) -> Imported:
        return driver.import_(
            block.ordinal,
            sent(exported),
            home=block.ordinal,
            mechanism="memfd",
            nbytes=block.nbytes,
            capacity=block.capacity,
            access=access,
        )

    return do


@pytest.fixture
def run() -> Run:
    """Return a function that runs a script in a process of its own and returns how it ended.

    A script that forks, executes programs or needs descriptors of this process is given to an
    interpreter of its own, with ``fresh=True``.
    """

    def do(
        script: str, *arguments: object, fresh: bool = False, pass_fds: tuple[int, ...] = ()
    ) -> subprocess.CompletedProcess[str]:
        # Not under coverage: its tracer has a lock, and a process that forks while another of its
        # threads holds that lock has a child that waits for ever.
        if not (fresh or pass_fds):
            return run_script(PRELUDE + script, *arguments, environment=UNMEASURED)
        environ = {name: value for name, value in os.environ.items() if name not in UNMEASURED}
        return subprocess.run(
            [sys.executable, "-c", PRELUDE + script, *map(str, arguments)],
            check=False,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            pass_fds=pass_fds,
            env=environ,
        )

    return do
