# SPDX-License-Identifier: Apache-2.0
"""Keeps what a process received through Ray; a plugin, named by CROSSMEM_PLUGINS."""

from crossmem.models import Event, EventKind
from crossmem.plugin import hookimpl

received: list[tuple[str, int]] = []


@hookimpl
def crossmem_event(event: Event) -> None:
    if event.kind in {EventKind.RECEIVED, EventKind.RECEIVED_COPY}:
        received.append((str(event.kind), event.nbytes))
