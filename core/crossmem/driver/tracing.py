# SPDX-License-Identifier: Apache-2.0
"""A driver wrapper that counts calls and records violations of the driver contract."""

import threading
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final, cast

from typing_extensions import override

from crossmem.driver.base import Block, CopyKind, Driver, Exported, Imported, Mapped, Peer, Reserved
from crossmem.driver.groups import (
    AddressRanges,
    Foreign,
    ForeignMemory,
    address_ranges_of,
    foreign_memory_of,
    readonly_alias_of,
    stream_events_of,
    stream_words_of,
    stream_work_of,
    streams_of,
    vendor_queues_of,
)
from crossmem.driver.ledger import RangeLedger
from crossmem.driver.tracing_queues import QUEUE_METHODS, QueueTracer
from crossmem.driver.tracing_streams import STREAM_GROUPS, StreamTracer
from crossmem.errors import UnsupportedError
from crossmem.locks import forbidden_ranks
from crossmem.models import Access, Capabilities, DeviceInfo

__all__ = ["TracingDriver"]

_Key = int
"""``id()`` of a block or import. The tracer keeps the object alive, so no other object gets the
same ``id()``."""

_RANGE_METHODS: Final = frozenset({"reserve", "release", "map_at", "unmap_at"})
_FOREIGN_METHODS: Final = frozenset({"inspect", "adopt", "disown"})
_STREAM_METHODS: Final = {
    name: offered
    for group, offered in (
        ("Streams", streams_of),
        ("StreamWords", stream_words_of),
        ("StreamEvents", stream_events_of),
        ("StreamWork", stream_work_of),
    )
    for name in STREAM_GROUPS[group]
}
"""Maps each method of the stream groups to a function. The function takes a driver, and returns it
if the driver offers the method's group, else None."""


