# SPDX-License-Identifier: Apache-2.0
"""Runs ``crossmem demo``: many processes attach one allocation, which contains a whole file.

For comparison, the demo also times a copy of the same bytes through a pipe.
"""

import hashlib
import operator
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Final

import crossmem
from crossmem.cli.children import Children, gather
from crossmem.cli.consumer import (
    CHUNK_NBYTES,
    Attached,
    Checked,
    Measured,
    Task,
    consume,
    digest,
    measure,
)
from crossmem.cli.pipe import time_copy
from crossmem.cli.problems import UsageProblem
from crossmem.cli.reports import (
    ConsumerReport,
    CopyReport,
    DemoReport,
    FileReport,
    LeaseReport,
    TensorReport,
)
from crossmem.cli.sources import Source
from crossmem.driver.memory import Limits
from crossmem.models import Access, ShareableHandle

__all__ = ["Demo", "OpenBar", "time_for"]

OpenBar = Callable[[str, int], AbstractContextManager[Callable[[int], object]]]
"""A function that opens a progress bar. Its arguments are the text and the total number of bytes.
The context manager that it returns yields a function, which advances the bar by some bytes."""

_SLOWEST_NBYTES_PER_S: Final = 20 * 2**20
_LEASE_END_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class _Shared:
    """The results of :meth:`Demo._share`, which become fields of :class:`DemoReport`."""

    start_s: float
    consumers: tuple[ConsumerReport, ...]
    leases: tuple[LeaseReport, ...]
    leases_after: int
    resident_sum: int | None
    counted_once: int | None


