# SPDX-License-Identifier: Apache-2.0
"""The contract between crossmem and a backend."""

from crossmem.driver.base import (
    DRIVER_API_VERSION,
    Block,
    CopyKind,
    Driver,
    Exported,
    Imported,
    Mapped,
    Peer,
    Reserved,
)
from crossmem.driver.groups import (
    AddressRanges,
    Foreign,
    ForeignMemory,
    ReadonlyAlias,
    Witness,
    address_ranges_of,
    check_groups,
    foreign_memory_of,
    readonly_alias_of,
    stream_events_of,
    stream_words_of,
    stream_work_of,
    streams_of,
    witness_of,
)
from crossmem.driver.streams import SharedEvent, StreamEvents, Streams, StreamWords, StreamWork
from crossmem.driver.tracing import TracingDriver

__all__ = [
    "DRIVER_API_VERSION",
    "AddressRanges",
    "Block",
    "CopyKind",
    "Driver",
    "Exported",
    "Foreign",
    "ForeignMemory",
    "Imported",
    "Mapped",
    "Peer",
    "ReadonlyAlias",
    "Reserved",
    "SharedEvent",
    "StreamEvents",
    "StreamWords",
    "StreamWork",
    "Streams",
    "TracingDriver",
    "Witness",
    "address_ranges_of",
    "check_groups",
    "foreign_memory_of",
    "readonly_alias_of",
    "stream_events_of",
    "stream_words_of",
    "stream_work_of",
    "streams_of",
    "witness_of",
]
