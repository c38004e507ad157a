# SPDX-License-Identifier: Apache-2.0
"""The objects that the kit's fixtures give to its tests."""

import gc
import os
import shutil
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Protocol

import crossmem
from crossmem.conformance import actions, blocks, streams_of_tests
from crossmem.conformance.forkserver import plugin_modules
from crossmem.conformance.peers import Peer, kill_all
from crossmem.conformance.pool import PeerPool
from crossmem.conformance.servers import preload
from crossmem.models import Access
from crossmem.sharing.base.process import current

__all__ = ["Allocate", "FreshPeer", "Imports", "Kit", "capacity_of"]


class Allocate(Protocol):
    """The type of the fixture ``allocate``."""

    def __call__(
        self,
        nbytes: int,
        data: bytes = b"",
        *,
        allow: crossmem.Allow | None = None,
        access: Access = "rw",
    ) -> crossmem.Allocation:
        """Allocate memory, set the options of its exports, and write ``data`` at offset 0."""
        ...


class FreshPeer(Protocol):
    """The type of the fixture ``fresh_peer``."""

    def __call__(
        self, *, tracing: bool = True, fresh: bool = False, **environment: str | None
    ) -> Peer:
        """Start a peer. ``environment`` has the changes to its environment; see :class:`Peer`."""
        ...


class Imports:
    """Methods that import memory of peers into the test's process, and reserve ranges there."""

    def __init__(self, device: crossmem.Device, undo: ExitStack) -> None:
        self.device = device
        self._undo = undo

    def of(self, peer: Peer, name: str, nbytes: int, data: bytes = b"") -> crossmem.Import:
        """Let a peer allocate and export memory. Then import the memory into this process."""
        blob = peer.call(actions.offer, name, nbytes, data)
        return self._undo.enter_context(crossmem.import_handle(blob, device=self.device))

    def range_for(self, *memories: crossmem.Allocation | crossmem.Import) -> crossmem.AddressRange:
        """Reserve and return a range that is large enough for these allocations and imports."""
        nbytes = sum(capacity_of(one) for one in memories)
        return self._undo.enter_context(self.device.reserve(nbytes))


def capacity_of(memory: crossmem.Allocation | crossmem.Import) -> int:
    """Return the number of bytes that an allocation or import occupies in a range."""
    return memory.handle.capacity if isinstance(memory, crossmem.Import) else memory.capacity


def _has_no_vendor(spec: str, runtime: str | None) -> bool:
    """Whether a device works without a vendor's library."""
    return runtime == "emulated" or spec.partition(":")[0] in {"host", "emulated"}


class Kit:
    """The objects that all tests of a run use: the device under test and the pool of peers."""

    def __init__(
        self,
        spec: str,
        runtime: str | None,
        mechanism: str | None,
        *,
        forks: bool | None,
        on_blocks: bool,
    ) -> None:
        self._folder = None
        is_worker = "PYTEST_XDIST_WORKER" in os.environ
        if is_worker or "CROSSMEM_RUN_DIR" not in os.environ:
            # Each worker of pytest-xdist has its own run directory. In a common directory, tests of
            # law C20 would mistake another worker's files for files that nobody has removed.
            self._folder = tempfile.mkdtemp(prefix="crossmem-")
            os.environ["CROSSMEM_RUN_DIR"] = self._folder
        if is_worker and runtime == "emulated":
            # Each worker has its own emulated host. On a common host, a worker's allocations would
            # change the free memory that another worker's tests measure.
            os.environ["CROSSMEM_EMULATED_STATE"] = str(Path(self._folder or "", "host"))
        actions.begin(spec, runtime, mechanism, tracing=True, on_blocks=on_blocks)
        self.device = actions.device()
        self.violations_before = len(actions.vendor_violations() or [])
        """Number of breaches of the vendor's rules that the emulation recorded before the run."""
        self.run_dir = current().settings.run_dir
        self.pool = PeerPool(
            spec,
            runtime=runtime,
            mechanism=mechanism,
            forks=_has_no_vendor(spec, runtime) if forks is None else forks,
            environment={"CROSSMEM_RUN_DIR": str(self.run_dir)},
        )
        preload(*plugin_modules())
        # The first export starts the lease server, which runs until this process ends. If a test
        # made this export, the server would count as a leak of the test.
        with blocks.allocate(self.device, 1) as allocation:
            allocation.export()
        # Each test collects garbage at least twice. After the freeze, these collections skip the
        # objects that exist now, mostly objects of pytest.
        gc.collect()
        gc.freeze()
        # The first timeline allocates a page, which later timelines share. If a test made this
        # timeline, the page would count as a leak of the test.
        self.device.timeline().close()
        streams_of_tests.open_event_files()

    def close(self) -> None:
        """End every peer, and remove the run directory that this object made."""
        self.pool.close()
        kill_all()
        if self._folder is not None:
            del os.environ["CROSSMEM_RUN_DIR"]
            shutil.rmtree(self._folder, ignore_errors=True)