class TracingDriver(Driver):
    """Counts crossmem's calls of a driver, and checks them against the driver contract.

    Parameters
    ----------
    inner
        The driver that does the work.

    Attributes
    ----------
    calls
        Number of calls of each method. The key is the method's name. Some methods, such as
        ``allocate``, are counted only if they succeed. The methods ``devices``, ``capabilities``,
        ``refusal``, ``peer_identity`` and ``after_fork_in_child`` are not counted.
    violations
        One line for each rule of the driver contract that a call breaks. Examples are a second
        release, a release while a dependent resource is live, a second ``map`` of a mapped import,
        and a call with an object that the driver did not return.
    """

    def __init__(self, inner: Driver) -> None:
        self.inner = inner
        self.backend = inner.backend
        self.calls: Counter[str] = Counter()
        self.violations: list[str] = []
        self._lock = threading.Lock()
        self._blocks: dict[_Key, Block] = {}
        self._adopted: set[_Key] = set()
        self._exports: dict[_Key, list[Exported]] = {}
        self._imports: dict[_Key, Imported] = {}
        self._mapped: dict[_Key, Mapped] = {}
        self._sealed: set[_Key] = set()
        self._aliases: Counter[_Key] = Counter()
        self._ranges = RangeLedger()
        self._stream_tracer = StreamTracer(inner, self._note, self._lock)
        self._queue_tracer = QueueTracer(inner, self._note, self._lock)

    @property
    def live(self) -> dict[str, int]:
        """Number of unreleased resources of each kind, such as ``"blocks"`` and ``"exports"``."""
        with self._lock:
            return {
                "blocks": len(self._blocks),
                "exports": sum(map(len, self._exports.values())),
                "imports": len(self._imports),
                "mappings": len(self._mapped) + self._aliases.total() + self._ranges.pieces,
                "ranges": self._ranges.ranges,
                **self._stream_tracer.live,
                **self._queue_tracer.live,
            }

    def _note(self, method: str, *rules: tuple[bool, str]) -> None:
        """Count a call, and record each rule that the call breaks. The caller holds ``_lock``.

        Each item of ``rules`` says whether the call breaks one rule, and contains the text for the
        violation.
        """
        self.calls[method] += 1
        if held := forbidden_ranks():
            self.violations.append(f"{method}: called while a lock is held: {', '.join(held)}")
        self.violations.extend(f"{method}: {text}" for broken, text in rules if broken)

    def __getattr__(self, name: str) -> Any:
        # The wrapper has the methods of an optional group only if the inner driver has them.
        if name in {"map_readonly", "unmap_readonly"} and readonly_alias_of(self.inner):
            return getattr(self, f"_{name}")
        if name in _RANGE_METHODS and address_ranges_of(self.inner):
            return getattr(self, f"_{name}")
        if name in _FOREIGN_METHODS and foreign_memory_of(self.inner):
            return getattr(self, f"_{name}")
        if name in _STREAM_METHODS and _STREAM_METHODS[name](self.inner):
            return self._stream_tracer.method(name)
        if name in QUEUE_METHODS and vendor_queues_of(self.inner):
            return getattr(self._queue_tracer, name)
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.inner, name)

    @override
    def devices(self) -> tuple[DeviceInfo, ...]:
        return self.inner.devices()

    @override
    def capabilities(self, ordinal: int, mechanism: str | None) -> Capabilities:
        return self.inner.capabilities(ordinal, mechanism)

    @override
    def refusal(self, ordinal: int, mechanism: str) -> UnsupportedError | None:
        return self.inner.refusal(ordinal, mechanism)

    @override
    def allocate(self, ordinal: int, nbytes: int, mechanism: str) -> Block:
        block = self.inner.allocate(ordinal, nbytes, mechanism)
        with self._lock:
            self._note("allocate", (nbytes <= 0, f"size {nbytes} is not positive"))
            self._blocks[id(block)] = block
        return block

    @override
    def free(self, block: Block) -> None:
        with self._lock:
            key = id(block)
            self._note(
                "free",
                (key not in self._blocks, "unknown or freed block"),
                (key in self._adopted, "the memory was adopted, not allocated"),
                (bool(self._exports.get(key)), "an export was not released"),
                (self._aliases[key] > 0, "a read-only alias is still mapped"),
                (self._ranges.shows(block), "still mapped in an address range"),
            )
        self.inner.free(block)
        with self._lock:
            self._blocks.pop(key, None)

    @override
    def export(self, block: Block, mechanism: str, access: Access, *, raw: bool) -> Exported:
        exported = self.inner.export(block, mechanism, access, raw=raw)
        with self._lock:
            self._note("export", (id(block) not in self._blocks, "unknown or freed block"))
            self._exports.setdefault(id(block), []).append(exported)
        return exported

    @override
    def release_export(self, block: Block, exported: Exported) -> None:
        with self._lock:
            exports = self._exports.get(id(block), [])
            known = any(one is exported for one in exports)
            self._note("release_export", (not known, "unknown or released export"))
        self.inner.release_export(block, exported)
        with self._lock:
            exports[:] = [one for one in exports if one is not exported]

    @override
    def after_fork_in_child(self) -> None:
        self.inner.after_fork_in_child()

    @override
    def peer_identity(self) -> int:
        return self.inner.peer_identity()

    @override
    def grant(self, block: Block, exported: Exported, peers: Sequence[Peer]) -> None:
        with self._lock:
            self._note("grant", (id(block) not in self._blocks, "unknown or freed block"))
        self.inner.grant(block, exported, peers)

    @override
    def import_(
        self,
        ordinal: int,
        exported: Exported,
        *,
        home: int,
        mechanism: str,
        nbytes: int,
        capacity: int,
        access: Access,
    ) -> Imported:
        with self._lock:
            self._note("import_")
        imported = self.inner.import_(
            ordinal,
            exported,
            home=home,
            mechanism=mechanism,
            nbytes=nbytes,
            capacity=capacity,
            access=access,
        )
        with self._lock:
            self._imports[id(imported)] = imported
        return imported

    @override
    def close(self, imported: Imported) -> None:
        with self._lock:
            key = id(imported)
            self._note(
                "close",
                (key not in self._imports, "unknown or closed import"),
                (key in self._mapped, "still mapped"),
                (self._ranges.shows(imported), "still mapped in an address range"),
            )
        self.inner.close(imported)
        with self._lock:
            self._imports.pop(key, None)
            self._sealed.discard(key)

    @override
    def map(self, imported: Imported, *, remappable: bool) -> Mapped:
        mapped = self.inner.map(imported, remappable=remappable)
        with self._lock:
            key = id(imported)
            self._note(
                "map",
                (key not in self._imports, "unknown or closed import"),
                (key in self._mapped, "already mapped"),
                (key in self._sealed, "mapped again after remappable=False"),
            )
            self._mapped[key] = mapped
            if not remappable:
                self._sealed.add(key)
        return mapped

    @override
    def unmap(self, mapped: Mapped) -> None:
        key = id(mapped.source)
        with self._lock:
            is_known = self._mapped.get(key) is mapped
            self._note("unmap", (not is_known, f"{mapped.pointer:#x} is not mapped"))
        self.inner.unmap(mapped)
        with self._lock:
            self._mapped.pop(key, None)

    @override
    def copy(self, ordinal: int, target: int, source: int, nbytes: int, kind: CopyKind) -> None:
        with self._lock:
            self._note("copy", (nbytes <= 0, f"size {nbytes} is not positive"))
        self.inner.copy(ordinal, target, source, nbytes, kind)

    @override
    def fill(self, block: Block, offset: int, source: int, nbytes: int) -> None:
        with self._lock:
            self._note(
                "fill",
                (id(block) not in self._blocks, "unknown or freed block"),
                (
                    not 0 <= offset < offset + nbytes <= block.capacity,
                    f"{nbytes} bytes at offset {offset} are not a part of the block",
                ),
            )
        self.inner.fill(block, offset, source, nbytes)

    @override
    def synchronize(self, ordinal: int) -> None:
        with self._lock:
            self._note("synchronize")
        self.inner.synchronize(ordinal)

    def _map_readonly(self, block: Block) -> Mapped:
        mapped: Mapped = self.inner.map_readonly(block)  # type: ignore[attr-defined]
        with self._lock:
            self._note("map_readonly", (id(block) not in self._blocks, "unknown or freed block"))
            self._aliases[id(block)] += 1
        return mapped

    def _unmap_readonly(self, mapped: Mapped) -> None:
        key = id(mapped.source)
        with self._lock:
            self._note("unmap_readonly", (self._aliases[key] <= 0, "not mapped"))
        self.inner.unmap_readonly(mapped)  # type: ignore[attr-defined]
        with self._lock:
            self._aliases[key] -= 1

    @property
    def _range_driver(self) -> AddressRanges:
        return cast("AddressRanges", self.inner)

    def _reserve(self, ordinal: int, nbytes: int) -> Reserved:
        reserved = self._range_driver.reserve(ordinal, nbytes)
        with self._lock:
            self._note("reserve", (nbytes <= 0, f"size {nbytes} is not positive"))
            self._ranges.reserve(ordinal, reserved.pointer, nbytes)
        return reserved

    def _release(self, reserved: Reserved) -> None:
        pointer = reserved.pointer
        with self._lock:
            rules = self._ranges.check_release(reserved.ordinal, pointer, reserved.nbytes)
            self._note("release", *rules)
        self._range_driver.release(reserved)
        with self._lock:
            self._ranges.release(pointer)

    def _map_at(self, memory: Block | Imported, pointer: int) -> Mapped:
        mapped = self._range_driver.map_at(memory, pointer)
        with self._lock:
            is_known = id(memory) in self._blocks or id(memory) in self._imports
            rules = self._ranges.map_at(memory, pointer)
            self._note("map_at", (not is_known, "unknown or released memory"), *rules)
        return mapped

    def _unmap_at(self, mapped: Mapped) -> None:
        pointer = mapped.pointer
        with self._lock:
            self._note("unmap_at", *self._ranges.check_unmap(mapped.source, pointer))
        self._range_driver.unmap_at(mapped)
        with self._lock:
            self._ranges.unmap_at(pointer)

    @property
    def _foreign_driver(self) -> ForeignMemory:
        return cast("ForeignMemory", self.inner)

    def _inspect(self, ordinal: int, pointer: int, mechanism: str) -> Foreign:
        with self._lock:
            self._note(
                "inspect", (not 0 < pointer < 1 << 63, f"address {pointer:#x} is out of range")
            )
        return self._foreign_driver.inspect(ordinal, pointer, mechanism)

    def _adopt(self, ordinal: int, foreign: Foreign, mechanism: str) -> Block:
        block = self._foreign_driver.adopt(ordinal, foreign, mechanism)
        with self._lock:
            known = [self._blocks[key] for key in self._adopted]
            is_known = any(one.pointer == block.pointer for one in known)
            self._note(
                "adopt",
                (foreign.obstacle is not None, "the driver reported an obstacle"),
                (is_known, "the memory is adopted already"),
                (
                    (block.pointer, block.nbytes, block.capacity)
                    != (foreign.base, foreign.nbytes, foreign.nbytes),
                    "the block's bounds are not those of the inspected memory",
                ),
            )
            self._blocks[id(block)] = block
            self._adopted.add(id(block))
        return block

    def _disown(self, block: Block) -> None:
        with self._lock:
            key = id(block)
            self._note(
                "disown",
                (key not in self._adopted, "unknown or disowned block"),
                (bool(self._exports.get(key)), "an export was not released"),
                (self._aliases[key] > 0, "a read-only alias is still mapped"),
            )
        self._foreign_driver.disown(block)
        with self._lock:
            self._adopted.discard(key)
            self._blocks.pop(key, None)
