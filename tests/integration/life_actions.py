# SPDX-License-Identifier: Apache-2.0
"""What peers do for test_many_lives.py: share memory with each other, over and over."""

import gc
import os
import socket
from pathlib import Path

import crossmem

_NBYTES = 4096


def connect(path: Path, *, listens: bool) -> socket.socket:
    """Connect the two processes of a test, one of which listens."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.settimeout(60)
    if not listens:
        connection.connect(str(path))
        return connection
    with connection:
        connection.bind(str(path))
        connection.listen()
        return connection.accept()[0]


def export_each(path: Path, lives: int, early: int) -> list[dict[str, int]]:
    """Give memory so many lives, and return what this process occupied early and at the end."""
    device = crossmem.device("emulated:0")
    found = []
    with connect(path, listens=True) as importer:
        for life in range(lives):
            with device.allocate(_NBYTES) as allocation:
                importer.send(allocation.export().to_bytes())
                assert importer.recv(100) == b"seen"
            if life == early:
                found.append(occupied())
        importer.send(b"")
        found.append(occupied())
    return found


def import_each(path: Path, early: int) -> list[dict[str, int]]:
    """Attach each memory that is offered, and return the same of this process."""
    found = []
    life = 0
    with connect(path, listens=False) as exporter:
        while blob := exporter.recv(2000):
            crossmem.attach(blob).unmap()
            exporter.send(b"seen")
            if life == early:
                found.append(occupied())
            life += 1
        found.append(occupied())
    return found


def occupied() -> dict[str, int]:
    """Return how much memory, in KiB, and how many descriptors and mappings this process has."""
    crossmem.collect()
    gc.collect()
    status = Path("/proc/self/status").read_text("ascii")
    return {
        "KiB": int(status.split("VmRSS:")[1].split()[0]),
        "descriptors": len(os.listdir("/proc/self/fd")),  # noqa: PTH208 - names alone
        "mappings": Path("/proc/self/maps").read_text("utf-8").count("\n"),
    }
