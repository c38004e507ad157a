# SPDX-License-Identifier: Apache-2.0
"""The processes of test_mutated_handles.py: one that exports, and one that imports what is wrong.

``python mutated_handles.py export`` prints the handles of its memory, waits for a line, checks its
memory and prints what it found. ``python mutated_handles.py import COUNT SEED`` reads handles from
its standard input, tries COUNT mutations of them and prints what happened.
"""

import gc
import json
import random
import struct
import sys
import threading
import time
from binascii import crc32
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from typing_extensions import override

import crossmem
from crossmem.driver import Block, Driver, Imported, Mapped, TracingDriver
from crossmem.sharing.base.process import current

# (name, offset, layout) of the numbers in the wire form, which is fixed for version 1.
NUMBERS = [
    ("version", 4, "<H"), ("flags", 6, "<H"), ("total", 8, "<I"),
    ("offset", 16, "<Q"), ("length", 24, "<Q"),
    ("pid", 32, "<I"), ("uid", 36, "<I"), ("start_time", 40, "<Q"), ("pid_namespace", 64, "<Q"),
    ("allocation", 72, "<Q"), ("export", 80, "<I"), ("nbytes", 100, "<Q"), ("capacity", 108, "<Q"),
    ("backend_length", 116, "<B"), ("mechanism_length", 117, "<B"), ("device_length", 118, "<B"),
    ("raw_length", 119, "<H"),
]  # fmt: skip
# Where the fields begin and end, for splicing: the numbers, and besides them boot id and secret.
FIELDS = [
    *((at, at + struct.calcsize(layout)) for _, at, layout in NUMBERS),
    (48, 64),
    (84, 100),
    (32, 72),
    (16, 32),
    (72, 121),
]
CHECKSUM = 12
NAMES = 121
MAX_ATTEMPT_S = 30.0
WORDS = [b"", b"host:0", b"host:1", b"host:9", b"emulated", b"memfd", b"hip", b"x" * 40, b"\xff"]