@dataclass(frozen=True, slots=True)
class Demo:
    """One run of the demo.

    Parameters
    ----------
    source
        The file or generated weights whose bytes are shared. The caller closes the source.
    device
        Name of the device on which the memory is allocated; None for the default device.
    consumers
        Number of processes that attach the memory.
    copy
        Whether to time a copy through a pipe as well.
    timeout
        Seconds that a step may wait for another process. A step that reads or copies the bytes of
        the file gets more time (see :func:`time_for`).
    open_bar
        A function that opens a progress bar.
    """

    source: Source
    device: str | None
    consumers: int
    copy: bool
    timeout: float
    open_bar: OpenBar

    def run(self) -> DemoReport:
        """Share the source and return the results.

        Raises
        ------
        CrossmemError
            crossmem failed in this process or in a child. Also raised if a child died or did not
            reply in time.
        UsageProblem
            The file cannot be read, or became shorter while it was read.
        """
        began = time.perf_counter()
        device = crossmem.device(self.device)
        access: Access = "ro" if device.capabilities.readonly_exports else "rw"
        with device.allocate(self.source.nbytes) as allocation:
            loading = time.perf_counter()
            sha256 = self._load(allocation)
            load_s = time.perf_counter() - loading

            exporting = time.perf_counter()
            handle = allocation.export(access=access)
            export_s = time.perf_counter() - exporting

            file = FileReport(
                name=self.source.name,
                path=self.source.path,
                format=self.source.layout.format,
                nbytes=self.source.nbytes,
                sha256=sha256,
                note=self.source.layout.note or None,
                tensors=self._tensors(allocation),
            )
            with Children() as children:
                shared = self._share(children, allocation, handle, file)
                copied = self._copy(children, allocation, sha256)
            capacity = allocation.capacity
            allocation.free(busy="wait", timeout=self.timeout)
        right = sum(one.sha256 is not None for one in file.tensors)
        return DemoReport(
            version=crossmem.__version__,
            ok=copied.equal is not False
            and all(one.equal and one.tensors_equal == right for one in shared.consumers),
            file=file,
            device=device.name,
            identity=device.identity,
            mechanism=handle.mechanism,
            nbytes=handle.nbytes,
            capacity_nbytes=capacity,
            handle_nbytes=len(handle.to_bytes()),
            load_s=load_s,
            export_s=export_s,
            start_s=shared.start_s,
            consumers=shared.consumers,
            leases=shared.leases,
            leases_after=shared.leases_after,
            resident_sum_nbytes=shared.resident_sum,
            counted_once_nbytes=shared.counted_once,
            copy_through_pipe=copied,
            total_s=time.perf_counter() - began,
        )

    def _load(self, allocation: crossmem.Allocation) -> str:
        """Read the source into the allocation and return the digest of the bytes."""
        hasher = hashlib.sha256()
        nbytes = self.source.nbytes
        with self.open_bar(f"Load {self.source.name}", nbytes) as advance:
            if allocation.device.capabilities.host_visible:
                with allocation.view() as view:
                    done = 0
                    while done < nbytes:
                        with view[done : done + CHUNK_NBYTES] as target:
                            count = self._read(target)
                            with target[:count] as chunk:
                                hasher.update(chunk)
                        done += count
                        advance(count)
            else:
                buffer = memoryview(bytearray(min(CHUNK_NBYTES, nbytes)))
                done = 0
                while done < nbytes:
                    count = self._read(buffer[: nbytes - done])
                    hasher.update(buffer[:count])
                    allocation.write(buffer[:count], offset=done)
                    done += count
                    advance(count)
        return hasher.hexdigest()

    def _read(self, target: memoryview) -> int:
        try:
            count = self.source.readinto(target)
        except OSError as error:
            raise UsageProblem(f"cannot read {self.source.name}: {error.strerror}") from error
        if not count:
            raise UsageProblem(f"{self.source.name} became shorter while it was read")
        return count

    def _tensors(self, allocation: crossmem.Allocation) -> tuple[TensorReport, ...]:
        """Return the tensors with the digests of their bytes."""
        found = self.source.layout.tensors
        with self.open_bar("Digests of the tensors", sum(one.nbytes for one in found)) as advance:
            return tuple(
                TensorReport(
                    name=one.name,
                    dtype=one.dtype,
                    shape=one.shape,
                    offset=one.offset,
                    nbytes=one.nbytes,
                    stored=one.stored,
                    sha256=digest(allocation, advance, offset=one.offset, nbytes=one.nbytes)
                    if one.nbytes
                    else None,
                )
                for one in found
            )

    def _share(
        self,
        children: Children,
        allocation: crossmem.Allocation,
        handle: ShareableHandle,
        file: FileReport,
    ) -> _Shared:
        """Let new consumers attach, check, measure and release the memory; return the results."""
        parts = [handle.slice(one.offset, one.nbytes) for one in file.tensors if one.nbytes]
        task = Task(handle.to_bytes(), tuple(part.to_bytes() for part in parts), self.timeout)
        starting = time.perf_counter()
        crew = [
            children.start(f"consumer {number}", consume, allocation.device.name)
            for number in range(1, self.consumers + 1)
        ]
        gather(crew, timeout=self.timeout)
        start_s = time.perf_counter() - starting

        # The consumers attach one after another. If they attached at the same time, the measured
        # times would include waits for a CPU.
        attached: list[Attached] = []
        for child in crew:
            child.send(task)
            attached += gather([child], timeout=self.timeout)
        for child in crew:
            child.send("check")
        to_read = self.consumers * (file.nbytes + sum(part.length for part in parts))
        with self.open_bar(f"{self.consumers} consumers read", to_read) as advance:
            checked: list[Checked] = gather(
                crew, timeout=time_for(to_read, self.timeout), bar=advance
            )

        leases = _leases_of(handle)
        for child in crew:
            child.send("measure")
        measured: list[Measured] = gather(crew, timeout=self.timeout)
        measured.append(measure(allocation.ptr))
        for child in crew:
            child.send("release")
            child.join(self.timeout)
        deadline = time.monotonic() + _LEASE_END_S
        while (leases_after := len(_leases_of(handle))) and time.monotonic() < deadline:
            time.sleep(0.01)
        expected = tuple(one.sha256 for one in file.tensors if one.sha256 is not None)
        return _Shared(
            start_s=start_s,
            consumers=tuple(
                _consumer(
                    pid=child.pid,
                    held=held,
                    seen=seen,
                    memory=memory,
                    whole=file.sha256,
                    parts=expected,
                )
                for child, held, seen, memory in zip(
                    crew, attached, checked, measured, strict=False
                )
            ),
            leases=leases,
            leases_after=leases_after,
            resident_sum=_sum(one.resident for one in measured),
            counted_once=_sum(one.proportional for one in measured),
        )

    def _copy(self, children: Children, allocation: crossmem.Allocation, sha256: str) -> CopyReport:
        """Copy the memory through a pipe. Report the time, or the reason for not copying."""
        nbytes = allocation.nbytes
        if not self.copy:
            return CopyReport(copy_s=None, equal=None, skipped="disabled by --no-copy")
        limit = Limits().tightest()
        if limit is not None and nbytes > limit.free_nbytes // 2:
            skipped = "the copy would need more than half of the host memory that is free"
            return CopyReport(copy_s=None, equal=None, skipped=skipped)
        with self.open_bar("Copy through a pipe", nbytes) as advance:
            seconds, copied = time_copy(
                children, allocation, advance, time_for(nbytes, self.timeout)
            )
        return CopyReport(copy_s=seconds, equal=copied == sha256, skipped=None)


def time_for(nbytes: int, timeout: float) -> float:
    """Return the time limit, in seconds, of a step that reads or sends ``nbytes`` bytes."""
    return timeout + nbytes / _SLOWEST_NBYTES_PER_S


def _leases_of(handle: ShareableHandle) -> tuple[LeaseReport, ...]:
    """Return the leases on the handle's allocation, as ``crossmem.exports()`` lists them."""
    return tuple(
        LeaseReport(pid=lease.pid, held_s=max(0.0, time.time() - lease.since))
        for export in crossmem.exports()
        if export.handle.allocation == handle.allocation
        for lease in export.leases
    )


def _consumer(
    *, pid: int, held: Attached, seen: Checked, memory: Measured, whole: str, parts: Sequence[str]
) -> ConsumerReport:
    return ConsumerReport(
        pid=pid,
        attach_s=held.attach_s,
        parts_attach_s=held.parts_attach_s,
        check_s=seen.check_s,
        readonly=held.readonly,
        sha256=seen.sha256,
        equal=seen.sha256 == whole,
        tensors_equal=sum(map(operator.eq, seen.part_sha256, parts)),
        resident_nbytes=memory.resident,
        proportional_nbytes=memory.proportional,
    )


def _sum(values: Iterable[int | None]) -> int | None:
    """Return the sum of the values, or None if one of them is None."""
    total = 0
    for value in values:
        if value is None:
            return None
        total += value
    return total
