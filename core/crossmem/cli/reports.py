# SPDX-License-Identifier: Apache-2.0
"""The results of ``devices``, ``conformance`` and ``demo``, and the error of a failed command.

``--json`` prints exactly these fields.
A field whose name ends in ``_s`` is a number of seconds. A field whose name ends in ``nbytes`` is a
number of bytes.
"""

from typing import Literal

from crossmem.cli.formats import Format, Stored
from crossmem.models import Capabilities
from crossmem.models.report import FrozenModel

__all__ = [
    "BackendReport",
    "ConformanceMatrixReport",
    "ConformanceReport",
    "ConsumerReport",
    "CopyReport",
    "DemoReport",
    "DeviceReport",
    "DevicesReport",
    "ErrorReport",
    "FileReport",
    "LawReport",
    "LeaseReport",
    "LeftOutReport",
    "PluginReport",
    "QueueDemoReport",
    "SecondaryReport",
    "StreamReport",
    "TensorReport",
]


class TensorReport(FrozenModel):
    """One tensor of the shared file."""

    name: str
    dtype: str
    shape: tuple[int, ...] | None
    """The tensor's shape; None if the file does not state it."""

    offset: int
    """Start of the tensor in the allocation, in bytes."""

    nbytes: int
    stored: Stored
    """``"deflated"`` if the bytes are compressed; ``"raw"`` if they are the tensor itself."""

    sha256: str | None
    """The digest of the tensor's bytes; None for an empty tensor, which has no handle."""


class FileReport(FrozenModel):
    """The shared file."""

    name: str
    path: str | None
    """The path of the file; None for generated weights."""

    format: Format
    nbytes: int
    sha256: str
    note: str | None
    """Why the file is shared as plain bytes, although its name or its first bytes indicate a file
    with tensors."""

    tensors: tuple[TensorReport, ...]


class LeaseReport(FrozenModel):
    """One process that the exporter listed as a holder of the memory."""

    pid: int
    held_s: float


class ConsumerReport(FrozenModel):
    """The results of one consumer."""

    pid: int
    attach_s: float
    """Time to attach the whole file in one call, which receives the bytes of the handle."""

    parts_attach_s: float
    """Time to attach the handles of all tensors in one call."""

    check_s: float
    """Time to compute the digests of the whole file and of each tensor."""

    readonly: bool
    sha256: str
    equal: bool
    """Whether the digest equals the file's digest."""

    tensors_equal: int
    """Number of tensors with the right digest."""

    resident_nbytes: int | None
    """Size of the memory's pages that are resident in the consumer (Rss); None if unknown."""

    proportional_nbytes: int | None
    """Like ``resident_nbytes``, but the size of each page is divided by the number of processes
    that have the page mapped (Pss)."""


class CopyReport(FrozenModel):
    """The copy of the file's bytes to one process through a pipe."""

    copy_s: float | None
    """Time from the first write into the pipe until the process had read the last byte; None if
    there was no copy."""

    equal: bool | None
    skipped: str | None
    """Why there was no copy; None if there was a copy."""


class DemoReport(FrozenModel):
    """The results of ``crossmem demo``."""

    command: Literal["demo"] = "demo"
    version: str
    ok: bool
    """Whether all digests of the consumers and of the copy are right."""

    file: FileReport
    device: str
    identity: str
    mechanism: str
    nbytes: int
    capacity_nbytes: int
    handle_nbytes: int
    load_s: float
    """Time to read the file into the allocation and to compute the file's digest."""

    export_s: float
    start_s: float
    """Time from the start of the first consumer until the last consumer had loaded crossmem and
    the backend."""

    consumers: tuple[ConsumerReport, ...]
    leases: tuple[LeaseReport, ...]
    """The leases at a moment at which all consumers held the memory."""

    leases_after: int
    """The number of leases that remained after the consumers had ended."""

    resident_sum_nbytes: int | None
    """``resident_nbytes``, summed over the exporter and all consumers."""

    counted_once_nbytes: int | None
    """``proportional_nbytes``, summed over the exporter and all consumers. In this sum, each page
    counts once."""

    copy_through_pipe: CopyReport
    total_s: float


class SecondaryReport(FrozenModel):
    """The chunks that one process got from the queue."""

    pid: int
    chunks: int
    nbytes: int
    equal: int
    """Number of chunks with the right digest."""


class StreamReport(FrozenModel):
    """The results of one way to send the chunks to the secondary processes."""

    seconds: float
    """Time from the first read of the file until the primary had all digests."""

    latency_s: float
    """Median time from the put of one chunk until a sleeping process had received the chunk."""

    equal: bool
    """Whether each chunk arrived once, with the right digest."""