def pattern(tag: int, nbytes: int) -> bytes:
    """What memory holds: every four bytes tell of their allocation and their place in it."""
    words = [(tag << 24 | index) & 0xFFFFFFFF for index in range(-(-nbytes // 4))]
    return struct.pack(f"<{len(words)}I", *words)[:nbytes]


def tag_of(handle: crossmem.ShareableHandle) -> int:
    return handle.allocation * 7 + handle.owner.pid


def expected_of(handle: crossmem.ShareableHandle) -> bytes:
    return pattern(tag_of(handle), handle.nbytes)


def share(device: crossmem.Device, nbytes: int, **export: Any) -> tuple[Any, Any]:
    allocation = device.allocate(nbytes)
    handle = allocation.export(**export)
    allocation.write(expected_of(handle))
    return allocation, handle


def export() -> None:
    device, other = crossmem.device("emulated:0"), crossmem.device("emulated:1")
    live = [
        share(device, 5000),
        share(device, 5000),
        share(device, 70_000),
        share(device, 3 << 20),
        share(device, 100, access="ro"),
        share(other, 9000),
    ]
    freed, stale = share(device, 5000)
    freed.free()
    parts = [live[2][1].slice(4096, 5000), live[3][1].slice(1 << 20, 1)]
    handles = [*(handle for _, handle in live), stale, *parts]
    print(json.dumps([handle.to_bytes().hex() for handle in handles]), flush=True)
    sys.stdin.readline()
    crossmem.collect()
    damaged = sum(memory.read() != expected_of(handle) for memory, handle in live)
    leased = sum(len(one.leases) for one in crossmem.exports())
    print(json.dumps({"damaged": damaged, "leased": leased}), flush=True)
    for memory, _ in live:
        memory.free()


class Mutator:
    """Makes wrong handles from right ones."""

    numbers = NUMBERS
    fields = FIELDS
    names = NAMES
    lengths = 116
    """Where the lengths of the names and of the vendor's bytes are."""
    tail = 0
    """Number of bytes after the names."""

    def __init__(self, blobs: list[bytes], chance: random.Random) -> None:
        self.blobs = blobs
        self.chance = chance
        self.kinds: list[Callable[[bytearray], bytes | bytearray]] = [
            self.flip,
            self.truncate,
            self.extend,
            self.splice_fields,
            self.splice_tail,
            self.overwrite_number,
            self.overwrite_bytes,
            self.rename,
            self.cut_out,
        ]

    def __call__(self) -> tuple[str, bytes]:
        kind = self.chance.choice(self.kinds)
        blob = bytearray(kind(bytearray(self.chance.choice(self.blobs))))
        return kind.__name__, self.seal(blob)

    def seal(self, blob: bytearray) -> bytes:
        """Give a handle the checksum that fits it, so that other checks refuse it."""
        if len(blob) >= CHECKSUM + 4:
            blob[CHECKSUM : CHECKSUM + 4] = bytes(4)
            blob[CHECKSUM : CHECKSUM + 4] = struct.pack("<I", crc32(blob))
        return bytes(blob)

    def flip(self, blob: bytearray) -> bytearray:
        for _ in range(self.chance.choice((1, 1, 1, 2, 3, 8))):
            bit = self.chance.randrange(len(blob) * 8)
            blob[bit // 8] ^= 1 << bit % 8
        return blob

    def truncate(self, blob: bytearray) -> bytearray:
        return self._with_total(blob[: self.chance.randrange(len(blob))])

    def extend(self, blob: bytearray) -> bytearray:
        more = self.chance.choice((1, 2, 8, 100, 512, 5000))
        blob += self.chance.choice((bytes(more), self.chance.randbytes(more)))
        if self.chance.random() < 0.5:
            # As if the rest were the vendor's bytes of a raw handle.
            struct.pack_into("<H", blob, self.lengths + 3, more)
            blob[6] |= self.chance.choice((0, 2))
        return self._with_total(blob)

    def splice_fields(self, blob: bytearray) -> bytearray:
        other = self.chance.choice(self.blobs)
        for start, end in self.chance.sample(self.fields, self.chance.randint(1, 4)):
            blob[start:end] = other[start:end]
        return blob

    def splice_tail(self, blob: bytearray) -> bytearray:
        other = self.chance.choice(self.blobs)
        at = self.chance.randrange(len(blob))
        return blob[:at] + other[at:]

    def overwrite_number(self, blob: bytearray) -> bytearray:
        for _ in range(self.chance.choice((1, 1, 2))):
            _, at, layout = self.chance.choice(self.numbers)
            (old,) = struct.unpack_from(layout, blob, at)
            bits = 8 * struct.calcsize(layout)
            near = (old - 1, old + 1, old * 2, old // 2)
            edges = (0, 1, 2, 4096, 5000, 2**31, 2**63, -1)
            drawn = (self.chance.getrandbits(bits), self.chance.randrange(8192))
            new = self.chance.choice((*near, *edges, *drawn))
            struct.pack_into(layout, blob, at, new % 2**bits)
        return blob

    def overwrite_bytes(self, blob: bytearray) -> bytearray:
        start = self.chance.randrange(len(blob))
        size = min(self.chance.randint(1, 24), len(blob) - start)
        blob[start : start + size] = self.chance.choice((bytes(size), self.chance.randbytes(size)))
        return blob

    def rename(self, blob: bytearray) -> bytearray:
        names = [self.chance.choice(WORDS) for _ in range(3)]
        kept = blob[self.lengths : self.lengths + 3]
        end, start = len(blob) - self.tail, self.names
        for index, length in enumerate(kept):
            if self.chance.random() < 0.6:
                names[index] = bytes(blob[start : start + length])
            start += length
        blob[self.names : end] = b"".join(names)
        blob[self.lengths : self.lengths + 3] = bytes(map(len, names))
        return self._with_total(blob)

    def cut_out(self, blob: bytearray) -> bytearray:
        start = self.chance.randrange(len(blob))
        del blob[start : start + self.chance.randint(1, 16)]
        return self._with_total(blob)

    def _with_total(self, blob: bytearray) -> bytearray:
        if len(blob) >= CHECKSUM and self.chance.random() < 0.8:
            struct.pack_into("<I", blob, 8, len(blob))
        return blob


class Tracer(TracingDriver):
    """Notes besides where memory is mapped, and how much of it."""

    def __init__(self, inner: Driver) -> None:
        super().__init__(inner)
        self.mapped: dict[int, int] = {}

    @override
    def map(self, imported: Imported, *, remappable: bool) -> Mapped:
        mapped = super().map(imported, remappable=remappable)
        self.mapped[mapped.pointer] = imported.capacity
        return mapped

    @override
    def unmap(self, mapped: Mapped) -> None:
        self.mapped.pop(mapped.pointer, None)
        super().unmap(mapped)

    @override
    def _map_readonly(self, block: Block) -> Mapped:
        mapped = super()._map_readonly(block)
        self.mapped[mapped.pointer] = block.capacity
        return mapped

    @override
    def _unmap_readonly(self, mapped: Mapped) -> None:
        self.mapped.pop(mapped.pointer, None)
        super()._unmap_readonly(mapped)


class Importer:
    """Tries wrong handles and says what should not have happened."""

    def __init__(self, blobs: list[bytes], seed: int) -> None:
        self.tracers: list[Tracer] = []
        current().registry.adapt(self._trace)
        self.chance = random.Random(seed)
        self.outcomes: Counter[str] = Counter()
        self.accepted: Counter[str] = Counter()
        self.problems: list[str] = []
        self.slowest_s = 0.0
        self.begin(blobs)

    def begin(self, blobs: list[bytes]) -> None:
        """Export memory of this process: an owner that is the importer takes another path."""
        self.own = [share(crossmem.device(f"emulated:{n}"), 5000) for n in (0, 1)]
        own_blobs = [handle.to_bytes() for _, handle in self.own]
        self.mutate = Mutator([*blobs, *own_blobs], self.chance)
        self.handles = [crossmem.ShareableHandle.from_bytes(one) for one in (*blobs, *own_blobs)]
        self.contents = {(one.owner, one.allocation): expected_of(one) for one in self.handles}

    def _trace(self, driver: Driver) -> Driver:
        self.tracers.append(Tracer(driver))
        return self.tracers[-1]

    def driver_calls(self) -> int:
        return sum(tracer.calls.total() for tracer in self.tracers)

    def attach(self, blob: bytes, options: dict[str, Any]) -> Any:
        """Attach a handle; return the mapping."""
        return crossmem.attach(blob, **options)

    def detach(self, mapping: Any) -> None:
        """End what :meth:`attach` has begun."""
        mapping.unmap()

    def may_call(self, error: crossmem.CrossmemError) -> bool:
        """Whether a refused attach may call a driver."""
        return False

    def attempt(self) -> None:
        kind, blob = self.mutate()
        options: dict[str, Any] = {"timeout": 60.0}
        if self.chance.random() < 0.3:
            options["readonly"] = self.chance.choice((True, "advisory"))
        if self.chance.random() < 0.1:
            options["device"] = self.chance.choice(("emulated:0", "emulated:1"))
        calls, begin = self.driver_calls(), time.monotonic()
        try:
            mapping = self.attach(blob, options)
        except crossmem.CrossmemError as error:
            self.outcomes[type(error).__name__] += 1
            if self.driver_calls() != calls and not self.may_call(error):
                self.problem("refused, but a driver was called", kind, blob, options, error)
            if isinstance(error, crossmem.OwnerUnresponsiveError):
                self.problem("ran into its timeout", kind, blob, options, error)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the finding
            self.problem("raised what is no CrossmemError", kind, blob, options, error)
        else:
            self.accepted[kind] += 1
            self.check(mapping, kind, blob, options)
            self.detach(mapping)
        took_s = time.monotonic() - begin
        self.slowest_s = max(self.slowest_s, took_s)
        if took_s > MAX_ATTEMPT_S:
            self.problem(f"took {took_s:.1f} s", kind, blob, options, None)

    def check(self, mapping: Any, kind: str, blob: bytes, options: dict[str, Any]) -> None:
        """Look where an accepted handle's mapping lies and what it shows."""
        handle = crossmem.ShareableHandle.from_bytes(blob)
        contents = self.contents.get((handle.owner, handle.allocation), b"")
        end = handle.offset + handle.length
        if contents[handle.offset : end] != mapping.read() or mapping.nbytes != handle.length:
            self.problem("shows other bytes", kind, blob, options, None)
        if end > len(contents):
            self.problem("reaches beyond the allocation", kind, blob, options, None)
        if handle.access == "ro" and not mapping.readonly:
            self.problem("became writable", kind, blob, options, None)
        base = mapping.ptr - handle.offset
        known = {memory.ptr: memory.capacity for memory, _ in self.own}
        for tracer in self.tracers:
            known |= tracer.mapped
        if handle.offset + mapping.nbytes > known.get(base, 0):
            self.problem("lies outside of shared memory", kind, blob, options, None)

    def problem(
        self, what: str, kind: str, blob: bytes, options: dict[str, Any], error: object
    ) -> None:
        self.problems.append(f"{kind} {blob.hex()} {options}: {what}: {error!r}")

    def run(self, count: int) -> dict[str, Any]:
        self.held: list[Any] = []
        self.warm_up()
        before = self.footprint()
        for index in range(count):
            if index % 1000 == 0:
                self.hold_some()
            self.attempt()
            if len(self.problems) > 20:
                break
        self.let_go()
        after = self.footprint()
        if after != before:
            self.problems.append(f"left behind: {before} became {after}")
        self.problems += [line for tracer in self.tracers for line in tracer.violations]
        self.end()
        return {
            "problems": self.problems,
            "outcomes": self.outcomes,
            "accepted": self.accepted,
            "slowest_s": self.slowest_s,
        }

    def end(self) -> None:
        """Check this process's own memory, and free it."""
        self.problems += [
            f"own memory was changed: {handle!r}"
            for memory, handle in self.own
            if memory.read() != expected_of(handle)
        ]
        for memory, _ in self.own:
            memory.free()

    def warm_up(self) -> None:
        """Connect to every exporter, so that the footprint does not grow by that any more."""
        for handle in self.handles:
            try:
                crossmem.attach(handle).unmap()
            except crossmem.StaleHandleError:
                continue

    def hold_some(self) -> None:
        """Hold other memory than before: it matters whether an import finds the memory open."""
        self.let_go()
        for handle in self.handles:
            if self.chance.random() < 0.4:
                try:
                    self.held.append(crossmem.attach(handle))
                except crossmem.StaleHandleError:
                    continue

    def let_go(self) -> None:
        for mapping in self.held:
            mapping.unmap()
        self.held.clear()

    def footprint(self) -> dict[str, Any]:
        gc.collect()
        crossmem.collect()
        live: Counter[str] = Counter()
        for tracer in self.tracers:
            live.update(tracer.live)
        return {
            "descriptors": sum(1 for _ in Path("/proc/self/fd").iterdir()),
            "threads": threading.active_count(),
            **live,
        }


def main() -> None:
    if sys.argv[1] == "export":
        export()
        return
    blobs = [bytes.fromhex(one) for one in json.loads(sys.stdin.readline())]
    print(json.dumps(Importer(blobs, int(sys.argv[3])).run(int(sys.argv[2]))), flush=True)


if __name__ == "__main__":
    main()
