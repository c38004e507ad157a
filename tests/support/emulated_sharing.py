# SPDX-License-Identifier: Apache-2.0
"""Two processes that share memory of an emulated device, as programs do it.

The functions run in peers, see :mod:`crossmem.conformance.peers`.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import crossmem
from crossmem.conformance.actions import objects, use_environment
from crossmem.conformance.peers import Peer

NBYTES = 5000


def _device(name: str, mechanism: str | None = None) -> crossmem.Device:
    return crossmem.device(name, runtime="emulated", mechanism=mechanism)


def allocate(name: str, mechanism: str | None) -> None:
    """Allocate what the exporter shares."""
    device = objects["device"] = _device(name, mechanism)
    objects["memory"] = device.allocate(NBYTES)
    objects["memory"].write(b"hello")


def export(*, lease: bool = True) -> bytes:
    """Export what was allocated."""
    blob: bytes = objects["memory"].export(lease=lease).to_bytes()
    return blob


def contents() -> str:
    """Read the memory where it is owned."""
    return bytes(objects["memory"].read(5)).decode()


def free() -> list[str]:
    """Free the memory, and return how the vendor's rules were broken."""
    objects.pop("memory").free()
    return violations()


def violations() -> list[str]:
    """Return how the vendor's rules were broken."""
    found: list[str] = objects["device"].driver.violations()
    return found


def attach(name: str, blob: bytes) -> None:
    """Map what was shared, wherever it is; read it, and write to it."""
    objects["device"] = _device(name)
    mapping = objects["mapping"] = crossmem.attach(blob)
    assert mapping.read(5) == b"hello", mapping.read(5)
    mapping.write(b"HELLO")


def mapped_by() -> tuple[str, str | None]:
    """Return the device and the mechanism of the mapping."""
    device = objects["mapping"].device
    return device.name, device.mechanism


def unmap() -> None:
    """Unmap what was attached."""
    objects.pop("mapping").unmap()


def report_tgid(name: str, tgid: int) -> None:
    """Let this process give another number to Ascend's whitelists than it has."""
    driver: Any = _device(name).driver
    driver._tgid = tgid


class Pair(NamedTuple):
    """The processes: one has allocated memory, the other has done nothing yet."""

    exporter: Peer
    importer: Peer


@contextmanager
def sharing(
    device: str,
    environment: Mapping[str, str],
    *,
    mechanism: str | None = None,
    importers: Mapping[str, str] | None = None,
) -> Iterator[Pair]:
    """Start both processes; `importers` has variables for the second one alone."""
    with (
        Peer(device, environment=environment, tracing=False) as exporter,
        Peer(device, environment=environment, tracing=False) as importer,
    ):
        for name, value in (importers or {}).items():
            importer.call(use_environment, name, value)
        exporter.call(allocate, device, mechanism)
        yield Pair(exporter, importer)