class QueueDemoReport(FrozenModel):
    """The results of ``crossmem demo --queue``."""

    command: Literal["demo"] = "demo"
    version: str
    ok: bool
    """Whether each chunk arrived once through each queue, with the right digest."""

    name: str
    path: str | None
    """None for generated weights."""

    nbytes: int
    sha256: str
    device: str
    depth: int
    """Number of buffers of the queue."""

    chunk_nbytes: int
    chunks: int
    handle_nbytes: int
    start_s: float
    """Time from the start of the first secondary until the last secondary had loaded crossmem and
    the backend."""

    secondaries: tuple[SecondaryReport, ...]
    queue: StreamReport
    multiprocessing_queue: StreamReport | None
    """None if the comparison with ``multiprocessing.Queue`` was not requested."""

    total_s: float


class DeviceReport(FrozenModel):
    """One usable device."""

    device: str
    backend: str
    ordinal: int
    identity: str
    name: str
    total_nbytes: int | None
    is_default: bool
    """Whether ``crossmem.device()`` returns this device."""

    capabilities: Capabilities


class BackendReport(FrozenModel):
    """One backend that cannot be used here."""

    backend: str
    state: Literal["not_installed", "unusable"]
    reason: str
    hint: str | None
    details: str = ""
    """Further text, such as a line for each path that was tried."""


class PluginReport(FrozenModel):
    """One plugin that failed, or that a setting disables."""

    plugin: str
    distribution: str
    version: str
    error: str


class NeighbourReport(FrozenModel):
    """A process of this host that exports memory."""

    pid: int
    """The process id; 0 if the process is not visible in this pid namespace."""

    mode: Literal["membarrier", "fence"] | None
    """How the exporter and this process order their accesses to shared words. None if the exporter
    does not answer, for example because it is stopped."""


class BarrierReport(FrozenModel):
    """How this process and each exporter order their accesses to shared words."""

    mode: Literal["membarrier", "fence"]
    """How this process orders its accesses."""

    reason: str
    """Why this process uses fences; empty if it uses ``membarrier``."""

    exporters: tuple[NeighbourReport, ...]


class DevicesReport(FrozenModel):
    """The findings of ``crossmem devices``."""

    command: Literal["devices"] = "devices"
    version: str
    default: str | None
    default_reason: str
    """How the default device was chosen, or why there is no default device."""

    devices: tuple[DeviceReport, ...]
    unusable: tuple[BackendReport, ...]
    failed_plugins: tuple[PluginReport, ...]
    disabled_plugins: tuple[PluginReport, ...]
    barrier: BarrierReport | None = None
    """None without ``--verbose``."""


class LawReport(FrozenModel):
    """The results of the kit's tests of one law."""

    law: str
    passed: int
    failed: tuple[str, ...]
    """Names of the failed tests."""

    skipped: dict[str, str]
    """Names of the tests that were skipped or that failed as expected, each with the reason."""


class ConformanceReport(FrozenModel):
    """The findings of ``crossmem conformance``."""

    command: Literal["conformance"] = "conformance"
    version: str
    device: str
    runtime: str | None
    mechanism: str | None
    ok: bool
    exit_code: int
    seconds: float
    laws: tuple[LawReport, ...]


class LeftOutReport(FrozenModel):
    """A backend, or one vendor binding of a backend, that cannot be tested here."""

    backend: str
    runtime: str | None
    """None if the whole backend cannot be used, or if the backend offers no choice of runtimes."""

    reason: str
    hint: str | None


class ConformanceMatrixReport(FrozenModel):
    """The findings of ``crossmem conformance --all``."""

    command: Literal["conformance"] = "conformance"
    version: str
    ok: bool
    exit_code: int
    seconds: float
    runs: tuple[ConformanceReport, ...]
    left_out: tuple[LeftOutReport, ...]


class ErrorReport(FrozenModel):
    """The output of ``--json`` if a command fails."""

    command: str
    version: str
    ok: Literal[False] = False
    error: str
    """Class of the error, such as ``OutOfMemoryError``. ``UsageError`` means that the user must
    call the command differently, and ``Interrupted`` means that the user pressed Ctrl-C."""

    message: str
    hint: str | None
    call: str = ""
    """The vendor's call or the system call that failed, and its code. May be empty."""

    details: str = ""
    """Further text, such as a line for each path or plugin that was tried."""

    exit_code: int
