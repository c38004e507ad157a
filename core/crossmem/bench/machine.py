# SPDX-License-Identifier: Apache-2.0
"""Describes the machine of a benchmark, and chooses the CPUs of the benchmark's processes."""

import os
import platform
import resource
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

__all__ = ["Cpus", "available_nbytes", "choose_cpus", "describe_machine", "version_of"]


@dataclass(frozen=True, slots=True)
class Cpus:
    """The producer's and the consumer's CPU. The two are equal if only one CPU may be used."""

    producer: int
    consumer: int

    @property
    def note(self) -> str:
        """Return a text that says which process runs on which CPU."""
        if self.producer == self.consumer:
            return f"only one CPU may be used: both processes share CPU {self.producer}"
        return f"producer on CPU {self.producer}, consumer on CPU {self.consumer}"


def _siblings(cpu: int) -> set[int]:
    """Return the CPUs that share a core with a CPU, and the CPU itself."""
    path = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
    found = {cpu}
    with suppress(OSError, ValueError):
        for part in path.read_text().strip().split(","):
            first, _, last = part.partition("-")
            found |= set(range(int(first), int(last or first) + 1))
    return found


def choose_cpus() -> Cpus:
    """Return two CPUs that this process may use, on different cores if possible.

    If this process may use only one CPU, the result has this CPU twice.
    """
    allowed = sorted(os.sched_getaffinity(0))
    first = allowed[0]
    others = [cpu for cpu in allowed if cpu not in _siblings(first)] or allowed[1:]
    return Cpus(first, others[0] if others else first)


def version_of(distribution: str) -> str | None:
    """Return the version of a distribution, or None if the distribution is not installed."""
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def _field(path: str, name: str) -> str:
    """Return the value of the first line ``name: value`` of a file, or ``""`` if there is none."""
    with suppress(OSError), Path(path).open() as file:
        for line in file:
            key, _, value = line.partition(":")
            if key.strip() == name:
                return value.strip()
    return ""


def _memory_nbytes(name: str) -> int:
    amount = _field("/proc/meminfo", name).split()
    return int(amount[0]) * 1024 if amount else 0


def available_nbytes() -> int:
    """Return the kernel's estimate of available memory, in bytes; 0 if unknown."""
    return _memory_nbytes("MemAvailable")


def describe_machine() -> dict[str, Any]:
    """Return facts about this machine. They help a reader to judge the numbers of a run."""
    huge_pages = Path("/sys/kernel/mm/transparent_hugepage/shmem_enabled")
    shmem = ""
    with suppress(OSError):
        shmem = huge_pages.read_text().partition("[")[2].partition("]")[0]
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    names = ("crossmem", "pydantic", "pluggy", "numpy", "posix_ipc", "umf", "iceoryx2", "torch")
    return {
        "cpu": _field("/proc/cpuinfo", "model name") or platform.machine(),
        "architecture": platform.machine(),
        "cores": os.cpu_count(),
        "usable_cpus": len(os.sched_getaffinity(0)),
        "virtual": "hypervisor" in _field("/proc/cpuinfo", "flags").split(),
        "load": round(os.getloadavg()[0], 2),
        "memory_nbytes": _memory_nbytes("MemTotal"),
        "kernel": platform.release(),
        "huge_pages_shmem": shmem,
        "descriptor_limit": [soft, hard],
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "versions": {name: found for name in names if (found := version_of(name))},
    }
